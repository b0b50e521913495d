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


class Harness:
    def __init__(self) -> None:
        self.store = ScriptedStore()
        self.clock = SimulatedClock(NOW, elapsed=7)
        self.facts: list[Fact] = []
        self.wakes = 0
        self.owner = LeaseHolder(self.store, self.clock, LEASE_US, self.wake, self.facts.append)  # type: ignore[arg-type]

    def wake(self) -> None:
        self.wakes += 1


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setattr(module, "POLL_S", 0.001)
    monkeypatch.setattr(module, "MAINTENANCE_IDLE_S", 0.001)
    return Harness()


async def test_readiness_before_the_first_attempt_is_starting(harness: Harness) -> None:
    ready, reason = harness.owner.readiness()
    assert not ready
    assert reason.startswith("starting")


async def test_a_standby_names_both_possible_reasons(harness: Harness) -> None:
    harness.store.answer = False
    await harness.owner.try_once()
    said = "standing by: another process owns this store, or was killed less than 3 s ago"
    assert harness.owner.readiness() == (False, said)


async def test_a_free_lease_is_taken_on_monotonic_time(harness: Harness) -> None:
    harness.clock.step(-99 * SECOND)
    await harness.owner.try_once()
    assert harness.owner.readiness() == (True, "ready")
    assert harness.store.asked == [(7, LEASE_US)]


async def test_a_change_of_ownership_is_published_once_and_wakes_the_dispatcher(harness: Harness) -> None:
    for answer in (True, True, False, False, True):
        harness.store.answer = answer
        await harness.owner.try_once()
    assert harness.facts == [
        OwnershipChanged(NOW, True, (0,)),
        OwnershipChanged(NOW, False),
        OwnershipChanged(NOW, True, (0,)),
    ]
    assert harness.wakes == 3


async def test_a_store_error_is_the_reason_until_it_is_over(harness: Harness) -> None:
    await harness.owner.try_once()
    harness.store.answer = StoreError("the disk is full")
    await harness.owner.try_once()
    assert harness.owner.readiness() == (False, "the disk is full")
    harness.store.answer = False
    await harness.owner.try_once()
    assert "another process" in harness.owner.readiness()[1]
    harness.store.answer = True
    await harness.owner.try_once()
    assert harness.owner.readiness()[0]


async def test_leases_are_renewed_until_stop_and_then_handed_over(harness: Harness) -> None:
    harness.owner = LeaseHolder(harness.store, harness.clock, 4_000, harness.wake, harness.facts.append)  # type: ignore[arg-type]
    running = asyncio.create_task(harness.owner.run())
    await eventually(lambda: len(harness.store.asked) > 5)
    assert harness.store.resigned == 0
    harness.owner.stop()
    await running
    assert harness.store.resigned == 1


async def test_lanes_that_are_handed_over_are_acquired_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 3_600.0)
    harness.store.answer = False
    running = asyncio.create_task(harness.owner.run())
    await eventually(lambda: len(harness.store.asked) == 1)
    harness.store.answer = True
    harness.store.call()
    await eventually(lambda: harness.owner.readiness()[0])
    harness.owner.stop()
    await running


async def test_a_standby_retries_and_hands_nothing_over(harness: Harness) -> None:
    harness.store.answer = False
    running = asyncio.create_task(harness.owner.run())
    await eventually(lambda: len(harness.store.asked) > 5)
    harness.owner.stop()
    await running
    assert harness.store.resigned == 0


async def test_only_an_owner_runs_maintenance(harness: Harness) -> None:
    tending = asyncio.create_task(harness.owner.run_maintenance())
    harness.store.answer = False
    await harness.owner.try_once()
    await turns(20)
    assert harness.store.tended == 0
    harness.store.answer = True
    await harness.owner.try_once()
    await eventually(lambda: harness.store.tended > 2)
    harness.owner.stop()
    await tending


@pytest.mark.parametrize("trouble", [NotOwner("another"), StoreError("full")])
async def test_errors_do_not_end_maintenance(harness: Harness, trouble: Exception) -> None:
    await harness.owner.try_once()
    harness.store.tending = trouble
    tending = asyncio.create_task(harness.owner.run_maintenance())
    await eventually(lambda: harness.store.tended > 3)
    harness.owner.stop()
    await tending


async def test_a_store_silent_for_a_lease_makes_the_node_unready(harness: Harness) -> None:
    await harness.owner.try_once()
    harness.clock.advance(LEASE_US - 1)
    assert harness.owner.readiness() == (True, "ready")
    harness.clock.advance(1)
    assert harness.owner.readiness() == (False, "the store has not answered for 3 s")


async def test_a_node_without_lanes_may_be_ready(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.store, "lanes", list)
    await harness.owner.try_once()
    assert harness.owner.readiness() == (True, "ready")
    assert harness.facts == [OwnershipChanged(NOW, True, ())]


async def test_changed_lanes_are_published_as_a_fact(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await harness.owner.try_once()
    monkeypatch.setattr(harness.store, "lanes", list)
    await harness.owner.try_once()
    assert harness.facts == [OwnershipChanged(NOW, True, (0,)), OwnershipChanged(NOW, True, ())]
    assert harness.wakes == 2


async def test_a_store_error_is_published_with_its_reason(harness: Harness) -> None:
    await harness.owner.try_once()
    assert harness.owner.trouble is None
    harness.store.answer = StoreError("the disk is full")
    for _ in range(3):
        await harness.owner.try_once()
    assert harness.facts[1:] == [OwnershipChanged(NOW, False, (), "the disk is full")]
    assert harness.owner.trouble == "the disk is full"


async def test_a_standby_reports_no_store_error(harness: Harness) -> None:
    harness.store.answer = False
    await harness.owner.try_once()
    assert harness.owner.trouble is None


async def test_a_hanging_store_is_reported_before_it_answers(harness: Harness) -> None:
    harness.owner = LeaseHolder(harness.store, harness.clock, 20_000, harness.wake, harness.facts.append)  # type: ignore[arg-type]
    await harness.owner.try_once()
    harness.store.hang.clear()
    asking = asyncio.create_task(harness.owner.try_once())
    await eventually(lambda: harness.owner.trouble is not None)
    assert harness.owner.readiness() == (False, "the store has not answered for 0.02 s")
    assert harness.facts[-1] == OwnershipChanged(NOW, False, (0,), "the store has not answered for 0.02 s")
    harness.store.hang.set()
    await asking
    assert harness.owner.readiness()[0]
    assert harness.facts[-1] == OwnershipChanged(NOW, True, (0,))


async def test_a_missing_permission_is_raised_only_at_the_start(harness: Harness) -> None:
    harness.store.answer = NotAllowed("permission denied")
    with pytest.raises(NotAllowed):
        await harness.owner.try_once()
    harness.store.answer = True
    await harness.owner.try_once()
    harness.store.answer = NotAllowed("a standby now")
    await harness.owner.try_once()
    assert harness.owner.trouble == "a standby now"


async def test_a_suspended_process_reports_it(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 3_600.0)
    running = asyncio.create_task(harness.owner.run())
    await eventually(lambda: len(harness.facts) == 1)
    await turns(5)
    harness.clock.advance(10 * SECOND)
    monkeypatch.setattr(harness.store, "lanes", list)
    harness.store.call()
    await eventually(lambda: len(harness.facts) == 2)
    fact = harness.facts[1]
    assert isinstance(fact, OwnershipChanged)
    assert (fact.owner, fact.lanes, fact.reason) == (True, (), "this process stood still for 9 s")
    harness.owner.stop()
    await running
