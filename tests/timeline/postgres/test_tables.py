"""The tables of notifications on a server: their layout, and nodes that change the same rows at once."""

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from graphlib import TopologicalSorter
from typing import Any

import psycopg
import pytest

from tests.contract.factories import ACME, DAY, NOW, add, state
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.errors import StoreError
from tidings.domain.notifications.tables import NOTIFICATIONS, NOTIFICATIONS_BY_USER, TABLES, Index, Table
from tidings.ports.tables import ANY, ChangeGroup, GroupResult, Put, Remove, Row, RowKey, Unchanged
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.postgres import database
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.postgres.tables import IN_INDEX_ORDER, Decision, find_statement

GROUPS = 10_000
TASKS = 4
ROWS = 20_000
NODES = 2


def key(name: str, table: str = "notification") -> RowKey:
    return RowKey(table, ACME, name)


def put(
    name: str, body: bytes = b"{}", expected: int = 0, table: str = "notification", until: int | None = None
) -> Put:
    orders = {index.order for index in TABLES[table].indexes}
    values = tuple(0 if column.name in orders else None for column in TABLES[table].columns)
    return Put(key(name, table), body, expected, values, until)


async def two(open_store: OpenStore) -> list[PostgresStore]:
    """Two nodes on one database, each with connections of its own."""
    return [await open_store(SimulatedClock(), lanes=1) for _ in range(NODES)]


async def deadlocks(postgres: Postgres) -> int:
    with postgres.connect() as connection:
        row: Any = connection.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchone()
    return int(row[0])


# --- layout ---

COLUMNS = """
SELECT attname, format_type(atttypid, NULL), attnotnull, collname FROM pg_attribute
LEFT JOIN pg_collation c ON c.oid = attcollation WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum
"""
INDEXES = """
SELECT c.relname, pg_get_indexdef(c.oid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %s::regclass AND NOT i.indisprimary
"""


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
async def test_the_layout_is_as_declared(postgres: Postgres, open_store: OpenStore, schema: str, table: Table) -> None:
    await open_store(SimulatedClock(), lanes=1)
    text, number = ("text", "C"), ("bigint", None)
    wanted = [("tenant", *text), (table.key, *text), ("version", *number), ("until", *number)]
    wanted += [(column.name, *(text if column.kind == "text" else number)) for column in table.columns]
    place = f"{schema}.{table.name}"
    with postgres.connect() as connection:
        columns = connection.execute(COLUMNS, (place,)).fetchall()
        indexes = {str(name): str(text) for name, text in connection.execute(INDEXES, (place,)).fetchall()}
        (primary,) = connection.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'",
            (place,),
        ).fetchall()
    assert [(name, kind, order) for name, kind, _, order in columns] == [*wanted, ("body", "bytea", None)]
    needed = {name for name, _, not_null, _ in columns if not_null}
    assert needed == {"tenant", table.key, "version", "body"}
    assert primary == (f"PRIMARY KEY (tenant, {table.key})",)
    assert {name: _shape(text) for name, text in indexes.items()} == {
        f"{table.name}_until": "(until) WHERE (until IS NOT NULL)",
        **{index.name: _wanted(table, index) for index in table.indexes},
    }


def _shape(definition: str) -> str:
    return definition.partition(" USING btree ")[2]


def _wanted(table: Table, index: Index) -> str:
    tenant = "tenant" if index.columns else 'tenant COLLATE "POSIX"'
    columns = [*index.columns, tenant, *([index.order] if index.order else []), table.key]
    return f"({', '.join(columns)})" + (f" WHERE ({index.present} IS NOT NULL)" if index.present else "")


async def test_a_moved_store_rejects_changes_of_every_table(
    postgres: Postgres, open_store: OpenStore, schema: str
) -> None:
    await open_store(SimulatedClock(), lanes=1)
    with postgres.connect() as connection:
        connection.execute(f"SELECT {schema}.fence(true)".encode())
        fenced = connection.execute(
            "SELECT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
            " WHERE t.tgname = 'has_moved' AND c.relnamespace = %s::regnamespace",
            (schema,),
        ).fetchall()
        assert {name for (name,) in fenced} >= TABLES.keys()
        for name, table in TABLES.items():
            row = f"INSERT INTO {schema}.{name} (tenant, {table.key}, version, body) VALUES ('a', 'b', 1, '')"
            with pytest.raises(psycopg.DatabaseError, match="has moved"):
                connection.execute(row.encode())


