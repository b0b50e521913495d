"""The map of ids: flushed and merged in slices, over restarts, without false or missing entries."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest

from tests.contract.factories import ACME, DAY, NOW, SECOND, add, every
from tidings.domain.schedules.command import Cancel
from tidings.timeline.sqlite import id_map, maintenance
from tidings.timeline.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

FOREVER = 10**15
Small = Callable[[], None]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds so low that a few thousand ids are merged through four levels."""
    monkeypatch.setattr(maintenance, "RECENT_ENTRIES_MAX", 40)
    monkeypatch.setattr(id_map, "CHUNK_ENTRIES", 16)
    monkeypatch.setattr(id_map, "FAN_IN", 3)
    monkeypatch.setattr(id_map, "SLICE_CHUNKS", 2)
    monkeypatch.setattr(id_map, "FILTER_PART_WORDS", 16)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "map.db", id_retention_us=DAY)
    assert await store.acquire(0, FOREVER)
    yield store
    await store.close()


async def fill(store: SqliteStore, ids: list[str], due: int = NOW + SECOND) -> None:
    for start in range(0, len(ids), 25):
        outcomes = await store.apply([add(name, due) for name in ids[start : start + 25]], NOW)
        assert {outcome.outcome for outcome in outcomes} == {"scheduled"}
        for _ in range(3):
            await store.tend(NOW)


async def tend_all(store: SqliteStore, now: int) -> None:
    while await store.tend(now):
        pass


def names(count: int, seed: int = 1) -> list[str]:
    random = Random(seed)
    return [f"order-{random.getrandbits(64):x}" for _ in range(count)]


async def test_every_id_is_found_through_all_levels(store: SqliteStore) -> None:
    ids = names(2_000)
    await fill(store, ids)
    await tend_all(store, NOW)
    levels = {run.level for run in store._writer.idmap.state[1]}
    assert max(levels) >= 3
    for name in ids:
        assert (found := await store.find(ACME, name, NOW)) is not None
        assert found.id == name
    for name in names(500, seed=2):
        assert await store.find(ACME, name, NOW) is None


@pytest.mark.parametrize("ahead_us", [SECOND, 40 * DAY])
async def test_repeats_are_detected_in_every_level(store: SqliteStore, ahead_us: int) -> None:
    ids = names(1_000)
    await fill(store, ids, NOW + ahead_us)
    sent = [add(name, NOW + ahead_us) for name in ids]
    repeats = await store.apply(sent, NOW)
    assert [outcome.id for outcome in repeats] == ids
    assert {(outcome.outcome, outcome.due) for outcome in repeats} == {("unchanged", NOW + ahead_us)}
    idmap = store._writer.idmap
    keys = dict(idmap.newest(store._writer.connection, idmap.hashes(ACME, ids), range(len(ids))))
    assert len(store._intake._repeats.unchanged(sent, keys, NOW)) == len(sent)  # none is looked up alone
    others = await store.apply([add(name, NOW + ahead_us + SECOND) for name in ids], NOW)
    assert {outcome.outcome for outcome in others} == {"rejected"}


async def test_a_restart_in_the_middle_of_a_merge_forgets_nothing(tmp_path: Path) -> None:
    ids = names(900)
    path = tmp_path / "map.db"
    for start in range(0, 900, 60):
        store = await SqliteStore.open(path)
        assert await store.acquire(0, FOREVER)
        await store.apply([add(name, NOW + SECOND) for name in ids[start : start + 60]], NOW)
        for _ in range(start % 7):
            await store.tend(NOW)
        await store.close()
    store = await SqliteStore.open(path)
    assert await store.acquire(0, FOREVER)
    await tend_all(store, NOW)
    found = [await store.find(ACME, name, NOW) for name in ids]
    assert all(found)
    leftover = "SELECT count(*) FROM chunk WHERE run NOT IN (SELECT run FROM run WHERE live)"
    assert store._connection.execute(leftover).get == 0
    await store.close()


async def test_finished_ids_leave_the_map_and_recurring_ones_stay(store: SqliteStore) -> None:
    ids = names(500)
    await fill(store, ids)
    await store.apply([every("standing", NOW, period=DAY), add("cancelled", NOW + SECOND)], NOW)
    await store.apply([Cancel(ACME, "cancelled")], NOW)
    while (await store.release(NOW + SECOND, 1_000)).more:
        pass
    later = NOW + 3 * DAY
    await tend_all(store, later)
    for number in range(40):  # new ids make the old runs merge
        await store.apply([add(f"{number}-{name}", later + SECOND) for name in names(50, seed=number)], later)
        await tend_all(store, later)
    entries = sum(run.entries for run in store._writer.idmap.state[1])
    assert entries < 500 + 40 * 50 - 450
    assert await store.find(ACME, "standing", later) is not None
    assert await store.find(ACME, ids[0], later) is None
    assert await store.find(ACME, "cancelled", later) is None
