"""The tables of notifications in a file: their layout, their queries, and what stays in the file after an erasure."""

import asyncio
import random
import re
import threading
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from tests.contract.factories import ACME, DAY, NOW, SECOND, add, state
from tests.contract.stores import opened
from tests.contract.test_tables import change, got, kept, key, names, put
from tidings.delivery.rows import delivery_put
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.notifications import tables as declared
from tidings.domain.notifications.delivery import Attempt, Claim, Delivery
from tidings.domain.notifications.tables import TABLES, Index
from tidings.ports.tables import ANY, ChangeGroup, Remove
from tidings.timeline.sqlite import tables
from tidings.timeline.sqlite.row_writes import AHEAD_TABLE
from tidings.timeline.sqlite.store import SqliteStore
from tidings.timeline.sqlite.tables import SHORT_KEYS_MAX


async def owned(path: Path) -> SqliteStore:
    store = await SqliteStore.open(path)
    assert await store.acquire(0, SECOND)
    return store


# --- order ---


async def test_an_urgent_commit_goes_before_those_that_wait(tmp_path: Path) -> None:
    store, began, may_end = await owned(tmp_path / "one.db"), threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        assert may_end.wait(10)

    running = store._writer_thread.start(hold)
    assert await asyncio.to_thread(began.wait, 10)
    waiting = [store.tables.commit([ChangeGroup((put(f"n-{number}"),))], NOW) for number in range(3)]
    urgent = store.tables.commit([ChangeGroup((put("high"),))], NOW, urgent=True)
    may_end.set()
    await running
    [first], *others = [await each for each in (urgent, *waiting)]
    assert all(first.version < other.version for [other] in others)
    await store.close()


# --- layout ---


