"""The cabinet of a fleet: nodes that change the same documents at once, and reads that see no more than they answer."""

import asyncio
import random
from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.contract.factories import ACME, NOW
from tests.contract.test_documents import change, kept, key, made, names, put
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tests.timeline.postgres.test_plans import nodes
from tidings.domain.errors import StoreError
from tidings.ports import ANY, Key, Put, Remove
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.postgres import database
from tidings.timeline.postgres.documents import _columns, digest
from tidings.timeline.postgres.pool import rows
from tidings.timeline.postgres.store import PostgresStore

ROUNDS = 60
DOCUMENTS = 100_000
FILL = """
WITH made AS (
    SELECT uuid_send(md5('d' || i)::uuid) AS key, i, convert_to('n' || i, 'UTF8') AS name
    FROM generate_series(1, %(rows)s) AS i
), documents AS (
    INSERT INTO tidings.document SELECT encode(key, 'hex')::uuid, i, i, CASE WHEN i %% 10 = 0 THEN i END,
        ARRAY[%(shelf)s], 'acme', 'user', name, '', '{}' FROM made
)
INSERT INTO tidings.tagged SELECT %(shelf)s, i, name, encode(key, 'hex')::uuid FROM made
"""


async def two(open_store: OpenStore) -> list[PostgresStore]:
    """Two nodes on one database, each with connections of its own."""
    return [await open_store(SimulatedClock(), lanes=1) for _ in range(2)]


def value(number: int) -> bytes:
    return b"%d" % number


# --- concurrency ---


async def test_of_two_nodes_exactly_one_wins_each_document(open_store: OpenStore) -> None:
    stores = await two(open_store)
    every = [f"n{number}" for number in range(40)]
    expected = dict.fromkeys(every, 0)
    for turn in range(ROUNDS):
        calls = []
        for mark, store in enumerate(stores):
            order = every if mark == 0 else every[::-1]
            groups = [[put(name, value(mark), expected[name])] for name in order]
            calls.append(made(store, groups))
        first, second = await asyncio.gather(*calls)
        won = [dict(zip(every, first, strict=True)), dict(zip(every[::-1], second, strict=True))]
        for name, document in zip(
            every, await stores[0].documents.get([key(name) for name in every], NOW), strict=True
        ):
            assert document is not None
            assert [won[0][name], won[1][name]].count(True) == 1, (turn, name)
            assert won[int(document.body)][name], "who was told that it won is who is there"
            expected[name] = document.version
        if turn % 3 == 2:
            assert all(await stores[0].documents.change([[Remove(key(name))] for name in every], NOW))
            expected = dict.fromkeys(every, 0)


async def test_who_waited_for_a_document_sees_what_became_of_it(postgres: Postgres, open_store: OpenStore) -> None:
    stores = await two(open_store)
    assert await change(stores[0], put("ann"), put("bob"))
    ann, bob = await kept(stores[0], "ann"), await kept(stores[0], "bob")
    with psycopg.connect(postgres.dsn) as connection, postgres.connect() as watching:
        connection.execute(stores[0]._context.inside("SELECT 1 FROM tidings.document FOR UPDATE").encode())
        orders = [["ann", "bob"], ["bob", "ann"]]
        versions = {"ann": ann.version, "bob": bob.version}
        groups = [[put(name, value(mark), versions[name]) for name in order] for mark, order in enumerate(orders)]
        calls = [asyncio.ensure_future(made(store, [group])) for store, group in zip(stores, groups, strict=True)]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await eventually(lambda: watching.execute(waiting).fetchone() == (2,))
        connection.rollback()
        answers = [answer for (answer,) in await asyncio.gather(*calls)]
    assert sorted(answers) == [False, True]
    for name in ("ann", "bob"):
        assert (await kept(stores[0], name)).body == value(answers.index(True))


async def deadlocks(postgres: Postgres) -> int:
    with postgres.connect() as connection:
        row: Any = connection.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchone()
    return int(row[0])


