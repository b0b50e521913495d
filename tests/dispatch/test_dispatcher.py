"""The dispatcher: never releases early, never sleeps past a due time, and survives errors."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.contract.factories import MILLISECOND, MINUTE, NOW, SECOND, add, applied, every, left
from tidings.clock import Clock
from tidings.dispatch import dispatcher as module
from tidings.dispatch.dispatcher import (
    BATCH_ROWS_MAX,
    BATCH_ROWS_MIN,
    SHARED_ROWS_MAX,
    SLEEP_US_MAX,
    Dispatcher,
    Waiter,
)
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Fact, Missed, Released
from tidings.domain.schedules.lateness import Lateness
from tidings.ports import Release
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory import MemoryStore


class Harness:
    """A dispatcher over a memory store, with a simulated clock."""

    def __init__(self) -> None:
        self.clock = SimulatedClock(NOW)
        self.store = MemoryStore()
        self.waiter = Waiter()
        self.facts: list[Fact] = []
        self.dispatcher = Dispatcher(self.store, self.clock, self.waiter, self.facts.append)

    async def tick(self) -> int:
        return await self.dispatcher.tick()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    made = Harness()
    yield made
    made.waiter.close()


async def test_an_idle_dispatcher_sleeps_for_the_maximum(harness: Harness) -> None:
    assert await harness.tick() == SLEEP_US_MAX
    assert harness.facts == []


async def test_it_sleeps_until_the_due_time_and_never_releases_early(harness: Harness) -> None:
    await applied(harness.store, add("one", NOW + 300 * MILLISECOND))
    assert await harness.tick() == 300 * MILLISECOND
    harness.clock.advance(300 * MILLISECOND - 1)
    assert await harness.tick() == 1
    assert await left(harness.store) == []
    harness.clock.advance(1)
    assert await harness.tick() == 0
    assert await left(harness.store) == ["one"]
    assert harness.facts == [Released(harness.clock.now(), [0], frozenset({("acme", "greetings")}))]
    assert await harness.tick() == SLEEP_US_MAX


async def test_a_distant_due_time_is_checked_again_after_the_maximum_sleep(harness: Harness) -> None:
    await applied(harness.store, add("one", NOW + MINUTE))
    assert await harness.tick() == SLEEP_US_MAX


async def test_an_earlier_schedule_shortens_the_sleep(harness: Harness) -> None:
    await applied(harness.store, add("late", NOW + 900 * MILLISECOND))
    assert await harness.tick() == 900 * MILLISECOND
    await applied(harness.store, add("early", NOW + MILLISECOND))
    assert await harness.tick() == MILLISECOND


async def test_a_clock_set_back_delays_releases_without_duplicates(harness: Harness) -> None:
    await applied(harness.store, every("many", NOW, count=3))
    while await harness.tick() == 0:
        pass
    harness.clock.step(-MINUTE)
    assert await harness.tick() == SLEEP_US_MAX
    for _ in range(4):
        harness.clock.advance(MINUTE)
        while await harness.tick() == 0:
            pass
    assert await left(harness.store) == ["many"] * 3


async def test_missed_occurrences_are_published_as_a_fact(harness: Harness) -> None:
    await applied(harness.store, add("one", NOW - MINUTE, lateness=Lateness(expires_after_us=SECOND)))
    assert await harness.tick() == 0
    assert harness.facts == [Missed(NOW, {"expired": 1})]


async def test_a_new_schedule_wakes_the_dispatcher(harness: Harness) -> None:
    running = asyncio.create_task(harness.dispatcher.run())
    await applied(harness.store, add("later", NOW + MINUTE))
    harness.waiter.wake()
    await applied(harness.store, add("now", NOW))
    harness.waiter.wake()

    async def is_there() -> bool:
        return await left(harness.store) == ["now"]

    await eventually(is_there)
    harness.dispatcher.stop()
    await running


class ScriptedTimeline:
    """A timeline with something due, whose releases follow a script."""

    def __init__(self, *script: Exception | Release) -> None:
        self.script = list(script)
        self.asked: list[int] = []
        self.number = 0
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    def next_due(self) -> int | None:
        return NOW if self.script else None

    async def release(self, now: int, rows_max: int, clock: Clock | None = None) -> Release:
        self.asked.append(rows_max)
        self.begun.set()
        await self.may_end.wait()
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


def dispatch(timeline: ScriptedTimeline, waiter: Waiter, facts: list[Fact] | None = None) -> Dispatcher:
    published: list[Fact] = [] if facts is None else facts
    return Dispatcher(timeline, SimulatedClock(NOW), waiter, published.append)  # type: ignore[arg-type]


async def test_a_failing_store_is_retried_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_US", 1)
    facts: list[Fact] = []
    timeline = ScriptedTimeline(StoreError("full"), NotOwner("another"), StoreError("full"), Release([5]))
    waiter = Waiter()
    dispatcher = dispatch(timeline, waiter, facts)
    running = asyncio.create_task(dispatcher.run())
    await eventually(lambda: facts == [Released(NOW, [5], frozenset())])
    dispatcher.stop()
    await running
    waiter.close()
    assert [record.getMessage() for record in caplog.records] == ["cannot release on lane 0, trying again: full"]


async def test_stop_finishes_the_present_batch() -> None:
    facts: list[Fact] = []
    timeline = ScriptedTimeline(Release([1], more=True), Release([2]))
    timeline.may_end.clear()
    waiter = Waiter()
    dispatcher = dispatch(timeline, waiter, facts)
    running = asyncio.create_task(dispatcher.run())
    await timeline.begun.wait()
    dispatcher.stop()
    assert not running.done()
    timeline.may_end.set()
    await running
    assert facts == [Released(NOW, [1], frozenset())], "that one and no other"
    waiter.close()


async def test_batches_grow_while_there_is_more() -> None:
    timeline = ScriptedTimeline(*(Release([1], more=True) for _ in range(6)), Release([1]), Release([1]))
    waiter = Waiter()
    dispatcher = dispatch(timeline, waiter)
    while await dispatcher.tick() == 0:
        pass
    growing = [min(BATCH_ROWS_MIN * 2**step, BATCH_ROWS_MAX) for step in range(7)]
    assert timeline.asked == [*growing, BATCH_ROWS_MIN]
    waiter.close()


async def test_batches_stay_small_while_several_tenants_have_releases() -> None:
    both = frozenset({("acme", "orders"), ("zenith", "orders")})
    shared = [Release([1], both, more=True) for _ in range(4)]
    timeline = ScriptedTimeline(*shared, Release([1], more=True), Release([1]))
    waiter = Waiter()
    dispatcher = dispatch(timeline, waiter)
    while await dispatcher.tick() == 0:
        pass
    assert max(timeline.asked) == SHARED_ROWS_MAX
    waiter.close()


async def test_batches_shrink_while_the_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch size may be the reason."""
    monkeypatch.setattr(module, "RETRY_US", 1)
    timeline = ScriptedTimeline(*(StoreError("too long") for _ in range(9)), Release([1], more=True), Release([1]))
    waiter = Waiter()
    dispatcher = dispatch(timeline, waiter)
    running = asyncio.create_task(dispatcher.run())
    await eventually(lambda: not timeline.script)
    dispatcher.stop()
    await running
    waiter.close()
    assert timeline.asked == [128, 64, 32, 16, 8, 4, 2, 1, 1, 1, 2]
