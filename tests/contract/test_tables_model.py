"""Random calls, the same on the tables of every store: those in memory are the reference."""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.contract.compared_stores import ComparedStores
from tests.contract.factories import DAY, NOW, SECOND, add
from tests.contract.state_machine import QUICK
from tests.contract.test_tables import values_of
from tidings.domain.notifications.tables import TABLES, Index, Value
from tidings.domain.schedules.command import Cancel, Command
from tidings.ports.tables import (
    ANY,
    ON_TIMELINE,
    ChangeGroup,
    Put,
    Remove,
    Row,
    RowChange,
    RowKey,
    RowPosition,
    Tables,
    Unchanged,
)

TENANTS = ("acme", "globex")
USED = ("app_user", "notification", "inbox")
NAMES = ("a", "b", "é", "世界", "")
TEXTS = ("t", "ü")
NUMBERS = (0, 1, -1, NOW)
KEYS = [RowKey(table, tenant, name) for table in USED for tenant in TENANTS for name in NAMES]
INDEXES = [index for table in USED for index in (*TABLES[table].indexes, Index(table, f"{table}_all"))]

Seen = tuple[RowKey, bytes, int | None]
Result = tuple[bool, str | None]


class Plan(NamedTuple):
    """One change; what it expects depends on the versions of each store."""

    key: RowKey
    expects: Literal["any", "none", "current", "former"]
    body: bytes | None
    text: str | None
    number: int
    lasts: int | None
    stays: bool


class GroupPlan(NamedTuple):
    """A group: its changes, and the command that it is committed with."""

    changes: list[Plan]
    command: Command | None


plans = some.builds(
    Plan,
    some.sampled_from(KEYS),
    some.sampled_from(["any", "none", "current", "former"]),
    some.sampled_from([b"", b"one", b"two", None]),
    some.sampled_from([*TEXTS, None]),
    some.sampled_from(NUMBERS),
    some.sampled_from([None, None, 1, SECOND, 0]),
    some.sampled_from([False, False, True]),
)
commands = some.one_of(
    some.none(),
    some.builds(
        lambda name, days, value, reuse: add(name, NOW + days * DAY, value=value, reuse=reuse),
        some.sampled_from(["s1", "s2", "s3", None]),
        some.sampled_from([1, 2]),
        some.sampled_from([b"x", b"y"]),
        some.booleans(),
    ),
    some.builds(lambda name: Cancel("acme", name), some.sampled_from(["s1", "s2", "s3"])),
)
groups = some.builds(GroupPlan, some.lists(plans, max_size=4, unique_by=lambda plan: plan.key), commands)