async def test_the_tables_are_those_of_the_declaration(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    for table in TABLES.values():
        found = store._reader.execute(
            f"SELECT name, type, \"notnull\" FROM pragma_table_info('{table.name}')"
        ).fetchall()
        orders = {index.order for index in table.indexes}
        assert found == [
            ("entry", "INTEGER", 0),
            ("tenant", "TEXT", 1),
            (table.key, "TEXT", 1),
            ("version", "INTEGER", 1),
            ("until", "INTEGER", 0),
            *((each.name, each.kind.upper(), int(each.name in orders)) for each in table.columns),
            ("body", "BLOB", 1),
        ], table.name
    await store.close()


async def test_the_indexes_are_those_of_the_declaration(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    for table in TABLES.values():
        sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL"
        expected = {f"{table.name}_until": f"ON {table.name} (until) WHERE until IS NOT NULL"}
        for index in table.indexes:
            columns = ["tenant", *index.columns, *([index.order] if index.order else []), table.key]
            present = "" if index.present is None else f" WHERE {index.present} IS NOT NULL"
            expected[index.name] = f"ON {table.name} ({', '.join(columns)}){present}"
        assert {
            name: re.sub(r"CREATE INDEX \w+ ", "", text) for name, text in store._reader.execute(sql, (table.name,))
        } == expected
    await store.close()


async def test_operators_see_the_addresses_of_users(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    body = b'{"id":"ann","devices":[{"platform":"apns","token":"ab"},{"platform":"fcm","token":"cd"}]}'
    assert await change(store, put("ann", body, table="app_user", email="ann@example.com", phone="+15550100"))
    assert await change(store, put("bob", b"{}", table="app_user", webhook="https://example.com/"))
    assert sorted(store._reader.execute("SELECT tenant, user_id, channel, address FROM address")) == [
        (ACME, "ann", "email", "ann@example.com"),
        (ACME, "ann", "push", "apns:ab"),
        (ACME, "ann", "push", "fcm:cd"),
        (ACME, "ann", "sms", "+15550100"),
        (ACME, "bob", "webhook", "https://example.com/"),
    ]
    await store.close()


# --- queries ---

# That a row is of no unfinished list: of those, there is mostly none.
UNFINISHED = ["CORRELATED SCALAR SUBQUERY 1", "SEARCH unfinished USING INTEGER PRIMARY KEY (rowid<?)"]


def _plan(store: SqliteStore, sql: str) -> list[str]:
    values = [apsw.carray(("a",)) if "carray(?)" in sql and not n else 0 for n in range(sql.count("?"))]
    return [row[3] for row in store._connection.execute("EXPLAIN QUERY PLAN " + sql, values)]


async def test_every_search_is_a_range_of_its_index(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    for table in TABLES.values():
        for index in (*table.indexes, Index(table.name, f"{table.name}_all")):
            used = index.name if index in table.indexes else f"sqlite_autoindex_{table.name}_1"
            equal = " AND ".join(f"{column}=?" for column in ("tenant", *index.columns))
            for newest in (False, True):
                for is_after in (False, True):
                    step, *others = _plan(store, tables._find_sql(index, is_after=is_after, newest=newest))
                    assert others == (UNFINISHED if table.name == AHEAD_TABLE else [])
                    assert step.startswith(f"SEARCH {table.name} USING INDEX {used} ({equal}"), step
                    assert is_after == (">" in step or "<" in step), step
    await store.close()


async def test_rows_are_read_and_changed_by_their_keys(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    for table in TABLES.values():
        by_key = f"SEARCH t USING INDEX sqlite_autoindex_{table.name}_1 (tenant=? AND {table.key}=?)"
        for one, many in (tables._GET[table.name], tables._VERSION[table.name], tables._CHECK[table.name]):
            assert _plan(store, one) == [by_key]
            assert _plan(store, many) == ["SCAN c VIRTUAL TABLE INDEX 1:", f"{by_key} LEFT-JOIN"]
        expiry = _plan(store, tables._EXPIRE[table.name])
        assert any(f"SEARCH {table.name} USING COVERING INDEX {table.name}_until (until<?)" in step for step in expiry)
    await store.close()


async def test_an_update_touches_only_the_indexes_whose_columns_change(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")

    def indexes_of(sql: str) -> int:
        """The cursors that are open for writing, without that of the table itself."""
        steps = store._connection.execute("EXPLAIN " + sql, [0] * int(sql.rpartition("?")[2])).fetchall()
        return len([step for step in steps if step[1] == "OpenWrite"]) - 1

    due = [column.name for column in TABLES["delivery"].columns].index("due")
    assert indexes_of(tables._update_sql("delivery", (), False)) == 0
    assert indexes_of(tables._update_sql("delivery", (), True)) == 1
    assert indexes_of(tables._update_sql("delivery", (due,), False)) == 6
    await store.close()


async def test_settled_deliveries_stay_on_the_pages_of_their_claims(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    pages = "SELECT count(*) FROM dbstat WHERE name = 'delivery'"
    begun, claim = Attempt(1, "webhook", "webhook", NOW), Claim("worker", NOW + SECOND)
    claimed = [
        Delivery(f"n_{n:030}/1", f"n_{n:030}", NOW, "processing", user=f"u{n}", attempts=(begun,), claim=claim)
        for n in range(500)
    ]
    results = await store.tables.commit([ChangeGroup((delivery_put(ACME, each, 0),)) for each in claimed], NOW)
    before = store._connection.execute(pages).get
    groups = []
    for each, result in zip(claimed, results, strict=True):
        ended = replace(begun, ended=NOW, outcome="accepted", provider_id=each.name)
        sent = replace(each, state="sent", claim=None, attempts=(ended,), sent=NOW, changed=NOW, provider="webhook")
        groups.append(ChangeGroup((delivery_put(ACME, replace(sent, provider_id=each.name), result.version),)))
    assert all(result.version for result in await store.tables.commit(groups, NOW))
    assert store._connection.execute(pages).get == before
    await store.close()


# --- files and processes ---


async def test_rows_and_their_versions_outlive_the_process(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    assert await change(store, put("n1", b"1", batch="t"), put("gone"))
    before, last = await kept(store, "n1"), await kept(store, "gone")
    assert await change(store, Remove(key("gone")))
    await store.close()
    store = await owned(tmp_path / "one.db")
    assert await kept(store, "n1") == before
    assert await names(store, declared.NOTIFICATIONS_BY_GROUP, "t") == ["n1"]
    assert await change(store, put("gone"))
    assert (await kept(store, "gone")).version > last.version
    await store.close()


async def test_only_the_owner_changes_rows_and_a_standby_may_read_them(tmp_path: Path) -> None:
    owner = await owned(tmp_path / "one.db")
    standby = await SqliteStore.open(tmp_path / "one.db")
    assert await change(owner, put("n1", batch="t"))
    assert await kept(standby, "n1") == await kept(owner, "n1")
    assert await names(standby, declared.NOTIFICATIONS_BY_GROUP, "t") == ["n1"]
    with pytest.raises(NotOwner):
        await change(standby, put("n2"))
    await owner.resign()
    assert await standby.acquire(0, SECOND)
    with pytest.raises(NotOwner):
        await change(owner, put("n2"))
    assert await change(standby, put("n1", b"new", (await kept(owner, "n1")).version), put("n2"))
    assert (await kept(owner, "n1")).body == b"new"
    await owner.close()
    await standby.close()


async def test_a_commit_that_fails_changes_neither_rows_nor_schedules(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    assert await change(store, put("n1"))
    store._connection.execute(
        "CREATE TEMP TRIGGER f BEFORE INSERT ON notification BEGIN SELECT raise(ABORT, 'full'); END"
    )
    with pytest.raises(StoreError, match="full"):
        await store.tables.commit([ChangeGroup((put("n1", b"new", ANY), put("n2")), add("n2", NOW + DAY))], NOW)
    store._connection.execute("DROP TRIGGER f")
    assert (await kept(store, "n1")).body == b"{}"
    assert await got(store, "n2") is None
    assert await state(store, "n2") is None
    [result] = await store.tables.commit([ChangeGroup((put("n2"),), add("n2", NOW + DAY))], NOW)
    assert result.version > 0
    await store.close()


async def test_few_and_many_are_read_alike(tmp_path: Path) -> None:
    """Few are read on the event loop, more on a thread. A key that no store can hold has no row."""
    store = await owned(tmp_path / "one.db")
    every = [f"n{number}" for number in range(2 * SHORT_KEYS_MAX)]
    assert await change(store, *(put(name) for name in every), put("a"))
    many = await store.tables.get([key(name) for name in every], NOW)
    assert many == [await kept(store, name) for name in every]
    odd = await store.tables.get([key(name) for name in ["a\0b", *every, "a\0"]], NOW)
    assert odd == [None, *many, None]
    await store.close()
    with pytest.raises(StoreError):
        await store.tables.get([key(name) for name in every], NOW)


# --- erasure ---


async def test_removed_rows_are_in_no_file(tmp_path: Path) -> None:
    """Neither former versions of a row, nor rows on pages of their own, nor entries of indexes."""
    async with opened("sqlite", tmp_path) as store:
        for first in (0, 100):
            users = range(first, first + 100)
            assert await change(
                store, *(put(f"bob{n}", b"bob" * 50, table="app_user", email_key=f"{n}") for n in users)
            )
        for turn in range(3):
            for n in range(0, 200, 20):
                changes = [
                    put(
                        f"ada{each * 7919 % 1_000}",
                        b"%d-lovelace" % turn * (each * 9 + 1),
                        ANY,
                        table="app_user",
                        name="Ada King",
                        email_key=f"at:ada{turn}",
                        until=NOW + DAY if each % 2 else None,
                    )
                    for each in range(n, n + 20)
                ]
                assert await change(store, *changes)
        assert _is_in_files(tmp_path, b"lovelace", b"at:ada", b"Ada King", b"ada7919")
        await store.tend(NOW + 2 * DAY)
        removes = [Remove(key(f"ada{n * 7919 % 1_000}", "app_user")) for n in range(200)]
        for first in (0, 100):
            assert await change(store, *removes[first : first + 100])
        await store.tables.wipe()
        assert not _is_in_files(tmp_path, b"lovelace", b"at:ada", b"Ada King", b"ada")
        assert _is_in_files(tmp_path, b"bob199")


async def test_a_row_that_was_moved_to_another_page_leaves_nothing_behind(tmp_path: Path) -> None:
    """New rows split pages of indexes, which copies other entries: the bytes that they leave are overwritten too."""
    async with opened("sqlite", tmp_path) as store:
        users = [f"ada{number:06}" for number in range(1_000)]
        dice = random.Random(1)
        for each in (dice.sample(users, len(users)), dice.sample(users, len(users))):
            is_new = await got(store, users[0], table="app_user") is None
            for first in range(0, len(users), 50):
                some = each[first : first + 50]
                changes = (
                    put(name, name.encode() * 20, table="app_user", email_key=f"ada{dice.random()}")
                    if is_new
                    else Remove(key(name, "app_user"))
                    for name in some
                )
                assert await change(store, *changes)
        await store.tables.wipe()
        assert not _is_in_files(tmp_path, b"ada")


async def test_a_reader_delays_only_a_wipe(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    assert await change(store, put("n1", b"lovelace"))
    reader = apsw.Connection(str(tmp_path / "one.db"))
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM notification").get == 1
    assert await change(store, Remove(key("n1")))
    wiping = asyncio.create_task(store.tables.wipe())
    assert await change(store, put("n2"))
    assert not wiping.done()
    reader.execute("ROLLBACK")
    await wiping
    assert not _is_in_files(tmp_path, b"lovelace")
    reader.close()
    await store.close()


def _is_in_files(folder: Path, *words: bytes) -> bool:
    return any(word in file.read_bytes() for file in folder.iterdir() if file.is_file() for word in words)
