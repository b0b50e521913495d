"""Leases: taken, renewed, lost and handed over; and the maintenance that only an owner does."""

import asyncio
from collections.abc import Callable

import pytest

from tests.contract.factories import NOW, SECOND
from tests.dispatch.event_loop import turns
from tidings.dispatch import leases as module
from tidings.dispatch.leases import LeaseHolder
from tidings.domain.errors import NotAllowed, NotOwner, StoreError
from tidings.domain.facts import Fact, OwnershipChanged
from tidings.domain.fleet import Report
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory import MemoryStore

LEASE_US = 3 * SECOND


class ScriptedStore:
    """The part of a store that a lease holder uses; tests set its answers."""

    def __init__(self) -> None:
        self.answer: bool | StoreError = True
        self.hang = asyncio.Event()
        self.hang.set()
        self.asked: list[tuple[int, int]] = []
        self.reports: list[Report] = []
        self.tended = 0
        self.tending: bool | Exception = False
        self.resigned = 0
        self.lane = MemoryStore()

    async def acquire(self, elapsed: int, lease_us: int, report: Report) -> bool:
        await self.hang.wait()
        self.reports.append(report)
        self.asked.append((elapsed, lease_us))
        if isinstance(self.answer, StoreError):
            raise self.answer
        return self.answer

    def lanes(self) -> list[MemoryStore]:
        return [self.lane] if self.answer is True else []

    def on_free(self, call: Callable[[], None]) -> None:
        self.call = call

    async def tend(self, now: int) -> bool:
        self.tended += 1
        if isinstance(self.tending, Exception):
            raise self.tending
        return self.tending

    async def resign(self) -> None:
        self.resigned += 1


class Scene:
    def __init__(self) -> None:
        self.store = ScriptedStore()
        self.clock = SimulatedClock(NOW, elapsed=7)
        self.facts: list[Fact] = []
        self.wakes = 0
        self.owner = LeaseHolder(self.store, self.clock, LEASE_US, self.wake, self.facts.append)  # type: ignore[arg-type]

    def wake(self) -> None:
        self.wakes += 1


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(module, "POLL_S", 0.001)
    monkeypatch.setattr(module, "MAINTENANCE_IDLE_S", 0.001)
    return Scene()


async def test_readiness_before_the_first_attempt_is_starting(scene: Scene) -> None:
    ready, reason = scene.owner.readiness()
    assert not ready
    assert reason.startswith("starting")


async def test_a_standby_names_both_possible_reasons(scene: Scene) -> None:
    scene.store.answer = False
    await scene.owner.try_once()
    said = "standing by: another process owns this store, or was killed less than 3 s ago"
    assert scene.owner.readiness() == (False, said)


async def test_a_free_lease_is_taken_on_monotonic_time(scene: Scene) -> None:
    scene.clock.step(-99 * SECOND)
    await scene.owner.try_once()
    assert scene.owner.readiness() == (True, "ready")
    assert scene.store.asked == [(7, LEASE_US)]


async def test_a_change_of_ownership_is_published_once_and_wakes_the_dispatcher(scene: Scene) -> None:
    for answer in (True, True, False, False, True):
        scene.store.answer = answer
        await scene.owner.try_once()
    assert scene.facts == [
        OwnershipChanged(NOW, True, (0,)),
        OwnershipChanged(NOW, False),
        OwnershipChanged(NOW, True, (0,)),
    ]
    assert scene.wakes == 3


async def test_a_store_error_is_the_reason_until_it_is_over(scene: Scene) -> None:
    await scene.owner.try_once()
    scene.store.answer = StoreError("the disk is full")
    await scene.owner.try_once()
    assert scene.owner.readiness() == (False, "the disk is full")
    scene.store.answer = False
    await scene.owner.try_once()
    assert "another process" in scene.owner.readiness()[1]
    scene.store.answer = True
    await scene.owner.try_once()
    assert scene.owner.readiness()[0]


async def test_leases_are_renewed_until_stop_and_then_handed_over(scene: Scene) -> None:
    scene.owner = LeaseHolder(scene.store, scene.clock, 4_000, scene.wake, scene.facts.append)  # type: ignore[arg-type]
    running = asyncio.create_task(scene.owner.run())
    await eventually(lambda: len(scene.store.asked) > 5)
    assert scene.store.resigned == 0
    scene.owner.stop()
    await running
    assert scene.store.resigned == 1


async def test_lanes_that_are_handed_over_are_acquired_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 3_600.0)
    scene.store.answer = False
    running = asyncio.create_task(scene.owner.run())
    await eventually(lambda: len(scene.store.asked) == 1)
    scene.store.answer = True
    scene.store.call()
    await eventually(lambda: scene.owner.readiness()[0])
    scene.owner.stop()
    await running


