"""From what is asked, and for whom, to a notification and the request for its schedule."""

from typing import Literal

import msgspec

from tidings.delivery.asking import Notify
from tidings.delivery.filing import recipient
from tidings.delivery.proving import Proving
from tidings.delivery.templates import Compiled
from tidings.delivery.timing import request_for
from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import CHANNEL_NAMES, SMS_CHARACTERS_MAX, ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.user import User
from tidings.domain.schedules.iso8601 import parse_exact_duration
from tidings.domain.schedules.request import Request

UTC = "UTC"


class Draft(msgspec.Struct, frozen=True):
    """A notification for one person, ready to be kept, and its schedule."""

    notification: Notification
    request: Request
    whom: str


class Plan(msgspec.Struct, frozen=True):
    """What is the same for everybody: the request, its template, the version that is pinned, and its expiry.

    `since` is when it was asked, where that is not now; `served` are the channels that a provider serves here, None if
    that is not known.
    """

    ask: Notify
    tenant: str
    now: int
    content: str
    batch: str | None
    proving: Proving
    template: Compiled | None = None
    pinned: int | None = None
    served: frozenset[ChannelName] | None = None
    since: int | None = None


def draft(plan: Plan, notification_id: str, user: User | None) -> Draft:
    """For a user, or for the address that is asked for; `Invalid` if it cannot be sent as it stands."""
    ask = plan.ask
    channels = _channels(plan, user)
    plan.proving.check(channels, user)
    notification = Notification(
        notification_id,
        plan.tenant,
        channels,
        None if user is None else user.id,
        ask.to,
        ask.template,
        plan.pinned,
        ask.variables,
        ask.inline(),
        ask.wanted_spread(),
        ask.priority,
        ask.category,
        _expiry(plan),
        ask.locale,
        ask.collapse,
        plan.batch,
        plan.now,
        plan.content,
    )
    whom = recipient(notification)
    zone = UTC if user is None else user.zone
    return Draft(notification, request_for(ask, notification, zone, whom, plan.now, plan.since), whom)


def _channels(plan: Plan, user: User | None) -> tuple[ChannelName, ...]:
    """The channels asked for, else those that have a part and an address; one of them must reach the user."""
    named, field = plan.ask.asked_channels(), "channels"
    if plan.ask.channel is not None:
        field = "channel"
    spoken = _spoken(plan)
    for channel in named:
        if channel not in spoken:
            raise Invalid(
                field,
                f"the template {plan.ask.template} has no part for {channel}: leave the channel out, or add the part",
            )
    served = CHANNEL_NAMES if plan.served is None else tuple(each for each in CHANNEL_NAMES if each in plan.served)
    for channel in named:
        if channel not in served:
            raise Invalid(
                field, f"no provider for {channel} is configured: choose one of {', '.join(served)}, or configure one"
            )
    if user is None:
        return named
    wanted = named or tuple(channel for channel in served if channel in spoken)
    reached = tuple(channel for channel in wanted if user.addresses(channel))
    if not reached:
        means = ", ".join(wanted) or "any channel"
        raise Invalid("user", f"{user.id!r} has no address for {means}: add one, or choose another channel")
    return named or reached


def _spoken(plan: Plan) -> tuple[ChannelName, ...]:
    """The channels that there are words for."""
    if plan.template is not None:
        return plan.template.channels
    content = plan.ask.inline()
    assert content is not None, "without a template there is content"
    if plan.ask.asked_channels():
        return CHANNEL_NAMES
    long: tuple[Literal["sms"], ...] = ("sms",) if len(content.text) > SMS_CHARACTERS_MAX else ()
    return tuple(channel for channel in CHANNEL_NAMES if channel not in long)


def _expiry(plan: Plan) -> int | None:
    if plan.ask.expires_after is not None:
        return parse_exact_duration(plan.ask.expires_after, "expires_after")
    return None if plan.template is None else plan.template.template.stale_after_us
