"""Sends a failed delivery again: its next turn on the timeline, committed together with its row."""

from typing import Literal

import msgspec

from tidings.clock import Clock
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.rows import delivery_key, delivery_put, notification_key, read
from tidings.delivery.worker.context import replaced_reason
from tidings.delivery.worker.job import retry_schedule
from tidings.domain.errors import Conflict
from tidings.domain.notifications.delivery import Delivery, Part, State, Step, remembered
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.ports.tables import ChangeGroup, Tables, Unchanged

TRIES_MAX = 80
RESENDABLE: tuple[State, ...] = ("failed", "expired", "bounced", "skipped")
_RESENDABLE = f"{', '.join(RESENDABLE[:-1])} or {RESENDABLE[-1]}"


class ResendResult(msgspec.Struct, frozen=True):
    """`retried`: it is sent again, at `due`. `rejected`: it has not failed, or its notification is gone."""

    name: str
    outcome: Literal["retried", "rejected", "unknown"]
    state: State | None = None
    due: int | None = None
    reason: str = ""


class Resend:
    """Retries deliveries by hand. Attempts, age and expiry count from then on."""

    def __init__(self, tables: Tables, schedules: NotificationEngine, clock: Clock) -> None:
        self._tables = tables
        self._schedules = schedules
        self._clock = clock

    async def retry(self, tenant: str, name: str) -> ResendResult:
        """Send it again through the channel on which it failed."""
        skipped = 0  # turns whose ids belong to other schedules
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            [row] = await self._tables.get([delivery_key(tenant, name)], now)
            if row is None:
                return ResendResult(name, "unknown")
            before = read(row, Delivery)
            if before.state not in RESENDABLE:
                return _rejected(before, f"it is {before.state}: only what is {_RESENDABLE} can be sent again")
            [stored] = await self._tables.get([notification_key(tenant, before.notification)], now)
            notification = None if stored is None else read(stored, Notification)
            if stored is None or notification is None:
                return _rejected(before, "its notification is no longer stored: create a new one")
            if notification.cancelled is not None:
                return _rejected(before, "its notification was cancelled: create a new one")
            if (why := replaced_reason(before, notification)) is not None:
                return _rejected(before, f"{why}: create a new one")
            job = _job(notification, before, before.turn + 1 + skipped)
            put = delivery_put(tenant, _pending(before, job.attempt, now), row.version)
            condition = Unchanged(stored.key, stored.version)
            group = ChangeGroup((condition, put), retry_schedule(tenant, notification, job, now))
            [result] = await self._schedules.commit([group])
            if result.version:
                return ResendResult(name, "retried", "pending", now)
            skipped += result.outcome is not None
        raise Conflict(f"the delivery {name!r} is being changed by other requests: try again")


def _job(notification: Notification, before: Delivery, turn: int) -> DeliveryJob:
    channels = notification.channels
    channel = channels.index(before.channel) if before.channel in channels else 0
    return DeliveryJob(notification.id, delivery=before.name, channel=channel, attempt=turn)


def _pending(before: Delivery, turn: int, now: int) -> Delivery:
    """The delivery as it begins again. Devices that got it are left out; the others keep their numbers."""
    ended = Step(before.changed, before.state, before.channel, reason=before.reason)
    return msgspec.structs.replace(
        remembered(before, ended, Step(now, "retried", before.channel, until=now)),
        state="pending",
        reason="retried",
        due=now,
        first_due=before.was_due,
        turn=turn,
        claim=None,
        next_try=now,
        changed=now,
        parts=tuple(part if part.outcome == "accepted" else Part(part.number, part.digest) for part in before.parts),
        trying_us=0,
        given_up=before.attempts[-1].number if before.attempts else 0,
    )


def _rejected(delivery: Delivery, why: str) -> ResendResult:
    return ResendResult(delivery.name, "rejected", delivery.state, reason=why)
