"""Notifications, deliveries, inboxes and suppressions in Python types."""

from datetime import datetime
from typing import Any

import msgspec

from tidings.delivery.accept.request import AcceptResult
from tidings.delivery.notifications.history import HistoryLine as StoredEvent
from tidings.delivery.notifications.status import Status
from tidings.delivery.people.suppressions import Suppression
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Attempt as StoredAttempt
from tidings.domain.notifications.delivery import Delivery as StoredDelivery
from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Priority
from tidings.domain.notifications.user import InboxEntry as StoredLine
from tidings.library.schedule_values import moment_of


class Notified(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one recipient: `scheduled`, `unchanged`, `skipped`, `rejected` or `conflict`.

    `first` is the notification that a duplicate would repeat. A `rejected` one has the `field` at fault. `note` is a
    remark on its time. `state` is that of the notification that an `unchanged` one repeats: it may be cancelled.
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


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a provider. Without `ended_at` it is in progress, or was interrupted."""

    number: int
    channel: ChannelName
    provider: str
    begun_at: datetime
    ended_at: datetime | None
    outcome: str
    detail: str
    provider_id: str | None


class ProviderEvent(msgspec.Struct, frozen=True):
    """What a provider reported after it had accepted a message."""

    at: datetime
    state: str
    reason: str


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One occurrence of a notification: its state, provider, attempts and lateness."""

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
    news: tuple[ProviderEvent, ...]

    @property
    def late_ms(self) -> float | None:
        """How long after its due time it was sent; None if it was not."""
        return None if self.sent_at is None else (self.sent_at - self.due_at).total_seconds() * 1_000


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """A notification: its state and the reason, when it is due, and its deliveries, the latest last.

    `first` is the notification that a skipped duplicate would have repeated.
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


class NotificationEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a notification's history: what happened, when, and to which delivery."""

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


class InboxLine(msgspec.Struct, frozen=True, kw_only=True):
    """A message in an inbox, when it arrived, and when the user read it."""

    id: str
    user: str
    title: str
    body: str
    at: datetime
    read_at: datetime | None


class Suppressed(msgspec.Struct, frozen=True, kw_only=True):
    """An address that nothing is sent to: why, since when, and for which category (None: all)."""

    channel: ChannelName
    address: str | None
    reason: str
    since: datetime
    category: str | None


def notified_of(accepted: AcceptResult) -> Notified:
    """The outcome for one recipient, in Python types."""
    return Notified(
        id=accepted.id,
        outcome=accepted.outcome,
        user=accepted.user,
        due_at=_moment_or_none(accepted.due),
        channels=accepted.channels,
        reason=accepted.reason,
        field=accepted.field,
        first=accepted.first,
        batch=accepted.batch,
        note=accepted.note,
        state=accepted.state,
    )


def notification_of(status: Status) -> Notification:
    """A notification, in Python types."""
    stored = status.notification
    return Notification(
        id=stored.id,
        state=status.state,
        reason=status.reason,
        due_at=_moment_or_none(status.due),
        occurrence=status.occurrence,
        user=stored.user,
        to=stored.to,
        channels=stored.channels,
        template=stored.template,
        version=stored.version,
        variables=stored.variables,
        priority=stored.priority,
        category=stored.category,
        batch=stored.batch,
        accepted_at=moment_of(stored.created),
        cancelled_at=_moment_or_none(stored.cancelled),
        deliveries=tuple(map(delivery_of, status.deliveries)),
        first=stored.first,
    )


def delivery_of(delivery: StoredDelivery) -> Delivery:
    """A delivery, in Python types."""
    return Delivery(
        name=delivery.name,
        notification=delivery.notification,
        state=delivery.state,
        reason=delivery.reason,
        channel=delivery.channel,
        user=delivery.user,
        address=delivery.address,
        provider=delivery.provider,
        provider_id=delivery.provider_id,
        due_at=moment_of(delivery.was_due),
        sent_at=_moment_or_none(delivery.sent),
        next_try_at=_moment_or_none(delivery.next_try),
        attempts=tuple(map(_attempt, delivery.attempts)),
        news=tuple(ProviderEvent(moment_of(news.at), news.state, news.reason) for news in delivery.news),
    )


def event_of(line: StoredEvent) -> NotificationEvent:
    """A line of a notification's history, in Python types."""
    return NotificationEvent(
        at=moment_of(line.at),
        event=line.event,
        delivery=line.delivery,
        attempt=line.attempt,
        channel=line.channel,
        provider=line.provider,
        provider_id=line.provider_id,
        due_at=_moment_or_none(line.due),
        reason=line.reason,
        late_ms=None if line.late_us is None else line.late_us / 1_000,
    )


def line_of(line: StoredLine) -> InboxLine:
    """A message of an inbox, in Python types."""
    return InboxLine(
        id=line.id,
        user=line.user,
        title=line.title,
        body=line.body,
        at=moment_of(line.at),
        read_at=_moment_or_none(line.read),
    )


def suppressed_of(stored: Suppression) -> Suppressed:
    """A suppression, in Python types."""
    return Suppressed(
        channel=stored.channel,
        address=stored.address,
        reason=stored.reason,
        since=moment_of(stored.since),
        category=stored.category,
    )


def _attempt(attempt: StoredAttempt) -> Attempt:
    return Attempt(
        number=attempt.number,
        channel=attempt.channel,
        provider=attempt.provider,
        begun_at=moment_of(attempt.begun),
        ended_at=_moment_or_none(attempt.ended),
        outcome=attempt.outcome,
        detail=attempt.detail,
        provider_id=attempt.provider_id,
    )


def _moment_or_none(at: int | None) -> datetime | None:
    return None if at is None else moment_of(at)
