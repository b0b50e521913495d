"""More callers than connections: no call waits forever, and none takes connections that other work needs."""

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.pq import PipelineStatus

from tests.contract.factories import ACME, NOW, SECOND, add, every, left
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.clock import SystemClock
from tidings.domain.errors import StoreError
from tidings.domain.schedules.schedule import Query
from tidings.ports import IdempotencyKey
from tidings.testing import SimulatedClock
from tidings.timeline.postgres import pool as pools
from tidings.timeline.postgres.pool import INTAKE_MAX, READS_MAX, WORK_MAX, Pool
from tidings.timeline.postgres.queries import LISTS_PER_TENANT_MAX

LEASE_US = 3_600 * SECOND
MANY = 100


async def test_more_idempotency_keys_than_connections_are_answered(open_store: OpenStore) -> None:
    """At a start, where each needs arrival numbers and a new name."""
    store = await open_store(SimulatedClock(), lanes=1)
    calls = (store.apply([add(f"s{n}", topic=f"t{n}")], NOW, IdempotencyKey(ACME, f"k{n}", b"")) for n in range(MANY))
    answers = await asyncio.wait_for(asyncio.gather(*calls), 30)
    assert [answer[0].outcome for answer in answers] == ["scheduled"] * MANY
    assert await store.acquire(0, LEASE_US)


async def test_more_lanes_than_connections_create_a_topic_concurrently(open_store: OpenStore) -> None:
    lanes = 32
    assert lanes > WORK_MAX
    other, owner = [await open_store(SimulatedClock(), lanes=lanes, partitions=lanes) for _ in range(2)]
    await owner.acquire(0, LEASE_US)
    await other.apply([every(f"s{n}", topic="new") for n in range(MANY)], NOW)
    await asyncio.wait_for(asyncio.gather(*(lane.release(NOW, 100) for lane in owner.lanes())), 30)
    assert len(await left(owner, "new")) == MANY


async def test_reads_do_not_block_leases_and_changes(postgres: Postgres, open_store: OpenStore) -> None:
    store = await open_store(SystemClock(), lanes=1)
    now = store.clock.now()
    await store.apply([add("one", now + 60 * SECOND)], now)
    with postgres.connect() as connection, connection.transaction():
        connection.execute(store._context.inside("LOCK TABLE tidings.finished IN ACCESS EXCLUSIVE MODE").encode())
        tenants = [f"tenant{n}" for n in range(READS_MAX)]
        await asyncio.gather(*(store._context.names.make(tenant, "news") for tenant in tenants))
        reads = [asyncio.create_task(store.page(each, Query(limit=1), now)) for each in tenants * MANY]
        async with asyncio.timeout(1):  # while every read waits for the lock
            assert await store.acquire(store.clock.elapsed(), LEASE_US)
            assert len(store.lanes()) == 1
            assert (await store.apply([add("two", now + 60 * SECOND)], now))[0].outcome == "scheduled"
        for read in reads:
            read.cancel()
    await asyncio.wait(reads)


async def test_lists_of_one_tenant_leave_connections_to_the_others(postgres: Postgres, open_store: OpenStore) -> None:
    assert LISTS_PER_TENANT_MAX < READS_MAX
    store = await open_store(SimulatedClock(), lanes=1)
    await store.apply([add("one"), add("one", tenant="other")], NOW)
    with postgres.connect() as connection, connection.transaction():
        connection.execute(store._context.inside("LOCK TABLE tidings.standing IN ACCESS EXCLUSIVE MODE").encode())
        reads = [asyncio.create_task(store.page(ACME, Query(state="paused"), NOW)) for _ in range(MANY)]
        async with asyncio.timeout(1):
            page = await store.page("other", Query(state="pending"), NOW)
        assert [schedule.id for schedule in page.schedules] == ["one"]
        for read in reads:
            read.cancel()
    await asyncio.wait(reads)


async def test_idempotency_keys_leave_connections_to_other_calls(postgres: Postgres, open_store: OpenStore) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    await store.apply([add("one")], NOW)
    with postgres.connect() as connection, connection.transaction():
        connection.execute(store._context.inside("LOCK TABLE tidings.receipt IN ACCESS EXCLUSIVE MODE").encode())
        calls = [store.apply([add(f"s{n}")], NOW, IdempotencyKey(ACME, f"k{n}", b"")) for n in range(2 * INTAKE_MAX)]
        async with asyncio.timeout(1):
            assert (await store.apply([add("two")], NOW))[0].outcome == "scheduled"
    for call in calls:
        assert (await call)[0].outcome == "scheduled"


async def test_the_wait_for_a_connection_is_bounded(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TURN_S_MAX", 0.1)
    pool = Pool(postgres.dsn, 1)
    async with pool.connection():
        with pytest.raises(StoreError, match="too many calls in progress"):
            await asyncio.create_task(pool.call("SELECT 1"))
    assert await pool.call("SELECT 1") == [(1,)]
    await pool.close()


async def test_no_call_takes_a_second_connection_while_it_has_one(postgres: Postgres) -> None:
    pool = Pool(postgres.dsn, 2)
    async with pool.connection():
        with pytest.raises(AssertionError):
            await pool.call("SELECT 1")
    await pool.close()


async def test_a_connection_with_a_high_file_descriptor_works(postgres: Postgres) -> None:
    pool = Pool(postgres.dsn, 1)
    with many_descriptors():
        (first,) = await pool.call("SELECT pg_backend_pid()")
        (second,) = await pool.call("SELECT pg_backend_pid()")
    await pool.close()
    assert first == second


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Open so many that the next one is beyond the limit of select()."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2_048), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1_024:
            opened.append(os.dup(opened[0]))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_notification_is_explained_in_one_round_trip(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All statements of a read are sent before the first answer is waited for, on one connection."""
    store = await open_store(SimulatedClock(), lanes=1)
    await store.apply([add("one", NOW + SECOND)], NOW)
    await store.trace(ACME, "one", NOW, 10)  # connects
    statuses: list[int] = []
    borrowed: list[Pool] = []
    execute, connection = AsyncConnection.execute, Pool.connection

    async def observed(self: AsyncConnection[Any], *arguments: Any, **options: Any) -> Any:
        statuses.append(self.pgconn.pipeline_status)
        return await execute(self, *arguments, **options)

    def lent(self: Pool) -> Any:
        borrowed.append(self)
        return connection(self)

    monkeypatch.setattr(AsyncConnection, "execute", observed)
    monkeypatch.setattr(Pool, "connection", lent)
    found = await store.trace(ACME, "one", NOW, 10)
    monkeypatch.undo()
    assert found.schedule is not None
    assert len(borrowed) == 1
    assert set(statuses) == {PipelineStatus.ON}
