"""The id map of a file of version 0.1: its runs have larger chunks and smaller filters, and stay in use."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.factories import ACME, NOW, SECOND, add
from tests.upgrades.databases import fixture
from tests.upgrades.make_runs import CANCELLED, DUE, FOREVER, IDS, NAME
from tidings.timeline.sqlite import id_map, maintenance
from tidings.timeline.sqlite.store import SqliteStore

ENTRY_BYTES = 24
BATCH = 500


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    path = tmp_path / "old.db"
    path.write_bytes(fixture(NAME))
    store = await SqliteStore.open(path)
    assert await store.acquire(0, FOREVER)
    yield store
    await store.close()


async def repeat_all(store: SqliteStore) -> Counter[tuple[str, str | None]]:
    """Sends everything again; counts the outcomes and the states in the answers."""
    answers: Counter[tuple[str, str | None]] = Counter()
    for start in range(0, len(IDS), BATCH):
        outcomes = await store.apply([add(name, DUE) for name in IDS[start : start + BATCH]], NOW + SECOND)
        answers.update((outcome.outcome, outcome.state) for outcome in outcomes)
    return answers


EVERYTHING_KNOWN = {("unchanged", "pending"): len(IDS) - len(CANCELLED), ("unchanged", "cancelled"): len(CANCELLED)}


async def test_the_file_has_runs_of_the_old_layout(store: SqliteStore) -> None:
    runs = store._writer.idmap.state[1]
    assert {run.level for run in runs} == {0, 1}
    assert store._connection.execute("SELECT max(length(entries)) FROM chunk").get > id_map.CHUNK_ENTRIES * ENTRY_BYTES
    for run in runs:
        assert len(run.filter.words) < len(id_map.Filter.sized(run.entries).words)


async def test_ids_in_old_runs_are_found_and_repeats_recognised(store: SqliteStore) -> None:
    assert await repeat_all(store) == EVERYTHING_KNOWN
    for name in IDS[::50]:
        found = await store.find(ACME, name, NOW)
        assert found is not None
        assert (found.id, found.due) == (name, DUE)
    new = [add(f"new-{number}", DUE) for number in range(2_000)]
    assert {outcome.outcome for outcome in await store.apply(new, NOW)} == {"scheduled"}


async def test_old_runs_merge_with_new_ones(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "RECENT_ENTRIES_MAX", 600)
    monkeypatch.setattr(id_map, "FAN_IN", 2)
    old = {run.number for run in store._writer.idmap.state[1]}
    new = [f"new-{number}" for number in range(6_000)]
    for start in range(0, len(new), BATCH):
        await store.apply([add(name, DUE) for name in new[start : start + BATCH]], NOW)
        while await store.tend(NOW):
            pass
    assert old.isdisjoint(run.number for run in store._writer.idmap.state[1])
    assert store._connection.execute("SELECT max(length(entries)) FROM chunk").get <= id_map.CHUNK_ENTRIES * ENTRY_BYTES
    assert await repeat_all(store) == EVERYTHING_KNOWN
    for name in new[::50]:
        assert await store.find(ACME, name, NOW) is not None
