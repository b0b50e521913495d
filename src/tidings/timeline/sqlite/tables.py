"""The tables of notifications in the file.

The statements are generated from the declarations in `domain/notifications/tables.py`: those of eleven tables differ in
nothing but names, and written by hand, one with a forgotten column would be found only by its data. The tables
themselves are written by hand, in `sql/0007_tables.sql`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any

import apsw

from tidings import crash
from tidings.domain.names import is_storable
from tidings.domain.notifications.tables import TABLES, Index, Value
from tidings.domain.schedules.command import Command, Outcome
from tidings.ports.tables import (
    ANY,
    BulkGroups,
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
from tidings.timeline.sqlite.database import BUSY_MS, connect, overwriting, translated
from tidings.timeline.sqlite.intake import Intake
from tidings.timeline.sqlite.row_writes import AHEAD_TABLE, IS_FINISHED, BulkWrite
from tidings.timeline.sqlite.writer import DatabaseThread, Writer
from tidings.timeline.store_rules import check_bulk, check_groups

SHORT_KEYS_MAX = 16  # read on the event loop; more keys are read on a thread
SINGLE_KEYS_MAX = 3  # looked up one by one; more keys of a table are looked up in one statement
PACKED_KEYS_MIN = 32  # so many rows are read in one step: between two steps a thread may lose the interpreter lock
WIPES_MAX = 40
WIPE_PAUSE_S = 0.05

_Values = tuple[str | int | bytes | None, ...]
_Stored = tuple[Any, ...]  # entry, version, until, indexed values
_Write = tuple[str, _Values]  # a statement and its values
_Found = dict[tuple[str, str], Sequence[_Stored | None]]  # rows by table and tenant
_FAILED = GroupResult(0)


class SqliteTables:
    """Reads a few rows on the event loop, and many rows or lists on a thread of its own.

    So neither the loop waits for them, nor they for the scans of schedules. The writer thread makes all changes, and
    `intake` applies their commands to the timeline in its transactions.
    """

    def __init__(
        self,
        path: str,
        writer: Writer,
        intake: Intake,
        *,
        writer_thread: DatabaseThread,
        reader: apsw.Connection,
    ) -> None:
        self._writer = writer
        self._intake = intake
        self._writer_thread = writer_thread
        self._reader = reader
        self._lister = connect(path, reader=True)
        self._lister_thread = DatabaseThread("tidings-tables")

    @translated
    async def get(self, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        if len(keys) <= SHORT_KEYS_MAX:
            return get(self._reader, keys, now)
        return await self._lister_thread.run(get, self._lister, keys, now)

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
        position = () if after is None else after if index.order is not None else after[1:]
        given = (tenant, *values, *position, now, limit)
        search = partial(find, is_after=after is not None, newest=newest)
        return await self._lister_thread.run(search, self._lister, index, given)

    async def exist(self, index: Index, tenant: str, several: Sequence[tuple[Value, ...]], now: int) -> list[bool]:
        given = [(tenant, *values, now, 1) for values in several]
        return await self._lister_thread.run(exist, self._lister, index, given)

    def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> Awaitable[list[GroupResult]]:
        if isinstance(groups, BulkGroups):
            return self._start_bulk(groups, now)
        check_groups(groups)
        start = self._writer_thread.start_next if urgent else self._writer_thread.start
        return start(self._commit, groups, now)

    def _start_bulk(self, groups: BulkGroups, now: int) -> Awaitable[list[GroupResult]]:
        check_bulk(groups)
        write = BulkWrite(groups)
        for start in write.ahead():
            self._writer_thread.start_unawaited(write.write_ahead, self._writer, start)
        if write.ahead() and len(groups.parts) == 1:
            self._writer_thread.start_unawaited(self._intake.hash_ahead, groups.parts[0][1])
        return self._writer_thread.start(self._commit, groups, now, write)

    def _commit(self, groups: Sequence[ChangeGroup], now: int, write: BulkWrite | None = None) -> list[GroupResult]:
        try:
            with self._writer.transaction() as connection:
                crash.point("intake.begun")
                results = None if write is None else write.finish(connection, now, self._intake.run)
                if results is None:
                    results = apply(connection, groups, now, self._intake.run)
                crash.point("intake.written")
        finally:
            if write is not None:
                write.forget(self._writer)
        crash.point("intake.committed")
        return results

    async def wipe(self) -> None:
        for _ in range(WIPES_MAX):  # a reader with an older snapshot delays it; readers are short
            if await self._writer_thread.run(self._wipe):
                return
            await asyncio.sleep(WIPE_PAUSE_S)

    def _wipe(self) -> bool:
        """Copy all commits into the file and truncate the write-ahead log; False if a reader prevents it."""
        connection = self._writer.connection
        connection.set_busy_timeout(0)  # the caller tries again
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            return False
        finally:
            connection.set_busy_timeout(BUSY_MS)
        return True

    async def close(self) -> None:
        """Stop the thread and close its connection."""
        await self._lister_thread.close()
        self._lister.close()


# Reading


def get(connection: apsw.Connection, keys: Sequence[RowKey], now: int) -> list[Row | None]:
    """The row of each key, all from one snapshot; None where there is none."""
    if len(keys) == 1:
        return [_get_one(connection, keys[0], now)]
    places: dict[tuple[str, str], list[int]] = {}
    for position, key in enumerate(keys):
        place = key.table, key.tenant
        if place in places:
            places[place].append(position)
        else:
            places[place] = [position]
    found: list[Row | None] = [None] * len(keys)
    with connection:  # one snapshot
        for positions in places.values():
            rows = _get_all(connection, [keys[position] for position in positions], now)
            for position, row in zip(positions, rows, strict=True):
                found[position] = row
    return found


def _get_all(connection: apsw.Connection, keys: Sequence[RowKey], now: int) -> list[Row | None]:
    """The rows of keys of one table and tenant."""
    table, tenant, names = keys[0].table, keys[0].tenant, [key.name for key in keys]
    if table in _GET_PACKED and len(names) >= PACKED_KEYS_MIN and is_storable("".join(names)):
        expiry, versions, sizes, bodies = connection.execute(
            _GET_PACKED[table], (apsw.carray(tuple(names)), tenant)
        ).get
        if expiry is None:
            ends = [*accumulate(map(int, sizes.split(",")))]
            columns = zip(keys, map(int, versions.split(",")), [0, *ends], ends, strict=False)
            return [Row(key, bodies[start:end], version) if version else None for key, version, start, end in columns]
    rows = _look_up(connection, _GET[table], tenant, names)
    return [
        None if row is None or (row[2] is not None and row[2] <= now) else Row(key, *row)
        for key, row in zip(keys, rows, strict=True)
    ]


def _get_one(connection: apsw.Connection, key: RowKey, now: int) -> Row | None:
    row = connection.execute(_GET[key.table][0], (key.tenant, key.name)).fetchone()
    return None if row is None or (row[2] is not None and row[2] <= now) else Row(key, *row)


def _look_up(
    connection: apsw.Connection, statements: "_LookUp", tenant: str, names: Sequence[str]
) -> Sequence[tuple[Any, ...] | None]:
    """The rows of a table with these names, in their order; None where there is none."""
    one, many = statements
    if len(names) <= SINGLE_KEYS_MAX:
        return [connection.execute(one, (tenant, name)).fetchone() for name in names]
    if is_storable("".join(names)):
        rows = connection.execute(many, (apsw.carray(tuple(names)), tenant)).fetchall()
        return [None if row[1] is None else row for row in rows]
    # SQLite would cut off a name in an array at its NUL character
    return [connection.execute(one, (tenant, name)).fetchone() if is_storable(name) else None for name in names]


def find(
    connection: apsw.Connection, index: Index, values: _Values, *, is_after: bool = False, newest: bool = False
) -> list[Row]:
    """The rows of an index. `values` are the tenant, the values to look for, the position if it is after one, the time
    and the limit."""
    sql, tenant = _find_sql(index, is_after=is_after, newest=newest), str(values[0])
    return [
        Row(RowKey(index.table, tenant, name), body, version, until, order)
        for name, body, version, until, order in connection.execute(sql, values)
    ]


def exist(connection: apsw.Connection, index: Index, several: Sequence[_Values]) -> list[bool]:
    """For each of these values, as `find` takes them, whether there is a row."""
    sql = _find_sql(index, is_after=False, newest=False)
    with connection:  # one snapshot
        return [connection.execute(sql, values).fetchone() is not None for values in several]


# Changes


def apply(
    connection: apsw.Connection,
    groups: Sequence[ChangeGroup],
    now: int,
    run: Callable[[Sequence[Command], int], list[Outcome]] | None = None,
) -> list[GroupResult]:
    """Apply groups in order, inside the caller's transaction; `run` applies their commands, if they have any."""
    replaced = _look_up_replaced(connection, groups, now)
    if replaced is None:
        return _Batch(connection, groups, now, run).apply()
    return _put_all(connection, groups, replaced)


