"""What to do with a delivery at the time when it would be sent. Pure: everything that decides on it is given."""

import msgspec

from tidings.delivery.worker.context import DeliveryContext, addresses, is_over
from tidings.domain.notifications.delivery import QUIET_HOURS, State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.quiet_hours import quiet_until
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.notifications.user import accepts
from tidings.ports import Address


class AlreadyDone(msgspec.Struct, frozen=True, gc=False):
    """Nothing is left to do: it is settled, or a later turn of it is on the timeline."""


class ClaimedElsewhere(msgspec.Struct, frozen=True, gc=False):
    """Another worker has claimed it: look again when the claim ends."""

    until: int


class Defer(msgspec.Struct, frozen=True, gc=False):
    """Back to the timeline without an attempt."""

    until: int
    reason: str
    detail: str = ""


class Fallback(msgspec.Struct, frozen=True, gc=False):
    """On to the channel of this number, at once."""

    channel: int
    reason: str


class Finish(msgspec.Struct, frozen=True, gc=False):
    """Settled without an attempt."""

    state: State
    reason: str


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send it to these addresses."""

    channel: ChannelName
    addresses: tuple[Address, ...]


NotSent = AlreadyDone | ClaimedElsewhere | Defer | Fallback | Finish
Decision = NotSent | Send


def decide(context: DeliveryContext, backoff: Backoff, now: int) -> Decision:
    """Whether it is sent now, later, through another channel, or not at all. It is too late only if it expires."""
    delivery, notification = context.delivery, context.notification
    if is_over(delivery, context.job):
        return AlreadyDone()
    if delivery.claim is not None and now < delivery.claim.until:
        return ClaimedElsewhere(delivery.claim.until)
    if notification.cancelled is not None:
        return Finish("cancelled", "cancelled")
    if context.is_replaced:
        return Finish("cancelled", "replaced")
    if context.is_channel_removed:
        return Finish("skipped", "channel_removed")
    if is_expired(context, now):
        return Finish("expired", "expired")
    if notification.user is not None and context.user is None:
        return Finish("failed", "unknown_user")
    if delivery.next_try is not None and now < delivery.next_try:
        return Defer(delivery.next_try, delivery.reason or "early")
    if delivery.attempts and _kills_workers(context, backoff, now):
        return fallback_or_finish(context, "failed", "cut_off")
    return _by_preferences(context, now)


def is_expired(context: DeliveryContext, at: int) -> bool:
    """Whether it would be sent too late then."""
    expires_after_us = context.notification.expires_after_us
    return expires_after_us is not None and at > context.delivery.due + expires_after_us


def _kills_workers(context: DeliveryContext, backoff: Backoff, now: int) -> bool:
    """Whether as many attempts as allowed, over as long as allowed, ended with the worker: it would never end."""
    begun = [one.begun for one in context.delivery.fresh if one.ended is None and one.channel == context.channel]
    return len(begun) >= backoff.attempts_max and now > begun[0] + backoff.age_us_max


def _by_preferences(context: DeliveryContext, now: int) -> Decision:
    """What suppressions, preferences and quiet hours allow, and through which addresses."""
    notification, user, channel = context.notification, context.user, context.channel
    found = addresses(notification, user, channel)
    allowed = tuple(address for address in found if address not in context.suppressed)
    if not allowed:
        return fallback_or_finish(context, "skipped", "suppressed" if found else "no_address")
    if user is None:
        return Send(channel, allowed)
    if not accepts(user, notification.category, channel):
        return fallback_or_finish(context, "skipped", "opted_out")
    quiet = user.quiet
    if quiet is not None and not (quiet.spares_high and notification.priority == "high"):
        until = quiet_until(quiet, user.zone, now)
        if until > now and quiet.then == "drop":
            return Finish("skipped", QUIET_HOURS)
        if until > now:
            return Finish("expired", QUIET_HOURS) if is_expired(context, until) else Defer(until, QUIET_HOURS)
    return Send(channel, allowed)


def fallback_or_finish(context: DeliveryContext, state: State, reason: str) -> Fallback | Finish:
    """The next channel if the first that works is enough and there is one; otherwise the end.

    A push that one device has got is sent, although the others cannot get it any more.
    """
    if context.delivery.has_arrived:
        return Finish("sent", reason)
    following = context.job.channel + 1
    if context.notification.spread == "first" and following < len(context.notification.channels):
        return Fallback(following, reason)
    return Finish(state, reason)
