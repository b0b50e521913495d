"""The plans of the hot queries: none of them reads or sorts what is not near, however much is pending."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg

from tests.contract.factories import ACME, NOW, SECOND, TOPIC, add
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.schedules.schedule import Query
from tidings.testing import SimulatedClock
from tidings.timeline.postgres import database
from tidings.timeline.postgres.apply.unit_of_work import key_of
from tidings.timeline.postgres.pool import rows
from tidings.timeline.postgres.queries import _Listing
from tidings.timeline.postgres.store import PostgresStore

LANES = 16
DAY_US = 86_400 * SECOND
FILL = """
WITH made AS (
    SELECT i, tidings.key('acme', 'id-' || i) AS key, %(now)s + (i::bigint * 7919 %% 2592000) * 1000000 AS due
    FROM generate_series(1, %(rows)s) AS i
), known AS (INSERT INTO tidings.registry SELECT key, due, i, 1 FROM made),
used AS (INSERT INTO tidings.slot VALUES (1))
INSERT INTO tidings.timeline
SELECT due, i, %(now)s, key, 1, 0, 1, 1, get_byte(uuid_send(key), 0) %% %(lanes)s, 1,
    get_byte(uuid_send(key), 0) %% %(lanes)s, 0, 'id-' || i, '\\x00'::bytea FROM made
"""
FINISH = """
WITH gone AS (DELETE FROM tidings.timeline WHERE arrival %% 5 = 0 RETURNING *)
INSERT INTO tidings.finished
SELECT due, arrival, due, accepted, content, stream, topic, generation, n, lane, part, 0, 0, id, arrival, NULL FROM gone
"""
LOG = """
WITH logged AS (
    INSERT INTO tidings.log SELECT topic, part, true, row_number() OVER (PARTITION BY part ORDER BY due) - 1, due, due,
        generation, n, id, '\\x00'::bytea FROM tidings.finished RETURNING part
)
UPDATE tidings.partition p SET next = c.rows FROM (SELECT part, count(*) AS rows FROM logged GROUP BY 1) c
WHERE p.part = c.part
"""


@contextlib.asynccontextmanager
async def filled(postgres: Postgres, open_store: OpenStore, count: int) -> AsyncIterator[PostgresStore]:
    """A store with so many rows, made by the server itself."""
    store = await open_store(SimulatedClock(), lanes=LANES)
    await store.acquire(0, DAY_US)
    await store._context.names.make(ACME, TOPIC)
    with postgres.connect() as connection:
        inside = store._context.inside
        values = {"now": NOW, "rows": count, "lanes": LANES}
        connection.execute(inside(FILL).encode(), values)
        connection.execute(inside(FINISH.replace("%%", "%")).encode())
        connection.execute(inside(LOG).encode())
        connection.execute("ANALYZE")
    yield store


def calls(store: PostgresStore) -> dict[str, tuple[str, Any]]:
    """Every hot query with values as it is called with."""
    sql = store._context.sql
    ids = [f"id-{number}" for number in range(1, 200)]
    keys = database.uuids([key_of(ACME, one) for one in ids])
    places = tuple(database.int2s([1] * 50) for _ in range(2)) + tuple(database.int8s([NOW] * 50) for _ in range(2))
    page = _Listing(store._context, ACME, Query(limit=100), NOW)._values
    finished = (database.int4s([1] * 50), database.int8s([NOW] * 50), database.int8s(range(50)))
    return {
        "heads": (sql["heads"], (database.int2s(range(LANES)), database.int8s([0] * LANES))),
        "lock": (sql["lock"], (keys,)),
        "lock_free": (sql["lock_free"], (keys,)),
        "places": (sql["places"], (keys,)),
        "timeline": (sql["timeline"], places),
        "timeline_seen": (sql["timeline_seen"], places),
        "extras": (sql["extras"], places),
        "standing": (sql["standing"], (database.int8s(range(50)),)),
        "finished": (sql["finished"], finished),
        "leave": (sql["leave"], places),
        "forget": (sql["forget"], finished),
        "outgoing": (sql["outgoing"], (0, 0, 1000)),
        "in_outbox": (sql["in_outbox"], (0, 0)),
        "page_pending": (sql["page_pending"], page),
        "page_finished": (sql["page_finished"], page),
        "read": (sql["read"], (0, 1, 100, 500)),
        "history": (sql["history"], ("0" * 32,)),
        "overdue": (sql["overdue"], (LANES, NOW, 1000)),
        "choose": (
            store._context.inside("SELECT * FROM tidings.choose(%s, %s, %s, %s, %s, %s, %s, %s, %s, false)"),
            (0, NOW, 2_000, 0, 0, 9_000, 1 << 30, database.int4s([0, 1]), database.int8s([0, 0])),
        ),
    }


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every step of a plan."""
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


