"""New rows in bulk, as one array that SQLite unpacks; those of a long list in several short transactions.

A release waits for the transaction that is running, so the rows of a long list are written ahead, some at a time. The
last transaction of the list adds the schedules, and with it all of its rows are there. Until then their versions are in
`unfinished`: no search finds them, and nobody knows their names. What a crash leaves of a list is deleted by `sweep`.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from functools import cache

import apsw

from tidings import crash
from tidings.domain.notifications.tables import TABLES, Value
from tidings.domain.schedules.command import Command, Outcome
from tidings.ports.tables import KEY_BYTES_MAX, ON_TIMELINE, BulkGroups, GroupResult
from tidings.timeline.sqlite.database import overwriting
from tidings.timeline.sqlite.writer import Writer

AHEAD_ROWS = 125  # written ahead in one transaction
AHEAD_TABLE = "notification"  # the table whose rows may be written ahead

# Of a search: its rows are of no unfinished list.
IS_FINISHED = "NOT EXISTS (SELECT 1 FROM unfinished WHERE version BETWEEN first_version AND last_version)"

_SIZES = tuple(b"%04d" % size for size in range(KEY_BYTES_MAX + 1))


class BulkWrite:
    """The rows of some groups on their way into the file. `written` of them are written ahead."""

    def __init__(self, groups: BulkGroups) -> None:
        self._groups = groups
        self._before = 0  # the version before that of the first row
        self.written = 0

    def ahead(self) -> range:
        """Where the parts begin that can be written ahead: those of a long list whose names nobody knows yet."""
        groups, count = self._groups, len(self._groups)
        if count <= AHEAD_ROWS or not groups.are_new or groups.table != AHEAD_TABLE or _has_twins(groups):
            return range(0)
        return range(0, count, AHEAD_ROWS)

    def write_ahead(self, writer: Writer, start: int) -> None:
        """Write a part, unless one before it is missing. It is durable with the last transaction, and not before."""
        if self.written != start:
            return
        end, before = min(start + AHEAD_ROWS, len(self._groups)), self._before
        with writer.not_durable(), writer.transaction() as connection:
            if start == 0:
                before = self._reserve(connection)
                connection.execute(_BEGIN, (before + 1, before + len(self._groups)))
            elif not connection.execute(_IS_UNFINISHED, (before + 1,)).get:
                return  # another process has owned the file meanwhile
            self._insert(connection, before, start, end)
            crash.point("intake.written")
        self._before, self.written = before, end
        writer.unfinished.add(before + 1)

    def finish(
        self, connection: apsw.Connection, now: int, run: Callable[[Sequence[Command], int], list[Outcome]]
    ) -> list[GroupResult] | None:
        """Write the other rows and add the schedules, inside the caller's transaction.

        None, and nothing is there, if the groups have to be decided one by one.
        """
        groups = self._groups
        if self.written:
            connection.execute(_END, (self._before + 1,))
            self.written = self.written if connection.changes() else 0
        if not _are_expected(connection, groups, now):
            self._delete(connection, groups.names[: self.written])
            return None
        if not self.written:
            self._before = self._reserve(connection)
        outcomes = run(groups.commands, now)
        self._insert(connection, self._before, self.written, len(groups))
        results = [*map(GroupResult, range(self._before + 1, self._before + 1 + len(groups)), outcomes)]
        refused = [place for place, outcome in enumerate(outcomes) if outcome.outcome not in ON_TIMELINE]
        for place in refused:
            results[place] = GroupResult(0, outcomes[place])
        self._delete(connection, [groups.names[place] for place in refused])
        return results

    def forget(self, writer: Writer) -> None:
        """The list is finished, or has failed."""
        writer.unfinished.discard(self._before + 1)

    def _reserve(self, connection: apsw.Connection) -> int:
        """Take a version for each row; returns the one before them."""
        return int(connection.execute(_RESERVE, (len(self._groups),)).get)

    def _insert(self, connection: apsw.Connection, before: int, start: int, end: int) -> None:
        groups, column = self._groups, self._groups.own_column
        if start == end:
            return
        sql = _create_sql(groups.table, column)
        with overwriting(connection):
            for values, first, last in self._parts(start, end):
                rows = [
                    b"".join((_SIZES[len(name)], _SIZES[len(own)], name, own, body))
                    for name, own, body in zip(
                        map(str.encode, groups.names[first:last]),
                        map(str.encode, groups.own[first:last]),
                        groups.bodies[first:last],
                        strict=True,
                    )
                ]
                shared = (*values[:column], *values[column + 1 :])
                connection.execute(sql, (groups.tenant, *shared, before + first, apsw.carray(tuple(rows))))

    def _parts(self, start: int, end: int) -> Iterator[tuple[tuple[Value, ...], int, int]]:
        """The rows of a span that share their values: these, the first row and the end."""
        first = 0
        for values, adds in self._groups.parts:
            last = first + len(adds)
            if max(first, start) < min(last, end):
                yield values, max(first, start), min(last, end)
            first = last

    def _delete(self, connection: apsw.Connection, names: Sequence[str]) -> None:
        if names:
            with overwriting(connection):
                given = self._groups.tenant, apsw.carray(tuple(names))
                connection.execute(_delete_sql(self._groups.table), given)


def sweep(connection: apsw.Connection, known: Container[int]) -> None:
    """Delete the rows of unfinished lists, inside the caller's transaction; `known` are those that go on."""
    for first, last, entry in connection.execute(_UNFINISHED).fetchall():
        if first not in known:
            with overwriting(connection):
                connection.execute(_DELETE_UNFINISHED, (entry, first, last))
            connection.execute(_END, (first,))


