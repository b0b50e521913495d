"""The tables of notifications in the database. Any node reads and changes rows, in batches.

A call without commands takes two round trips: one that begins a transaction and locks all rows, and one that writes and
commits. In between, the groups are decided in memory. Two calls wait for each other only if they change the same row.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import psycopg

from tidings import crash
from tidings.domain.names import is_storable
from tidings.domain.notifications.tables import TABLES, Index, Table, Value
from tidings.domain.schedules.command import Command, Outcome
from tidings.ports.tables import ANY, ChangeGroup, GroupResult, Put, Remove, Row, RowKey, RowPosition, Unchanged
from tidings.timeline.postgres import database
from tidings.timeline.postgres.apply.intake import Batch, Intake, are_new
from tidings.timeline.postgres.apply.unit_of_work import IdTaken
from tidings.timeline.postgres.database import Connection, Contended, Lost, inside
from tidings.timeline.postgres.pool import LIMITS, Pool, rows
from tidings.timeline.store_rules import check_groups

TRIES_MAX = 40
PAUSE_S, PAUSES_MAX = 0.01, 10
ALONE_AFTER_TRIES = 4  # calls that lost so many races for the same new rows go on one at a time

_GET = "SELECT slot, version, until, body FROM tidings.get_rows(%s, %s, %s, %s)"
_LOCK = "SELECT slots, versions, fresh FROM tidings.lock_rows(%s, %s, %s, %s::boolean[], %s, %s)"
_EXPIRE = "SELECT tidings.expire_rows(%s, %s)"
_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_Query = tuple[bytes, Sequence[object]]
_FIND = """
SELECT {key}, body, version, until, {order} FROM tidings.{table}
WHERE {where} AND (until IS NULL OR until > %s) ORDER BY {sort} LIMIT %s
"""

# Read an index in its order up to the limit, also while the planner thinks that there is little to sort.
IN_INDEX_ORDER = (
    b"SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true),"
    b" set_config('enable_seqscan', 'off', true)"
)
_TENANT = 'tenant COLLATE "POSIX" = %s'

_POSITIONS = {name: position for position, name in enumerate(TABLES)}
_address = attrgetter("tenant", "name")

Announce = Callable[[], Awaitable[None]]  # what is left to do after a commit


class PostgresTables:
    """The rows of one schema."""

    def __init__(self, pool: Pool, intake: Intake, schema: str) -> None:
        self._pool = pool
        self._intake = intake
        self._schema = schema
        self._get, self._lock, self._expire = (inside(schema, each) for each in (_GET, _LOCK, _EXPIRE))
        self._writes = {name: inside(schema, _write_call(table)) for name, table in TABLES.items()}

    async def get(self, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        order, ends = _by_table({key: None for key in keys if _is_storable(key)})
        if not order:
            return [None] * len(keys)
        return _found(keys, order, await self._pool.read(self._get, (now, database.int4s(ends), *_names(order))))

    async def read(self, connection: Connection, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        """The rows of some keys, inside the caller's transaction."""
        order, ends = _by_table(dict.fromkeys(keys))
        return _found(keys, order, await rows(connection, self._get, (now, database.int4s(ends), *_names(order))))

    async def find(
        self,
        index: Index,
        tenant: str,
        values: tuple[Value, ...],
        now: int,
        *,
        after: RowPosition | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> list[Row]:
        if not all(is_storable(value) for value in (tenant, *values) if isinstance(value, str)):
            return []
        statement, given = find_statement(index, tenant, values, after, newest=newest)
        query = inside(self._schema, statement).encode(), (*given, now, limit)
        try:
            found = await self._search(*query)
        except Lost:
            found = await self._search(*query)
        return [
            Row(RowKey(index.table, tenant, name), body, version, until, order)
            for name, body, version, until, order in found
        ]

    async def exist(self, index: Index, tenant: str, several: Sequence[tuple[Value, ...]], now: int) -> list[bool]:
        queries: list[_Query] = []
        for values in several:
            statement, given = find_statement(index, tenant, values, None, newest=False)
            queries.append((inside(self._schema, statement).encode(), (*given, now, 1)))
        try:
            found = await self._search_each(queries)
        except Lost:
            found = await self._search_each(queries)
        return [bool(rows) for rows in found]

    async def _search(self, statement: bytes, values: Sequence[object]) -> list[tuple[Any, ...]]:
        [found] = await self._search_each([(statement, values)])
        return found

    async def _search_each(self, queries: Sequence[_Query]) -> list[list[tuple[Any, ...]]]:
        """The rows of each query, all in one round trip."""
        async with self._pool.connection() as connection:
            async with connection.pipeline():
                await connection.execute(b"BEGIN READ ONLY")
                await connection.execute(IN_INDEX_ORDER)
                cursors = [await connection.execute(*query, binary=True) for query in queries]
                await connection.execute(b"COMMIT")
            return [await cursor.fetchall() for cursor in cursors]

    def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> Awaitable[list[GroupResult]]:
        del urgent  # calls run side by side, as far as there are connections
        groups = list(groups)
        check_groups(groups)
        return asyncio.ensure_future(self._commit(groups, now))

    async def _commit(self, groups: Sequence[ChangeGroup], now: int) -> list[GroupResult]:
        """Commit groups; again if another transaction has created one of the rows or ids meanwhile."""
        if not groups:
            return []
        commands = [group.command for group in groups if group.command is not None]
        is_bulk = bool(commands) and await self._intake.make_names(commands, now) and _is_bulk(groups, commands)
        crash.point("intake.begun")
        for number in range(TRIES_MAX):
            try:
                return await self._try(groups, now, is_bulk=is_bulk, alone=number >= ALONE_AFTER_TRIES)
            except _IdKnown:
                is_bulk = False
            except (IdTaken, Contended):
                await asyncio.sleep(
                    random.random() * PAUSE_S * min(number, PAUSES_MAX)
                )  # not all of those that met at once again
        return await self._try(groups, now, is_bulk=False, alone=True)

    async def _try(self, groups: Sequence[ChangeGroup], now: int, *, is_bulk: bool, alone: bool) -> list[GroupResult]:
        batch = await self._intake.batch([group.command for group in groups if group.command]) if is_bulk else None
        async with self._pool.connection() as connection:
            try:
                decision = await self._lock_rows(connection, groups, now, alone=alone)
                if batch is None:
                    announce = await self._apply_commands(connection, decision, now)
                else:
                    announce = await self._apply_batch(connection, decision, batch, now)
            except Exception:
                if not connection.closed:
                    await connection.rollback()
                raise
        crash.point("intake.committed")
        await announce()
        return decision.results

    async def _lock_rows(
        self, connection: Connection, groups: Sequence[ChangeGroup], now: int, *, alone: bool
    ) -> "Decision":
        """Begin a transaction and lock all rows of some groups, in one round trip.

        A row that does not exist cannot be locked, so calls that create the same rows may fail again and again. With
        `alone`, calls of a tenant take an advisory lock before they read any row, so that one of them succeeds.
        """
        decision = Decision(groups, now)
        async with connection.pipeline():
            await connection.execute(b"BEGIN")
            if not self._pool.is_direct:
                await connection.execute(LIMITS)
            for tenant in sorted({change.key.tenant for group in groups for change in group.changes} if alone else ()):
                await connection.execute(_ALONE, (f"tidings rows {self._schema} {tenant}",))
            locked = await connection.execute(self._lock.encode(), decision.wanted(), binary=True)
        decision.locked(*await _only(locked))
        return decision

    async def _apply_commands(self, connection: Connection, decision: "Decision", now: int) -> Announce:
        """Decide and commit the groups, with any commands. Commands are applied as late as possible, so that usually
        all are applied at once: before a group that has a row in common with a group whose command is not applied."""
        run, has_commands = self._intake.run(connection, now), False
        for position, group in enumerate(decision.groups):
            if decision.depends(group):
                decision.settle(await run.commands(decision.commands()))
            if decision.fits(group):
                if group.command is None:
                    decision.apply(position)
                else:
                    decision.wait(position)
                    has_commands = True
        if has_commands:
            decision.settle(await run.commands(decision.commands()))
            await run.save()
        nothing = await self._commit_rows(connection, decision)
        return run.announce if has_commands else nothing

    async def _apply_batch(self, connection: Connection, decision: "Decision", batch: Batch, now: int) -> Announce:
        """Decide and commit the groups, whose commands all add new one-shots; `_IdKnown` if one of them is not new."""
        applied = decision.apply_all()
        added = [position for position in applied if decision.groups[position].command is not None]
        if len(added) < batch.size:
            batch.give_back()
            if not added:
                return await self._commit_rows(connection, decision)
            batch = await self._intake.batch([command for each in added if (command := decision.groups[each].command)])
        if not batch.is_ours:
            raise Contended("a connection was lost: the arrival numbers must be reserved again")
        crash.point("intake.written")
        try:
            async with connection.pipeline():
                await connection.execute(self._intake.schedule_call, batch.values(now), binary=True)
                await self._write(connection, decision)
                await connection.execute(b"COMMIT")
        except psycopg.errors.UniqueViolation:
            batch.give_back()
            raise _IdKnown from None
        decision.add_outcomes(added, batch.outcomes())
        return batch.announce

    async def _commit_rows(self, connection: Connection, decision: "Decision") -> Announce:
        """Write the rows and commit, in one round trip."""
        crash.point("intake.written")
        async with connection.pipeline():
            await self._write(connection, decision)
            await connection.execute(b"COMMIT")
        return _nothing

    async def _write(self, connection: Connection, decision: "Decision") -> None:
        """Write the rows, inside a pipeline."""
        for table, values in decision.writes():
            await connection.execute(self._writes[table].encode(), values, binary=True)

    async def write(
        self, connection: Connection, groups: Sequence[ChangeGroup], now: int, versions: Sequence[int] = ()
    ) -> list[GroupResult]:
        """Apply valid groups without commands inside the caller's transaction; `Contended` aborts it.

        With `versions`, those of all puts, no row may exist yet, which is then not looked up.
        """
        if not groups:
            return []
        decision = Decision(groups, now, versions)
        async with connection.pipeline():
            locked = await connection.execute(self._lock.encode(), decision.wanted(), binary=True)
        decision.locked(*await _only(locked))
        decision.apply_all()
        async with connection.pipeline():
            await self._write(connection, decision)
        return decision.results

    async def wipe(self) -> None:
        """Nothing to do: VACUUM removes deleted rows. The write-ahead log and backups are not under our control."""

    async def expire(self, now: int, rows_max: int) -> int:
        """Delete some expired rows of each table; returns the most that were deleted from one of them."""
        ((most,),) = await self._pool.call(self._expire, (now, rows_max))
        return int(most)


class _IdKnown(Exception):
    """Not all commands add new one-shots: apply them one by one."""


async def _nothing() -> None:
    """There is nothing to announce."""


class Decision:
    """Groups of changes, decided in memory on the versions of the locked rows."""

    def __init__(self, groups: Sequence[ChangeGroup], now: int, versions: Sequence[int] = ()) -> None:
        self.groups = groups
        self._given = versions
        self.results = [GroupResult(0)] * len(groups)
        self._now = now
        self._puts = 0
        shared: dict[RowKey, bool] = {}  # whether it is only to stay unchanged
        for group in groups:
            for change in group.changes:
                if isinstance(change, Unchanged):
                    shared.setdefault(change.key, True)
                else:
                    shared[change.key] = False
                    self._puts += isinstance(change, Put)
        self._order, self._ends = _by_table(shared)
        self._shared = shared
        self._known: set[RowKey] = set()
        self._versions: dict[RowKey, int] = {}
        self._last: dict[RowKey, tuple[int, Put] | None] = {}  # the new row, None: none
        self._guards: set[RowKey] = set()
        self._fresh: Iterator[int] = iter(())
        self._waiting: list[int] = []
        self._undecided: set[RowKey] = set()

    def wanted(self) -> tuple[object, ...]:
        """The parameters of `tidings.lock_rows`. The rows of a table are shared if all are only to stay unchanged."""
        exclusive = {key.table for key, is_shared in self._shared.items() if not is_shared}
        shared = [table not in exclusive for table in TABLES]
        if self._given:
            return self._now, 0, database.int4s([0] * len(TABLES)), shared, *_names(())
        return self._now, self._puts, database.int4s(self._ends), shared, *_names(self._order)

    def locked(self, slots: list[int] | None, versions: list[int] | None, fresh: list[int]) -> None:
        """Take the versions of the existing rows, of expired ones negative, and the new versions."""
        for slot, version in zip(slots or (), versions or (), strict=True):
            key = self._order[slot - 1]
            self._known.add(key)
            self._versions[key] = max(version, 0)
        self._fresh = iter(self._given or fresh)

    def depends(self, group: ChangeGroup) -> bool:
        """Whether a group has a row in common with one whose command is not applied yet."""
        return bool(self._undecided) and any(change.key in self._undecided for change in group.changes)

    def fits(self, group: ChangeGroup) -> bool:
        """Whether all rows have the expected versions."""
        versions = self._versions
        for change in group.changes:
            if change.expected != ANY and change.expected != versions.get(change.key, 0):
                return False
        return True

    def wait(self, position: int) -> None:
        """The command of a group is to be applied."""
        self._waiting.append(position)
        self._undecided.update(change.key for change in self.groups[position].changes)

    def commands(self) -> list[Command]:
        """The commands to be applied."""
        return [command for position in self._waiting if (command := self.groups[position].command) is not None]

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Take the outcomes of these commands."""
        for position, outcome in zip(self._waiting, outcomes, strict=True):
            if outcome.outcome in self.groups[position].accepts:
                self.apply(position, outcome)
            else:
                self.results[position] = GroupResult(0, outcome)
        self._waiting, self._undecided = [], set()

    def apply_all(self) -> list[int]:
        """Apply all groups that fit, whatever their commands; returns their positions."""
        applied = []
        for position, group in enumerate(self.groups):
            if self.fits(group):
                self.apply(position)
                applied.append(position)
        return applied

    def add_outcomes(self, positions: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Add the outcomes of commands to the results of groups that were applied."""
        for position, outcome in zip(positions, outcomes, strict=True):
            self.results[position] = GroupResult(self.results[position].version, outcome)

    def apply(self, position: int, outcome: Outcome | None = None) -> None:
        """Make the changes of a group."""
        version = 1
        for change in self.groups[position].changes:
            key = change.key
            if isinstance(change, Put):
                version = next(self._fresh)
                self._last[key] = version, change
                self._versions[key] = 0 if change.until is not None and change.until <= self._now else version
            elif isinstance(change, Remove):
                self._last[key] = None
                self._versions[key] = 0
            elif key not in self._known and key not in self._last:
                self._guards.add(key)
        self.results[position] = GroupResult(version, outcome)

    def writes(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        """For each table that changes, in the order in which they are locked, the parameters of its function."""
        inserts: dict[str, list[tuple[RowKey, tuple[int, Put] | None]]] = {}
        updates: dict[str, list[tuple[RowKey, tuple[int, Put] | None]]] = {}
        removes: dict[str, list[tuple[RowKey, tuple[int, Put] | None]]] = {}
        for key in self._order:
            is_known = key in self._known
            if key in self._last:
                new = self._last[key]
                place = inserts if not is_known else removes if new is None else updates
                place.setdefault(key.table, []).append((key, new))
            elif key in self._guards:
                inserts.setdefault(key.table, []).append((key, None))
        for name, table in TABLES.items():
            made, changed, gone = (place.get(name, []) for place in (inserts, updates, removes))
            if made or changed or gone:
                guards = any(new is None for _, new in made)
                written = [*made, *changed]
                yield name, (len(made), len(changed), guards, *_columns(table, written, [key for key, _ in gone]))


def _columns(
    table: Table, written: Sequence[tuple[RowKey, tuple[int, Put] | None]], gone: Sequence[RowKey]
) -> Iterator[object]:
    """The columns of rows, and the keys of rows to be deleted."""
    empty = (None,) * len(table.columns)
    yield from _names([*(key for key, _ in written), *gone])
    yield database.int8s([0 if new is None else new[0] for _, new in written])
    yield database.maybe_int8s([None if new is None else new[1].until for _, new in written])
    yield database.byteas([None if new is None else new[1].body for _, new in written])
    values: Iterable[tuple[Any, ...]] = zip(
        *(empty if new is None else new[1].values for _, new in written), strict=True
    )
    if not written:
        values = [()] * len(table.columns)
    for column, each in zip(table.columns, values, strict=True):
        yield database.maybe_texts(each) if column.kind == "text" else database.maybe_int8s(each)


def _is_storable(key: RowKey) -> bool:
    """Whether there can be such a row."""
    return is_storable(key.name) and is_storable(key.tenant)


def _by_table(keys: Iterable[RowKey]) -> tuple[list[RowKey], list[int]]:
    """Keys in the order in which they are locked, and the number of keys up to the end of each table."""
    parts: list[list[RowKey]] = [[] for _ in TABLES]
    for key in keys:
        parts[_POSITIONS[key.table]].append(key)
    order: list[RowKey] = []
    ends = []
    for part in parts:
        part.sort(key=_address)
        order += part
        ends.append(len(order))
    return order, ends


def _names(keys: Sequence[RowKey]) -> tuple[database.Texts, database.Texts]:
    return database.texts([key.tenant.encode() for key in keys]), database.texts([key.name.encode() for key in keys])


def _found(keys: Sequence[RowKey], order: Sequence[RowKey], found: Sequence[tuple[Any, ...]]) -> list[Row | None]:
    there = {key: Row(key, body, version, until) for slot, version, until, body in found for key in [order[slot - 1]]}
    return [there.get(key) for key in keys]


def _is_bulk(groups: Sequence[ChangeGroup], commands: Sequence[Command]) -> bool:
    """Whether all commands add new one-shots, as far as is known, and nothing else is accepted than that."""
    return are_new(commands) and all("scheduled" in group.accepts for group in groups if group.command is not None)


async def _only(cursor: psycopg.AsyncCursor[Any]) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = await cursor.fetchone()
    assert found is not None, "a function has an answer"
    return found


def _write_call(table: Table) -> str:
    return f"SELECT tidings.write_{table.name}(" + ", ".join(["%s"] * (8 + len(table.columns))) + ")"


def find_statement(
    index: Index, tenant: str, values: Sequence[Value], after: RowPosition | None, *, newest: bool
) -> tuple[str, list[object]]:
    """The query for the rows of an index after a position, and its parameters before the time and the limit."""
    table = TABLES[index.table]
    ordered = [table.key] if index.order is None else [index.order, table.key]
    # The same expressions as in the indexes: see the layout.
    where, given = ["tenant = %s" if index.order is None or index.columns else _TENANT], list[object]([tenant])
    for column, value in zip(index.columns, values, strict=True):
        where.append(f"{column} IS NULL" if value is None else f"{column} = %s")
        if value is not None:
            given.append(value)
    if index.present is not None:
        where.append(f"{index.present} IS NOT NULL")
    if after is not None:
        where.append(f"({', '.join(ordered)}) {'<' if newest else '>'} ({', '.join(['%s'] * len(ordered))})")
        given += after[-len(ordered) :]
    statement = _FIND.format(
        key=table.key,
        order="0" if index.order is None else index.order,
        table=table.name,
        where=" AND ".join(where),
        sort=", ".join(f"{column} DESC" if newest else column for column in ordered),
    )
    return statement, given