def _look_up_replaced(connection: apsw.Connection, groups: Sequence[ChangeGroup], now: int) -> _Found | None:
    """The rows that groups replace, if all can be written as they are; None if they have to be decided one by one.

    So it is for most claims and settlements: they have no commands and remove nothing, no group names a row that
    another one changes, and all rows are as expected.
    """
    places: dict[tuple[str, str], list[RowChange]] = {}
    for group in groups:
        if group.command is not None:
            return None
        for change in group.changes:
            key = change.key
            place = key.table, key.tenant
            if place in places:
                places[place].append(change)
            else:
                places[place] = [change]
    found: _Found = {}
    for place, changes in places.items():
        table, tenant = place
        kinds = set(map(type, changes))
        names = [change.key.name for change in changes]
        if kinds == {Unchanged}:
            rows = _look_up(connection, _VERSION[table], tenant, names)
        elif kinds == {Put} and len(set(names)) == len(names):
            found[place] = rows = _look_up(connection, _CHECK[table], tenant, names)
        else:
            return None
        if [change.expected for change in changes] != [
            0 if row is None or (row[2] is not None and row[2] <= now) else row[1] for row in rows
        ]:
            return None
    return found


def _put_all(connection: apsw.Connection, groups: Sequence[ChangeGroup], replaced: _Found) -> list[GroupResult]:
    """Write the rows of all groups; `replaced` are those in their place, in the same order."""
    stored = {place: iter(rows) for place, rows in replaced.items()}
    version = int(connection.execute("SELECT version FROM row_version").get)
    results, writes = list[GroupResult](), list[_Write]()
    for group in groups:
        last = 1
        for change in group.changes:
            if type(change) is Put:
                version = last = version + 1
                writes.append(_write(change, version, next(stored[change.key.table, change.key.tenant])))
        results.append(GroupResult(last))
    if writes:
        _save(connection, writes, version)
    return results


