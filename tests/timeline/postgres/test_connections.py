"""Lost connections: an unknown result is reported as such, and the store recovers by itself."""

import asyncio

import psycopg
import pytest

from tests.contract.factories import ACME, NOW, SECOND, add, answer, applied, drain, every, left, state
from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.errors import StoreError
from tidings.domain.schedules.command import Cancel
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.postgres.context import BLOCK
from tidings.timeline.postgres.store import PostgresStore

LEASE_US = 3_600 * SECOND


async def test_idle_connections_that_were_ended_are_replaced(postgres: Postgres, open_store: OpenStore) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    await store.acquire(0, LEASE_US)
    await applied(store, add("one"))
    with postgres.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    await eventually(lambda: not any(_is_open(idle) for pool in store._pools._all for idle in pool._idle))
    await applied(store, add("two"))
    await drain(store)
    assert await left(store) == ["one", "two"]


def _is_open(connection: "psycopg.AsyncConnection[tuple[object, ...]]") -> bool:
    from tidings.timeline.postgres.pool import _is_sound

    return _is_sound(connection)


async def test_a_connection_lost_during_a_call_is_reported_and_a_repeat_does_nothing_twice(
    postgres: Postgres, open_store: OpenStore
) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    await store.acquire(0, LEASE_US)
    await applied(store, add("one", NOW + SECOND))
    with postgres.connect() as connection, connection.transaction():
        connection.execute(store._context.inside("LOCK TABLE tidings.registry IN ACCESS EXCLUSIVE MODE"))
        lost = asyncio.ensure_future(store.apply([add("two"), Cancel(ACME, "one")], NOW))
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        pid = await eventually(lambda: connection.execute(waiting).fetchone())
        connection.execute("SELECT pg_terminate_backend(%s)", pid)
        with pytest.raises(StoreError, match="whether the changes were made is not known"):
            await lost
    assert (await answer(store, add("two"))).outcome == "scheduled"
    assert (await answer(store, add("two"))).outcome == "unchanged"
    assert await state(store, "one") == "pending"


async def test_arrival_numbers_that_were_given_out_twice_overwrite_nothing(
    postgres: Postgres, open_store: OpenStore
) -> None:
    """As after a failover to a standby that lost the last step of the sequence, which the other node did not notice."""
    first, second = [await open_store(SimulatedClock(), lanes=1) for _ in range(2)]
    await applied(first, every("first", NOW + SECOND))
    with postgres.connect() as connection:
        connection.execute(first._context.inside("ALTER SEQUENCE tidings.arrival_block RESTART 0").encode())
    await applied(second, every("second", NOW + 2 * SECOND))
    found = [await first.find(ACME, name, NOW) for name in ("first", "second")]
    assert [(each.id, each.due) for each in found if each] == [("first", NOW + SECOND), ("second", NOW + 2 * SECOND)]


async def test_after_a_lost_connection_arrival_numbers_come_from_a_new_block(
    postgres: Postgres, open_store: OpenStore
) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    await applied(store, add("one"))
    with postgres.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        await eventually(lambda: not any(_is_open(idle) for pool in store._pools._all for idle in pool._idle))
        await applied(store, add("two"))
        query = store._context.inside("SELECT arrival FROM tidings.timeline ORDER BY 1").encode()
        ((one,), (two,)) = connection.execute(query).fetchall()
    assert isinstance(one, int)
    assert isinstance(two, int)
    assert two - one >= BLOCK


async def test_it_continues_after_an_immediate_restart() -> None:
    try:
        server = Postgres.start()
    except Missing as missing:
        leave_out(missing)
    with server:
        store = await PostgresStore.open(server.dsn, SimulatedClock(), lanes=2)
        await store.acquire(0, LEASE_US)
        await applied(store, *(add(f"s{number}") for number in range(100)))
        await asyncio.to_thread(server.restart, immediate=True)
        assert (await applied(store, add("after")))[0].outcome == "scheduled"
        await drain(store)
        assert len(await left(store)) == 101

        async def hears() -> bool:
            other = await PostgresStore.open(server.dsn, SimulatedClock())
            try:
                await other.apply([add("later", NOW + SECOND)], NOW)
            finally:
                await other.close()
            return any(lane.next_due() is not None for lane in store.lanes())

        await eventually(hears, 10)
        await store.close()


async def test_a_server_that_does_not_exist_is_reported() -> None:
    with pytest.raises(StoreError, match="PostgreSQL cannot be reached"):
        await PostgresStore.open("postgresql://nobody@127.0.0.1:1/nothing")


async def test_calls_fail_while_the_server_is_away_and_succeed_afterwards() -> None:
    try:
        server = Postgres.start()
    except Missing as missing:
        leave_out(missing)
    with server:
        store = await PostgresStore.open(server.dsn, SimulatedClock(), lanes=1)
        await store.acquire(0, LEASE_US)
        await asyncio.to_thread(server.stop, immediate=True)
        with pytest.raises(StoreError):
            await store.apply([add("one")], NOW)
        with pytest.raises(StoreError):
            await store.acquire(0, LEASE_US)
        assert len(store.lanes()) == 1, "the lease still runs"
        await asyncio.to_thread(server.restart)
        assert await store.acquire(0, LEASE_US)
        assert (await answer(store, add("one"))).outcome == "scheduled"
        await store.close()


async def test_no_call_relies_on_its_session(open_store: OpenStore) -> None:
    """As behind PgBouncer: every call may meet another connection."""
    store = await open_store(SimulatedClock(), lanes=2)
    await store.acquire(0, LEASE_US)

    async def forget() -> None:
        for connection in store._pool._idle:
            await connection.execute("DISCARD ALL")

    for number in range(5):
        await applied(store, add(f"s{number}"))
        await forget()
        await drain(store)
        await forget()
    assert len(await left(store)) == 5
