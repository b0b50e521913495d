"""The wheel: rows reach `near` before their time, in small slices, from days and quarters of an hour."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from tests.contract.factories import ACME, DAY, HOUR, MINUTE, NOW, SECOND, TOPIC, add
from tidings.domain.schedules.command import Cancel
from tidings.timeline.sqlite.pending import packed_reads, wheel
from tidings.timeline.sqlite.store import SqliteStore

FOREVER = 10**15


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    monkeypatch.setattr(wheel, "SLICE_ROWS", 7)
    store = await SqliteStore.open(tmp_path / "wheel.db")
    assert await store.acquire(0, FOREVER)
    yield store
    await store.close()


async def tend_all(store: SqliteStore, now: int) -> None:
    while await store.tend(now):
        pass


def size(store: SqliteStore, table: str, due_by: int = 2**62) -> int:
    """How many rows there are, in `near` or waiting for later."""
    if table == "near":
        return int(store._connection.execute("SELECT count(*) FROM near WHERE due <= ?", (due_by,)).get)
    single = int(store._connection.execute("SELECT count(*) FROM far WHERE due <= ?", (due_by,)).get)
    return single + packed_reads.overdue(store._connection, due_by, 1 << 60)


async def left(store: SqliteStore) -> list[int]:
    """The due times of everything on the log."""
    found = []
    for partition in range(store.partitions):
        found += [record.due for record in await store.read(ACME, TOPIC, partition, 0, 10_000)]
    return sorted(found)


@pytest.mark.slow
async def test_everything_is_released_on_time_over_days(store: SqliteStore) -> None:
    random = Random(3)
    dues = sorted(NOW + random.randrange(3 * DAY) for _ in range(400))
    await tend_all(store, NOW)
    await store.apply([add(None, due) for due in random.sample(dues, len(dues))], NOW)
    assert size(store, "far") > 380
    for now in range(NOW, NOW + 3 * DAY + HOUR, 10 * MINUTE):
        await tend_all(store, now)
        assert size(store, "far", now + 9 * MINUTE) == 0, "what is due within minutes has not reached `near`"
        while (await store.release(now, 50)).more:
            pass
        assert await left(store) == [due for due in dues if due <= now]
    assert size(store, "far") == size(store, "near") == 0
    await tend_all(store, NOW + 5 * DAY)
    assert not store._connection.execute("SELECT count(*) FROM parcel").get, "nothing of what is over is left"


async def test_everything_overdue_is_released_after_a_long_outage_without_maintenance(store: SqliteStore) -> None:
    dues = [NOW + hour * HOUR for hour in range(72)]
    await store.apply([add(None, due) for due in dues], NOW)
    now = NOW + 3 * DAY
    while (await store.release(now, 50)).more:
        pass
    assert await left(store) == dues


async def test_next_due_is_never_too_late(store: SqliteStore) -> None:
    for due in (NOW + 20 * DAY, NOW + 2 * DAY, NOW + HOUR, NOW + MINUTE):
        await store.apply([add(None, due)], NOW)
        first = store.next_due()
        assert first is not None
        assert first <= due


async def test_a_row_is_found_and_cancelled_at_every_stage(store: SqliteStore) -> None:
    due = NOW + 2 * DAY + 5 * HOUR + 3 * SECOND
    moments = (NOW, NOW + DAY + 6 * HOUR, due - 5 * MINUTE)
    for number, moment in enumerate(moments):
        await store.apply([add(f"row-{number}", due)], NOW)
        for now in (at for at in moments if at <= moment):
            await tend_all(store, now)
        assert (found := await store.find(ACME, f"row-{number}", moment)) is not None
        assert found.due == due
        (outcome,) = await store.apply([Cancel(ACME, f"row-{number}")], moment)
        assert outcome.outcome == "cancelled"
    assert size(store, "far") == size(store, "near") == 0