class TableCalls(RuleBasedStateMachine):
    """One step is one call."""

    def __init__(self) -> None:
        super().__init__()
        self.twins = ComparedStores()
        self.tables: list[Tables] = [store.tables for store in self.twins.stores]
        self.now = NOW
        self.former: list[dict[RowKey, int]] = [{} for _ in self.tables]
        self.given: list[dict[int, tuple[Seen, int]]] = [{} for _ in self.tables]
        self.call = 0

    def teardown(self) -> None:
        self.twins.close()

    def _each(self, ask: Callable[..., Awaitable[object]], *details: object) -> None:
        self.twins._each(ask, *details)

    @rule(batch=some.lists(groups, max_size=8))
    def commit(self, batch: list[GroupPlan]) -> None:
        self.call += 1
        self._each(self._commit, batch)
        self._each(self._get)
        self._each(self._schedules)

    async def _commit(self, index: int, batch: list[GroupPlan]) -> list[Result]:
        there = dict(zip(KEYS, await self.tables[index].get(KEYS, self.now), strict=True))
        asked = [
            ChangeGroup(
                tuple(self._told(index, plan, there[plan.key]) for plan in group.changes),
                group.command,
                frozenset({"cancelled"}) if isinstance(group.command, Cancel) else ON_TIMELINE,
            )
            for group in batch
        ]
        results = await self.tables[index].commit(asked, self.now)
        self.former[index] |= {key: row.version for key, row in there.items() if row is not None}
        return [(one.version != 0, None if one.outcome is None else one.outcome.outcome) for one in results]

    def _told(self, index: int, plan: Plan, there: Row | None) -> RowChange:
        current = 0 if there is None else there.version
        expected = {"any": ANY, "none": 0, "current": current, "former": self.former[index].get(plan.key, 1 << 40)}
        if plan.stays:
            return Unchanged(plan.key, expected[plan.expects])
        if plan.body is None:
            return Remove(plan.key, expected[plan.expects])
        until = None if plan.lasts is None else self.now + plan.lasts
        return Put(plan.key, plan.body, expected[plan.expects], _values(plan), until)

    async def _schedules(self, index: int) -> tuple[object, ...]:
        """How many schedules are pending, and the state of those with an id."""
        store = self.twins.stores[index]
        found = [await store.find("acme", name, self.now) for name in ("s1", "s2", "s3")]
        shown = [None if each is None else (each.state, each.due, each.generation) for each in found]
        return (await store.count(self.now)).pending, shown

    async def _get(self, index: int) -> list[Seen | None]:
        found = await self.tables[index].get(KEYS, self.now)
        for key, row in zip(KEYS, found, strict=True):
            if row is not None:
                assert row.key == key
                self._check_version(index, row)
        return [None if row is None else _seen(row) for row in found]

    def _check_version(self, index: int, row: Row) -> None:
        """A version is given once."""
        now = (_seen(row), self.call)
        seen, call = self.given[index].setdefault(row.version, now)
        assert seen == now[0], f"{self.twins.names[index]} gave version {row.version} in call {call} and again"

    @rule(
        index=some.sampled_from(INDEXES),
        tenant=some.sampled_from(TENANTS),
        text=some.sampled_from(TEXTS),
        after=some.one_of(some.none(), some.tuples(some.sampled_from(NUMBERS), some.sampled_from(NAMES))),
        limit=some.sampled_from([100, 2, 1]),
        newest=some.booleans(),
    )
    def find(self, index: Index, tenant: str, text: str, after: RowPosition | None, limit: int, newest: bool) -> None:
        if after is not None and index.order is None:
            after = (0, after[1])
        self._each(self._find, index, tenant, text, after, limit, newest)

    async def _find(
        self, number: int, index: Index, tenant: str, text: str, after: RowPosition | None, limit: int, newest: bool
    ) -> list[tuple[Seen, int]]:
        values = (text,) * len(index.columns)
        found = await self.tables[number].find(index, tenant, values, self.now, after=after, limit=limit, newest=newest)
        return [(_seen(row), row.order) for row in found]

    @rule(us=some.sampled_from([1, SECOND, 10 * SECOND]))
    def advance(self, us: int) -> None:
        self.now += us
        self._each(self._get)

    @rule()
    def tend(self) -> None:
        self.twins.tend(self.now)
        self._each(self._get)


def _values(plan: Plan) -> tuple[Value, ...]:
    """The planned text and number in every column of an index, and of some others."""
    table = TABLES[plan.key.table]
    values = {column.name: plan.text if column.kind == "text" else plan.number for column in table.columns}
    for index in table.indexes:
        if index.present is None:
            values |= dict.fromkeys(index.columns, plan.text or "none")
    return values_of(table.name, **values)


def _seen(row: Row) -> Seen:
    """A row without its version."""
    return row.key, row.body, row.until


@pytest.mark.slow
def test_tables_behave_the_same_on_every_store() -> None:
    run_state_machine_as_test(TableCalls, settings=settings(QUICK, max_examples=30))


@pytest.mark.long
@pytest.mark.slow
def test_tables_behave_the_same_on_every_store_in_many_runs() -> None:
    run_state_machine_as_test(TableCalls, settings=settings(QUICK, max_examples=100))
