"""Removes notifications that are over, and those that were written down but never scheduled, some at a time."""

import asyncio
import contextlib
from collections.abc import Sequence

from tidings.clock import Clock
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.notifications.status import StatusReader
from tidings.delivery.rows import RETENTION_US, change, position_of, read
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.notifications.notification import GROUP, PREFIX, TOPICS, Notification
from tidings.domain.notifications.tables import NOTIFICATIONS
from tidings.domain.schedules.schedule import Topic
from tidings.ports import Store
from tidings.ports.tables import Remove, RowPosition, Tables

SLICE = 100
PAUSE_S = 600.0
LATE_US = 60_000_000  # of what was released just now the schedule is still known


class Pruner:
    """Goes through the older notifications of a tenant, a slice a call, and begins again at the end.

    What is pending stays for as long as it is, also if that takes years.
    """

    def __init__(
        self, tables: Tables, schedules: NotificationEngine, clock: Clock, kept_us: int = RETENTION_US
    ) -> None:
        self._tables = tables
        self._status = StatusReader(tables, schedules, clock)
        self._clock = clock
        self._kept_us = kept_us
        self._after: dict[str, RowPosition] = {}

    async def sweep(self, tenant: str) -> bool:
        """One slice; True if there is more of what is old enough."""
        now = self._clock.now()
        found = await self._tables.find(NOTIFICATIONS, tenant, (), now, after=self._after.get(tenant), limit=SLICE)
        old = [row for row in found if row.order <= now - self._kept_us]
        gone = [row for row in old if await self._status.current(read(row, Notification)) is None]
        if gone:
            await change(self._tables, [[Remove(each.key, each.version)] for each in gone], now)
        more = len(old) == SLICE
        if more:
            self._after[tenant] = position_of(old[-1])
        else:
            self._after.pop(tenant, None)
        return more


class PrunerService:
    """Sweeps all tenants now and then, beside the engine. Of several nodes that do, each finds less.

    A tenant whose records no worker has read for a while is left alone: once its schedule is forgotten, a notification
    that was released looks like one that was never scheduled, and only its row knows what to say.
    """

    problem: str | None = None

    def __init__(self, store: Store, sweeping: Pruner, clock: Clock, pause_s: float = PAUSE_S) -> None:
        self._store = store
        self._sweeping = sweeping
        self._clock = clock
        self._pause_s = pause_s
        self._is_over = asyncio.Event()

    def wake(self) -> None:
        """Nothing that was released makes anything old."""

    def stop(self) -> None:
        """Begin no further slice."""
        self._is_over.set()

    async def run(self) -> None:
        """Sweep until stopped; what fails while the store is away is done the next time."""
        while not await self._pauses():
            with contextlib.suppress(StoreError, NotOwner):
                await self.round()

    async def round(self) -> None:
        """Once through all tenants."""
        topics: dict[str, list[Topic]] = {}
        for tenant, topic in await self._store.topics_by_prefix(PREFIX):
            topics.setdefault(tenant, []).append(topic)
        for tenant in sorted(topics):
            if not await self._is_unread(tenant, topics[tenant]):
                await self._sweep(tenant)

    async def _is_unread(self, tenant: str, topics: Sequence[Topic]) -> bool:
        """Whether something that was released a while ago is not settled by any worker."""
        before = self._clock.now() - LATE_US
        for topic in topics:
            if topic.name not in TOPICS:
                continue
            committed = await self._store.committed(tenant, topic.name, GROUP)
            for number, end in enumerate(topic.next):
                place = committed.get(number, 0)
                oldest = await self._store.read(tenant, topic.name, number, place, 1) if place < end else []
                if oldest and oldest[0].released <= before:
                    return True
        return False

    async def _sweep(self, tenant: str) -> None:
        more = True
        while more and not self._is_over.is_set():
            more = await self._sweeping.sweep(tenant)

    async def _pauses(self) -> bool:
        """Wait for the next round; True if there is none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                await self._is_over.wait()
        return self._is_over.is_set()
