"""Lanes at work: begun when they are gained, ended when they are lost, and loud when they fail."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.contract.making import NOW, SECOND, add, records
from tidings.dispatch.dispatcher import Dispatcher
from tidings.dispatch.lanes import Lanes
from tidings.domain.facts import Fact
from tidings.ports import Lane
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory import MemoryStore


class Shared(MemoryStore):
    """Four lanes, of which this process owns some."""

    def __init__(self) -> None:
        super().__init__()
        self.all = [MemoryStore() for _ in range(4)]
        for number, lane in enumerate(self.all):
            lane.number = number
        self.owned: set[int] = set()

    def lanes(self) -> Sequence[MemoryStore]:
        return [lane for lane in self.all if lane.number in self.owned]


class Beside:
    """A companion that says what becomes of it."""

    problem: str | None = None

    def __init__(self, lane: Lane, said: list[str]) -> None:
        self._name = f"{lane.number}"
        self._said = said
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        self._said.append(f"+{self._name}")
        await self._stopped.wait()
        self._said.append(f"-{self._name}")

    def wake(self) -> None:
        """Nothing waits."""

    def stop(self) -> None:
        self._stopped.set()


class Scene:
    def __init__(self) -> None:
        self.store = Shared()
        self.clock = SimulatedClock(NOW)
        self.facts: list[Fact] = []
        self.said: list[str] = []
        self.lanes = Lanes(self.store, self.clock, self.facts.append)
        self.lanes.add_services(lambda lane: [Beside(lane, self.said)])

    def own(self, *numbers: int) -> None:
        self.store.owned = set(numbers)
        self.lanes.refresh()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    made.lanes.stop()


async def test_each_lane_that_is_gained_is_released(scene: Scene) -> None:
    running = asyncio.create_task(scene.lanes.run())
    for lane in scene.store.all:
        await lane.apply([add("one")], NOW)
    scene.own(1, 3)
    await eventually(lambda: len(scene.facts) == 2)
    assert [len(await records(lane)) for lane in scene.store.all] == [0, 1, 0, 1]
    scene.own(0, 1, 2, 3)
    await eventually(lambda: len(scene.facts) == 4)
    scene.lanes.stop()
    await running
    assert sorted(scene.said[-4:]) == ["-0", "-1", "-2", "-3"]


async def test_what_is_lost_is_ended_and_what_stays_goes_on(scene: Scene) -> None:
    running = asyncio.create_task(scene.lanes.run())
    scene.own(0, 1)
    await eventually(lambda: scene.said == ["+0", "+1"])
    scene.own(1)
    await eventually(lambda: scene.said[2:] == ["-0"])
    scene.own(0, 1)
    await eventually(lambda: scene.said[3:] == ["+0"])
    assert len(scene.lanes.services) == 2
    scene.lanes.stop()
    await running


async def test_a_lane_that_comes_back_begins_after_its_former_work_has_ended(scene: Scene) -> None:
    running = asyncio.create_task(scene.lanes.run())
    scene.own(0)
    await eventually(lambda: scene.said == ["+0"])
    scene.own()
    scene.own(0)
    await eventually(lambda: len(scene.said) == 3)
    assert scene.said == ["+0", "-0", "+0"]
    scene.lanes.stop()
    await running


async def test_a_lane_under_another_lease_is_begun_anew(scene: Scene) -> None:
    running = asyncio.create_task(scene.lanes.run())
    scene.own(0)
    await eventually(lambda: scene.said == ["+0"])
    scene.store.all[0] = MemoryStore()
    scene.own(0)
    await eventually(lambda: scene.said == ["+0", "-0", "+0"])
    scene.lanes.stop()
    await running


async def test_a_lane_that_fails_ends_the_whole(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_dispatcher: Dispatcher) -> int:
        raise OSError("broken")

    monkeypatch.setattr(Dispatcher, "tick", fail)
    running = asyncio.create_task(scene.lanes.run())
    scene.own(2)
    with pytest.raises(OSError, match="broken"):
        await running


async def test_one_step_is_a_step_on_every_lane(scene: Scene) -> None:
    scene.store.owned = {0, 2}
    await scene.store.all[0].apply([add("one", NOW + 3 * SECOND // 4)], NOW)
    await scene.store.all[2].apply([add("one", NOW + SECOND // 2)], NOW)
    assert scene.lanes.next_due() == NOW + SECOND // 2
    assert await scene.lanes.tick() == SECOND // 2
    scene.clock.advance(SECOND)
    assert await scene.lanes.tick() == 0
    assert len(scene.facts) == 2
