"""The tables of notifications: rows found by key or index, and changed by compare-and-set together with schedules."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.factories import ACME, DAY, NOW, SECOND, add, drain, every, left, state, tend
from tidings.domain.notifications import tables as declared
from tidings.domain.notifications.tables import TABLES, Index, Value
from tidings.domain.schedules.command import Cancel, Command
from tidings.ports import Store
from tidings.ports.tables import (
    ANY,
    KEY_BYTES_MAX,
    ON_TIMELINE,
    ChangeGroup,
    GroupResult,
    Put,
    Remove,
    Row,
    RowChange,
    RowKey,
    RowPosition,
    Unchanged,
)
from tidings.testing import eventually

GLOBEX = "globex"
FAILED = GroupResult(0)


def key(name: str, table: str = "notification", tenant: str = ACME) -> RowKey:
    return RowKey(table, tenant, name)


def values_of(table: str, **values: Value) -> tuple[Value, ...]:
    """The values of a table's columns: those given, 0 for the columns that sort indexes, NULL otherwise."""
    known, orders = TABLES[table], {index.order for index in TABLES[table].indexes}
    assert values.keys() <= {column.name for column in known.columns}
    return tuple(values.get(each.name, 0 if each.name in orders else None) for each in known.columns)


def put(
    name: str,
    body: bytes = b"{}",
    expected: int = 0,
    /,
    *,
    until: int | None = None,
    table: str = "notification",
    tenant: str = ACME,
    **values: Value,
) -> Put:
    return Put(key(name, table, tenant), body, expected, values_of(table, **values), until)


async def got(store: Store, name: str, now: int = NOW, table: str = "notification") -> Row | None:
    (found,) = await store.tables.get([key(name, table)], now)
    return found


async def kept(store: Store, name: str, now: int = NOW, table: str = "notification") -> Row:
    found = await got(store, name, now, table)
    assert found is not None
    return found


async def change(store: Store, *changes: RowChange, now: int = NOW) -> bool:
    """One group without a command; False if nothing was done."""
    (done,) = await done_groups(store, [changes], now)
    return done


async def done_groups(store: Store, groups: Sequence[Sequence[RowChange]], now: int = NOW) -> list[bool]:
    """Which groups were done."""
    results = await store.tables.commit([ChangeGroup(tuple(group)) for group in groups], now)
    assert all(result.outcome is None for result in results)
    return [result.version != 0 for result in results]


async def names(
    store: Store,
    index: Index,
    *values: Value,
    now: int = NOW,
    tenant: str = ACME,
    after: RowPosition | None = None,
    limit: int = 100,
    newest: bool = False,
) -> list[str]:
    found = await store.tables.find(index, tenant, values, now, after=after, limit=limit, newest=newest)
    return [row.key.name for row in found]


# --- get ---


async def test_a_row_is_returned_as_it_was_put(store: Store) -> None:
    assert await got(store, "n1") is None
    assert await change(store, put("n1", b"\x00\xff", created=7, user_id="ann", until=NOW + 1))
    found = await kept(store, "n1")
    assert found == Row(key("n1"), b"\x00\xff", found.version, NOW + 1)
    assert found.version > 0


async def test_rows_are_returned_in_the_order_of_the_keys(store: Store) -> None:
    assert await store.tables.get([], NOW) == []
    places = [(table, tenant) for table in ("notification", "app_user") for tenant in (ACME, GLOBEX)]
    every_key = [key(f"n{number}", *places[number % 4]) for number in range(300)]
    groups = [Put(each, each.name.encode(), 0, values_of(each.table)) for each in every_key]
    assert await change(store, *groups)
    asked = [every_key[299], every_key[0], key("nobody"), every_key[7], every_key[0], *every_key]
    found = await store.tables.get(asked, NOW)
    assert found[2] is None
    assert [row.key for row in found if row is not None] == asked[:2] + asked[3:]
    assert all(row.body == row.key.name.encode() for row in found if row is not None)


