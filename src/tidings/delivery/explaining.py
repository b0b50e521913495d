"""Explains a notification: from its acceptance over its schedule and each attempt to what the provider told."""

from typing import Any

import msgspec

from tidings.clock import Clock
from tidings.delivery.filing import notification_key, read
from tidings.delivery.schedules import Schedules
from tidings.delivery.status import all_deliveries, status_of
from tidings.domain.notifications.delivery import Attempt, Delivery, Step
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.schedules.schedule import Event
from tidings.ports import DocumentStore


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
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


class Explaining:
    """Puts together what is known of a notification, in the order in which it happened."""

    def __init__(self, cabinet: DocumentStore, schedules: Schedules, clock: Clock) -> None:
        self._cabinet = cabinet
        self._schedules = schedules
        self._clock = clock

    async def explain(self, tenant: str, notification_id: str) -> list[Line] | None:
        """Its story, oldest first; None if there is none, or it was never accepted."""
        now = self._clock.now()
        [there] = await self._cabinet.get([notification_key(tenant, notification_id)], now)
        if there is None:
            return None
        kept = read(there, Notification)
        if kept.first is not None:
            return [Line(kept.created, "skipped", reason=f"duplicate of {kept.first}")]
        deliveries = await all_deliveries(self._cabinet, tenant, notification_id, now)
        schedule = await self._schedules.find(tenant, notification_id)
        if status_of(kept, schedule, deliveries) is None:
            return None
        lines = [_event(event) for event in await self._schedules.history(tenant, notification_id)]
        if not any(line.event == "accepted" for line in lines):
            lines.insert(0, Line(kept.created, "accepted"))
        for delivery in deliveries:
            lines += _story(delivery)
        return sorted(lines, key=lambda line: line.at)  # stable: what happened at one moment stays in order


def _event(event: Event) -> Line:
    count = "" if event.count is None or event.count == 1 else f" ({event.count} occurrences)"
    return Line(event.at, event.event, due=event.due, reason=(event.reason or "") + count)


def _story(delivery: Delivery) -> list[Line]:
    lines = [line for attempt in delivery.attempts for line in _attempt(delivery, attempt)]
    lines += [_step(delivery, step) for step in delivery.history]
    last = max((line.at for line in lines), default=0)
    is_told = delivery.state == "pending" and delivery.history  # by its last step: why, and until when
    told_later = {"processing", "delivered", "bounced", "complained"}
    if not is_told and delivery.state not in told_later and delivery.changed >= last:
        lines.append(
            Line(
                delivery.changed,
                delivery.state,
                delivery.name,
                channel=delivery.channel,
                due=delivery.next_try if delivery.state == "pending" else None,
                reason=delivery.reason,
            )
        )
    about: dict[str, Any] = {"delivery": delivery.name, "channel": delivery.channel, "provider": delivery.provider}
    told = [Line(news.at, news.state, reason=news.reason, **about) for news in delivery.news]
    return lines + told


def _step(delivery: Delivery, step: Step) -> Line:
    reason = ": ".join(text for text in (step.reason, step.detail) if text)
    count = "" if step.times == 1 else f" ({step.times} times)"
    return Line(
        step.at,
        step.event,
        delivery.name,
        channel=step.channel,
        provider=step.provider or None,
        due=step.until,
        reason=reason + count,
    )


def _attempt(delivery: Delivery, attempt: Attempt) -> list[Line]:
    """Its beginning, and its end if it has one: an attempt without an end is under way, or was cut off."""
    begun = Line(
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
    ended = Line(
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