def _save(connection: apsw.Connection, writes: Iterable[_Write], version: int) -> None:
    """Write rows, and the last version that was given to one."""
    statements: dict[str, list[_Values]] = {}
    for sql, values in writes:
        if sql in statements:
            statements[sql].append(values)
        else:
            statements[sql] = [values]
    with overwriting(connection):
        for sql, rows in statements.items():
            connection.executemany(sql, rows)
    connection.execute("UPDATE row_version SET version = ?", (version,))


class _Entry:
    """A row that groups name: as it is stored, its version by now (0: no row), and the last change with its version."""

    __slots__ = ("change", "changed_to", "stored", "version")

    def __init__(self) -> None:
        self.stored: _Stored | None = None
        self.version = self.changed_to = 0
        self.change: Put | Remove | None = None


class _Batch:
    """Decides groups in memory, each on the result of those before it, and writes the final state of each row once.

    The commands of consecutive groups are applied together, because the timeline writes several new schedules in bulk.
    Until then it is open what becomes of their rows, so a group that has one of these rows makes them be applied first.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        groups: Sequence[ChangeGroup],
        now: int,
        run: Callable[[Sequence[Command], int], list[Outcome]] | None,
    ) -> None:
        self._connection = connection
        self._groups = groups
        self._now = now
        self._run = run
        self._results = [_FAILED] * len(groups)
        self._entries: list[list[_Entry]] = []  # of each group, in the order of its changes
        self._waiting: list[int] = []  # groups with commands that are to be applied
        self._open: set[_Entry] = set()  # the rows that these groups change
        self._changed: list[_Entry] = []
        self._version = int(connection.execute("SELECT version FROM row_version").get)

    def apply(self) -> list[GroupResult]:
        """Do it all; returns the result of each group."""
        self._load()
        for number, (group, entries) in enumerate(zip(self._groups, self._entries, strict=True)):
            if self._open and not self._open.isdisjoint(entries):
                self._run_commands()
            if not _is_expected(group, entries):
                continue
            if group.command is None:
                self._results[number] = self._change(number, None)
            else:
                self._waiting.append(number)
                self._open.update(entries)
        self._run_commands()
        if self._changed:
            self._save()
        return self._results

    def _load(self) -> None:
        """Read the current state of every row that a group names."""
        places: dict[tuple[str, str], dict[str, _Entry]] = {}
        for group in self._groups:
            entries = []
            for change in group.changes:
                key = change.key
                place = places.get((key.table, key.tenant))
                if place is None:
                    place = places[key.table, key.tenant] = {}
                entry = place.get(key.name)
                if entry is None:
                    entry = place[key.name] = _Entry()
                entries.append(entry)
            self._entries.append(entries)
        now = self._now
        for (table, tenant), place in places.items():
            rows = _look_up(self._connection, _CHECK[table], tenant, list(place))
            for entry, row in zip(place.values(), rows, strict=True):
                if row is not None:
                    entry.stored = row
                    entry.version = row[1] if row[2] is None or row[2] > now else 0

    def _run_commands(self) -> None:
        """Apply the commands that wait, and change the rows of those whose outcome is accepted."""
        if not self._waiting:
            return
        groups = [self._groups[number] for number in self._waiting]
        assert self._run is not None, "these groups may have no commands"
        outcomes = self._run([group.command for group in groups if group.command is not None], self._now)
        for number, group, outcome in zip(self._waiting, groups, outcomes, strict=True):
            accepted = outcome.outcome in group.accepts
            self._results[number] = self._change(number, outcome) if accepted else GroupResult(0, outcome)
        self._waiting, self._open = [], set()

    def _change(self, number: int, outcome: Outcome | None) -> GroupResult:
        put = 1
        for change, entry in zip(self._groups[number].changes, self._entries[number], strict=True):
            if type(change) is Unchanged:
                continue
            assert not isinstance(change, Unchanged)
            version = 0
            if type(change) is Put:
                self._version = put = version = self._version + 1
                until = change.until
                entry.version = version if until is None or until > self._now else 0
            else:
                entry.version = 0
            if entry.change is None:
                self._changed.append(entry)
            entry.change, entry.changed_to = change, version
        return GroupResult(put, outcome)

    def _save(self) -> None:
        """Write the final state of each row."""
        writes: list[_Write] = []
        for entry in self._changed:
            change, stored = entry.change, entry.stored
            if isinstance(change, Put):
                writes.append(_write(change, entry.changed_to, stored))
            elif stored is not None and change is not None:
                writes.append((_DELETE[change.key.table], (stored[0],)))
        _save(self._connection, writes, self._version)


def _is_expected(group: ChangeGroup, entries: list[_Entry]) -> bool:
    for change, entry in zip(group.changes, entries, strict=True):
        expected = change.expected
        if expected != entry.version and expected != ANY:
            return False
    return True


def _write(put: Put, version: int, stored: _Stored | None) -> _Write:
    """The statement that writes a row, and its values. A stored row keeps the indexes whose columns do not change."""
    key, values = put.key, put.values
    if stored is None:
        return _INSERT[key.table], (key.tenant, key.name, version, put.until, *values, put.body)
    indexed = _INDEXED[key.table]
    changed = [place for place, before in zip(indexed, stored[3:], strict=True) if values[place] != before]
    sql = _update_sql(key.table, tuple(changed), stored[2] != put.until)
    return sql, (version, put.body, put.until, *values, stored[0])


def expire(connection: apsw.Connection, now: int, rows_max: int) -> int:
    """Delete some expired rows, inside the caller's transaction; returns how many."""
    deleted = 0
    with overwriting(connection):
        for sql in _EXPIRE.values():
            if deleted < rows_max:
                connection.execute(sql, (now, rows_max - deleted))
                deleted += connection.changes()
    return deleted


