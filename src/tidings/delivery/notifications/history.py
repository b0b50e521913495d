"""Explains a notification: from its acceptance over its schedule and each attempt to what the provider told."""

from typing import Any

import msgspec

from tidings.delivery.engine import NotificationEngine
from tidings.delivery.notifications.status import DELIVERIES_MAX, Status, status_of
from tidings.delivery.rows import read
from tidings.domain.notifications.delivery import Attempt, Delivery, Step
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.schedules.schedule import Event, Schedule


class HistoryLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened: when, what, and to which delivery. `late_us` is the time behind its due moment."""

    at: int
    event: str
    delivery: str | None = None
    attempt: int | None = None
    channel: ChannelName | None = None
    provider: str | None = None
    provider_id: str | None = None
    due: int | None = None
    reason: str = ""
    late_us: int | None = None


class Explanation(msgspec.Struct, frozen=True):
    """A notification as it stands, its schedule if that is still known, and what happened to it, oldest first."""

    status: Status
    schedule: Schedule | None
    lines: list[HistoryLine]


class NotificationHistory:
    """Puts together what is known of a notification, in the order in which it happened."""

    def __init__(self, schedules: NotificationEngine) -> None:
        self._schedules = schedules

    async def explain(self, tenant: str, notification_id: str) -> list[HistoryLine] | None:
        """Its story, oldest first; None if there is none, or it was never accepted."""
        found = await self.explanation(tenant, notification_id)
        return None if found is None else found.lines

    async def explanation(self, tenant: str, notification_id: str) -> Explanation | None:
        """A notification with its story: one read, however many deliveries it has."""
        found = await self._schedules.trace(tenant, notification_id, DELIVERIES_MAX)
        if found.notification is None:
            return None
        stored, schedule = read(found.notification, Notification), found.schedule
        deliveries = [read(each, Delivery) for each in reversed(found.deliveries)]
        status = status_of(stored, schedule, deliveries)
        if status is None:
            return None
        if stored.first is not None:
            skipped = HistoryLine(stored.created, "skipped", reason=f"duplicate of {stored.first}")
            return Explanation(status, schedule, [skipped])
        lines = [_event(event) for event in found.events]
        if not any(line.event == "accepted" for line in lines):
            lines.insert(0, HistoryLine(stored.created, "accepted"))
        for delivery in deliveries:
            lines += _story(delivery)
        lines.sort(key=lambda line: line.at)  # stable: what happened at one moment stays in order
        return Explanation(status, schedule, lines)


def _event(event: Event) -> HistoryLine:
    count = "" if event.count is None or event.count == 1 else f" ({event.count} occurrences)"
    return HistoryLine(event.at, event.event, due=event.due, reason=(event.reason or "") + count)


def _story(delivery: Delivery) -> list[HistoryLine]:
    lines = [line for attempt in delivery.attempts for line in _attempt(delivery, attempt)]
    lines += [_step(delivery, step) for step in delivery.history]
    last = max((line.at for line in lines), default=0)
    is_told = delivery.state == "pending" and delivery.history  # by its last step: why, and until when
    told_later = {"processing", "delivered", "bounced", "complained"}
    if not is_told and delivery.state not in told_later and delivery.changed >= last:
        lines.append(
            HistoryLine(
                delivery.changed,
                delivery.state,
                delivery.name,
                channel=delivery.channel,
                due=delivery.next_try if delivery.state == "pending" else None,
                reason=delivery.reason,
            )
        )
    about: dict[str, Any] = {"delivery": delivery.name, "channel": delivery.channel, "provider": delivery.provider}
    told = [HistoryLine(news.at, news.state, reason=news.reason, **about) for news in delivery.news]
    return lines + told


def _step(delivery: Delivery, step: Step) -> HistoryLine:
    reason = ": ".join(text for text in (step.reason, step.detail) if text)
    count = "" if step.times == 1 else f" ({step.times} times)"
    return HistoryLine(
        step.at,
        step.event,
        delivery.name,
        channel=step.channel,
        provider=step.provider or None,
        due=step.until,
        reason=reason + count,
    )


def _attempt(delivery: Delivery, attempt: Attempt) -> list[HistoryLine]:
    """Its beginning, and its end if it has one: an attempt without an end is under way, or was cut off."""
    begun = HistoryLine(
        attempt.begun,
        "attempt",
        delivery.name,
        attempt.number,
        attempt.channel,
        attempt.provider,
        late_us=max(0, attempt.begun - delivery.was_due),
    )
    if attempt.ended is None:
        return [begun]
    ended = HistoryLine(
        attempt.ended,
        attempt.outcome or "ended",
        delivery.name,
        attempt.number,
        attempt.channel,
        attempt.provider,
        attempt.provider_id,
        reason=attempt.detail,
    )
    return [begun, ended]
