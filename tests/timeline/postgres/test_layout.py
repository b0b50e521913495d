"""The layout by version: made once by nodes that start together, brought up to date, and never run backwards."""

import asyncio
from pathlib import Path

import pytest

from tests.contract.making import NOW, add, applied
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.errors import Invalid, StoreError
from tidings.testing import SimulatedClock
from tidings.timeline.postgres import database
from tidings.timeline.postgres.rows import key_of
from tidings.timeline.postgres.store import PostgresStore


async def test_nodes_that_start_together_make_one_store(open_store: OpenStore) -> None:
    stores = await asyncio.gather(*(open_store(SimulatedClock(), lanes=8) for _ in range(6)))
    assert len({store.identity for store in stores}) == 1
    await stores[0].acquire(0, 1_000_000)
    assert len(stores[0].lanes()) == 8


async def test_what_was_chosen_first_stays(open_store: OpenStore) -> None:
    first = await open_store(SimulatedClock(), lanes=4, partitions=7, created=5)
    second = await open_store(SimulatedClock(), lanes=16, partitions=1, created=9)
    assert (first.partitions, second.partitions) == (8, 8), "as many for each lane"
    assert first.identity == second.identity
    assert second._shared.created == 5


@pytest.mark.parametrize(("name", "value"), [("lanes", 3), ("lanes", 0), ("lanes", 512), ("partitions", 5000)])
async def test_what_cannot_be_is_refused(open_store: OpenStore, name: str, value: int) -> None:
    with pytest.raises(Invalid) as refused:
        await open_store(SimulatedClock(), **{name: value})
    assert refused.value.field == name


async def test_a_schema_with_an_odd_name_is_refused(postgres: Postgres) -> None:
    with pytest.raises(Invalid, match="not a plain name"):
        await PostgresStore.open(postgres.dsn, schema='a"; DROP TABLE x; --')


async def test_a_newer_layout_is_refused(postgres: Postgres, open_store: OpenStore, schema: str) -> None:
    await open_store(SimulatedClock())
    with postgres.connect() as connection:
        connection.execute(f"UPDATE {schema}.meta SET version = 99")
    with pytest.raises(StoreError, match=r"newer Tidings \(layout 99"):
        await open_store(SimulatedClock())


async def test_an_older_layout_is_brought_up_to_date(
    postgres: Postgres, open_store: OpenStore, schema: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    await applied(store, add("kept", NOW))
    step = tmp_path / "0002_more.sql"
    step.write_text("CREATE TABLE tidings.more AS SELECT count(*) AS rows FROM tidings.timeline;")
    steps = [*database.migrations(), step]
    monkeypatch.setattr(database, "migrations", lambda: steps)
    await asyncio.gather(*(open_store(SimulatedClock()) for _ in range(3)))
    with postgres.connect() as connection:
        assert connection.execute(f"SELECT rows, version FROM {schema}.more, {schema}.meta").fetchall() == [(1, 2)]


async def test_keys_are_the_same_in_sql(postgres: Postgres, open_store: OpenStore, schema: str) -> None:
    await open_store(SimulatedClock())
    with postgres.connect() as connection:
        for tenant, name in (("acme", "one"), ("ü", "Grüße-世界-🎉"), ("a", "a" * 200)):
            row = connection.execute(f"SELECT uuid_send({schema}.key(%s, %s))", (tenant, name)).fetchone()
            assert row == (key_of(tenant, name),)
