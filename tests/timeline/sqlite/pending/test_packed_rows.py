"""Packed rows round-trip, are bounded in size, and single rows can be removed."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.contract.factories import ACME, DAY, NOW, add
from tidings.domain.schedules.command import Cancel, Pause, Resume
from tidings.domain.schedules.schedule import Query
from tidings.timeline.sqlite.pending import packed_rows
from tidings.timeline.sqlite.pending.packed_rows import ARRIVAL_BITS, HEAD, Rows
from tidings.timeline.sqlite.store import SqliteStore

FOREVER = 10**15
LATER = NOW + 5 * DAY


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "parcels.db")
    assert await store.acquire(0, FOREVER)
    yield store
    await store.close()


def made(sizes: list[int]) -> Rows:
    heads = np.zeros(len(sizes), dtype=HEAD)
    heads["arrival"], heads["live"], heads["id_bytes"], heads["message_bytes"] = range(len(sizes)), 1, 2, sizes
    return Rows(heads, [bytes(16) + b"id" + b"m" * size for size in sizes])


def parcel_count(store: SqliteStore) -> int:
    return int(store._connection.execute("SELECT count(*) FROM parcel").get)


def test_rows_are_returned_by_bucket_and_packed_rows_are_bounded() -> None:
    random = Random(5)
    rows = made([random.choice((10, 500, 90_000)) for _ in range(200)])
    buckets = np.array([random.randrange(4) for _ in range(200)], dtype=np.int64)
    found: dict[int, list[int]] = {}
    for blob in packed_rows.pack(rows, buckets):
        place, head_bytes = int(blob[:20]), int(blob[20:28])
        heads, bodies = blob[28 : 28 + head_bytes], blob[28 + head_bytes :]
        back = packed_rows.unpack(heads, bodies)
        assert len(bodies) <= packed_rows.PARCEL_BYTES_MAX or len(back) == 1
        assert place & (1 << ARRIVAL_BITS) - 1 == back.heads["arrival"][0]
        assert list(back.bodies) == [rows.bodies[index] for index in back.heads["arrival"]]
        found.setdefault(place >> ARRIVAL_BITS, []).extend(back.heads["arrival"].tolist())
    assert found == {bucket: np.flatnonzero(buckets == bucket).tolist() for bucket in range(4)}


async def test_removing_rows_keeps_the_others_and_leaves_no_garbage(store: SqliteStore) -> None:
    names = [f"row-{index}" for index in range(60)]
    await store.apply([add(name, LATER + index) for index, name in enumerate(names)], NOW)
    assert parcel_count(store) == 1
    size = int(store._connection.execute("SELECT length(bodies) FROM parcel").get)
    for gone, name in enumerate(Random(2).sample(names, len(names)), start=1):
        (outcome,) = await store.apply([Cancel(ACME, name)], NOW)
        assert outcome.outcome == "cancelled"
        listed = await store.page(ACME, Query(state="pending", limit=100), NOW)
        assert len(listed.schedules) == 60 - gone
        assert name not in {schedule.id for schedule in listed.schedules}
        kept = store._connection.execute("SELECT length(bodies) FROM parcel").get
        assert kept is None or kept <= 2.1 * size * (60 - gone) / 60
    assert parcel_count(store) == 0


async def test_a_resumed_schedule_with_its_old_arrival_number_hides_no_other(store: SqliteStore) -> None:
    """A paused schedule is resumed into a bucket of packed rows with arrival numbers around its own."""
    names = [f"row-{index}" for index in range(9)]
    await store.apply([add(name, LATER) for name in names], NOW)
    await store.apply([Pause(ACME, "row-4")], NOW)
    await store.apply([Resume(ACME, "row-4")], NOW)
    for name in names:
        found = await store.find(ACME, name, NOW)
        assert found is not None
        assert found.state == "pending"