BIG = ("timeline", "registry", "finished", "log")
SORTED_MAX = 5_000


async def check(store: PostgresStore) -> None:
    for name, (statement, values) in calls(store).items():
        async with store._pool.connection() as connection:
            await connection.execute("BEGIN; SET LOCAL enable_seqscan = on")
            try:
                found = await rows(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
            finally:
                await connection.execute("ROLLBACK")
        for node in nodes(found[0][0][0]["Plan"]):
            read = node["Actual Rows"] * node["Actual Loops"] + node.get("Rows Removed by Filter", 0)
            assert not (node["Node Type"] == "Seq Scan" and node.get("Relation Name") in BIG), (
                f"{name} reads all: {node}"
            )
            assert not ("Sort" in node["Node Type"] and read > SORTED_MAX), f"{name} sorts {read} rows: {node}"


async def inner(postgres: Postgres, store: PostgresStore) -> list[str]:
    """The plans of the statements inside functions, as the server logs them."""
    notices: list[str] = []
    with psycopg.connect(postgres.dsn) as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        connection.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;"
            " SET auto_explain.log_analyze = on; SET client_min_messages = log"
        )
        inside = store._context.inside
        for lane in store.lanes()[:3]:
            for _ in range(3):
                values = (lane.number, lane.token, NOW + 3_600 * SECOND, False, 500, 0, 0, 9_000, 1 << 30)
                marks = ", ".join(["%s"] * 8)
                connection.execute(inside(f"SELECT * FROM tidings.release(%s::smallint, {marks})"), values)
        connection.execute(inside("SELECT tidings.forget(%s, 0, 64)"), (NOW,))
        connection.rollback()
    return [notice for notice in notices if "Query Text" in notice]


async def check_inner(postgres: Postgres, store: PostgresStore) -> None:
    plans = await inner(postgres, store)
    assert any("DELETE FROM" in plan for plan in plans)
    for plan in plans:
        for table in BIG:
            assert f"Seq Scan on {table}" not in plan, plan
        assert "external" not in plan, f"it sorts more than memory holds: {plan}"


async def test_hot_queries(postgres: Postgres, open_store: OpenStore) -> None:
    async with filled(postgres, open_store, 50_000) as store:
        await check(store)
        await check_inner(postgres, store)


async def test_hot_queries_with_a_million(postgres: Postgres, open_store: OpenStore) -> None:
    async with filled(postgres, open_store, 1_000_000) as store:
        await check(store)
        await check_inner(postgres, store)


async def test_what_is_due_comes_from_the_index_in_order(postgres: Postgres, open_store: OpenStore) -> None:
    """The low-water mark and the limit bound what is read, not how much is pending."""
    async with filled(postgres, open_store, 20_000) as store:
        (lane, *_) = store.lanes()
        await store.apply([add("now", NOW)], NOW)
        (plan,) = [each for each in await inner(postgres, store) if "LIMIT rows_max" in each and "fair" not in each][:1]
        assert "timeline_order" in plan, lane


async def test_tenants_that_have_nothing_to_send_cost_nothing(postgres: Postgres, open_store: OpenStore) -> None:
    """Neither a release nor a poll looks for what they could have."""
    async with filled(postgres, open_store, 1_000) as store:
        for number in range(50):
            await store._context.names.make(f"tenant-{number}", TOPIC)
        await store.apply([add("one", NOW, tenant="tenant-7")], NOW)
        with postgres.connect() as connection:
            found = connection.execute(
                store._context.inside("SELECT slot FROM tidings.slot ORDER BY 1").encode()
            ).fetchall()
        assert found == [(1,), (8 * 6 + 1,)]
        plans = [each for each in await inner(postgres, store) if "AS first_arrival" in each]
        assert plans
        assert all("loops=2)" in plan for plan in plans), plans
