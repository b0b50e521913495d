"""What becomes of a delivery at the moment when it would leave. Pure: everything that was looked up is given."""

import msgspec

from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Delivery, State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.domain.notifications.quiet_hours import quiet_until
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.notifications.user import User, accepts

Address = str | Device


class Pass(msgspec.Struct, frozen=True, gc=False):
    """Nothing is left to do: it is settled, or a later turn of it is on the timeline."""


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Another worker holds a claim: look again when it ends."""

    until: int


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Back onto the timeline, without an attempt."""

    until: int
    reason: str
    detail: str = ""


class Next(msgspec.Struct, frozen=True, gc=False):
    """On to the channel of this number, at once."""

    channel: int
    reason: str


class End(msgspec.Struct, frozen=True, gc=False):
    """Over, without an attempt."""

    state: State
    reason: str


class Send(msgspec.Struct, frozen=True, gc=False):
    """Go, to these."""

    channel: ChannelName
    addresses: tuple[Address, ...]


Decision = Pass | Hold | Wait | Next | End | Send


class Case(msgspec.Struct, frozen=True):
    """All that is known. `delivery` is as it is kept, or new; `version` 0 says that it is not kept yet.

    `user` None where it has a bare address, or there is no such user any more. `noted` is the version of the
    notification's document, None where the record carries all of it: it is sent only while that has not changed.
    """

    tenant: str
    errand: DeliveryJob
    notification: Notification
    delivery: Delivery
    version: int
    user: User | None = None
    suppressed: frozenset[Address] = frozenset()
    noted: int | None = None

    @property
    def channel(self) -> ChannelName:
        return self.notification.channels[self.errand.channel]

    @property
    def is_urgent(self) -> bool:
        return self.notification.priority == "high"


def addresses(notification: Notification, user: User | None, channel: ChannelName) -> tuple[Address, ...]:
    """Where it would go by a channel."""
    if notification.to is not None:
        return (notification.to,)
    return user.addresses(channel) if user is not None else ()


def is_over(delivery: Delivery, errand: DeliveryJob) -> bool:
    """Whether the record of this turn has nothing left to do."""
    return delivery.is_settled or delivery.turn > errand.attempt


def decide(case: Case, backoff: Backoff, now: int) -> Decision:
    """Whether it goes now, later, by another way, or not at all. Only what was asked for says that it is too late."""
    delivery, notification = case.delivery, case.notification
    if is_over(delivery, case.errand):
        return Pass()
    if delivery.claim is not None and now < delivery.claim.until:
        return Hold(delivery.claim.until)
    if notification.cancelled is not None:
        return End("cancelled", "cancelled")
    if _is_stale(case, now):
        return End("expired", "expired")
    if notification.user is not None and case.user is None:
        return End("failed", "unknown_user")
    if delivery.next_try is not None and now < delivery.next_try:
        return Wait(delivery.next_try, delivery.reason or "early")
    if _is_deadly(case, backoff, now):
        return onwards(case, "failed", "cut_off")
    return _by_wish(case, now)


def _is_stale(case: Case, at: int) -> bool:
    """Whether it would be told too late then."""
    expires_after_us = case.notification.expires_after_us
    return expires_after_us is not None and at > case.delivery.due + expires_after_us


def _is_deadly(case: Case, backoff: Backoff, now: int) -> bool:
    """Whether workers have died of it, as often and for as long as it may be tried: else it would have no end."""
    begun = [one.begun for one in case.delivery.fresh if one.ended is None and one.channel == case.channel]
    return len(begun) >= backoff.attempts_max and now > begun[0] + backoff.age_us_max


def _by_wish(case: Case, now: int) -> Decision:
    """What the user's preferences and quiet hours allow, and by which addresses."""
    notification, user, channel = case.notification, case.user, case.channel
    found = addresses(notification, user, channel)
    open_to = tuple(address for address in found if address not in case.suppressed)
    if not open_to:
        return onwards(case, "skipped", "suppressed" if found else "no_address")
    if user is None:
        return Send(channel, open_to)
    if not accepts(user, notification.category, channel):
        return onwards(case, "skipped", "opted_out")
    quiet = user.quiet
    if quiet is not None and not (quiet.spares_high and notification.priority == "high"):
        until = quiet_until(quiet, user.zone, now)
        if until > now and quiet.then == "drop":
            return End("skipped", "quiet_hours")
        if until > now:
            return End("expired", "quiet_hours") if _is_stale(case, until) else Wait(until, "quiet_hours")
    return Send(channel, open_to)


def onwards(case: Case, state: State, reason: str) -> Next | End:
    """The next channel where the first that works is enough and there is one more; else its end."""
    following = case.errand.channel + 1
    if case.notification.spread == "first" and following < len(case.notification.channels):
        return Next(following, reason)
    return End(state, reason)
