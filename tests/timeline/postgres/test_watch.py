"""NOTIFY is a hint: wrong or missing notifications do not stop a node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from tests.contract.factories import NOW, SECOND, add, answer
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.clock import SystemClock
from tidings.engine import Engine
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.postgres.store import PostgresStore

LEASE_US = 3_600 * SECOND
KEY = b"K\0\0\0\x0c"  # how the message with the number of a backend begins
WHOLE_S = 0.02
LISTENERS = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"


async def test_invalid_notifications_are_ignored(postgres: Postgres, open_store: OpenStore, schema: str) -> None:
    owner, other = [await open_store(SystemClock(), lanes=1) for _ in range(2)]
    await owner.acquire(owner.clock.elapsed(), LEASE_US)
    (lane,) = owner.lanes()
    with postgres.connect() as connection:
        await eventually(lambda: connection.execute(LISTENERS).fetchone() != (0,))
        for payload in ("due soon", "due 1:", "new one", "moved {", "moved []", "moved", "", "\u00e9"):
            connection.execute("SELECT pg_notify(%s, %s)", (schema, payload))
    now = owner.clock.now()
    owner._watch._tasks[1].cancel()  # a node that does not poll learns it by notification or not at all
    await other.apply([add("one", now + SECOND)], now)
    await eventually(lambda: lane.next_due() == now + SECOND)


async def test_a_node_whose_listener_fails_stops_and_hands_its_lanes_over(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, schema: str, postgres: Postgres
) -> None:
    store = await open_store(SystemClock(), lanes=1)
    engine = Engine(store, SystemClock())
    await engine.start()

    def broken(_: str) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(store._watch, "_handle", broken)
    with postgres.connect() as connection:
        connection.execute("SELECT pg_notify(%s, 'free')", (schema,))
    with pytest.raises(RuntimeError, match="a mistake"):
        await asyncio.wait_for(engine.wait(), 10)
    await engine.stop()
    with postgres.connect() as connection:
        owned = connection.execute(f"SELECT count(*) FROM {schema}.lane WHERE token IS NOT NULL".encode())
        assert owned.fetchone() == (0,), "and its lanes are handed over"


async def test_lanes_are_handed_over_after_they_were_taken(
    postgres: Postgres, open_store: OpenStore, schema: str
) -> None:
    store = await open_store(SystemClock(), lanes=1)
    with postgres.connect() as connection, connection.transaction():
        connection.execute(f"LOCK TABLE {schema}.node IN ACCESS EXCLUSIVE MODE".encode())
        acquiring = asyncio.create_task(store.acquire(0, LEASE_US))
        await eventually(lambda: connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone())
        resigning = asyncio.create_task(store.resign())
        await eventually(store._acquiring.locked)
    await asyncio.gather(acquiring, resigning)
    with postgres.connect() as connection:
        owned = connection.execute(f"SELECT count(*) FROM {schema}.lane WHERE token IS NOT NULL".encode())
        assert owned.fetchone() == (0,)
    assert not store.lanes()


async def test_behind_a_pooler_nodes_do_not_listen(postgres: Postgres, schema: str) -> None:
    """A pooler that accepts our options without passing them on, and gives its clients numbers of its own."""
    async with pooler(postgres, _renumbered) as dsn:
        store = await PostgresStore.open(dsn, SimulatedClock(), lanes=1, schema=schema)
        await store.acquire(0, LEASE_US)
        assert not store._context.pool.is_direct
        await eventually(store._watch._tasks[0].done)
        await store.acquire(0, LEASE_US)
        assert (await answer(store, add("one"))).outcome == "scheduled"
        (lane,) = store.lanes()
        await lane.release(NOW, 10)
        await lane.settle(0)
        await store.close()


async def test_a_direct_connection_is_detected(open_store: OpenStore) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    assert store._context.pools.first.is_direct


def _renumbered(data: bytes) -> bytes:
    place = data.find(KEY)
    return data if place < 0 else data[: place + 5] + b"\x7f\xff\xff\xff" + data[place + 9 :]


@contextlib.asynccontextmanager
async def pooler(postgres: Postgres, change: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """A proxy to the server that changes its answers."""

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                with contextlib.suppress(TimeoutError):  # what is changed must be whole
                    while more := await asyncio.wait_for(reader.read(65_536), 0 if change is bytes else WHOLE_S):
                        data += more
                writer.write(change(data))
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    links: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        links.add(asyncio.current_task())
        its_reader, its_writer = await asyncio.open_connection("127.0.0.1", postgres.port)
        await asyncio.gather(pump(reader, its_writer, bytes), pump(its_reader, writer, change))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield postgres.dsn_at(server.sockets[0].getsockname()[1])
        await asyncio.gather(*(link for link in links if link is not None))