async def test_nobody_stands_in_anothers_way_for_ever(postgres: Postgres, open_store: OpenStore) -> None:
    """Groups of several documents in any order, made, changed, tagged and removed by two nodes with several calls
    each: what comes of it is the same as of one after the other, and no two wait for each other."""
    stores = await two(open_store)
    before = await deadlocks(postgres)
    dice = random.Random(7)
    changed: Counter[str] = Counter()

    async def work(store: PostgresStore) -> None:
        for _ in range(ROUNDS):
            groups = [some_group(dice) for _ in range(8)]
            for group, answer in zip(groups, await store.documents.change(groups, NOW), strict=True):
                assert answer, "they expect nothing"
                changed.update(one.key.name for one in group)
            await store.documents.expire(NOW, 5)

    await asyncio.gather(*(work(store) for store in stores for _ in range(3)))
    assert sum(changed.values()) > ROUNDS
    assert await deadlocks(postgres) == before
    for tag in ("a", "b"):
        found = await stores[0].documents.find(ACME, "user", tag, NOW, limit=1_000)
        assert all(tag in document.tags for document in found)
        there = await stores[0].documents.get([key(f"n{number}") for number in range(12)], NOW)
        assert {one.key.name for one in there if one is not None and tag in one.tags} == {
            document.key.name for document in found
        }


def some_group(dice: random.Random) -> list[Put | Remove]:
    group: list[Put | Remove] = []
    for number in dice.sample(range(12), 4):
        if dice.random() < 0.3:
            group.append(Remove(key(f"n{number}")))
        else:
            tags = dice.choice([(), ("a",), ("a", "b"), ("b",)])
            until = dice.choice([None, None, NOW + 1, NOW - 1])
            group.append(put(f"n{number}", expected=ANY, tags=tags, order=dice.randrange(3), until=until))
    return group


