"""Takes notifications back: what is pending, what waits for another try, and what no worker has looked at yet."""

import msgspec

from tidings.clock import Clock
from tidings.delivery.filing import KEPT_US, delivery_key, delivery_put, notification_key, notification_put, read
from tidings.delivery.notifying import UNFINISHED_US
from tidings.delivery.schedules import Schedules
from tidings.delivery.status import all_deliveries, names_of, occurrence_of
from tidings.domain.errors import Conflict
from tidings.domain.notifications.delivery import Delivery, State
from tidings.domain.notifications.notification import Notification
from tidings.domain.schedules.command import Cancel, Outcome
from tidings.domain.schedules.schedule import Schedule
from tidings.ports import DocumentStore, Unchanged

TRIES_MAX = 20


class Cancelling:
    """Cancels, and answers what really happened."""

    def __init__(self, cabinet: DocumentStore, schedules: Schedules, clock: Clock) -> None:
        self._cabinet = cabinet
        self._schedules = schedules
        self._clock = clock

    async def cancel(self, tenant: str, notification_id: str) -> Outcome:
        """Nothing of it leaves any more, if the answer is `cancelled`: neither its schedule nor another try.

        `in_flight` is one that a worker is sending now, `already_released` one that is settled. What recurs is
        cancelled in any case; the occurrence that a worker is sending now is told beside it.
        """
        [there] = await self._cabinet.get([notification_key(tenant, notification_id)], self._clock.now())
        if there is None:
            return Outcome(notification_id, "unknown")
        kept = read(there, Notification)
        if kept.first is not None:
            reason = f"it was skipped as a duplicate of {kept.first}: there is nothing to cancel"
            return Outcome(notification_id, "already_released", reason=reason)
        schedule = await self._schedules.find(tenant, notification_id)
        [outcome] = await self._schedules.submit([Cancel(tenant, notification_id, with_deliveries=True)])
        if outcome.outcome == "unknown" and kept.created + UNFINISHED_US <= self._clock.now():
            outcome = await self._forgotten(tenant, notification_id)
        if outcome.outcome == "cancelled":  # from now on no worker claims anything of it
            await self._mark(tenant, notification_id)
        if outcome.outcome in {"cancelled", "already_released"}:
            outcome = await self._cancel_deliveries(tenant, kept, schedule, outcome)
        if outcome.outcome == "cancelled":
            await self._mark(tenant, notification_id)
        return outcome

    async def _forgotten(self, tenant: str, notification_id: str) -> Outcome:
        """Its schedule is no longer remembered, but it may wait for another try, or for any worker to look at it."""
        known = await all_deliveries(self._cabinet, tenant, notification_id, self._clock.now(), limit=1)
        return Outcome(notification_id, "already_released" if known else "cancelled")

    async def _mark(self, tenant: str, notification_id: str) -> None:
        """Write down that it is cancelled, unless it is, or was erased meanwhile."""
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            [there] = await self._cabinet.get([notification_key(tenant, notification_id)], now)
            kept = None if there is None else read(there, Notification)
            if there is None or kept is None or kept.cancelled is not None:
                return
            marked = msgspec.structs.replace(kept, cancelled=now)
            [done] = await self._cabinet.change([[notification_put(marked, there.version, now + KEPT_US)]], now)
            if done:
                return
        raise Conflict(f"the notification {notification_id!r} is being changed by other requests: cancel it again")

    async def _cancel_deliveries(
        self, tenant: str, kept: Notification, schedule: Schedule | None, outcome: Outcome
    ) -> Outcome:
        """What was released but not sent yet is stopped where a worker would claim it."""
        is_cancelled = outcome.outcome == "cancelled"
        last = [] if schedule is None or is_cancelled else names_of(kept, schedule.occurrence, schedule.generation)
        known = await all_deliveries(self._cabinet, tenant, kept.id, self._clock.now())
        due = kept.created if schedule is None else schedule.due
        names = dict.fromkeys([*last, *(each.name for each in known)])
        states = {name: await self._cancel_delivery(tenant, kept, name, due) for name in names}
        sending = [name for name, state in states.items() if state == "processing"]
        if is_cancelled and sending:
            number = occurrence_of(kept, sending[-1])
            note = f"occurrence {number} is being sent at this moment, and may still arrive"
            return msgspec.structs.replace(outcome, in_flight=number, note=note)
        if is_cancelled:
            return outcome
        if sending:
            return msgspec.structs.replace(outcome, outcome="in_flight", reason="a worker is sending it now")
        return msgspec.structs.replace(outcome, outcome="cancelled") if "cancelled" in states.values() else outcome

    async def _cancel_delivery(self, tenant: str, kept: Notification, name: str, due: int) -> State:
        """The state that it is in afterwards."""
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            keys = [delivery_key(tenant, name), notification_key(tenant, kept.id)]
            there, noted = await self._cabinet.get(keys, now)
            if noted is None:
                return "cancelled"  # it was erased meanwhile
            delivery = Delivery(name, kept.id, due, user=kept.user) if there is None else read(there, Delivery)
            if delivery.state != "pending":
                return delivery.state
            gone = msgspec.structs.replace(delivery, state="cancelled", reason="cancelled", changed=now, next_try=None)
            put = delivery_put(tenant, gone, 0 if there is None else there.version)
            [done] = await self._cabinet.change([[Unchanged(noted.key, noted.version), put]], now)
            if done:
                return "cancelled"
        return "processing"