# Statements, by table

_LookUp = tuple[str, str]  # of one key, and of an array of names


def _indexed(table: str) -> tuple[int, ...]:
    """The positions of the columns that are in indexes."""
    known = TABLES[table]
    names = {name for index in known.indexes for name in (*index.columns, index.order, index.present)}
    return tuple(position for position, column in enumerate(known.columns) if column.name in names)


def _look_up_sql(table: str, columns: str) -> _LookUp:
    key = TABLES[table].key
    return (
        f"SELECT {columns} FROM {table} t WHERE t.tenant = ? AND t.{key} = ?",
        f"SELECT {columns} FROM carray(?) c LEFT JOIN {table} t ON t.tenant = ? AND t.{key} = c.value",
    )


def _packed_sql(table: str) -> str:
    """The rows of an array of names as one row: the last expiry, versions (0 without a row), lengths and bodies."""
    return (
        "SELECT max(t.until), group_concat(ifnull(t.version, 0)), group_concat(ifnull(length(t.body), 0)),"
        " CAST(group_concat(t.body, '') AS BLOB)"
        f" FROM carray(?1) c LEFT JOIN {table} t ON t.tenant = ?2 AND t.{TABLES[table].key} = c.value"
    )


def _insert_sql(table: str) -> str:
    known = TABLES[table]
    columns = ["tenant", known.key, "version", "until", *(column.name for column in known.columns), "body"]
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


