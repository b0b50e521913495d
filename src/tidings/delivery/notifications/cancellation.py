"""Cancels notifications: pending ones, those that wait for another attempt, and released ones that are not sent yet."""

import msgspec

from tidings.clock import Clock
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.notifications.status import StatusReader, all_deliveries, names_of, occurrence_of, present
from tidings.delivery.rows import (
    RETENTION_US,
    change,
    delivery_key,
    delivery_put,
    notification_key,
    notification_put,
    read,
)
from tidings.delivery.worker.job import retry_id
from tidings.domain.errors import Conflict
from tidings.domain.notifications.delivery import Delivery, State
from tidings.domain.notifications.notification import Notification
from tidings.domain.schedules.command import Cancel, Outcome
from tidings.domain.schedules.schedule import Schedule
from tidings.ports.tables import ChangeGroup, Row, Tables, Unchanged

TRIES_MAX = 20


class Cancellation:
    """Cancels, and answers what really happened."""

    def __init__(
        self, tables: Tables, schedules: NotificationEngine, clock: Clock, retention_us: int = RETENTION_US
    ) -> None:
        self._tables = tables
        self._schedules = schedules
        self._clock = clock
        self._retention_us = retention_us
        self._status = StatusReader(tables, schedules, clock)

    async def cancel(self, tenant: str, notification_id: str) -> Outcome:
        """After `cancelled` nothing of it is sent any more: neither by its schedule nor by another attempt.

        `in_flight` is one that a worker is sending now, `already_released` one that is settled. A recurring one is
        cancelled in any case; the answer names the occurrence that a worker is sending now.
        """
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            [row] = await self._tables.get([notification_key(tenant, notification_id)], now)
            if row is None:
                return Outcome(notification_id, "unknown")
            stored = read(row, Notification)
            if stored.first is not None:
                reason = f"it was skipped as a duplicate of {stored.first}: there is nothing to cancel"
                return Outcome(notification_id, "already_released", reason=reason)
            schedule = await self._schedules.find(tenant, notification_id)
            outcome = await self._cancel_schedule(row, stored, now)
            if outcome is not None:
                break
        else:
            raise _busy(notification_id)
        if outcome.outcome == "unknown":
            outcome = await self._cancel_forgotten(stored)
        if outcome.outcome == "already_released" and await self._status.current(stored) is None:
            return Outcome(notification_id, "unknown")  # it is over, and its deliveries have expired
        if outcome.outcome in {"cancelled", "already_released"}:
            outcome = await self._cancel_deliveries(tenant, stored, schedule, outcome)
        if outcome.outcome == "cancelled":
            await self._mark(stored)
        return outcome

    async def _cancel_schedule(self, row: Row, stored: Notification, now: int) -> Outcome | None:
        """Cancel the schedule and mark the notification together: from then on no worker claims anything of it.

        None if the notification was changed meanwhile.
        """
        marked = msgspec.structs.replace(stored, cancelled=stored.cancelled or now)
        put = notification_put(marked, row.version, now + self._retention_us)
        command = Cancel(stored.tenant, stored.id, with_deliveries=True)
        [result] = await self._schedules.commit([ChangeGroup((put,), command, frozenset({"cancelled"}))])
        return result.outcome

    async def _cancel_forgotten(self, seen: Notification) -> Outcome:
        """Its schedule is not remembered any more, but it may wait for another attempt, or for a worker."""
        known = await all_deliveries(self._tables, seen.tenant, seen.id, self._clock.now(), limit=1)
        if known:
            return Outcome(seen.id, "already_released")
        await self._mark(seen)
        return Outcome(seen.id, "cancelled")

    async def _mark(self, seen: Notification) -> None:
        """Mark it as cancelled, unless it is, was erased meanwhile, or its id was used again."""
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            [row] = await self._tables.get([notification_key(seen.tenant, seen.id)], now)
            stored = None if row is None else read(row, Notification)
            if row is None or stored is None or stored.cancelled is not None or stored.created != seen.created:
                return
            marked = msgspec.structs.replace(stored, cancelled=now)
            [done] = await change(
                self._tables, [[notification_put(marked, row.version, now + self._retention_us)]], now
            )
            if done:
                return
        raise _busy(seen.id)

    async def _cancel_deliveries(
        self, tenant: str, stored: Notification, schedule: Schedule | None, outcome: Outcome
    ) -> Outcome:
        """Cancel what was released but not sent yet, where a worker would claim it."""
        is_cancelled = outcome.outcome == "cancelled"
        last = [] if schedule is None or is_cancelled else names_of(stored, schedule.occurrence, schedule.generation)
        known = await all_deliveries(self._tables, tenant, stored.id, self._clock.now())
        due = stored.created if schedule is None else schedule.due
        names = dict.fromkeys([*last, *(each.name for each in known)])
        settled = {each.name: each.state for each in known if each.is_settled}
        states = {name: settled.get(name) or await self._cancel_delivery(tenant, stored, name, due) for name in names}
        sending = [name for name, state in states.items() if state == "processing"]
        if is_cancelled and sending:
            number = occurrence_of(stored, sending[-1])
            note = f"occurrence {number} is being sent at this moment, and may still arrive"
            return msgspec.structs.replace(outcome, in_flight=number, note=note)
        if is_cancelled:
            return outcome
        if sending:
            return msgspec.structs.replace(outcome, outcome="in_flight", reason="a worker is sending it now")
        own = [*last, *(each.name for each in present(stored, schedule, known))]  # not what was replaced before
        if any(states[name] == "cancelled" for name in own):
            return msgspec.structs.replace(outcome, outcome="cancelled")
        return outcome

    async def _cancel_delivery(self, tenant: str, stored: Notification, name: str, due: int) -> State:
        """Cancel one delivery if it is pending, with the retry on the timeline; its state afterwards."""
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            keys = [delivery_key(tenant, name), notification_key(tenant, stored.id)]
            row, notification = await self._tables.get(keys, now)
            if notification is None:
                return "cancelled"  # it was erased meanwhile
            delivery = Delivery(name, stored.id, due, user=stored.user) if row is None else read(row, Delivery)
            if delivery.state != "pending":
                return delivery.state
            gone = msgspec.structs.replace(delivery, state="cancelled", reason="cancelled", changed=now, next_try=None)
            put = delivery_put(tenant, gone, 0 if row is None else row.version, self._retention_us)
            [done] = await change(self._tables, [[Unchanged(notification.key, notification.version), put]], now)
            if done:
                if delivery.turn > 1:  # no worker would send it, but it would stay on the timeline until it is due
                    retry = retry_id(name, delivery.turn)
                    await self._schedules.submit([Cancel(tenant, retry, with_deliveries=True)])
                return "cancelled"
        return "processing"


def _busy(notification_id: str) -> Conflict:
    return Conflict(f"the notification {notification_id!r} is being changed by other requests: cancel it again")