async def test_operators_see_one_address_in_each_row(postgres: Postgres, open_store: OpenStore, schema: str) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    values = ("Ann", "ann@example.com", None, "https://example.com/hook", "UTC", None, None, None)
    await store.tables.commit([ChangeGroup((Put(key("ann", "app_user"), b"{}", 0, values),))], NOW)
    with postgres.connect() as connection:
        found = connection.execute(f"SELECT * FROM {schema}.address ORDER BY channel".encode()).fetchall()
    assert found == [
        (ACME, "ann", "email", "ann@example.com"),
        (ACME, "ann", "webhook", "https://example.com/hook"),
    ]


# --- plans ---


async def filled(postgres: Postgres, open_store: OpenStore) -> PostgresStore:
    """A table that grew after the functions were planned on an empty one, and was not analyzed since."""
    store = await open_store(SimulatedClock(), lanes=1)
    await store.tables.commit([ChangeGroup((put("first"),))], NOW)
    fill = "INSERT INTO tidings.notification (tenant, id, version, created, user_id, body)"
    fill += " SELECT 'acme', 'n' || i, 0, i, 'u' || mod(i, 100), '{}' FROM generate_series(1, %s) AS i"
    with postgres.connect() as connection:
        connection.execute(store._context.inside(fill).encode(), (ROWS,))
    return store