async def test_tables_and_tenants_are_separate(store: Store) -> None:
    same = [
        put("same", f"{table} {tenant}".encode(), table=table, tenant=tenant)
        for table in TABLES
        for tenant in (ACME, GLOBEX, declared.SHARED)
    ]
    assert await change(store, *same)
    found = await store.tables.get([each.key for each in same], NOW)
    assert [None if row is None else row.body for row in found] == [each.body for each in same]
    assert await change(store, Remove(same[0].key))
    assert await store.tables.get([each.key for each in same], NOW) == [None, *found[1:]]


async def test_the_parts_of_a_key_are_not_confused(store: Store) -> None:
    places = [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", "")]
    assert await change(store, *(put(name, name.encode(), tenant=tenant) for tenant, name in places))
    found = await store.tables.get([key(name, tenant=tenant) for tenant, name in places], NOW)
    assert [row.body for row in found if row is not None] == [name.encode() for _, name in places]


ODD = [
    "",
    "a",
    "a/b",
    "é",
    "e\u0301",
    "世界",
    "🎉",
    "\U0010ffff",
    "\uffff",
    "a b",
    "%s",
    "'",
    '"',
    "A",
    "Z",
    "\x01",
    "\\",
]


async def test_keys_and_values_may_be_any_text_without_nul(store: Store) -> None:
    """The keys are sorted by their characters' numbers, in every store."""
    assert await change(store, *(put(name, name.encode(), table="app_user", email_key=name) for name in ODD))
    assert await names(store, declared.USERS) == sorted(ODD)
    assert await names(store, declared.USERS, newest=True) == sorted(ODD, reverse=True)
    for name in ODD:
        assert (await kept(store, name, table="app_user")).body == name.encode()
        assert await names(store, declared.USERS_BY_EMAIL, name) == [name]
        assert await names(store, declared.USERS, after=(0, name)) == [each for each in sorted(ODD) if each > name]
    assert await change(store, *(Remove(key(name, "app_user")) for name in ODD))
    assert await names(store, declared.USERS) == []


async def test_keys_and_values_may_be_long(store: Store) -> None:
    longest = "".join(chr(0x4E00 + number % 20_000) for number in range(KEY_BYTES_MAX // 3))
    assert len(longest.encode()) == KEY_BYTES_MAX
    assert await change(store, put(longest, category="c" * 100_000))
    assert (await kept(store, longest)).body == b"{}"
    assert await names(store, declared.NOTIFICATIONS, after=(0, longest[:-1])) == [longest]


@pytest.mark.parametrize("body", [b"", b"\0", b"x" * 300_000])
async def test_bodies_may_be_empty_or_large(store: Store, body: bytes) -> None:
    assert await change(store, put("n1", body, batch="b"))
    assert (await kept(store, "n1")).body == body
    (found,) = await store.tables.find(declared.NOTIFICATIONS_BY_GROUP, ACME, ("b",), NOW)
    assert found.body == body


# --- find ---


async def test_rows_are_sorted_by_the_order_column_and_then_by_key(store: Store) -> None:
    made = [("b", 2), ("a", 2), ("c", 1), ("d", -5), ("e", 0), ("f", NOW)]
    assert await change(store, *(put(name, created=created, batch="t") for name, created in made))
    assert await change(store, put("other", batch="u"), put("none"), put("theirs", batch="t", tenant=GLOBEX))
    index = declared.NOTIFICATIONS_BY_GROUP
    assert await names(store, index, "t") == ["d", "e", "c", "a", "b", "f"]
    assert await names(store, index, "t", newest=True) == ["f", "b", "a", "c", "e", "d"]
    assert await names(store, index, "t", limit=2) == ["d", "e"]
    assert await names(store, index, "t", limit=2, newest=True) == ["f", "b"]
    assert await names(store, index, "t", limit=0) == []
    assert await names(store, index, "nobody has it") == []
    found = await store.tables.find(index, ACME, ("t",), NOW)
    assert [row.order for row in found] == [-5, 0, 1, 2, 2, NOW]
    assert [row.order for row in await store.tables.find(declared.USERS, ACME, (), NOW)] == []


@pytest.mark.parametrize("newest", [False, True])
async def test_a_search_continues_after_a_position(store: Store, newest: bool) -> None:
    made = sorted((number % 7, f"n{number:03}") for number in range(100))
    assert await change(store, *(put(name, created=order, batch="t") for order, name in made))
    index = declared.NOTIFICATIONS_BY_GROUP
    seen: list[str] = []
    after: RowPosition | None = None
    while found := await store.tables.find(index, ACME, ("t",), NOW, after=after, limit=9, newest=newest):
        seen += [row.key.name for row in found]
        after = found[-1].order, found[-1].key.name
    assert seen == [name for _, name in (reversed(made) if newest else made)]
    assert await names(store, index, "t", after=(3, ""), limit=1, newest=newest) == ["n093" if newest else "n003"]
    assert await names(store, index, "t", after=(3, "n050x"), limit=1, newest=newest) == ["n045" if newest else "n052"]


async def test_every_index_finds_the_rows_with_its_values(store: Store) -> None:
    """Of each table two rows that have a value in every column, and one that has only what it must have."""
    for table in TABLES.values():
        full: dict[str, Any] = {each.name: each.name if each.kind == "text" else 5 for each in table.columns}
        assert await change(
            store, *(put(name, table=table.name, **full) for name in "ba"), put("bare", table=table.name)
        )
        for index in table.indexes:
            found = await names(store, index, *(full[column] for column in index.columns))
            expected = ["a", "b"] if index.columns else ["bare", "a", "b"]
            assert found == expected, index
        assert await names(store, Index(table.name, f"{table.name}_all")) == ["a", "b", "bare"]


async def test_an_index_with_a_present_column_has_only_rows_with_a_value(store: Store) -> None:
    assert await change(store, put("with", batch="b"), put("without"))
    assert await names(store, declared.NOTIFICATIONS_BY_GROUP, "b") == ["with"]
    assert await names(store, declared.NOTIFICATIONS_BY_GROUP, None) == []
    assert await names(store, declared.NOTIFICATIONS) == ["with", "without"]


async def test_values_are_looked_up_together(store: Store) -> None:
    index = declared.NOTIFICATIONS_BY_LOCAL_TIME
    rows = [put("a", user_id="ada", is_local=1), put("b", user_id="bob"), put("c", user_id="cy", until=NOW, is_local=1)]
    rows += [put("d", user_id="di", tenant=GLOBEX, is_local=1), put("e", user_id="ada", is_local=1)]
    await store.tables.commit([ChangeGroup((row,)) for row in rows], NOW)
    names = ["bob", "ada", "cy", "di", "nobody", "ada"]
    asked = [(name,) for name in names]
    assert await store.tables.exist(index, ACME, asked, NOW) == [False, True, False, False, False, True]
    assert await store.tables.exist(index, ACME, [], NOW) == []


async def test_a_put_updates_the_indexes(store: Store) -> None:
    by_batch, by_user = declared.NOTIFICATIONS_BY_GROUP, declared.NOTIFICATIONS_BY_USER
    assert await change(store, put("n1", batch="a", user_id="ann", created=1))
    assert await change(store, put("n2", batch="b", created=2))
    assert await change(store, put("n1", b"1", ANY, batch="b", user_id="ann", created=1))
    assert await names(store, by_batch, "a") == []
    assert await names(store, by_batch, "b") == ["n1", "n2"]
    assert await change(store, put("n1", b"2", ANY, batch="b", user_id="ann", created=3))
    assert await names(store, by_batch, "b") == ["n2", "n1"]
    assert await names(store, declared.NOTIFICATIONS) == ["n2", "n1"]
    assert await names(store, by_user, "ann") == ["n1"]
    assert await change(store, put("n1", b"3", ANY, created=3))
    assert await names(store, by_batch, "b") == ["n2"]
    assert await names(store, by_user, "ann") == []
    assert await names(store, declared.NOTIFICATIONS) == ["n2", "n1"]
    assert (await kept(store, "n1")).body == b"3"
    assert await change(store, Remove(key("n1")), Remove(key("n2")))
    assert await names(store, declared.NOTIFICATIONS) == await names(store, by_batch, "b") == []


# --- compare-and-set ---


async def test_a_change_needs_the_expected_version(store: Store) -> None:
    assert not await change(store, put("n1", b"{}", 5))
    assert not await change(store, Remove(key("n1"), 5))
    assert await change(store, put("n1", b"1"))
    first = await kept(store, "n1")
    for wrong in (0, first.version - 1, first.version + 1):
        if wrong != ANY:
            assert not await change(store, put("n1", b"2", wrong))
            assert not await change(store, Remove(key("n1"), wrong))
            assert not await change(store, Unchanged(key("n1"), wrong))
    assert await kept(store, "n1") == first
    assert await change(store, put("n1", b"2", first.version))
    second = await kept(store, "n1")
    assert second.body == b"2"
    assert second.version > first.version
    assert not await change(store, Remove(key("n1"), first.version))
    assert await change(store, Remove(key("n1"), second.version))
    assert await got(store, "n1") is None


async def test_any_matches_every_version_and_a_missing_row(store: Store) -> None:
    assert await change(store, Remove(key("n1")))
    assert await change(store, put("n1", b"1", ANY))
    assert await change(store, put("n1", b"2", ANY))
    assert (await kept(store, "n1")).body == b"2"
    assert await change(store, Remove(key("n1")))
    assert await change(store, Remove(key("n1"), 0)), "it does not exist, as expected"
    assert await got(store, "n1") is None


async def test_versions_never_repeat(store: Store) -> None:
    seen: set[int] = set()
    for turn in range(20):
        assert await change(store, put("n1", b"same", ANY))
        seen.add((await kept(store, "n1")).version)
        if turn % 3 == 0:
            assert await change(store, Remove(key("n1")))
        if turn % 5 == 0:
            assert await change(store, put("n1", b"same", ANY, until=NOW - 1))
            await tend(store, NOW)
    assert len(seen) == 20
    assert max(seen) == (await kept(store, "n1")).version


# --- groups ---


async def test_a_group_is_applied_completely_or_not_at_all(store: Store) -> None:
    assert await change(store, put("n1", b"old", batch="t"), put("n2", batch="t"))
    before = await kept(store, "n1")
    for wrong in (put("n5", b"{}", 9), put("n2"), Remove(key("n2"), 99), Unchanged(key("n2"), 0)):
        for group in ([put("n1", b"new", ANY), put("n3", batch="t"), wrong], [wrong, Remove(key("n1"))]):
            assert not await change(store, *group)
    assert await kept(store, "n1") == before
    assert await names(store, declared.NOTIFICATIONS_BY_GROUP, "t") == ["n1", "n2"]
    assert await got(store, "n3") is None
    assert await change(store, put("n1", b"new", before.version), put("n3"), Remove(key("n2")))
    assert (await kept(store, "n1")).body == b"new"
    assert await got(store, "n2") is None


async def test_a_group_can_require_an_unchanged_or_a_missing_row(store: Store) -> None:
    assert await change(store, put("ann", b"1", table="app_user", until=NOW + SECOND))
    before = await kept(store, "ann", table="app_user")
    same, absent = Unchanged(before.key, before.version), Unchanged(key("bob", "app_user"), 0)
    assert await change(store, same, absent, put("n1", b"1"))
    assert await kept(store, "ann", table="app_user") == before
    assert not await change(store, same, put("n2"), now=NOW + SECOND), "it is expired by then"
    assert await change(store, Unchanged(before.key, 0), put("n2"), now=NOW + SECOND)
    groups: list[list[RowChange]] = [
        [same, put("n1", b"2", ANY)],
        [put("ann", b"2", before.version, table="app_user"), put("n3")],
        [same, put("n1", b"3", ANY)],
        [Remove(before.key)],
        [same, put("n1", b"4", ANY)],
        [Unchanged(before.key, 0), put("n4")],
        [put("bob", table="app_user")],
        [absent, put("n5")],
    ]
    assert await done_groups(store, groups) == [True, True, False, True, False, True, True, False]
    assert (await kept(store, "n1")).body == b"2"
    assert await got(store, "n5") is None


async def test_a_group_returns_the_version_of_its_last_put(store: Store) -> None:
    assert await change(store, put("n1", b"1"))
    there = await kept(store, "n1")
    groups: list[tuple[RowChange, ...]] = [
        (Unchanged(there.key, there.version), put("n2"), put("n3")),
        (put("n1", b"2", there.version), Remove(key("n4"))),
        (put("n1", b"3", there.version),),
        (Remove(key("n1")),),
        (),
    ]
    results = await store.tables.commit([ChangeGroup(group) for group in groups], NOW)
    several, changed, refused, removed, empty = (result.version for result in results)
    assert (await kept(store, "n2")).version < several == (await kept(store, "n3")).version
    assert changed > there.version
    assert refused == 0
    assert removed == empty == 1
    [last] = await store.tables.commit([ChangeGroup((put("n3", b"2", several),))], NOW)
    assert last == GroupResult((await kept(store, "n3")).version)


async def test_groups_see_the_changes_of_earlier_groups(store: Store) -> None:
    assert await change(store, put("old", batch="t"))
    groups: list[list[RowChange]] = [
        [put("n1", b"1")],
        [put("n1", b"2"), put("n2", b"lost")],
        [Remove(key("n1"), 0)],
        [Remove(key("n1"))],
        [put("n1", b"3", batch="t"), put("n3", batch="t")],
        [Remove(key("n3")), Remove(key("old"))],
        [put("old", b"again", batch="u")],
        [put("old", b"last", ANY, batch="t", created=-1), put("n1", b"4", 1 << 40)],
        [put("old", b"last", ANY, batch="t", created=-1)],
        [],
    ]
    assert await done_groups(store, groups) == [True, False, False, True, True, True, True, False, True, True]
    assert (await kept(store, "n1")).body == b"3"
    assert (await kept(store, "old")).body == b"last"
    assert await names(store, declared.NOTIFICATIONS_BY_GROUP, "t") == ["old", "n1"]
    assert await names(store, declared.NOTIFICATIONS_BY_GROUP, "u") == []
    assert [await got(store, name) for name in ("n2", "n3")] == [None, None]


@pytest.mark.parametrize("is_changed", [False, True])
async def test_groups_that_require_the_same_row_do_not_depend_on_one_that_fails(store: Store, is_changed: bool) -> None:
    assert await change(store, put("ann", table="app_user"), put("bob", table="app_user"))
    ann, bob = await kept(store, "ann", table="app_user"), await kept(store, "bob", table="app_user")
    assert await change(store, put("d3", b"old", table="delivery", due=3, until=NOW + SECOND))
    assert await change(store, put("d4", b"old", table="delivery", due=4))
    there = await kept(store, "d4", table="delivery")
    if is_changed:
        assert await change(store, put("bob", b"new", bob.version, table="app_user"))
    now = NOW + SECOND  # d3 is expired
    results = await store.tables.commit(
        [
            ChangeGroup(
                (
                    Unchanged(user.key, user.version),
                    put(f"{number}", table="inbox"),
                    put(f"d{number}", b"new", there.version if number == 4 else 0, table="delivery", due=9 - number),
                )
            )
            for number, user in enumerate((ann, ann, bob, ann, ann, ann))
        ],
        now,
    )
    done = [number for number in range(6) if number != 2 or not is_changed]
    assert [number for number, result in enumerate(results) if result.version] == done
    found = await store.tables.find(declared.DELIVERIES, ACME, (), now)
    assert [(row.key.name, row.body, row.version) for row in found] == [
        (f"d{number}", b"new", results[number].version) for number in reversed(done)
    ]
    entries = await store.tables.get([key(f"{number}", "inbox") for number in range(6)], now)
    assert [number for number, row in enumerate(entries) if row is not None] == done
    versions = [row.version for row in (*found, *entries) if row is not None]
    assert len(set(versions)) == len(versions)
    assert min(versions) > there.version


async def test_a_thousand_groups_in_one_call(store: Store) -> None:
    groups = [[put(f"n{number % 700:03}", b"%d" % number, batch="t", created=number)] for number in range(1_000)]
    assert await done_groups(store, groups) == [number < 700 for number in range(1_000)]
    found = await store.tables.find(declared.NOTIFICATIONS_BY_GROUP, ACME, ("t",), NOW, limit=2_000)
    assert [row.body for row in found] == [b"%d" % number for number in range(700)]
    assert len({row.version for row in found}) == 700
    groups = [[put("n000", b"%d" % number, ANY, batch="t")] for number in range(1_000)]
    assert await done_groups(store, groups) == [True] * 1_000
    assert (await kept(store, "n000")).body == b"999"
    assert await store.tables.commit([], NOW) == []


# --- commands ---


async def committed(store: Store, *groups: tuple[Command | None, Sequence[RowChange]]) -> list[tuple[bool, str | None]]:
    """Of each group whether its rows were written, and the outcome of its command."""
    changes = [ChangeGroup(tuple(each), command) for command, each in groups]
    results = await store.tables.commit(changes, NOW)
    return [(one.version != 0, None if one.outcome is None else one.outcome.outcome) for one in results]


async def test_a_command_is_applied_with_the_rows_of_its_group(store: Store) -> None:
    due = NOW + DAY
    answers = await committed(
        store,
        (add("n1", due), [put("n1")]),
        (add("n2", due), [put("n2", b"{}", 7)]),
        (None, [put("n3")]),
        (every("n4", due), [put("n4")]),
    )
    assert answers == [(True, "scheduled"), (False, None), (True, None), (True, "scheduled")]
    assert [await state(store, name) for name in ("n1", "n2", "n4")] == ["pending", None, "pending"]
    assert [await got(store, name) is not None for name in ("n1", "n2", "n3", "n4")] == [True, False, True, True]


async def test_rows_are_written_only_after_an_outcome_that_the_group_accepts(store: Store) -> None:
    due = NOW + DAY
    assert await committed(store, (add("n1", due), [put("n1", b"1")])) == [(True, "scheduled")]
    version = (await kept(store, "n1")).version
    again, other = add("n1", due), add("n1", due, value=b"other")
    assert await committed(
        store,
        (again, [put("n1", b"2", ANY), put("n2")]),
        (other, [Remove(key("n1"))]),
        (Cancel(ACME, "unknown"), [put("n1", b"3", ANY)]),
    ) == [(False, "unchanged"), (False, "rejected"), (False, "unknown")]
    assert (await kept(store, "n1")).version == version
    assert await got(store, "n2") is None
    accepted = frozenset({*ON_TIMELINE, "unchanged"})
    [result] = await store.tables.commit([ChangeGroup((put("n1", b"4", version),), again, accepted)], NOW)
    assert (result.version > version, (await kept(store, "n1")).body) == (True, b"4")
    cancelled = ChangeGroup((put("n1", b"5", result.version),), Cancel(ACME, "n1"), frozenset({"cancelled"}))
    [result] = await store.tables.commit([cancelled], NOW)
    assert result.outcome is not None
    assert (result.outcome.outcome, (await kept(store, "n1")).body) == ("cancelled", b"5")


async def test_a_group_sees_whether_the_command_of_an_earlier_group_was_accepted(store: Store) -> None:
    due = NOW + DAY
    assert await committed(
        store,
        (add("n1", due), [put("n1", b"1")]),
        (add("n1", due, value=b"other"), [put("n2", b"refused")]),
        (add("n3", due), [put("n2", b"new")]),
        (add("n4", due), [put("n1", b"late")]),
        (None, [Unchanged(key("n2"), 0), put("n5")]),
        (add("n6", due), [put("n6"), Remove(key("n2"))]),
        (add("n7", due), [Unchanged(key("n2"), 0), put("n7")]),
    ) == [
        (True, "scheduled"),
        (False, "rejected"),
        (True, "scheduled"),
        (False, None),
        (False, None),
        (True, "scheduled"),
        (True, "scheduled"),
    ]
    assert [await state(store, f"n{n}") for n in range(1, 8)] == [
        "pending",
        None,
        "pending",
        None,
        None,
        "pending",
        "pending",
    ]
    assert await names(store, declared.NOTIFICATIONS) == ["n1", "n6", "n7"]


async def test_many_schedules_and_their_rows_in_one_call(store: Store) -> None:
    """Some ids are known, some occur twice, some have no id, and the user of some has changed."""
    assert await change(store, put("ann", table="app_user"), put("bob", table="app_user"))
    ann, bob = await kept(store, "ann", table="app_user"), await kept(store, "bob", table="app_user")
    await store.apply([add(f"n{n}", NOW + SECOND, value=b"mine") for n in range(0, 100, 10)], NOW)
    changed = Unchanged(bob.key, bob.version + 100)
    groups = [
        ChangeGroup(
            (changed if n % 7 == 0 else Unchanged(ann.key, ann.version), put(f"n{n}", created=n)),
            add(f"n{n % 80}" if n % 3 else None, NOW + SECOND),
        )
        for n in range(100)
    ]
    results = await store.tables.commit(groups, NOW)
    for n, result in enumerate(results):
        words = None if result.outcome is None else result.outcome.outcome
        if n % 7 == 0:
            expected = None
        elif n % 3 == 0:
            expected = "scheduled"
        elif n % 80 % 10 == 0:
            expected = "rejected"
        elif n >= 80 and (n - 80) % 7 and (n - 80) % 3:
            expected = "unchanged"
        else:
            expected = "scheduled"
        assert words == expected, n
        assert (result.version > 0) == (words == "scheduled")
    written = [f"n{n}" for n, result in enumerate(results) if result.version]
    assert await names(store, declared.NOTIFICATIONS, limit=1_000) == written
    await drain(store, NOW + SECOND)
    scheduled = [result.outcome.id for result in results if result.version and result.outcome is not None]
    assert sorted(await left(store)) == sorted([*scheduled, *(f"n{n}" for n in range(0, 100, 10))])


async def test_a_commit_starts_when_it_is_called(store: Store) -> None:
    waiting = store.tables.commit([ChangeGroup((put("n1"),), add("n1", NOW + DAY))], NOW)
    await eventually(lambda: got(store, "n1"))
    assert await state(store, "n1") == "pending"
    [result] = await waiting
    assert result.outcome is not None


# --- invalid changes ---

_USER = key("ann", "app_user")
WRONG: dict[str, list[RowChange]] = {
    "a key twice": [put("n1"), Remove(key("n1"))],
    "too long": [put("x" * (KEY_BYTES_MAX + 1))],
    "too long in bytes": [put("é" * (KEY_BYTES_MAX // 2 + 1))],
    "half of a surrogate pair": [put("\ud800")],
    "half of a surrogate pair to remove": [Remove(key("\ud800"))],
    "NUL": [put("a\0b")],
    "NUL in a tenant": [put("a", tenant="\0")],
    "NUL in a value": [put("n1", category="a\0b")],
    "half of a surrogate pair in a value": [put("n1", category="\ud800")],
    "no such table": [Put(RowKey("users", ACME, "n1"), b"", 0, ())],
    "too few values": [Put(_USER, b"", 0, ())],
    "too many values": [Put(_USER, b"", 0, (*values_of("app_user"), None))],
    "a number as text": [put("n1", category=5)],
    "text as a number": [put("n1", created="5")],
    "a number beyond 64 bits": [put("n1", created=1 << 63)],
    "a small number beyond 64 bits": [put("n1", cancelled=-(1 << 63) - 1)],
    "nothing to sort by": [put("n1", created=None)],
    "an expiry beyond 64 bits": [put("n1", until=1 << 63)],
}


@pytest.mark.parametrize("name", WRONG)
async def test_invalid_changes_are_rejected_before_anything_is_done(store: Store, name: str) -> None:
    groups = [ChangeGroup((put("n0"),), add("n0", NOW + DAY)), ChangeGroup(tuple(WRONG[name]))]
    with pytest.raises(ValueError, match=r"."):
        store.tables.commit(groups, NOW)
    assert await got(store, "n0") is None
    assert await state(store, "n0") is None
    assert await change(store, put("n0")), "it continues"


async def test_numbers_may_have_64_bits(store: Store) -> None:
    most, least = (1 << 63) - 1, -(1 << 63)
    assert await change(store, put("n1", created=most, until=most), put("n2", created=least))
    found = await store.tables.find(declared.NOTIFICATIONS, ACME, (), NOW)
    assert [(row.key.name, row.order, row.until) for row in found] == [("n2", least, None), ("n1", most, most)]
    assert await names(store, declared.NOTIFICATIONS, newest=True) == ["n1", "n2"]


async def test_wipe_keeps_existing_rows(store: Store) -> None:
    assert await change(store, put("n1", batch="t"), put("n2", batch="t"))
    assert await change(store, Remove(key("n2")))
    before = await kept(store, "n1")
    await store.tables.wipe()
    assert await kept(store, "n1") == before
    assert await names(store, declared.NOTIFICATIONS_BY_GROUP, "t") == ["n1"]
    assert await change(store, put("n2")), "it continues"


# --- expiry ---


async def test_an_expired_row_is_not_returned(store: Store) -> None:
    index = declared.NOTIFICATIONS_BY_GROUP
    assert await change(store, put("n1", b"1", batch="t", until=NOW + SECOND), put("n2", batch="t"))
    first = await kept(store, "n1", NOW + SECOND - 1)
    assert await names(store, index, "t", now=NOW + SECOND - 1) == ["n1", "n2"]
    assert await got(store, "n1", NOW + SECOND) is None
    assert await names(store, index, "t", now=NOW + SECOND) == ["n2"]
    assert await names(store, index, "t", now=NOW + SECOND, limit=1) == ["n2"]
    assert not await change(store, put("n1", b"2", first.version), now=NOW + SECOND)
    assert not await change(store, Remove(key("n1"), first.version), now=NOW + SECOND)
    assert await change(store, put("n1", b"2", batch="t", user_id="ann"), now=NOW + SECOND)
    second = await kept(store, "n1", NOW + SECOND)
    assert (second.body, second.until) == (b"2", None)
    assert second.version > first.version
    assert await names(store, index, "t", now=NOW + SECOND) == ["n1", "n2"]


async def test_a_row_put_already_expired_does_not_exist_for_the_next_group(store: Store) -> None:
    ended, former = put("n1", b"1", until=NOW), put("n1", b"2", until=NOW + 1)
    assert await done_groups(store, [[ended], [ended], [former], [former]]) == [True, True, True, False]
    assert (await kept(store, "n1")).body == b"2"
    assert await got(store, "n1", NOW + 1) is None


async def test_expired_rows_are_deleted(store: Store) -> None:
    """Read with a time before their expiry, which only this test does."""
    index = declared.NOTIFICATIONS_BY_GROUP
    groups = [[put(f"n{number}", batch="t", until=NOW + number)] for number in range(2_500)]
    assert all(await done_groups(store, groups))
    assert await change(store, put("stays", batch="t"), *(put("over", table=table, until=NOW) for table in TABLES))
    await tend(store, NOW + 2_000)
    before = NOW - 1
    assert await got(store, "n2000", before) is None
    assert (await kept(store, "n2001", before)).until == NOW + 2_001
    found = await names(store, index, "t", now=before, limit=5_000)
    assert sorted(found) == sorted(["stays", *(f"n{number}" for number in range(2_001, 2_500))])
    assert await store.tables.get([key("over", table) for table in TABLES], before) == [None] * len(TABLES)
    await tend(store, NOW + 10 * SECOND)
    assert await names(store, index, "t", now=before) == ["stays"]


# --- concurrency ---


async def test_one_of_several_concurrent_changes_with_the_same_expected_version_wins(store: Store) -> None:
    assert await change(store, put("n1"))
    for _ in range(10):
        version = (await kept(store, "n1")).version
        done = await asyncio.gather(*(change(store, put("n1", b"%d" % n, version)) for n in range(8)))
        assert sum(done) == 1
        assert (await kept(store, "n1")).body == b"%d" % done.index(True)


async def test_counters_lose_nothing(store: Store) -> None:
    async def increase() -> None:
        while True:
            there = await got(store, "count", table="rate_limit")
            before = 0 if there is None else int(there.body)
            version = 0 if there is None else there.version
            if await change(store, put("count", b"%d" % (before + 1), version, table="rate_limit")):
                return

    await asyncio.gather(*(increase() for _ in range(40)))
    assert (await kept(store, "count", table="rate_limit")).body == b"40"


async def test_rows_are_read_from_one_snapshot(store: Store) -> None:
    """Rows that are always changed together are never read apart, whether few or many are read."""
    together = [f"n{number}" for number in range(40)]
    assert await change(store, *(put(name, b"0") for name in together))
    for turn in range(1, 30):
        changes = tuple(put(name, b"%d" % turn, ANY) for name in together)
        writing = store.tables.commit([ChangeGroup(changes)], NOW)
        for count in (1, 39, 1):
            found = await store.tables.get([key(name) for name in (together[0], *together[-count:])], NOW)
            assert len({row.body for row in found if row is not None}) == 1
        await writing
