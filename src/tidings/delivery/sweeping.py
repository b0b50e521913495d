"""Removes notifications that are over, and those that were written down but never scheduled, some at a time."""

from tidings.clock import Clock
from tidings.delivery.cursors import place_of
from tidings.delivery.filing import ALL, KEPT_US, read
from tidings.delivery.knowing import Knowing
from tidings.delivery.schedules import Schedules
from tidings.domain.notification import Notification
from tidings.ports import Cabinet, Place, Remove

SLICE = 100


class Sweeping:
    """Goes through the older notifications of a tenant, a slice a call, and begins again at the end.

    What is pending stays for as long as it is, also if that takes years.
    """

    def __init__(self, cabinet: Cabinet, schedules: Schedules, clock: Clock, kept_us: int = KEPT_US) -> None:
        self._cabinet = cabinet
        self._knowing = Knowing(cabinet, schedules, clock)
        self._clock = clock
        self._kept_us = kept_us
        self._after: dict[str, Place] = {}

    async def sweep(self, tenant: str) -> bool:
        """One slice; True if there is more of what is old enough."""
        now = self._clock.now()
        found = await self._cabinet.find(tenant, "notification", ALL, now, after=self._after.get(tenant), limit=SLICE)
        old = [document for document in found if document.order <= now - self._kept_us]
        gone = [document for document in old if await self._knowing.due(read(document, Notification)) is None]
        if gone:
            await self._cabinet.change([[Remove(each.key, each.version)] for each in gone], now)
        more = len(old) == SLICE
        if more:
            self._after[tenant] = place_of(old[-1])
        else:
            self._after.pop(tenant, None)
        return more