async def test_rows_are_looked_up_by_their_primary_key_also_before_the_table_is_analyzed(
    postgres: Postgres, open_store: OpenStore
) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    notices: list[str] = []
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        database.register(connection)
        lock, write = store.tables._lock.encode(), store.tables._writes
        connection.execute(lock, Decision([ChangeGroup((put("first"),))], NOW).wanted(), binary=True)
        fill = "INSERT INTO tidings.notification (tenant, id, version, created, body)"
        fill += " SELECT 'acme', 'n' || i, i, i, '{}' FROM generate_series(1, %s) AS i"
        connection.execute(store._context.inside(fill).encode(), (ROWS,))
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        connection.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;"
            " SET auto_explain.log_analyze = on; SET client_min_messages = log"
        )
        changes: list[Put | Remove] = [put(f"n{number}", expected=ANY) for number in range(1, 200)]
        changes += [Remove(key(f"n{number}")) for number in range(200, 300)]
        changes += [put(f"new{number}", expected=ANY) for number in range(100)]
        decision = Decision([ChangeGroup((change,)) for change in changes], NOW)
        row: Any = connection.execute(lock, decision.wanted(), binary=True).fetchone()
        decision.locked(*row)
        for position in range(len(changes)):
            decision.apply(position)
        for table, values in decision.writes():
            connection.execute(write[table].encode(), values, binary=True)
        decision = Decision([ChangeGroup((Unchanged(key(f"n{number}"), 1),)) for number in range(1, 200)], NOW)
        connection.execute(lock, decision.wanted(), binary=True)
    plans = [notice for notice in notices if "Query Text" in notice and "notification" in notice]
    for word in ("FOR UPDATE OF d", "FOR SHARE OF d", "UPDATE ", "DELETE FROM", "INSERT INTO"):
        assert any(word in plan for plan in plans), word
    for plan in plans:
        assert "Seq Scan" not in plan, plan
        assert plan.count("Index Scan using") == plan.count("Index Scan using notification_pkey"), plan
        assert "Rows Removed by Filter" not in plan, plan


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("newest", [True, False])
async def test_searches_read_no_more_than_they_return(
    postgres: Postgres, open_store: OpenStore, analyzed: bool, newest: bool
) -> None:
    store = await filled(postgres, open_store)
    searches: list[tuple[Index, tuple[str, ...], tuple[int, str]]] = [
        (NOTIFICATIONS, (), (10_000, "n10000")),
        (NOTIFICATIONS_BY_USER, ("u7",), (10_000, "n10000")),
        (Index("notification", "notification_all"), (), (0, "n5")),
    ]
    with postgres.connect() as connection:
        if analyzed:
            connection.execute("ANALYZE")
        connection.execute(IN_INDEX_ORDER.replace(b"true", b"false"))
        for index, values, after in searches:
            statement, given = find_statement(index, ACME, values, after, newest=newest)
            explain = store._context.inside(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {statement}")
            plan = "\n".join(
                str(line) for (line,) in connection.execute(explain.encode(), (*given, NOW, 50)).fetchall()
            )
            assert "Seq Scan" not in plan, plan
            assert "Sort" not in plan, plan
            assert "Rows Removed" not in plan, plan


# --- concurrency ---


async def test_a_group_that_waited_for_a_row_sees_what_became_of_it(postgres: Postgres, open_store: OpenStore) -> None:
    stores = await two(open_store)
    versions = [result.version for result in await _commit(stores[0], [put("a")], [put("b", table="app_user")])]
    with psycopg.connect(postgres.dsn) as connection, postgres.connect() as watching:
        connection.execute(stores[0]._context.inside("SELECT 1 FROM tidings.app_user FOR UPDATE").encode())
        orders = [
            [put("a", b"%d" % mark, versions[0]), put("b", b"%d" % mark, versions[1], "app_user")][::step]
            for mark, step in enumerate((1, -1))
        ]
        calls = [asyncio.ensure_future(_commit(store, group)) for store, group in zip(stores, orders, strict=True)]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await eventually(lambda: watching.execute(waiting).fetchone() == (2,))
        connection.rollback()
        results = [bool(result.version) for (result,) in await asyncio.gather(*calls)]
    assert sorted(results) == [False, True]
    for each in await stores[0].tables.get([key("a"), key("b", "app_user")], NOW):
        assert each is not None
        assert each.body == b"%d" % results.index(True)


async def test_groups_that_only_require_the_same_row_do_not_wait_for_each_other(
    postgres: Postgres, open_store: OpenStore
) -> None:
    (store, _) = await two(open_store)
    [user] = await _commit(store, [put("ann", table="app_user")])
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute(store._context.inside("SELECT 1 FROM tidings.app_user FOR SHARE").encode())
        rests_on = Unchanged(key("ann", "app_user"), user.version)
        [result] = await _commit(store, [rests_on, put("n1")])
        assert result.version
        connection.rollback()


async def test_a_lock_is_not_waited_for_without_an_end(postgres: Postgres, open_store: OpenStore) -> None:
    (store, _) = await two(open_store)
    await _commit(store, [put("a")])
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute(store._context.inside("SELECT 1 FROM tidings.notification FOR UPDATE").encode())
        with pytest.raises(StoreError, match="took too long and nothing was changed"):
            await _commit(store, [put("a", b"new", ANY), put("b")])
        connection.rollback()
    found = await store.tables.get([key("a"), key("b")], NOW)
    assert [each and each.body for each in found] == [b"{}", None]
    assert (await _commit(store, [put("b")]))[0].version


async def test_a_group_is_retried_if_another_transaction_creates_its_row(
    postgres: Postgres, open_store: OpenStore
) -> None:
    (store, _) = await two(open_store)
    made = "INSERT INTO tidings.notification (tenant, id, version, created, body) VALUES ('acme', %s, 7, 0, '')"
    changes: list[list[Put | Unchanged | Remove]] = [
        [put("a"), put("x")],
        [Unchanged(key("a"), 0), put("y")],
        [put("z")],
    ]
    with psycopg.connect(postgres.dsn) as connection, postgres.connect() as watching:
        connection.execute(store._context.inside(made).encode(), ("a",))
        calls = [asyncio.ensure_future(_commit(store, group)) for group in changes]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await eventually(lambda: watching.execute(waiting).fetchone() == (2,))
        connection.commit()
        results = [bool(result.version) for (result,) in await asyncio.gather(*calls)]
    assert results == [False, False, True]
    found = await store.tables.get([key(name) for name in ("x", "y", "z")], NOW)
    assert [each is not None for each in found] == [False, False, True]


async def test_no_call_relies_on_its_session(open_store: OpenStore) -> None:
    """As behind PgBouncer: every call may meet another connection."""
    store = await open_store(SimulatedClock(), lanes=1)
    store._pools.tables._is_direct = False
    for number in range(5):
        [result] = await store.tables.commit([ChangeGroup((put(f"n{number}"),), add(f"n{number}", NOW + DAY))], NOW)
        assert result.version
        assert len(await store.tables.find(NOTIFICATIONS, ACME, (), NOW)) == number + 1
        for connection in store._pools.tables._idle:
            await connection.execute("DISCARD ALL")


async def test_two_nodes_that_add_the_same_schedule_agree(open_store: OpenStore) -> None:
    stores = await two(open_store)
    for turn in range(20):
        names = [f"t{turn}-{number}" for number in range(30)]
        groups = [
            [ChangeGroup((put(name, b"%d" % mark, ANY),), add(name, NOW + DAY, value=b"%d" % mark)) for name in order]
            for mark, order in enumerate((names, names[::-1]))
        ]
        first, second = await asyncio.gather(*(s.tables.commit(g, NOW) for s, g in zip(stores, groups, strict=True)))
        won = [dict(zip(names, first, strict=True)), dict(zip(names[::-1], second, strict=True))]
        for name, row in zip(names, await stores[0].tables.get([key(name) for name in names], NOW), strict=True):
            assert row is not None
            assert [bool(each[name].version) for each in won].count(True) == 1, (turn, name)
            assert won[int(row.body)][name].version == row.version
            assert await state(stores[1], name) == "pending"


@pytest.mark.parametrize("fits", [[False] * 4, [True, False, True, False], [True] * 4])
async def test_new_schedules_are_added_in_bulk_with_the_groups_that_fit(
    open_store: OpenStore, fits: list[bool]
) -> None:
    (store, _) = await two(open_store)
    [user] = await _commit(store, [put("ann", table="app_user")])
    groups = [
        ChangeGroup(
            (Unchanged(key("ann", "app_user"), user.version + (not fit)), put(f"n{n}")), add(f"n{n}", NOW + DAY)
        )
        for n, fit in enumerate(fits)
    ]
    results = await store.tables.commit([*groups, ChangeGroup((put("other"),))], NOW)
    assert [bool(result.version) for result in results] == [*fits, True]
    assert [result.outcome is not None for result in results] == [*fits, False]
    for number, fit in enumerate(fits):
        assert await state(store, f"n{number}") == ("pending" if fit else None)
    found = await store.tables.get([key(f"n{number}") for number in range(len(fits))], NOW)
    assert [row is not None for row in found] == fits
    again = await store.tables.commit([ChangeGroup((put("n9"),), add("n9", NOW + DAY)), *groups], NOW)
    assert again[0].outcome is not None
    assert again[0].outcome.outcome == "scheduled"


async def _commit(store: PostgresStore, *groups: Sequence[Put | Remove | Unchanged]) -> list[GroupResult]:
    return await store.tables.commit([ChangeGroup(tuple(group)) for group in groups], NOW)


# --- racing groups against a sequential model ---

USED = [key(f"k{number}", table) for table in ("app_user", "notification", "delivery") for number in range(8)]
BATCH = 10


class _Model:
    """Every group that was told to have won. Each writes its number as the body of its rows, so that the rows that a
    group has read say which groups came before it."""

    def __init__(self) -> None:
        self.before: dict[int, set[int]] = {}  # by group, those that must come before it
        self.readers: dict[tuple[RowKey, int], set[int]] = defaultdict(set)  # of the row that a group has written
        self.replaced: dict[tuple[RowKey, int], int] = {}
        self.rows: Counter[RowKey] = Counter()  # created less deleted
        self.lost = 0

    def note(self, number: int, group: ChangeGroup, seen: dict[RowKey, Row | None]) -> None:
        self.before[number] = set()
        for change in group.changes:
            row = seen[change.key]
            if row is not None:
                writer = int(row.body)
                self.before[number].add(writer)
                if isinstance(change, Unchanged):
                    self.readers[change.key, writer].add(number)
                else:
                    assert (change.key, writer) not in self.replaced, "two groups have replaced the same version"
                    self.replaced[change.key, writer] = number
            if row is None and isinstance(change, Put):
                self.rows[change.key] += 1
            elif row is not None and isinstance(change, Remove):
                self.rows[change.key] -= 1

    def check(self, rows: Sequence[Row | None]) -> None:
        """Whether the groups could have come one after the other, with these rows at the end."""
        for place, number in self.replaced.items():
            self.before[number] |= self.readers[place] - {number}
        assert len(list(TopologicalSorter(self.before).static_order())) == len(self.before)
        for wanted, row in zip(USED, rows, strict=True):
            assert self.rows[wanted] == (row is not None), "a row was created or deleted twice"
            if row is not None:
                assert int(row.body) in self.before, "a group that was told to have lost has written"
                assert (wanted, int(row.body)) not in self.replaced, "a version that was replaced is there"


async def test_racing_groups_end_as_if_one_had_come_after_the_other(postgres: Postgres, open_store: OpenStore) -> None:
    stores = await two(open_store)
    model, numbers, before = _Model(), itertools.count(1), await deadlocks(postgres)

    async def work(task: int) -> None:
        dice, store = random.Random(task), stores[task % NODES]
        for _ in range(GROUPS // TASKS // BATCH):
            seen = dict(zip(USED, await store.tables.get(USED, NOW), strict=True))
            made = [next(numbers) for _ in range(BATCH)]
            groups = [_some_group(dice, seen, number) for number in made]
            results = await store.tables.commit(groups, NOW)
            for number, group, result in zip(made, groups, results, strict=True):
                if result.version:
                    model.note(number, group, seen)
                else:
                    model.lost += 1

    await asyncio.gather(*(work(task) for task in range(TASKS)))
    assert len(model.before) + model.lost == GROUPS
    assert min(len(model.before), model.lost) > GROUPS // 20
    assert await deadlocks(postgres) == before
    model.check(await stores[1].tables.get(USED, NOW))


def _some_group(dice: random.Random, seen: dict[RowKey, Row | None], number: int) -> ChangeGroup:
    changes: list[Put | Remove | Unchanged] = []
    for each in dice.sample(USED, 3):
        row = seen[each]
        version, kind = 0 if row is None else row.version, dice.random()
        if kind < 0.3:
            changes.append(Unchanged(each, version))
        elif kind < 0.5 and row is not None:
            changes.append(Remove(each, version))
        else:
            changes.append(put(each.name, b"%d" % number, version, each.table))
    return ChangeGroup(tuple(changes))


async def test_atomic_transfers_between_rows_keep_their_sum(open_store: OpenStore) -> None:
    """Two rows in two tables change together or not at all, also when they are created and deleted."""
    stores = await two(open_store)

    async def work(task: int) -> None:
        dice = random.Random(task)
        for _ in range(100):
            names = [f"p{dice.randrange(5)}" for _ in range(4)]
            groups: list[list[Put | Remove]] = []
            for name in dict.fromkeys(names):
                pair = [key(name, "app_user"), key(name, "delivery")]
                if dice.random() < 0.5:
                    mark = b"%d" % dice.randrange(1_000_000)
                    groups.append([put(each.name, mark, ANY, each.table) for each in pair])
                else:
                    groups.append([Remove(each) for each in pair])
            await _commit(stores[task % NODES], *groups)
            users = [key(f"p{number}", "app_user") for number in range(5)]
            others = [key(f"p{number}", "delivery") for number in range(5)]
            found = await stores[task % NODES].tables.get([*users, *others], NOW)
            bodies = [each and each.body for each in found]
            assert bodies[:5] == bodies[5:], "one snapshot, and both rows or none"

    await asyncio.gather(*(work(task) for task in range(TASKS)))


async def test_many_calls_that_create_and_delete_the_same_row_all_succeed(open_store: OpenStore) -> None:
    """A row that does not exist cannot be locked: without a lock of their own such calls lose every race."""
    stores = await two(open_store)

    async def work(task: int) -> None:
        for turn in range(20):
            change = Remove(key("one")) if (task + turn) % 2 else put("one", b"%d" % task, ANY)
            [result] = await _commit(stores[task % NODES], [change])
            assert result.version

    await asyncio.gather(*(work(task) for task in range(40)))


# --- retention ---


async def test_expired_rows_are_deleted_in_slices_except_locked_ones(postgres: Postgres, open_store: OpenStore) -> None:
    (store, _) = await two(open_store)
    groups = [[put(f"n{number}", until=NOW + number)] for number in range(30)] + [[put("stays")]]
    assert all(result.version for result in await _commit(store, *groups))
    count = store._context.inside("SELECT count(*) FROM tidings.notification").encode()
    with psycopg.connect(postgres.dsn) as connection, postgres.connect() as watching:
        connection.execute(
            store._context.inside("SELECT 1 FROM tidings.notification WHERE id = 'n3' FOR UPDATE").encode()
        )
        assert await store.tables.expire(NOW + 100, 20) == 20
        assert await store.tables.expire(NOW + 100, 20) == 9
        assert watching.execute(count).fetchone() == (2,)
        connection.rollback()
        assert await store.tables.expire(NOW + 100, 20) == 1
        assert watching.execute(count).fetchone() == (1,)
    assert await store.tables.expire(NOW + 100, 20) == 0
