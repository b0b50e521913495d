"""The engine: what its stages do in which order."""

import asyncio

from tests.contract.making import NOW, add, records
from tidings.domain.schedule import KeptZone
from tidings.engine import Engine
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory import MemoryStore


class Slow(MemoryStore):
    """Has its zones read only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def zones(self) -> list[KeptZone]:
        self.asked.set()
        await self.go.wait()
        return await super().zones()


async def test_nothing_is_released_before_changed_zones_are_applied() -> None:
    store = Slow()
    engine = Engine(store, SimulatedClock(NOW))
    await engine.submit([add("one")])
    await engine.start()
    try:
        await store.asked.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert await records(store) == []
        store.go.set()
        await eventually(lambda: records(store))
    finally:
        await engine.stop()
