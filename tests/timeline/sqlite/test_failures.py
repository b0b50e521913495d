"""A failed operation changes nothing: memory and file agree afterwards, and other requests succeed."""

import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.contract.factories import ACME, DAY, NOW, SECOND, add, every
from tests.timeline.sqlite.test_id_map import names, small, tend_all
from tidings.domain.errors import KeyReused, StoreError
from tidings.domain.schedules.command import Cancel
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.when import Period
from tidings.ports import IdempotencyKey
from tidings.timeline.sqlite.database import Checkpointer, prepare
from tidings.timeline.sqlite.pending.next_due import NextDue
from tidings.timeline.sqlite.store import SqliteStore

__all__ = ["small"]

FOREVER = 10**15


class Failing:
    """A connection whose nth commit fails as on a full disk."""

    def __init__(self, connection: apsw.Connection, commits: int) -> None:
        self._connection = connection
        self._left = commits

    def execute(self, sql: str, *values: Any, **options: Any) -> Any:
        if sql == "COMMIT":
            self._left -= 1
            if self._left == 0:
                raise apsw.FullError("the disk is full")
        return self._connection.execute(sql, *values, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "failing.db", created=NOW)
    assert await store.acquire(0, FOREVER)
    yield store
    await store.close()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("failing", range(1, 40, 3))
async def test_a_commit_that_fails_forgets_no_id(store: SqliteStore, failing: int) -> None:
    ids = names(360)
    for start in range(0, 360, 40):
        await store.apply([add(name, NOW + DAY) for name in ids[start : start + 40]], NOW)
    connection: Any = Failing(store._writer.connection, failing)
    store._writer.connection = connection
    for _ in range(60):
        with contextlib.suppress(StoreError):
            if not await store.tend(NOW):
                break
    await tend_all(store, NOW)
    assert all([await store.find(ACME, name, NOW) for name in ids])
    outcomes = await store.apply([Cancel(ACME, name) for name in ids], NOW)
    assert {outcome.outcome for outcome in outcomes} == {"cancelled"}


async def test_a_failed_intake_leaves_no_trace(store: SqliteStore) -> None:
    await tend_all(store, NOW)
    await store.apply([add("before", NOW + SECOND)], NOW)
    connection: Any = Failing(store._writer.connection, 1)
    store._writer.connection = connection
    with pytest.raises(StoreError, match="disk is full"):
        await store.apply([add("failed", NOW + SECOND, tenant="new"), add("other", NOW, topic="new")], NOW)
    assert await store.find("new", "failed", NOW) is None
    assert store.next_due() == NOW + SECOND
    outcomes = await store.apply([add("failed", NOW + SECOND, tenant="new"), add("other", NOW, topic="new")], NOW)
    assert [outcome.outcome for outcome in outcomes] == ["scheduled", "scheduled"]
    assert (await store.count(NOW)).pending == 3


async def test_a_reused_idempotency_key_affects_no_other_request(store: SqliteStore) -> None:
    await store.apply([add("one", NOW + SECOND)], NOW, IdempotencyKey(ACME, "key", b"a"))
    idmap = store._writer.idmap
    with pytest.raises(KeyReused):
        await store.apply([add("two", NOW + SECOND)], NOW, IdempotencyKey(ACME, "key", b"b"))
    assert store._writer.idmap is idmap, "memory was not read back from the file"
    assert await store.find(ACME, "one", NOW) is not None


async def test_an_occurrence_beyond_the_calendar_waits_in_the_last_bucket(store: SqliteStore) -> None:
    await store.apply([every("rare", NOW, period=Period(70 * 12, 0)), add("other", NOW)], NOW)
    while (await store.release(NOW, 10)).more:
        pass
    assert (found := await store.find(ACME, "rare", NOW)) is not None
    assert found.occurrence == 2
    (outcome,) = await store.apply([Cancel(ACME, "rare")], NOW)
    assert outcome.outcome == "cancelled"


async def test_a_limit_beyond_the_last_year_is_no_limit(store: SqliteStore) -> None:
    lateness = Lateness(expires_after_us=365_000 * DAY)
    outcomes = await store.apply([add("one", NOW, lateness=lateness), add("two", NOW)], NOW)
    assert [outcome.outcome for outcome in outcomes] == ["scheduled", "scheduled"]
    assert len((await store.release(NOW, 10)).lateness_us) == 2


async def test_the_store_answers_after_it_was_closed(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "closed.db")
    assert await store.acquire(0, FOREVER)
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.apply([add("late")], NOW)


def test_next_due_entries_do_not_grow_with_changes() -> None:
    heads = NextDue()
    heads.set(1, 1_000)
    for _ in range(1_000):
        heads.set(1, 1_000)
    assert len(heads._heap) == 1


def test_streams_that_are_due_take_turns() -> None:
    heads = NextDue()
    for stream in range(5):
        heads.set(stream, stream)
    served: list[int] = []
    for _ in range(5):
        taken = heads.take(100, 2)
        served += taken
        for stream in taken:
            heads.set(stream, 50)
    assert sorted(served) == sorted([0, 1, 2, 3, 4] * 2)


async def test_an_unreadable_row_is_set_aside_and_the_others_are_released(store: SqliteStore) -> None:
    await store.apply([every("damaged", NOW), *(add(f"row-{index}", NOW) for index in range(20))], NOW)
    store._connection.execute("UPDATE standing SET policy = x'c1'")
    released, missed = 0, dict[str, int]()
    for _ in range(100):
        release = await store.release(NOW + SECOND, 50)
        released += len(release.lateness_us)
        missed |= release.missed
        if not release.more:
            break
    assert (released, missed) == (20, {"damaged": 1})
    found = await store.find(ACME, "damaged", NOW)
    assert found is not None
    assert (found.state, found.reason) == ("missed", "damaged")
    assert (await store.count(NOW)).pending == 0


def test_a_checkpoint_that_fails_is_tried_again_at_the_next_commit(tmp_path: Path) -> None:
    folder, done = tmp_path / "away", threading.Event()
    checkpointer = Checkpointer(str(folder / "tidings.db"), done.set)
    checkpointer.wake()
    assert not done.wait(0.1)
    folder.mkdir()
    for _ in range(100):
        checkpointer.wake()
        if done.wait(0.1):
            break
    assert done.is_set()
    checkpointer.close()


@pytest.mark.slow
async def test_reads_of_the_outbox_are_bounded_in_memory(store: SqliteStore) -> None:
    value = bytes(1024 * 1024)
    for index in range(40):
        await store.apply([add(f"row-{index}", NOW, topic="kafka:large", value=value)], NOW)
    while (await store.release(NOW, 100)).more:
        pass
    found = await store.outgoing(0, 1_000)
    assert 1 <= len(found) < 20
    assert [record.offset for record in found] == list(range(len(found)))
    assert (await store.outgoing(len(found), 1_000))[0].offset == len(found)
    await store.hold(range(40), "no such topic")
    assert 1 <= len(await store.held("large")) < 20


def test_concurrent_creations_of_a_file_wait_for_each_other(tmp_path: Path) -> None:
    """SQLite itself refuses to switch to a write-ahead log then, without waiting."""
    path = str(tmp_path / "tidings.db")
    first = apsw.Connection(path)
    first.execute("BEGIN IMMEDIATE; CREATE TABLE t (a); DROP TABLE t")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        made = pool.submit(prepare, path)
        with pytest.raises(TimeoutError):
            made.result(timeout=0.3)
        first.execute("COMMIT")
        made.result()
