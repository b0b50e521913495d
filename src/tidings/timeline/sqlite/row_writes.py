"""Writes single rows of the timeline, for changes and recurring schedules, and new rows of the tables in bulk.

Each function is part of the caller's transaction, except for what is written ahead.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from functools import cache

import apsw
import msgspec
import numpy as np

from tidings import crash
from tidings.domain.changes import HISTORY_LINES_MAX
from tidings.domain.notifications.tables import TABLES, Value
from tidings.domain.schedules.command import NO_CONTENT, Command, Outcome, State
from tidings.domain.schedules.recurrence_state import RecurrenceState, encode_state
from tidings.domain.schedules.schedule import Event
from tidings.ports.tables import KEY_BYTES_MAX, ON_TIMELINE, BulkGroups, GroupResult
from tidings.timeline.sqlite.database import overwriting, queries
from tidings.timeline.sqlite.id_lookup import Found, far_places
from tidings.timeline.sqlite.pending.packed_rows import ARRIVAL_BITS, NO_DEADLINE, REASONS
from tidings.timeline.sqlite.writer import OFFSET_BITS, OUTBOX, PARTITIONS_MAX, Writer
from tidings.timeline.store_rules import RECORD_BYTES

_SQL = queries("changes")


def insert_plain(writer: Writer, found: Found, accepted: int) -> None:
    """Put a one-shot, or a record fired by hand, onto the timeline."""
    assert found.message is not None
    reason = REASONS.index(found.reason) if found.reason else 0
    _insert(
        writer,
        (
            found.stream,
            found.due,
            found.arrival,
            found.partition,
            found.deadline,
            reason,
            found.generation,
            found.n,
        ),
        (accepted, found.content, found.id, found.labels, found.message),
    )


def insert_extra(writer: Writer, found: Found, schedule: int) -> None:
    """Put a record fired by hand onto the timeline; it does not count as a pending schedule."""
    insert_plain(writer, found, found.accepted)
    writer.add_pending(-1)
    writer.connection.execute("INSERT INTO fired VALUES (?, ?, ?)", (found.arrival, schedule, found.due))


def remove_extras(writer: Writer, found: Found) -> None:
    """Remove the records fired by hand that are not released yet, together with their schedule."""
    sql = "DELETE FROM fired WHERE schedule = ? RETURNING arrival, due"
    for arrival, due in writer.connection.execute(sql, (found.arrival,)).fetchall():
        key = (found.stream, due, arrival)
        writer.connection.execute("DELETE FROM near WHERE stream = ? AND due = ? AND arrival = ?", key)
        writer.refresh_next_due(found.stream)


def insert_pointer(writer: Writer, found: Found) -> None:
    """Put the pending occurrence of a recurring schedule onto the timeline: a row that points to it."""
    _insert(
        writer,
        (found.stream, found.due, found.arrival, found.partition, NO_DEADLINE, 0, found.generation, 0),
        (found.accepted, NO_CONTENT, found.id, found.labels, b""),
    )


def _insert(writer: Writer, head: tuple[int, ...], tail: tuple[object, ...]) -> None:
    stream, due, arrival = head[:3]
    writer.add_pending(1)
    if due < writer.near_until or head[-1] < 0:
        writer.connection.execute(_SQL["near_one"], head + tail)
        writer.lookahead.offer(stream, due)
    else:
        place = writer.bucket(due) << ARRIVAL_BITS | arrival
        writer.far.insert_one(place, (stream, due, *head[3:]), tail)


def insert_recurring(writer: Writer, found: Found, terms: RecurrenceState) -> None:
    """Store a recurring or paused schedule, without its pending occurrence."""
    writer.connection.execute(
        _SQL["recurring_one"],
        (
            found.arrival,
            found.origin,
            found.stream,
            found.partition,
            found.state,
            found.due,
            found.n,
            found.fires,
            found.released,
            found.generation,
            found.accepted,
            encode_state(terms),
            found.content,
            found.id,
            found.labels,
            found.message,
        ),
    )


def remember(writer: Writer, found: Found) -> None:
    """Add an id to the id map, with its arrival and origin."""
    tenant = writer.stream_names[found.stream][0]
    id_hash = writer.idmap.hash(tenant, found.id)
    origin = found.origin or found.due
    entries = np.array([[id_hash], [found.arrival], [origin]], dtype=np.int64)
    writer.idmap.remember(writer.connection, entries)


def remove(writer: Writer, found: Found) -> None:
    """Remove a schedule from its table, and its fired records that are not released yet."""
    connection = writer.connection
    match found.table:
        case "standing":
            connection.execute("DELETE FROM standing WHERE arrival = ?", (found.arrival,))
            remove_extras(writer, found)
            if found.state == "pending":
                remove_pointer(writer, found)
        case "near":
            _remove_near(writer, found)
        case "far":
            writer.far.delete(found.place)
            writer.add_pending(-1)
        case "finished":
            sql = "DELETE FROM finished WHERE due = ? AND arrival = ?"
            connection.execute(sql, (found.origin, found.arrival))


def pause(writer: Writer, found: Found, terms: RecurrenceState) -> None:
    """Take a pending schedule off the timeline and store it as paused with these terms."""
    if found.table == "standing":
        remove_pointer(writer, found)
        sql = "UPDATE standing SET state = 'paused', policy = ? WHERE arrival = ?"
        writer.connection.execute(sql, (encode_state(terms), found.arrival))
        return
    remove(writer, found)
    held = msgspec.structs.replace(found, table="standing", state="paused", origin=found.due)
    insert_recurring(writer, held, terms)


def remove_pointer(writer: Writer, found: Found) -> None:
    """Take the pending occurrence of a recurring schedule off the timeline."""
    if any(writer.far.delete(place) for place in far_places(found.arrival, found.due)):
        writer.add_pending(-1)
    else:
        _remove_near(writer, found)


def _remove_near(writer: Writer, found: Found) -> None:
    key = (found.stream, found.due, found.arrival)
    writer.connection.execute("DELETE FROM near WHERE stream = ? AND due = ? AND arrival = ?", key)
    writer.add_pending(-1)
    writer.refresh_next_due(found.stream)


def finish(
    writer: Writer,
    found: Found,
    state: State,
    now: int,
    reason: str | None = None,
    position: int | None = None,
) -> None:
    """Store how a schedule finished, under the key that the id map has."""
    writer.connection.execute(
        _SQL["finished_one"],
        (
            found.origin or found.due,
            found.arrival,
            found.stream,
            found.partition,
            state,
            reason,
            now,
            position,
            found.due if found.due != (found.origin or found.due) else None,
            found.generation,
            found.n,
            found.accepted,
            found.content,
            found.id,
            found.labels,
        ),
    )


def note(writer: Writer, found: Found, event: Event) -> None:
    """Add a line to the history of a schedule."""
    tenant = writer.stream_names[found.stream][0]
    id_hash = writer.idmap.hash(tenant, found.id)
    line = (id_hash, tenant, found.id, event.at, event.event, event.occurrence, event.due, event.reason, event.count)
    entry = int(writer.connection.execute(_SQL["history_one"], line).get)
    if entry > HISTORY_LINES_MAX:
        writer.connection.execute(_SQL["history_trim"], (id_hash, entry - HISTORY_LINES_MAX))


def append(writer: Writer, found: Found, now: int, n: int, due: int, *, final: bool) -> int:
    """Append one occurrence to the log, or to the outbox; returns its position."""
    assert found.message is not None
    size = len(found.message) + len(found.id) + RECORD_BYTES
    to_kafka = found.partition // PARTITIONS_MAX in writer.on_kafka
    partition = OUTBOX if to_kafka else found.partition
    offset = int(writer.connection.execute(_SQL["next_offset"], (partition, 0 if to_kafka else size)).get)
    if to_kafka:
        writer.room.put(offset, [size])
    position = partition << OFFSET_BITS | offset
    target = found.partition if to_kafka else None
    record = (position, due, now, found.generation, n, final, found.id, found.message, target)
    writer.connection.execute(_SQL["log_one"], record)
    return position


# New rows of the tables in bulk, as one array that SQLite unpacks.
#
# A release waits for the transaction that is running, so the rows of a long list are written ahead, some at a time. The
# last transaction of the list adds the schedules, and with it all of its rows are there. Until then their versions are
# in `unfinished`: no search finds them, and nobody knows their names. What a crash leaves is deleted later.

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


def sweep_unfinished(connection: apsw.Connection, known: Container[int]) -> None:
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