async def test_a_standby_retries_and_hands_nothing_over(scene: Scene) -> None:
    scene.store.answer = False
    running = asyncio.create_task(scene.owner.run())
    await eventually(lambda: len(scene.store.asked) > 5)
    scene.owner.stop()
    await running
    assert scene.store.resigned == 0


async def test_only_an_owner_runs_maintenance(scene: Scene) -> None:
    tending = asyncio.create_task(scene.owner.run_maintenance())
    scene.store.answer = False
    await scene.owner.try_once()
    await turns(20)
    assert scene.store.tended == 0
    scene.store.answer = True
    await scene.owner.try_once()
    await eventually(lambda: scene.store.tended > 2)
    scene.owner.stop()
    await tending


@pytest.mark.parametrize("trouble", [NotOwner("another"), StoreError("full")])
async def test_errors_do_not_end_maintenance(scene: Scene, trouble: Exception) -> None:
    await scene.owner.try_once()
    scene.store.tending = trouble
    tending = asyncio.create_task(scene.owner.run_maintenance())
    await eventually(lambda: scene.store.tended > 3)
    scene.owner.stop()
    await tending


async def test_a_store_silent_for_a_lease_makes_the_node_unready(scene: Scene) -> None:
    await scene.owner.try_once()
    scene.clock.advance(LEASE_US - 1)
    assert scene.owner.readiness() == (True, "ready")
    scene.clock.advance(1)
    assert scene.owner.readiness() == (False, "the store has not answered for 3 s")


async def test_a_node_without_lanes_may_be_ready(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.store, "lanes", list)
    await scene.owner.try_once()
    assert scene.owner.readiness() == (True, "ready")
    assert scene.facts == [OwnershipChanged(NOW, True, ())]


async def test_changed_lanes_are_published_as_a_fact(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.owner.try_once()
    monkeypatch.setattr(scene.store, "lanes", list)
    await scene.owner.try_once()
    assert scene.facts == [OwnershipChanged(NOW, True, (0,)), OwnershipChanged(NOW, True, ())]
    assert scene.wakes == 2


async def test_a_store_error_is_published_with_its_reason(scene: Scene) -> None:
    await scene.owner.try_once()
    assert scene.owner.trouble() is None
    scene.store.answer = StoreError("the disk is full")
    for _ in range(3):
        await scene.owner.try_once()
    assert scene.facts[1:] == [OwnershipChanged(NOW, False, (), "the disk is full")]
    assert scene.owner.trouble() == "the disk is full"


async def test_a_standby_reports_no_store_error(scene: Scene) -> None:
    scene.store.answer = False
    await scene.owner.try_once()
    assert scene.owner.trouble() is None


async def test_a_hanging_store_is_reported_before_it_answers(scene: Scene) -> None:
    scene.owner = LeaseHolder(scene.store, scene.clock, 20_000, scene.wake, scene.facts.append)  # type: ignore[arg-type]
    await scene.owner.try_once()
    scene.store.hang.clear()
    asking = asyncio.create_task(scene.owner.try_once())
    await eventually(lambda: scene.owner.trouble() is not None)
    assert scene.owner.readiness() == (False, "the store has not answered for 0.02 s")
    assert scene.facts[-1] == OwnershipChanged(NOW, False, (0,), "the store has not answered for 0.02 s")
    scene.store.hang.set()
    await asking
    assert scene.owner.readiness()[0]
    assert scene.facts[-1] == OwnershipChanged(NOW, True, (0,))


async def test_a_missing_permission_is_raised_only_at_the_start(scene: Scene) -> None:
    scene.store.answer = NotAllowed("permission denied")
    with pytest.raises(NotAllowed):
        await scene.owner.try_once()
    scene.store.answer = True
    await scene.owner.try_once()
    scene.store.answer = NotAllowed("a standby now")
    await scene.owner.try_once()
    assert scene.owner.trouble() == "a standby now"


async def test_a_suspended_process_reports_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 3_600.0)
    running = asyncio.create_task(scene.owner.run())
    await eventually(lambda: len(scene.facts) == 1)
    await turns(5)
    scene.clock.advance(10 * SECOND)
    monkeypatch.setattr(scene.store, "lanes", list)
    scene.store.call()
    await eventually(lambda: len(scene.facts) == 2)
    told = scene.facts[1]
    assert isinstance(told, OwnershipChanged)
    assert (told.owner, told.lanes, told.reason) == (True, (), "this process stood still for 9 s")
    scene.owner.stop()
    await running