async def test_who_makes_a_document_waits_for_another_who_does_and_then_looks_again(
    postgres: Postgres, open_store: OpenStore
) -> None:
    (store, other) = await two(open_store)
    assert await change(other, put("other"))
    with psycopg.connect(postgres.dsn) as connection:
        inside = store._context.inside
        copied = (
            "INSERT INTO tidings.document SELECT %s, version + 100, \"order\", until, shelves, tenant, kind, 'ann',"
        )
        connection.execute(inside(copied + " tags, body FROM tidings.document").encode(), (digest(key("ann")).hex(),))
        waiting = asyncio.ensure_future(made(store, [[put("ann")], [put("bob")]]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.2)
        connection.commit()
    assert await waiting == [False, True]


async def test_no_call_relies_on_its_session(open_store: OpenStore) -> None:
    """As behind PgBouncer: every call may meet another connection."""
    store = await open_store(SimulatedClock(), lanes=1)

    async def forget() -> None:
        for connection in store._pools.documents._idle:
            await connection.execute("DISCARD ALL")

    for number in range(5):
        assert await change(store, put(f"n{number}", tags=("t",)))
        await forget()
        assert await names(store, "t") == [f"n{each}" for each in range(number + 1)]
        await forget()
        assert (await kept(store, f"n{number}")).body == b"{}"
        await forget()


async def test_a_lock_is_not_waited_for_without_an_end(postgres: Postgres, open_store: OpenStore) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    assert await change(store, put("ann"))
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute(store._context.inside("SELECT 1 FROM tidings.document FOR UPDATE").encode())
        with pytest.raises(StoreError, match="took too long and nothing was changed"):
            await change(store, put("ann", b"new", ANY), put("bob"))
        connection.rollback()
    assert (await kept(store, "ann")).body == b"{}"
    assert await change(store, put("bob"))


# --- what is written ---


async def test_a_new_body_alone_touches_no_index(postgres: Postgres, open_store: OpenStore) -> None:
    """It stays in its page (HOT), and its places under tags are not written again."""
    store = await open_store(SimulatedClock(), lanes=1)
    await store._vacuum.stop()
    every = [f"n{number}" for number in range(50)]
    assert await change(store, *(put(name, tags=("a", "b"), order=3, until=NOW + 9) for name in every))
    place = store._context.inside("SELECT min(ctid::text), max(xmin::text::bigint) FROM tidings.tagged").encode()
    with postgres.connect() as connection:
        written = connection.execute(place).fetchone()
    for turn in range(20):
        groups = [[put(name, value(turn), ANY, tags=("a", "b"), order=3, until=NOW + 9)] for name in every]
        assert all(await store.documents.change(groups, NOW))
    told = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'document'"
    await store._pools.close()  # a session tells what it did when it ends
    with postgres.connect() as connection:
        assert connection.execute(place).fetchone() == written
        row: Any = connection.execute(told, (store._context.options.schema,)).fetchone()
    assert row[0] >= 900
    assert row[1] > row[0] * 0.8


# --- plans ---


def calls(store: PostgresStore) -> dict[str, tuple[str, Any]]:
    sql = store.documents.sql
    keys = database.uuids([digest(key(f"n{number}")) for number in range(256)])
    place = {"shelf": SHELF, "order": 50_000, "name": b"n50000", "now": NOW, "limit": 100}
    return {
        "get": (sql["get"], (keys, NOW)),
        "find": (sql["find"], place),
        "find_newest": (sql["find_newest"], place),
        "find from the first on": (sql["find"], place | {"order": -(1 << 63), "name": b""}),
        "documents": ("SELECT * FROM tidings.document WHERE key > %s::uuid ORDER BY key LIMIT 1000", ("0" * 32,)),
    }


SHELF = digest(Key(ACME, "user", "t")).hex()
BIG = ("document", "tagged")


async def filled(postgres: Postgres, open_store: OpenStore) -> PostgresStore:
    store = await open_store(SimulatedClock(), lanes=1)
    with postgres.connect() as connection:
        fill = FILL.replace("%(shelf)s", f"'{SHELF}'::uuid")
        connection.execute(store._context.inside(fill).encode(), {"rows": DOCUMENTS})
    return store


@pytest.mark.parametrize("analyzed", [True, False])
async def test_reads_look_at_no_more_than_they_answer(
    postgres: Postgres, open_store: OpenStore, analyzed: bool
) -> None:
    store = await filled(postgres, open_store)
    if analyzed:
        with postgres.connect() as connection:
            connection.execute("ANALYZE")
    assert len(await names(store, "t", limit=1_000)) == 1_000
    for name, (statement, values) in calls(store).items():
        async with store._pool.connection() as connection:
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {store._context.inside(statement)}"
            found = await rows(connection, explain, values)
        for node in nodes(found[0][0][0]["Plan"]):
            assert not (node["Node Type"] == "Seq Scan" and node.get("Relation Name") in BIG), f"{name}: {node}"
            assert "Sort" not in node["Node Type"], f"{name} sorts: {node}"
            read = node["Actual Rows"] * node["Actual Loops"] + node.get("Rows Removed by Filter", 0)
            assert read <= 1_000, f"{name} reads {read} rows: {node}"


async def test_changes_look_at_no_more_than_they_change(postgres: Postgres, open_store: OpenStore) -> None:
    store = await filled(postgres, open_store)
    notices: list[str] = []
    groups: list[list[Put | Remove]] = [[put(f"m{number}", expected=ANY, tags=("t",))] for number in range(200)]
    again: list[list[Put | Remove]] = [[put(f"m{number}", expected=ANY, tags=("u",))] for number in range(100)]
    again += [[Remove(key(f"m{number}"))] for number in range(100, 200)]
    with psycopg.connect(postgres.dsn) as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        database.register(connection)
        connection.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;"
            " SET auto_explain.log_analyze = on; SET client_min_messages = log"
        )
        for each in (groups, again):
            connection.execute(store.documents.sql["change"].encode(), _columns(each, NOW), binary=True)
        connection.execute(store.documents.sql["expire"].encode(), (NOW, 1_000))
        connection.rollback()
    plans = [notice for notice in notices if "Query Text" in notice]
    for word in ("FOR UPDATE OF d", "UPDATE ", "DELETE FROM", "INSERT INTO", "SKIP LOCKED"):
        assert any(word in plan for plan in plans), word
    for plan in plans:
        assert not any(f"Seq Scan on {table}" in plan for table in BIG), plan
        assert "Hash Join" not in plan, plan
