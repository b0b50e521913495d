"""The packed outbox on SQLite: single members that are held back, freed or missed, restarts, and the hand-over."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.factories import ACME, NOW, SECOND, add, applied, drain, every, found, state, words
from tidings.domain.schedules.command import Cancel
from tidings.timeline.sqlite.release.outbox import PACKED_ROWS_MAX
from tidings.timeline.sqlite.store import SqliteStore

FOREVER = 10**15
ROWS = 2 * PACKED_ROWS_MAX + 7


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await opened(tmp_path)
    yield store
    await store.close()


async def opened(folder: Path) -> SqliteStore:
    store = await SqliteStore.open(folder / "packed.db")
    assert await store.acquire(0, FOREVER)
    return store


async def fill(store: SqliteStore, rows: int = ROWS) -> list[str]:
    """Release so many one-shots to Kafka together; returns their ids in the order of their offsets."""
    ids = [f"row-{index:05}" for index in range(rows)]
    await applied(store, *(add(name, NOW, topic=f"kafka:t{index % 3}") for index, name in enumerate(ids)))
    assert (await drain(store)).handed == rows
    return ids


async def offsets(store: SqliteStore, offset: int = 0, limit: int = 10_000) -> list[int]:
    return [record.offset for record in await store.outgoing(offset, limit)]


def count(store: SqliteStore, table: str) -> int:
    answer = store._reader.execute(f"SELECT count(*) FROM {table}").get
    assert isinstance(answer, int)
    return answer


async def test_what_is_handed_over_is_what_is_stored(store: SqliteStore) -> None:
    ids = await fill(store)
    handed = await store.outgoing(0, 10_000)
    stored = await store.outgoing(0, 10_000)
    assert handed == stored
    assert [record.id for record in handed] == ids
    assert {record.topic for record in handed} == {"t0", "t1", "t2"}
    assert count(store, "packed") == 3
    assert count(store, "log") == 0


async def test_parts_of_what_is_handed_over_follow_each_other(store: SqliteStore) -> None:
    await fill(store)
    assert await offsets(store, 0, 600) == list(range(600))
    assert await offsets(store, 600, 600) == list(range(600, ROWS))
    assert await offsets(store, 300, 2) == [300, 301]


async def test_single_rows_between_packed_ones_keep_their_order(store: SqliteStore) -> None:
    await applied(store, every("tick", NOW, topic="kafka:t0"), add("a", NOW, topic="kafka:t0"))
    await drain(store)
    await applied(store, add("b", NOW, topic="kafka:t0"))
    await drain(store, NOW + SECOND)
    assert (count(store, "packed"), count(store, "log")) == (2, 2)
    handed, following = [], 0
    while records := await store.outgoing(following, 100):  # in memory as far as possible
        handed += records
        following = records[-1].offset + 1
    assert [record.offset for record in handed] == [0, 1, 2, 3]
    assert {record.id for record in handed[:2]} == {"a", "tick"}
    assert {record.id for record in handed[2:]} == {"b", "tick"}
    assert await store.outgoing(0, 100) == handed
    assert [record.number for record in handed if record.id == "tick"] == [1, 2]


async def test_the_outbox_is_the_same_after_a_restart(store: SqliteStore, tmp_path: Path) -> None:
    await fill(store)
    before = await store.outgoing(0, 10_000)
    await store.settle(3)
    await store.hold([5, 900], "no such topic")
    await store.free([5])
    await store.close()
    again = await opened(tmp_path)
    try:
        expected = [record for record in before if record.offset >= 3 and record.offset not in {5, 900}]
        assert await again.outgoing(0, 10_000) == expected
        assert again._writer.room.rows == again._writer.options.outbox_rows_max - len(expected)
    finally:
        await again.close()


async def test_a_freed_member_never_comes_back(store: SqliteStore) -> None:
    await fill(store, 10)
    await store.hold([4, 5], "no such topic")
    await store.free([4])
    assert await offsets(store) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert [record.offset for record in await store.held("t2")] == [5]
    await store.settle(10)
    assert (count(store, "packed"), count(store, "gone")) == (1, 1)  # one member is held back
    await store.free([5])
    assert (count(store, "packed"), count(store, "gone"), count(store, "held")) == (0, 0, 0)


async def test_a_packed_row_stays_until_its_last_member_has_arrived(store: SqliteStore) -> None:
    await fill(store)
    await store.settle(PACKED_ROWS_MAX + 1)
    assert count(store, "packed") == 2
    assert await offsets(store) == list(range(PACKED_ROWS_MAX + 1, ROWS))
    await store.settle(ROWS)
    assert count(store, "packed") == 0


async def test_one_member_is_missed_and_the_others_are_not(store: SqliteStore) -> None:
    ids = await fill(store)
    offset = PACKED_ROWS_MAX + 3
    await store.hold([offset], "refused")
    assert await state(store, ids[offset]) == "in_flight"
    await store.drop(offset, "too_large", [], NOW + SECOND)
    missed = await found(store, ids[offset])
    assert (missed.state, missed.reason, missed.finished) == ("missed", "too_large", NOW + SECOND)
    store.arrived(ROWS)
    assert await state(store, ids[offset - 1]) == await state(store, ids[offset + 1]) == "released"
    assert offset not in await offsets(store)


async def test_a_single_row_is_missed_too(store: SqliteStore) -> None:
    await applied(store, every("tick", NOW, count=1, topic="kafka:t0"))
    await drain(store)
    await store.hold([0], "refused")
    await store.drop(0, "too_large", [], NOW)
    assert (await offsets(store), count(store, "held"), count(store, "log")) == ([], 0, 0)


async def test_a_member_is_in_flight_until_it_has_arrived(store: SqliteStore) -> None:
    ids = await fill(store, 3)
    assert await words(store, Cancel(ACME, ids[1])) == ["in_flight"]
    assert (await found(store, ids[1])).message == add(ids[1], NOW).message
    store.arrived(2)
    assert await words(store, Cancel(ACME, ids[1]), Cancel(ACME, ids[2])) == ["already_released", "in_flight"]


async def test_a_release_that_fails_hands_nothing_over(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await applied(store, *(add(f"row-{index}", NOW, topic="kafka:t0") for index in range(5)))
    with monkeypatch.context() as patch:
        patch.setattr(store._writer, "_save_tally", _fail)
        with pytest.raises(RuntimeError):
            await store.release(NOW, 100)
    assert await offsets(store) == []
    await drain(store)
    assert await offsets(store) == list(range(5))


def _fail() -> None:
    raise RuntimeError("the disk is full")


async def test_a_new_owner_reads_the_file_and_not_its_memory(store: SqliteStore, tmp_path: Path) -> None:
    await fill(store, 5)
    await store.resign()
    other = await opened(tmp_path)
    await other.settle(3)
    await other.close()
    assert await store.acquire(0, FOREVER)
    assert await offsets(store) == [3, 4]


@pytest.mark.parametrize("point", ["release.packed", "release.logged", "release.committed", "release.handed"])
async def test_a_kill_at_any_moment_keeps_all_or_nothing_of_a_release(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The files are copied in that moment, as SIGKILL would leave them, and opened by another process."""
    copies = tmp_path / "killed"
    copies.mkdir()

    def copy(name: str) -> None:
        if name == point:
            for path in tmp_path.glob("packed.db*"):
                shutil.copy(path, copies)

    ids = [f"row-{index}" for index in range(20)]
    await applied(store, *(add(name, NOW, topic="kafka:t0") for name in ids))
    with monkeypatch.context() as patch:
        patch.setattr("tidings.crash.IS_ARMED", True)
        patch.setattr("tidings.crash.point", copy)
        assert (await store.release(NOW, 100)).handed == 20
    again = await SqliteStore.open(copies / "packed.db")
    try:
        assert await again.acquire(FOREVER, FOREVER)  # the lease of the killed process has expired
        is_kept = point in {"release.committed", "release.handed"}
        assert await again.outbox() == ((0, 20) if is_kept else (0, 0))
        assert [record.id for record in await again.outgoing(0, 100)] == (ids if is_kept else [])
        assert {await state(again, name) for name in ids} == {"in_flight" if is_kept else "pending"}
        assert (await drain(again)).handed == (0 if is_kept else 20)
        assert [record.id for record in await again.outgoing(0, 100)] == ids
    finally:
        await again.close()
