"""Whether a notification was really accepted: only then has it a schedule, or a delivery that came of it."""

from tidings.clock import Clock
from tidings.delivery.filing import read
from tidings.delivery.schedules import Schedules
from tidings.delivery.status import Status, all_deliveries, status_of
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.notification import Notification
from tidings.domain.schedules.command import FINISHED
from tidings.ports import DocumentStore


class Knowing:
    """Looks a notification up where it has left a trace."""

    def __init__(self, cabinet: DocumentStore, schedules: Schedules, clock: Clock) -> None:
        self._cabinet = cabinet
        self._schedules = schedules
        self._clock = clock

    async def due(self, notification: Notification) -> int | None:
        """When it is or was due; None if it was written down but never scheduled."""
        schedule = await self._schedules.find(notification.tenant, notification.id)
        if schedule is not None:
            return schedule.due
        last = await self.last_delivery(notification)
        return None if last is None else last.due

    async def standing(self, notification: Notification) -> Status | None:
        """How it stands, with its last deliveries only where it has left; None if it was never scheduled."""
        schedule = await self._schedules.find(notification.tenant, notification.id)
        if schedule is not None and schedule.state not in FINISHED:
            return status_of(notification, schedule, ())
        tenant, limit = notification.tenant, 2 * len(notification.channels)
        last = await all_deliveries(self._cabinet, tenant, notification.id, self._clock.now(), limit)
        return status_of(notification, schedule, last)

    async def is_cancelled(self, notification: Notification) -> bool:
        """Whether it was taken back, by its own name or by that of its schedule."""
        if notification.cancelled is not None:
            return True
        schedule = await self._schedules.find(notification.tenant, notification.id)
        return schedule is not None and schedule.state == "cancelled"

    async def last_delivery(self, notification: Notification) -> Delivery | None:
        """The latest that came of it."""
        tag = f"notification:{notification.id}"
        found = await self._cabinet.find(notification.tenant, "delivery", tag, self._clock.now(), limit=1, newest=True)
        return read(found[0], Delivery) if found else None
