"""Migration while nodes run: no long waits, no step twice, and a killed migration is resumed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.contract.factories import SECOND, add, left, records
from tests.servers.postgres import Postgres
from tests.timeline.later_layouts import later
from tests.timeline.postgres.conftest import OpenStore
from tests.timeline.postgres.test_engines import started, until_left
from tidings.clock import SystemClock
from tidings.crash import MIGRATION_POINTS
from tidings.domain.errors import StoreError
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.migrations import OUTSIDE, Layouts, NewerLayout, StepDone
from tidings.timeline.postgres.migration import LAYOUTS, LOCK_MS, Migration

COLUMN = "ALTER TABLE tidings.timeline ADD COLUMN colour text; CREATE TABLE tidings.counted (n int);"
COUNT = "INSERT INTO tidings.counted SELECT coalesce(max(n), 0) + 1 FROM tidings.counted;"
INDEX = f"""{OUTSIDE}
-- by colour; built while rows come and go
CREATE INDEX CONCURRENTLY IF NOT EXISTS timeline_colour ON tidings.timeline (colour);
CREATE INDEX CONCURRENTLY IF NOT EXISTS log_released ON tidings.log (released);
"""
FUNCTION = "CREATE OR REPLACE FUNCTION tidings.answer() RETURNS int LANGUAGE sql AS $$ SELECT 42 $$;"
RUN = """
import asyncio, sys
from pathlib import Path
from tidings.clock import SystemClock
from tidings.timeline.postgres.migration import Migration
dsn, schema, layouts = sys.argv[1:]
asyncio.run(Migration(dsn, SystemClock(), schema=schema, layouts=Path(layouts)).run(lambda done: None))
"""


@pytest.fixture
def layouts(tmp_path: Path) -> Path:
    """Three more steps, and one more function."""
    return later(LAYOUTS, tmp_path, functions=FUNCTION, colour=COLUMN, count=COUNT, index=INDEX)


@pytest.fixture
async def schema_of_today(open_store: OpenStore, schema: str) -> str:
    """A store with the layout of this version."""
    store = await open_store(SimulatedClock(), lanes=2)
    await store.close()
    return schema


def migration_of(postgres: Postgres, schema: str, layouts: Path) -> Migration:
    return Migration(postgres.dsn, SystemClock(), schema=schema, layouts=layouts)


def ignore(_done: StepDone) -> None:
    """Ignore the progress."""


def check_done(postgres: Postgres, schema: str) -> None:
    """Every step was taken once, and every index is whole."""
    with postgres.connect() as connection:
        known = Layouts(LAYOUTS).known + 3
        assert connection.execute(f"SELECT version, {schema}.answer() FROM {schema}.meta").fetchone() == (known, 42)
        assert connection.execute(f"SELECT n FROM {schema}.counted").fetchall() == [(1,)]
        valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        for index in ("timeline_colour", "log_released"):
            assert connection.execute(valid, (f"{schema}.{index}",)).fetchone() == (True,)


async def test_steps_run_in_order_and_are_reported(postgres: Postgres, schema_of_today: str, layouts: Path) -> None:
    migrating = migration_of(postgres, schema_of_today, layouts)
    first = Layouts(LAYOUTS).known
    names = [f"{first + 1:04d} colour", f"{first + 2:04d} count", f"{first + 3:04d} index", "functions"]
    plan = await migrating.plan()
    assert (plan.version, plan.known, list(plan.steps)) == (first, first + 3, names)
    taken: list[StepDone] = []
    assert await migrating.run(taken.append) == plan
    assert [done.name for done in taken] == names
    assert all(done.elapsed_us > 0 for done in taken)
    check_done(postgres, schema_of_today)
    assert (await migrating.plan()).steps == ()
    assert (await migrating.run(taken.append)).steps == ()
    assert len(taken) == len(names), "there is nothing left to do"


async def test_an_empty_schema_is_made(postgres: Postgres, schema: str, layouts: Path) -> None:
    await migration_of(postgres, schema, layouts).run(ignore)
    with postgres.connect() as connection:
        assert connection.execute(f"SELECT count(*) FROM {schema}.lane").fetchone() == (16,)


async def test_a_newer_layout_is_not_downgraded(postgres: Postgres, schema_of_today: str, layouts: Path) -> None:
    await migration_of(postgres, schema_of_today, layouts).run(ignore)
    for call in (
        migration_of(postgres, schema_of_today, LAYOUTS).plan(),
        migration_of(postgres, schema_of_today, LAYOUTS).run(ignore),
    ):
        with pytest.raises(NewerLayout, match="written by a newer Tidings"):
            await call
    check_done(postgres, schema_of_today)


async def test_a_failed_step_changes_nothing(postgres: Postgres, schema_of_today: str, tmp_path: Path) -> None:
    text = "CREATE TABLE tidings.more (one int); INSERT INTO tidings.nowhere VALUES (1);"
    layouts = later(LAYOUTS, tmp_path, more=text)
    with pytest.raises(StoreError, match="nowhere"):
        await migration_of(postgres, schema_of_today, layouts).run(ignore)
    with postgres.connect() as connection:
        assert connection.execute("SELECT to_regclass(%s)", (f"{schema_of_today}.more",)).fetchone() == (None,)


async def test_concurrent_migrations_take_turns(postgres: Postgres, schema_of_today: str, layouts: Path) -> None:
    await asyncio.gather(*(migration_of(postgres, schema_of_today, layouts).run(ignore) for _ in range(3)))
    check_done(postgres, schema_of_today)


async def test_a_migration_that_waits_for_a_lock_does_not_block_others_for_long(
    postgres: Postgres, schema_of_today: str, layouts: Path
) -> None:
    """A reader takes seconds; the step waits for it, and no query waits for the step longer than its limit."""
    table = f"{schema_of_today}.timeline"
    waits: list[float] = []
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(psycopg.connect(postgres.dsn))
        reader.execute(f"SELECT count(*) FROM {table}".encode())
        migrating = asyncio.create_task(migration_of(postgres, schema_of_today, layouts).run(ignore))
        clock = SystemClock()
        async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as other:
            until = clock.elapsed() + 2 * SECOND
            while clock.elapsed() < until:
                begun = clock.elapsed()
                await other.execute(f"SELECT count(*) FROM {table}".encode())
                waits.append((clock.elapsed() - begun) / 1_000)
        assert not migrating.done(), "it cannot have had its lock"
        reader.rollback()
        await asyncio.wait_for(migrating, 30)
    assert max(waits) > LOCK_MS / 2, "the migration made others wait"
    assert max(waits) < LOCK_MS * 5, "a busy machine, but no queue that grows"
    check_done(postgres, schema_of_today)


async def test_a_lock_that_is_never_released_is_reported(
    postgres: Postgres, schema_of_today: str, layouts: Path
) -> None:
    clock = SystemClock()
    migrating = Migration(postgres.dsn, clock, schema=schema_of_today, layouts=layouts, patience_us=SECOND)
    with contextlib.closing(psycopg.connect(postgres.dsn)) as reader:
        reader.execute(f"SELECT count(*) FROM {schema_of_today}.timeline".encode())
        with pytest.raises(StoreError, match="step colour did not get its locks within 1 s"):
            await migrating.run(ignore)


@pytest.mark.parametrize("visit", [1, 2, 3])
@pytest.mark.parametrize("point", MIGRATION_POINTS)
async def test_a_killed_migration_is_resumed(
    postgres: Postgres, schema_of_today: str, layouts: Path, point: str, visit: int
) -> None:
    command = [sys.executable, "-c", RUN, postgres.dsn, schema_of_today, str(layouts)]
    environment = os.environ | {"TIDINGS_CRASH_AT": f"{point}:{visit}"}
    killed = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    await migration_of(postgres, schema_of_today, layouts).run(ignore)
    check_done(postgres, schema_of_today)


async def test_an_incomplete_index_is_rebuilt(postgres: Postgres, schema_of_today: str, layouts: Path) -> None:
    building = f"SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%{schema_of_today}%'"
    half = "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(%s) AND NOT indisvalid"
    with contextlib.closing(psycopg.connect(postgres.dsn)) as reader, postgres.connect() as connection:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute(f"SELECT count(*) FROM {schema_of_today}.log".encode())  # an old snapshot, which it waits for
        migrating = asyncio.create_task(migration_of(postgres, schema_of_today, layouts).run(ignore))
        index = f"{schema_of_today}.timeline_colour"
        await eventually(lambda: connection.execute(half, (index,)).fetchone(), 20)
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({building}) b".encode())
        with pytest.raises(StoreError):
            await migrating
        assert connection.execute(half, (index,)).fetchone() == (1,), "it was left half-built"
        reader.rollback()
    await migration_of(postgres, schema_of_today, layouts).run(ignore)
    check_done(postgres, schema_of_today)


async def test_nodes_continue_during_a_migration(
    postgres: Postgres, open_store: OpenStore, schema: str, layouts: Path
) -> None:
    """Two nodes of the former version keep releasing: nothing is lost, duplicate or much too late."""
    clock = SystemClock()
    stores = [await open_store(clock, lanes=4) for _ in range(2)]
    engines = [await started(store) for store in stores]
    await eventually(lambda: all(len(store.lanes()) == 2 for store in stores), 10)
    ids = [f"s{number}" for number in range(600)]
    due = clock.now() + SECOND // 2
    for index, engine in enumerate(engines):
        await engine.submit([add(name, due + number * 5_000) for number, name in enumerate(ids) if number % 2 == index])
    await until_left(stores[0], 50)
    await migration_of(postgres, schema, layouts).run(ignore)
    assert sum((await stores[0].topic("acme", "greetings")).next) < len(ids)  # type: ignore[union-attr]
    await engines[0].submit([add("new", clock.now())])
    await until_left(stores[0], len(ids) + 1)
    assert await left(stores[0]) == sorted([*ids, "new"])
    late = sorted((record.released - record.due) // 1_000 for record in await records(stores[0]))
    assert late[-1] < LOCK_MS * 5, late[-20:]
    for engine in engines:
        await engine.stop()
    check_done(postgres, schema)