def _has_twins(groups: BulkGroups) -> bool:
    return len(set(groups.names)) < len(groups.names)


def _are_expected(connection: apsw.Connection, groups: BulkGroups, now: int) -> bool:
    """Whether no row that is to be created is there, and all that are required are as expected."""
    tenant = groups.tenant
    if _has_twins(groups):
        return False
    names = apsw.carray(tuple(groups.names))
    if not groups.are_new and connection.execute(_any_of_sql(groups.table), (names, tenant)).get:
        return False
    found = connection.execute(_versions_sql(groups.required_table), (apsw.carray(tuple(groups.own)), tenant, now)).get
    return bool(found == ",".join(map(str, groups.versions)))


# Statements

_RESERVE = "UPDATE row_version SET version = version + ?1 RETURNING version - ?1"
_BEGIN = f"INSERT INTO unfinished SELECT ?, ?, ifnull(max(entry), 0) + 1 FROM {AHEAD_TABLE}"
_IS_UNFINISHED = "SELECT EXISTS (SELECT 1 FROM unfinished WHERE first_version = ?)"
_END = "DELETE FROM unfinished WHERE first_version = ?"
_UNFINISHED = "SELECT first_version, last_version, first_entry FROM unfinished"
_DELETE_UNFINISHED = f"DELETE FROM {AHEAD_TABLE} WHERE entry >= ? AND version BETWEEN ? AND ?"


@cache
def _create_sql(table: str, own_column: int) -> str:
    """Insert rows of which each is one blob: bytes of the key 1-4, of its own column 5-8, then both and the body.

    Their versions follow the one that is given.
    """
    names = [column.name for column in TABLES[table].columns]
    own = names.pop(own_column)
    columns = ["tenant", *names, "version", TABLES[table].key, own, "body"]
    key_end, own_bytes = "9 + substr(value, 1, 4)", "substr(value, 5, 4)"
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join('?' * (len(names) + 1))}, ? + rowid,"
        f" CAST(substr(value, 9, substr(value, 1, 4)) AS TEXT), CAST(substr(value, {key_end}, {own_bytes}) AS TEXT),"
        f" substr(value, {key_end} + {own_bytes}) FROM carray(?)"
    )


@cache
def _delete_sql(table: str) -> str:
    return f"DELETE FROM {table} WHERE tenant = ? AND {TABLES[table].key} IN (SELECT value FROM carray(?))"


@cache
def _any_of_sql(table: str) -> str:
    """Whether one of some keys is there. CROSS JOIN: in this order, with a look-up for each key."""
    join = f"carray(?) c CROSS JOIN {table} t ON t.tenant = ? AND t.{TABLES[table].key} = c.value"
    return f"SELECT EXISTS (SELECT 1 FROM {join})"


@cache
def _versions_sql(table: str) -> str:
    """The versions of some keys, 0 where there is no row, as one text."""
    join = f"carray(?1) c LEFT JOIN {table} t ON t.tenant = ?2 AND t.{TABLES[table].key} = c.value"
    return f"SELECT group_concat(CASE WHEN t.until <= ?3 THEN 0 ELSE ifnull(t.version, 0) END) FROM {join}"
