"""What became of notifications, in a Python program's own types."""

from datetime import datetime
from typing import Any

import msgspec

from tidings.delivery.explaining import Line as StoredStory
from tidings.delivery.notifying import Accepted
from tidings.delivery.status import Status
from tidings.delivery.suppressions import Suppression
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Attempt as StoredAttempt
from tidings.domain.notifications.delivery import Delivery as StoredDelivery
from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Priority
from tidings.domain.notifications.user import InboxEntry as StoredLine
from tidings.library.schedule_values import moment_of


class Notified(msgspec.Struct, frozen=True):
    """What became of a request for one person: `scheduled`, `unchanged`, `skipped`, `rejected` or `conflict`.

    `first` is the notification that a duplicate would repeat; `rejected` names the `field` at fault; `note` is what to
    know of its time; `state` is how that stands which an `unchanged` one repeats: it may be cancelled.
    """

    id: str
    outcome: str
    user: str | None
    due_at: datetime | None
    channels: tuple[ChannelName, ...]
    reason: str | None
    field: str | None
    first: str | None
    batch: str | None
    note: str | None = None
    state: State | None = None


class Attempt(msgspec.Struct, frozen=True):
    """One call of a provider; without `ended_at` it is under way, or was cut off."""

    number: int
    channel: ChannelName
    provider: str
    begun_at: datetime
    ended_at: datetime | None
    outcome: str
    detail: str
    provider_id: str | None


class News(msgspec.Struct, frozen=True):
    """What a provider told later."""

    at: datetime
    state: str
    reason: str


class Delivery(msgspec.Struct, frozen=True):
    """What became of one occurrence of a notification: through what, how late, and under which id of the provider."""

    name: str
    notification: str
    state: State
    reason: str
    channel: ChannelName | None
    user: str | None
    address: str | None
    provider: str | None
    provider_id: str | None
    due_at: datetime
    sent_at: datetime | None
    next_try_at: datetime | None
    attempts: tuple[Attempt, ...]
    news: tuple[News, ...]

    @property
    def late_ms(self) -> float | None:
        """How long after its due time it was sent; None if it was not."""
        return None if self.sent_at is None else (self.sent_at - self.due_at).total_seconds() * 1_000


class Notification(msgspec.Struct, frozen=True):
    """A notification as it stands: its state and why, when it is due, and its deliveries, the latest last.

    `first` is the notification that a duplicate, which was skipped, would have repeated.
    """

    id: str
    state: State
    reason: str
    due_at: datetime | None
    occurrence: int
    user: str | None
    to: str | Device | None
    channels: tuple[ChannelName, ...]
    template: str | None
    version: int | None
    variables: dict[str, Any]
    priority: Priority
    category: str
    batch: str | None
    accepted_at: datetime
    cancelled_at: datetime | None
    deliveries: tuple[Delivery, ...]
    first: str | None = None


class Story(msgspec.Struct, frozen=True):
    """Something that happened to a notification: when, what, and to which delivery."""

    at: datetime
    event: str
    delivery: str | None
    attempt: int | None
    channel: ChannelName | None
    provider: str | None
    provider_id: str | None
    due_at: datetime | None
    reason: str
    late_ms: float | None


class InboxLine(msgspec.Struct, frozen=True):
    """What a person is told inside the product, when it came, and when she read it."""

    id: str
    user: str
    title: str
    body: str
    at: datetime
    read_at: datetime | None


class Suppressed(msgspec.Struct, frozen=True):
    """An address that nothing is sent to: why, since when, and for which category (None: nothing at all)."""

    channel: ChannelName
    address: str | None
    reason: str
    since: datetime
    category: str | None


def notified_of(accepted: Accepted) -> Notified:
    """What became of a request, as the program sees it."""
    return Notified(
        accepted.id,
        accepted.outcome,
        accepted.user,
        _maybe(accepted.due),
        accepted.channels,
        accepted.reason,
        accepted.field,
        accepted.first,
        accepted.batch,
        accepted.note,
        accepted.state,
    )


def notification_of(status: Status) -> Notification:
    """A notification as the program sees it."""
    kept = status.notification
    return Notification(
        kept.id,
        status.state,
        status.reason,
        _maybe(status.due),
        status.occurrence,
        kept.user,
        kept.to,
        kept.channels,
        kept.template,
        kept.version,
        kept.variables,
        kept.priority,
        kept.category,
        kept.batch,
        moment_of(kept.created),
        _maybe(kept.cancelled),
        tuple(map(delivery_of, status.deliveries)),
        kept.first,
    )


def delivery_of(delivery: StoredDelivery) -> Delivery:
    """A delivery as the program sees it."""
    return Delivery(
        delivery.name,
        delivery.notification,
        delivery.state,
        delivery.reason,
        delivery.channel,
        delivery.user,
        delivery.address,
        delivery.provider,
        delivery.provider_id,
        moment_of(delivery.was_due),
        _maybe(delivery.sent),
        _maybe(delivery.next_try),
        tuple(map(_attempt, delivery.attempts)),
        tuple(News(moment_of(news.at), news.state, news.reason) for news in delivery.news),
    )


def story_of(line: StoredStory) -> Story:
    """A line of a notification's story as the program sees it."""
    return Story(
        moment_of(line.at),
        line.event,
        line.delivery,
        line.attempt,
        line.channel,
        line.provider,
        line.provider_id,
        _maybe(line.due),
        line.reason,
        None if line.late_us is None else line.late_us / 1_000,
    )


def line_of(line: StoredLine) -> InboxLine:
    """A line of an inbox as the program sees it."""
    return InboxLine(line.id, line.user, line.title, line.body, moment_of(line.at), _maybe(line.read))


def suppressed_of(kept: Suppression) -> Suppressed:
    """A suppression as the program sees it."""
    return Suppressed(kept.channel, kept.address, kept.reason, moment_of(kept.since), kept.category)


def _attempt(attempt: StoredAttempt) -> Attempt:
    return Attempt(
        attempt.number,
        attempt.channel,
        attempt.provider,
        moment_of(attempt.begun),
        _maybe(attempt.ended),
        attempt.outcome,
        attempt.detail,
        attempt.provider_id,
    )


def _maybe(at: int | None) -> datetime | None:
    return None if at is None else moment_of(at)
