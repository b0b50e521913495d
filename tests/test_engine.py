"""The engine: the order of its stages."""

import asyncio

from tests.contract.factories import NOW, add, records
from tidings.domain.schedules.schedule import KeptZone
from tidings.engine import Engine
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory import MemoryStore


class Slow(MemoryStore):
    """A store that delays reading zones until housekeeping has run again, by when lanes could have started."""

    def __init__(self) -> None:
        super().__init__()
        self.tended = 0
        self.early: bool | None = None
        self.around = asyncio.Event()

    async def tend(self, now: int) -> bool:
        self.tended += 1
        if self.tended == 2:
            self.around.set()
        return await super().tend(now)

    async def zones(self) -> list[KeptZone]:
        await self.around.wait()
        self.early = bool(await records(self))
        return await super().zones()


async def test_nothing_is_released_before_changed_zones_are_applied() -> None:
    store = Slow()
    engine = Engine(store, SimulatedClock(NOW))
    await engine.submit([add("one")])
    await engine.start()
    try:
        await eventually(lambda: records(store))
        await eventually(lambda: store.early is not None)
        assert not store.early
    finally:
        await engine.stop()
