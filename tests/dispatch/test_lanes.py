"""Work on lanes: starts when they are gained, ends when they are lost, and raises when it fails."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.contract.factories import NOW, SECOND, add, records
from tidings.dispatch.dispatcher import Dispatcher
from tidings.dispatch.lanes import Lanes
from tidings.domain.facts import Fact
from tidings.ports import Lane
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory import MemoryStore


class FourLanes(MemoryStore):
    """A store with four lanes, of which this process owns some."""

    def __init__(self) -> None:
        super().__init__()
        self.all = [MemoryStore() for _ in range(4)]
        for number, lane in enumerate(self.all):
            lane.number = number
        self.owned: set[int] = set()

    def lanes(self) -> Sequence[MemoryStore]:
        return [lane for lane in self.all if lane.number in self.owned]


class RecordingService:
    """A background service that records its start and end."""

    problem: str | None = None

    def __init__(self, lane: Lane, events: list[str]) -> None:
        self._name = f"{lane.number}"
        self._said = events
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        self._said.append(f"+{self._name}")
        await self._stopped.wait()
        self._said.append(f"-{self._name}")

    def wake(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        self._stopped.set()


class Harness:
    def __init__(self) -> None:
        self.store = FourLanes()
        self.clock = SimulatedClock(NOW)
        self.facts: list[Fact] = []
        self.events: list[str] = []
        self.lanes = Lanes(self.store, self.clock, self.facts.append)
        self.lanes.add_services(lambda lane: [RecordingService(lane, self.events)])

    def own(self, *numbers: int) -> None:
        self.store.owned = set(numbers)
        self.lanes.refresh()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    made = Harness()
    yield made
    made.lanes.stop()


async def test_a_gained_lane_is_released(harness: Harness) -> None:
    running = asyncio.create_task(harness.lanes.run())
    for lane in harness.store.all:
        await lane.apply([add("one")], NOW)
    harness.own(1, 3)
    await eventually(lambda: len(harness.facts) == 2)
    assert [len(await records(lane)) for lane in harness.store.all] == [0, 1, 0, 1]
    harness.own(0, 1, 2, 3)
    await eventually(lambda: len(harness.facts) == 4)
    harness.lanes.stop()
    await running
    assert sorted(harness.events[-4:]) == ["-0", "-1", "-2", "-3"]


async def test_work_ends_on_lost_lanes_and_continues_on_others(harness: Harness) -> None:
    running = asyncio.create_task(harness.lanes.run())
    harness.own(0, 1)
    await eventually(lambda: harness.events == ["+0", "+1"])
    harness.own(1)
    await eventually(lambda: harness.events[2:] == ["-0"])
    harness.own(0, 1)
    await eventually(lambda: harness.events[3:] == ["+0"])
    assert len(harness.lanes.services) == 2
    harness.lanes.stop()
    await running


async def test_a_regained_lane_starts_after_its_former_work_has_ended(harness: Harness) -> None:
    running = asyncio.create_task(harness.lanes.run())
    harness.own(0)
    await eventually(lambda: harness.events == ["+0"])
    harness.own()
    harness.own(0)
    await eventually(lambda: len(harness.events) == 3)
    assert harness.events == ["+0", "-0", "+0"]
    harness.lanes.stop()
    await running


async def test_a_lane_with_a_new_lease_is_restarted(harness: Harness) -> None:
    running = asyncio.create_task(harness.lanes.run())
    harness.own(0)
    await eventually(lambda: harness.events == ["+0"])
    harness.store.all[0] = MemoryStore()
    harness.own(0)
    await eventually(lambda: harness.events == ["+0", "-0", "+0"])
    harness.lanes.stop()
    await running


async def test_a_failing_lane_ends_run_with_its_error(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_dispatcher: Dispatcher) -> int:
        raise OSError("broken")

    monkeypatch.setattr(Dispatcher, "tick", fail)
    running = asyncio.create_task(harness.lanes.run())
    harness.own(2)
    with pytest.raises(OSError, match="broken"):
        await running


async def test_a_tick_steps_every_lane(harness: Harness) -> None:
    harness.store.owned = {0, 2}
    await harness.store.all[0].apply([add("one", NOW + 3 * SECOND // 4)], NOW)
    await harness.store.all[2].apply([add("one", NOW + SECOND // 2)], NOW)
    assert harness.lanes.next_due() == NOW + SECOND // 2
    assert await harness.lanes.tick() == SECOND // 2
    harness.clock.advance(SECOND)
    assert await harness.lanes.tick() == 0
    assert len(harness.facts) == 2
