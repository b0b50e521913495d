"""Engines on one database: lanes are shared, and a clean stop hands them over without a loss."""

import asyncio
from collections import Counter

from tests.contract.factories import SECOND, add, left, records
from tests.timeline.postgres.conftest import OpenStore
from tidings.clock import SystemClock
from tidings.domain.schedules.command import Cancel
from tidings.engine import Engine
from tidings.testing import eventually
from tidings.timeline.postgres.store import PostgresStore


async def started(store: PostgresStore) -> Engine:
    engine = Engine(store, SystemClock())
    await engine.start()
    return engine


async def until_left(store: PostgresStore, wanted: int) -> None:
    """Wait until this many records are on the log."""

    async def enough() -> bool:
        topic = await store.topic("acme", "greetings")
        return topic is not None and sum(topic.next) >= wanted

    await eventually(enough, 20)


async def test_two_engines_share_and_one_takes_over(open_store: OpenStore) -> None:
    clock = SystemClock()
    first, second = [await open_store(clock, lanes=4) for _ in range(2)]
    one, two = await started(first), await started(second)
    await eventually(lambda: len(first.lanes()) == len(second.lanes()) == 2, 10)
    ids = [f"s{number}" for number in range(400)]
    due = clock.now() + SECOND // 2
    await one.submit([add(name, due + index * 5_000) for index, name in enumerate(ids)])

    await until_left(second, 100)
    await one.stop()
    await eventually(lambda: len(second.lanes()) == 4, 3)
    await until_left(second, len(ids))
    assert await left(second) == sorted(ids), "each once"
    await two.stop()


async def test_lateness_on_an_idle_store(open_store: OpenStore) -> None:
    """A schedule accepted by another node is released at its due time, not at the next poll."""
    clock = SystemClock()
    first, second = [await open_store(clock, lanes=2) for _ in range(2)]
    one, two = await started(first), await started(second)
    await eventually(lambda: len(first.lanes()) == len(second.lanes()) == 1, 10)
    for number in range(20):
        await one.submit([add(f"s{number}", clock.now() + SECOND // 5)])
        await until_left(second, number + 1)
    found = await records(second)
    late = sorted(record.released - record.due for record in found)
    assert len(late) == 20
    assert late[0] >= 0
    assert late[len(late) // 2] < SECOND // 10, late
    await one.stop()
    await two.stop()


async def test_text_that_the_database_cannot_hold_fails_alone(open_store: OpenStore) -> None:
    clock = SystemClock()
    engine = await started(await open_store(clock))
    later = clock.now() + 3_600 * SECOND
    names = [f"s{number}" for number in range(30)]
    bad = [engine.submit([add("a\0b", later, tenant="other")]), engine.submit([Cancel("other", "a\0b")])]
    asked = [engine.submit([add(name, later)]) for name in names]
    answers = await asyncio.gather(*asked[:15], *bad, *asked[15:], return_exceptions=True)
    await engine.stop()
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    outcomes = Counter(answer[0].outcome for answer in answers if not isinstance(answer, BaseException))
    assert refused == []
    assert outcomes == {"scheduled": len(names), "rejected": 2}
