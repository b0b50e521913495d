"""The layout by version: created once by nodes that start together, migrated, and never downgraded."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from tests.contract.factories import SECOND, add, words
from tests.servers.postgres import Postgres
from tests.timeline.later_layouts import later
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.errors import Invalid, StoreError
from tidings.testing import SimulatedClock
from tidings.timeline.migrations import OUTSIDE, Layouts, OldLayout
from tidings.timeline.postgres.apply.unit_of_work import key_of
from tidings.timeline.postgres.migration import LAYOUTS, prepare
from tidings.timeline.postgres.store import PostgresStore

KNOWN = Layouts(LAYOUTS).known


async def test_nodes_that_start_together_create_one_store(open_store: OpenStore) -> None:
    stores = await asyncio.gather(*(open_store(SimulatedClock(), lanes=8) for _ in range(6)))
    assert len({store.identity for store in stores}) == 1
    await stores[0].acquire(0, 1_000_000)
    assert len(stores[0].lanes()) == 8


async def test_settings_of_the_first_start_stay(open_store: OpenStore) -> None:
    first = await open_store(SimulatedClock(), lanes=4, partitions=7, created=5)
    second = await open_store(SimulatedClock(), lanes=16, partitions=1, created=9)
    assert (first.partitions, second.partitions) == (8, 8), "as many for each lane"
    assert first.identity == second.identity
    assert second._context.created == 5


@pytest.mark.parametrize(("name", "value"), [("lanes", 3), ("lanes", 0), ("lanes", 512), ("partitions", 5000)])
async def test_invalid_settings_are_rejected(open_store: OpenStore, name: str, value: int) -> None:
    with pytest.raises(Invalid) as refused:
        await open_store(SimulatedClock(), **{name: value})
    assert refused.value.field == name


async def test_a_schema_with_an_odd_name_is_rejected(postgres: Postgres) -> None:
    with pytest.raises(Invalid, match="not a valid name"):
        await PostgresStore.open(postgres.dsn, schema='a"; DROP TABLE x; --')


async def test_a_newer_layout_is_rejected(postgres: Postgres, open_store: OpenStore, schema: str) -> None:
    await open_store(SimulatedClock())
    with postgres.connect() as connection:
        connection.execute(f"UPDATE {schema}.meta SET version = 99")
    with pytest.raises(StoreError, match=r"newer Tidings \(layout 99"):
        await open_store(SimulatedClock())


async def test_an_older_layout_is_left_to_the_migration(open_store: OpenStore, tmp_path: Path) -> None:
    await open_store(SimulatedClock(), lanes=1)
    with pytest.raises(OldLayout, match=f"has layout {KNOWN}, and this Tidings needs layout {KNOWN + 1}"):
        await open_store(SimulatedClock(), layouts=later(LAYOUTS, tmp_path, more="SELECT 1;"))


async def test_an_empty_schema_gets_every_layout_at_once(
    postgres: Postgres, open_store: OpenStore, schema: str, tmp_path: Path
) -> None:
    layouts = later(
        LAYOUTS,
        tmp_path,
        more="CREATE TABLE tidings.more (one int);",
        index=f"{OUTSIDE}\nCREATE INDEX CONCURRENTLY IF NOT EXISTS more_one ON tidings.more (one);",
    )
    stores = await asyncio.gather(*(open_store(SimulatedClock(), layouts=layouts) for _ in range(4)))
    assert len({store.identity for store in stores}) == 1
    with postgres.connect() as connection:
        assert connection.execute(f"SELECT version FROM {schema}.meta").fetchone() == (KNOWN + 2,)
        assert connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schema}.more_one",)).fetchone() == (True,)


async def test_functions_follow_the_newest_program(
    postgres: Postgres, open_store: OpenStore, schema: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A version with other functions writes them; an older one that starts again does not."""
    caplog.set_level("INFO", "tidings.store")
    await open_store(SimulatedClock())
    text = "CREATE OR REPLACE FUNCTION tidings.answer() RETURNS int LANGUAGE sql AS $$ SELECT {} $$;"

    def start(program: str, answer: int) -> None:
        folder = tmp_path / program
        folder.mkdir()
        layouts = Layouts(later(LAYOUTS, folder, functions=text.format(answer)))

        async def run() -> None:
            async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
                await prepare(connection, schema, layouts, 1, 1, 0, program)

        asyncio.run(run())

    def answered() -> object:
        with postgres.connect() as connection:
            return connection.execute(f"SELECT {schema}.answer(), program FROM {schema}.meta").fetchone()

    for program, answer, expected in (
        ("9.0.0", 1, (1, "9.0.0")),
        ("10.0.0", 2, (2, "10.0.0")),
        ("9.0.1", 3, (2, "10.0.0")),
        ("10.0.1", 3, (3, "10.0.1")),
    ):
        caplog.clear()
        await asyncio.to_thread(start, program, answer)
        assert answered() == expected
        assert ("replaced the functions of version" in caplog.text) == (expected == (answer, program))


async def test_keys_are_the_same_in_sql(postgres: Postgres, open_store: OpenStore, schema: str) -> None:
    await open_store(SimulatedClock())
    with postgres.connect() as connection:
        for tenant, name in (("acme", "one"), ("ü", "Grüße-世界-🎉"), ("a", "a" * 200)):
            row = connection.execute(f"SELECT uuid_send({schema}.key(%s, %s))", (tenant, name)).fetchone()
            assert row == (key_of(tenant, name),)


@pytest.mark.parametrize("name", ["user", "select", "table"])
async def test_an_sql_keyword_may_be_the_name_of_a_schema(postgres: Postgres, name: str) -> None:
    store = await PostgresStore.open(postgres.dsn, SimulatedClock(), lanes=1, schema=name)
    await store.acquire(0, SECOND)
    assert await words(store, add("one")) == ["scheduled"]
    await store._vacuum.look()
    await store.close()


@pytest.mark.parametrize("name", ["pg_tidings", "information_schema"])
async def test_a_system_schema_is_rejected(postgres: Postgres, name: str) -> None:
    with pytest.raises(Invalid, match="reserved by PostgreSQL"):
        await PostgresStore.open(postgres.dsn, SimulatedClock(), schema=name)
