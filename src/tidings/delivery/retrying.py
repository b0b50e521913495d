"""Sends again what was given up: a turn on the timeline first, then the delivery that waits for it.

A worker leaves a record aside whose delivery is settled. So the turn is due a moment later, and the delivery must be
written before that; cut off in between, it stays what it was, and nobody was told otherwise.
"""

from typing import Literal

import msgspec

from tidings.clock import Clock
from tidings.delivery import errands
from tidings.delivery.filing import delivery_key, delivery_put, notification_key, read
from tidings.delivery.schedules import Schedules
from tidings.domain.errors import Conflict
from tidings.domain.notifications.delivery import Delivery, Part, State, Step, remembered
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.ports import Document, DocumentStore

AHEAD_US = 500_000  # first; twice as long each time the store was slower than that
TRIES_MAX = 8
RETRIED: frozenset[State] = frozenset({"failed", "expired", "bounced", "skipped"})


class Retried(msgspec.Struct, frozen=True):
    """`retried`: it goes again, at `due`. `rejected`: it has not been given up, or its notification is gone."""

    name: str
    outcome: Literal["retried", "rejected", "unknown"]
    state: State | None = None
    due: int | None = None
    reason: str = ""


class Retrying:
    """Gives deliveries another try. Attempts, age and expiry count from then on, for somebody wants it now."""

    def __init__(self, cabinet: DocumentStore, schedules: Schedules, clock: Clock) -> None:
        self._cabinet = cabinet
        self._schedules = schedules
        self._clock = clock

    async def retry(self, tenant: str, name: str) -> Retried:
        """Have it sent again by the channel that it failed on."""
        ahead, turn = AHEAD_US, 0
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            [there] = await self._cabinet.get([delivery_key(tenant, name)], now)
            if there is None:
                return Retried(name, "unknown")
            before = read(there, Delivery)
            if turn and (before.turn != turn or before.state != "pending" or before.claim is not None):
                return Retried(name, "retried", before.state, before.next_try)  # a worker has taken it up
            if not turn and before.state not in RETRIED:
                return _rejected(before, "it has not failed: only a failed delivery can be retried")
            notification = await self._notification(tenant, before.notification, now)
            if notification is None:
                return _rejected(before, "its notification is no longer stored: create a new one")
            if notification.cancelled is not None:
                return _rejected(before, "its notification was cancelled: create a new one")
            turn = await self._add(tenant, notification, before, now + ahead)
            waiting = _waiting(before, turn, now, now + ahead)
            if await self._write(tenant, waiting, there) and self._clock.now() < now + ahead:
                return Retried(name, "retried", "pending", now + ahead)
            ahead *= 2
        raise Conflict(f"the delivery {name!r} is being changed by other requests, or the store is slow: try again")

    async def _notification(self, tenant: str, notification: str, now: int) -> Notification | None:
        [there] = await self._cabinet.get([notification_key(tenant, notification)], now)
        return None if there is None else read(there, Notification)

    async def _add(self, tenant: str, notification: Notification, before: Delivery, due: int) -> int:
        """Put a turn onto the timeline that nobody has put there before; says which."""
        channels = notification.channels
        channel = channels.index(before.channel) if before.channel in channels else 0
        for turn in range(before.turn + 1, before.turn + 1 + 10 * TRIES_MAX):
            errand = DeliveryJob(notification.id, delivery=before.name, channel=channel, attempt=turn)
            [outcome] = await self._schedules.submit([errands.turn(tenant, notification, errand, due)])
            if outcome.outcome == "scheduled":
                return turn
        raise Conflict(f"the delivery {before.name!r} cannot be scheduled: try again later")

    async def _write(self, tenant: str, waiting: Delivery, there: Document) -> bool:
        [done] = await self._cabinet.change([[delivery_put(tenant, waiting, there.version)]], self._clock.now())
        return bool(done)


def _waiting(before: Delivery, turn: int, now: int, due: int) -> Delivery:
    """As it begins again. Devices that got it stay out; those that did not are tried again under their numbers."""
    if before.state == "pending":  # the turn before this one was too close
        told = before
    else:
        ended = Step(before.changed, before.state, before.channel, reason=before.reason)
        told = remembered(before, ended, Step(now, "retried", before.channel, until=due))
    return msgspec.structs.replace(
        told,
        state="pending",
        reason="retried",
        due=now,
        first_due=before.was_due,
        turn=turn,
        claim=None,
        next_try=due,
        changed=now,
        parts=tuple(part if part.outcome == "accepted" else Part(part.number, part.digest) for part in before.parts),
        trying_us=0,
        given_up=before.attempts[-1].number if before.attempts else 0,
    )


def _rejected(delivery: Delivery, why: str) -> Retried:
    return Retried(delivery.name, "rejected", delivery.state, reason=why)
