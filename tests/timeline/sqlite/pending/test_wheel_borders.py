"""The wheel at its borders: clocks that were ahead, midnight, large rows, and the end of the calendar."""

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from tests.contract.factories import ACME, DAY, HOUR, MINUTE, NOW, SECOND, add, every
from tests.timeline.sqlite.pending.test_wheel import FOREVER, tend_all
from tidings.domain.errors import StoreError
from tidings.domain.schedules.command import Replace
from tidings.domain.schedules.schedule import Query
from tidings.domain.schedules.when import Period
from tidings.timeline.sqlite.pending import wheel
from tidings.timeline.sqlite.store import SqliteStore
from tidings.timeline.sqlite.writer import Writer

NEXT_DAY = (NOW // DAY + 5) * DAY
YEAR = 366 * DAY


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "borders.db")
    assert await store.acquire(0, FOREVER)
    yield store
    await store.close()


async def test_after_a_clock_was_days_ahead_for_a_moment_every_row_is_found(store: SqliteStore) -> None:
    """Rows from before, during and after must not be in overlapping packed rows."""
    due = NEXT_DAY + 15 * HOUR
    await tend_all(store, NOW)
    await store.apply([add(f"before-{index}", due) for index in range(1000)], NOW)
    await store.tend(NEXT_DAY + HOUR)
    await store.apply([add(f"ahead-{index}", due) for index in range(10)], NEXT_DAY + HOUR)
    await store.tend(NOW)
    await store.apply([add(f"after-{index}", due) for index in range(100)], NOW)
    await tend_all(store, NEXT_DAY - HOUR)
    names = (
        [f"before-{n}" for n in range(1000)] + [f"ahead-{n}" for n in range(10)] + [f"after-{n}" for n in range(100)]
    )
    assert [name for name in names if await store.find(ACME, name, NOW) is None] == []


async def test_rows_due_at_midnight_are_repacked_once(store: SqliteStore) -> None:
    await tend_all(store, NOW)
    for _ in range(4):
        await store.apply([add(None, NEXT_DAY) for _ in range(500)], NOW)
    written = 0

    def count(_kind: int, _database: str, table: str, _row: int) -> None:
        nonlocal written
        written += table == "parcel"

    store._writer.connection.set_update_hook(count)
    for minutes in range(125, 20, -5):
        await tend_all(store, NEXT_DAY - minutes * MINUTE)
    assert written < 100, "each quarter of an hour writes all of it again"


@pytest.mark.slow
async def test_a_slice_is_bounded_in_bytes(store: SqliteStore) -> None:
    await tend_all(store, NOW)
    large = bytes(1024 * 1024)
    await store.apply([add(None, NEXT_DAY + HOUR + index * MINUTE, value=large) for index in range(20)], NOW)
    parts, _ = wheel.Wheel(store._writer)._slice(0, 1 << 62)
    assert len(parts) <= 2


@pytest.mark.slow
async def test_replacing_one_id_many_times_stays_cheap(store: SqliteStore) -> None:
    for index in range(300):
        await store.apply([Replace(add("timer", NEXT_DAY, value=b"%d" % index))], NOW)
    places = store._writer.idmap.row_keys(store._connection, store._writer.idmap.hash(ACME, "timer"))
    assert next(iter(places))[0] == store._writer.arrival
    assert store._connection.execute("SELECT count(*) FROM parcel").get <= 1


async def test_lists_end_beyond_the_calendar(store: SqliteStore) -> None:
    await store.apply([every("century", NOW, period=Period(1200, 0), count=5)], NOW)
    await store.release(NOW, 10)
    page = await store.page(ACME, Query(state="pending"), NOW)
    assert [schedule.id for schedule in page.schedules] == ["century"]
    assert page.cursor is None


async def test_a_clock_beyond_the_last_year_does_no_harm(store: SqliteStore) -> None:
    await store.apply([add("one", NOW + SECOND)], NOW)
    await tend_all(store, NOW + 100 * YEAR)
    assert len((await store.release(NOW + 100 * YEAR, 10)).lateness_us) == 1


async def test_a_take_over_that_fails_to_read_the_file_reads_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await SqliteStore.open(tmp_path / "borders.db")
    second = await SqliteStore.open(tmp_path / "borders.db")
    assert await first.acquire(0, 10)
    await first.apply([add(f"row-{index}", NOW) for index in range(5)], NOW)

    def fails(_writer: Writer) -> None:
        raise apsw.IOError("the disk failed")

    with monkeypatch.context() as broken:
        broken.setattr(Writer, "load", fails)
        with pytest.raises(StoreError):
            await second.acquire(100, FOREVER)
    assert await second.acquire(101, FOREVER)
    assert second.next_due() is not None
    assert len((await second.release(NOW, 10)).lateness_us) == 5
    await first.close()
    await second.close()