@cache
def _update_sql(table: str, changed: tuple[int, ...], until: bool) -> str:
    """The update of all columns without an index, and of the indexed ones that change, given the values of all.

    SQLite deletes and inserts an index entry for each index that has a column in the SET clause, even if its value is
    the same: that would double the cost of a delivery's next state.
    """
    indexed, columns = _INDEXED[table], TABLES[table].columns
    assignments = ["version = ?1", "body = ?2", *(["until = ?3"] if until else [])]
    for place, column in enumerate(columns):
        if place not in indexed or place in changed:
            assignments.append(f"{column.name} = ?{place + 4}")
    return f"UPDATE {table} SET {', '.join(assignments)} WHERE entry = ?{len(columns) + 4}"


@cache
def _find_sql(index: Index, *, is_after: bool, newest: bool) -> str:
    """The rows of an index in its order; the key is its last column, so no row is sorted."""
    key = TABLES[index.table].key
    conditions = ["tenant = ?", *(f"{name} {'=' if index.present == name else 'IS'} ?" for name in index.columns)]
    if index.present is not None and index.present not in index.columns:
        conditions.append(f"{index.present} IS NOT NULL")
    place = [key] if index.order is None else [index.order, key]
    if is_after:
        marks = ", ".join("?" * len(place))
        conditions.append(f"({', '.join(place)}) {'<' if newest else '>'} ({marks})")
    conditions.append("(until IS NULL OR until > ?)")
    if index.table == AHEAD_TABLE:
        conditions.append(IS_FINISHED)
    order = ", ".join(f"{name} DESC" if newest else name for name in place)
    return (
        f"SELECT {key}, body, version, until, {index.order or 0} FROM {index.table}"
        f" WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?"
    )


def export_sql(table: str) -> str:
    """All rows after a tenant and key, in their order: tenant, key, body, until, and the columns."""
    key, columns = TABLES[table].key, ", ".join(column.name for column in TABLES[table].columns)
    return (
        f"SELECT tenant, {key}, body, until, {columns} FROM {table}"
        f" WHERE (tenant, {key}) > (?, ?) ORDER BY tenant, {key}"
    )


_INDEXED = {table: _indexed(table) for table in TABLES}
_GET = {table: _look_up_sql(table, "t.body, t.version, t.until") for table in TABLES}
_VERSION = {table: _look_up_sql(table, "t.entry, t.version, t.until") for table in TABLES}
_CHECK = {
    table: _look_up_sql(
        table,
        ", ".join(["t.entry", "t.version", "t.until", *(f"t.{known.columns[each].name}" for each in _INDEXED[table])]),
    )
    for table, known in TABLES.items()
}
_GET_PACKED = {table: _packed_sql(table) for table in ("app_user", "notification")}  # rows that seldom expire
_INSERT = {table: _insert_sql(table) for table in TABLES}
_DELETE = {table: f"DELETE FROM {table} WHERE entry = ?" for table in TABLES}
_EXPIRE = {
    table: f"DELETE FROM {table} WHERE entry IN (SELECT entry FROM {table} WHERE until <= ? ORDER BY until LIMIT ?)"
    for table in TABLES
}
