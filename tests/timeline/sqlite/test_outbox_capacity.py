"""The outbox capacity on SQLite: counted from the stored records, after a restart and after a failure."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.factories import NOW, add, applied, drain, every, next_due
from tests.timeline.sqlite.test_failures import Failing
from tidings.domain.errors import StoreError
from tidings.timeline.sqlite.pending.next_due import Lookahead
from tidings.timeline.sqlite.release import outbox
from tidings.timeline.sqlite.store import SqliteStore

ROOM = 20
FOREVER = 10**15


async def opened(path: Path) -> SqliteStore:
    store = await SqliteStore.open(path, outbox_rows_max=ROOM)
    assert await store.acquire(0, FOREVER)
    return store


async def test_the_outbox_is_counted_from_the_stored_records_after_a_restart(tmp_path: Path) -> None:
    store = await opened(tmp_path / "room.db")
    await applied(store, *(add(f"row-{index:02}", NOW, topic="kafka:orders") for index in range(2 * ROOM)))
    assert (await drain(store)).handed == ROOM
    await store.hold([0, 1, 2], "no such topic")
    await store.settle(5)
    await store.close()
    store = await opened(tmp_path / "room.db")
    try:
        assert (await drain(store)).handed == 5
        assert next_due(store) is None
        assert await store.outbox() == (5, ROOM + 5)
    finally:
        await store.close()


async def test_rows_that_failed_to_enter_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(tmp_path / "room.db")
    try:
        await applied(
            store, *(add(None, NOW, topic="kafka:orders") for _ in range(ROOM)), every("tick", topic="kafka:x")
        )
        monkeypatch.setattr(store._writer, "connection", Failing(store._connection, 1))
        with pytest.raises(StoreError):
            await store.release(NOW, ROOM)
        assert store._writer.room.rows == ROOM
        assert (await drain(store)).handed == ROOM
    finally:
        await store.close()


async def test_the_outbox_is_read_on_its_own_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of records take a while to read: the event loop and lists continue meanwhile."""
    threads: set[str] = set()

    def watched(real: Callable[..., object]) -> Callable[..., object]:
        def seen(*arguments: object) -> object:
            threads.add(threading.current_thread().name)
            return real(*arguments)

        return seen

    for name in ("outgoing", "held"):
        monkeypatch.setattr(outbox, name, watched(getattr(outbox, name)))
    store = await opened(tmp_path / "room.db")
    try:
        await applied(store, add("one", NOW, topic="kafka:orders"))
        await drain(store)
        assert len(await store.outgoing(0, 10)) == 1
        await store.hold([0], "no such topic")
        assert len(await store.held("orders")) == 1
    finally:
        await store.close()
    assert threads == {"tidings-outbox"}


def test_streams_of_both_buses_take_turns() -> None:
    heads = Lookahead({10, 11, 12})
    for stream in (0, 1, 2, 10, 11, 12):
        heads.set(stream, 5)
    taken: set[int] = set()
    for _ in range(6):
        (stream,) = heads.take(10, 1, 1)
        heads.set(stream, 5)
        taken.add(stream)
    assert taken == {0, 1, 2, 10, 11, 12}
    assert len(heads.take(10, 4, 9).keys() & {0, 1, 2}) == 2


def test_streams_of_kafka_are_left_out_while_there_is_no_room() -> None:
    heads = Lookahead({10})
    heads.set(0, 5)
    heads.set(10, 4)
    assert heads.take(10, 100, 0) == {0: 5}
    assert (heads.log.first, heads.kafka.first) == (None, 0)
    assert heads.take(10, 100, 7) == {10: 4}
