"""The plans of the hot queries: none reads rows that are not near."""

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import numpy as np
import pytest

from tidings.timeline.sqlite import writer
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.release import outbox
from tidings.timeline.sqlite.store import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "plans.db")
    yield store
    await store.close()


def plan(store: SqliteStore, sql: str) -> list[str]:
    """The steps of a query's plan; every parameter is an array, which any query accepts for planning."""
    parameters = sum(sql.count(f"?{number}") > 0 for number in range(1, 6)) or sql.count("?")
    values = [apsw.carray(np.zeros(1, dtype=np.int64)) if f"carray(?{n + 1})" in sql else 0 for n in range(parameters)]
    return [row[3] for row in store._connection.execute("EXPLAIN QUERY PLAN " + sql, values)]


@pytest.mark.parametrize("name", ["select", "log", "finish", "leave", "miss", "missed_by_reason", "fired"])
async def test_the_release_searches_near_by_its_key(store: SqliteStore, name: str) -> None:
    steps = plan(store, queries("release")[name])
    assert any("SEARCH near USING PRIMARY KEY" in step for step in steps), steps
    assert not any("SCAN near" in step for step in steps), steps


@pytest.mark.parametrize("name", ["pending", "log", "note", "go_on", "wait_near", "wait_far"])
async def test_recurring_rows_are_found_by_arrival_number_without_sorting(store: SqliteStore, name: str) -> None:
    steps = plan(store, queries("recurring")[name])
    assert any("SEARCH standing USING INTEGER PRIMARY KEY" in step for step in steps), steps
    assert not any("SCAN standing" in step or "TEMP B-TREE" in step for step in steps), steps


async def test_a_stream_is_chosen_from_without_sorting(store: SqliteStore) -> None:
    assert not any("TEMP B-TREE" in step for step in plan(store, queries("release")["select"]))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT due FROM near WHERE stream = ? ORDER BY due, arrival LIMIT 1", "SEARCH near USING PRIMARY KEY"),
        (writer._HEADS, "SEARCH near USING PRIMARY KEY"),
    ],
)
async def test_queries_of_every_transaction_use_an_index(store: SqliteStore, sql: str, expected: str) -> None:
    steps = plan(store, sql)
    assert any(expected in step for step in steps), steps
    assert not any(step.startswith(("SCAN near", "SCAN far")) for step in steps), steps


async def test_a_missed_outbox_record_is_found_by_its_key(store: SqliteStore) -> None:
    steps = plan(store, outbox._MISS)
    assert any("SEARCH finished USING PRIMARY KEY" in step for step in steps), steps


@pytest.mark.parametrize("sql", [outbox._PACKED_WITH, outbox._READ_PACKED, outbox._DROP_PACKED, outbox._DROP_GONE])
async def test_packed_rows_are_found_by_their_offsets(store: SqliteStore, sql: str) -> None:
    steps = plan(store, sql)
    assert any("USING INTEGER PRIMARY KEY" in step for step in steps), steps
    assert not any(step.startswith("SCAN") and "CONSTANT ROW" not in step for step in steps), steps


async def test_outbox_capacity_is_counted_without_reading_the_log(store: SqliteStore) -> None:
    steps = plan(store, writer._IN_OUTBOX)
    assert any("SEARCH log USING INTEGER PRIMARY KEY" in step for step in steps), steps
