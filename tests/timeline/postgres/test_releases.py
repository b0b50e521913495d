"""Releases of several lanes in one call: nothing is lost or duplicate, and a lost lane does not delay others."""

import asyncio

import pytest

from tests.contract.factories import NOW, SECOND, add, every, left
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.errors import NotOwner
from tidings.ports import Release
from tidings.testing import SimulatedClock
from tidings.timeline.postgres.group_release import CALLS_MAX, ReleaseRequest
from tidings.timeline.postgres.pool import Row
from tidings.timeline.postgres.store import PostgresStore

LANES = 16
IDS = [f"s{number}" for number in range(400)]


async def with_rows(open_store: OpenStore) -> PostgresStore:
    """A store whose lanes all have rows that are due."""
    store = await open_store(SimulatedClock(), lanes=LANES)
    assert await store.acquire(0, 60 * SECOND)
    await store.apply([add(name, NOW) for name in IDS], NOW)
    return store


async def release_all(store: PostgresStore) -> list[Release | BaseException]:
    return await asyncio.gather(*(lane.release(NOW, 100) for lane in store.lanes()), return_exceptions=True)


async def test_lanes_that_release_together_share_a_transaction(open_store: OpenStore, postgres: Postgres) -> None:
    store = await with_rows(open_store)
    answers = await release_all(store)
    released = [answer for answer in answers if isinstance(answer, Release)]
    assert len(released) == LANES
    assert sum(len(answer.lateness_us) for answer in released) == len(IDS)
    assert await left(store) == sorted(IDS), "each once"
    with postgres.connect() as connection:
        query = store._context.inside("SELECT count(DISTINCT xmin::text)::int FROM tidings.log").encode()
        ((transactions,),) = connection.execute(query).fetchall()
    assert CALLS_MAX < int(str(transactions)) < LANES, "those that could not begin at once went together"


async def test_a_lost_lane_does_not_delay_others(open_store: OpenStore, postgres: Postgres) -> None:
    store = await with_rows(open_store)
    with postgres.connect() as connection:
        lost = store._context.inside("UPDATE tidings.lane SET token = gen_random_uuid() WHERE lane = 7")
        connection.execute(lost.encode())
    answers = await release_all(store)
    assert [number for number, answer in enumerate(answers) if isinstance(answer, NotOwner)] == [7]
    assert all(isinstance(answer, Release) for number, answer in enumerate(answers) if number != 7)
    assert set(await left(store)) < set(IDS)
    assert sum(len(answer.lateness_us) for answer in answers if isinstance(answer, Release)) == len(await left(store))


async def test_without_rows_to_delete_nothing_is_written(open_store: OpenStore, postgres: Postgres) -> None:
    store = await with_rows(open_store)
    await release_all(store)
    turns = store._context.inside("SELECT sum(turns) FROM tidings.lane").encode()
    with postgres.connect() as connection:
        before = connection.execute(turns).fetchone()
        await store.tend(NOW)
        assert connection.execute(turns).fetchone() == before
        await store.tend(NOW + 8 * 86_400 * SECOND)
        assert connection.execute(turns).fetchone() != before
    assert await left(store) == []


async def test_rows_found_by_a_poll_during_a_release_are_not_lost(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is below the low-water mark of that release, and no notification announced it."""
    owner, other = [await open_store(SimulatedClock(), lanes=1) for _ in range(2)]
    await owner.acquire(0, 60 * SECOND)
    await owner._watch.stop()
    (lane,) = owner.lanes()
    await owner.apply([add("first", NOW)], NOW)
    await lane.release(NOW, 100)
    await other.apply([add("below", NOW - SECOND)], NOW)
    answered, may_end = asyncio.Event(), asyncio.Event()
    release = owner._context.releases.release

    async def held(asked: ReleaseRequest) -> Row:
        row = await release(asked)
        answered.set()
        await may_end.wait()
        return row

    monkeypatch.setattr(owner._context.releases, "release", held)
    releasing = asyncio.create_task(lane.release(NOW, 100))
    await answered.wait()
    await owner._context.look(owner._context.next_due.routes, whole=True)
    may_end.set()
    await releasing
    assert lane.next_due() is not None
    await lane.release(NOW, 100)
    assert await left(owner) == ["below", "first"]


async def test_a_batch_of_recurring_schedules_is_bounded_by_their_size(open_store: OpenStore) -> None:
    """Their messages are stored beside the timeline, and each may be 1 MB."""
    store = await open_store(SimulatedClock(), lanes=1)
    await store.acquire(0, 60 * SECOND)
    ids = [f"e{number:02}" for number in range(20)]
    await store.apply([every(name, NOW, value=bytes(1 << 20)) for name in ids], NOW)
    (lane,) = store.lanes()
    counts = []
    while (done := await lane.release(NOW, 128)).lateness_us:
        counts.append(len(done.lateness_us))
        assert done.more == (sum(counts) < len(ids))
    assert counts == [8, 8, 4]
    assert await left(store) == ids
