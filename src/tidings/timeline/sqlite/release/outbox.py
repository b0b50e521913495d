"""The outbox: records that are released to Kafka, until they are there. Also the positions of Kafka request topics.

One-shots that were released together are one packed row. Records of recurring schedules are single rows, in a partition
of the log that belongs to no topic. Both share one dense order of offsets. A record in a packed row that is held back
is named in `held`, and once it is done, in `gone`; the row is deleted when no record in it is needed any more.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Any

import apsw
import msgspec

from tidings.domain.changes import latest_in_flight
from tidings.domain.errors import Moved
from tidings.domain.schedules.schedule import Outgoing, join, split
from tidings.ports import SourcePosition
from tidings.timeline.sqlite import id_lookup
from tidings.timeline.sqlite.release import log
from tidings.timeline.sqlite.writer import (
    OFFSET_BITS,
    OFFSET_MASK,
    OUTBOX,
    PARTITIONS_MAX,
    Handed,
    Member,
    Writer,
)

SLICE_ROWS = 5_000
READ_BYTES_MAX = 16 * 1024 * 1024
PACKED_ROWS_MAX = 500  # so many records are decoded to find one

pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Member]).decode

_COLUMNS = "SELECT position, target, id, generation, n, due, released, message, final FROM log"
_READ = f"{_COLUMNS} WHERE position >= ? AND position < {1 << OFFSET_BITS} ORDER BY position"
_SINGLE = f"{_COLUMNS} WHERE position = ?"
_READ_PACKED = (
    "SELECT first, released, records FROM packed"
    " WHERE first >= ifnull((SELECT max(first) FROM packed WHERE first <= ?1), ?1) ORDER BY first"
)
_PACKED_WITH = "SELECT first, released, records FROM packed WHERE first <= ? ORDER BY first DESC LIMIT 1"
_LEFT_OUT = "SELECT offset FROM held WHERE offset >= ?1 UNION ALL SELECT offset FROM gone WHERE offset >= ?1"
_HELD = "SELECT offset FROM held WHERE topic = ? ORDER BY offset LIMIT ?"
# One step for each topic, however many records are held back.
_HELD_TOPICS = (
    "WITH RECURSIVE each(topic) AS (SELECT min(topic) FROM held UNION ALL"
    " SELECT (SELECT min(held.topic) FROM held WHERE held.topic > each.topic) FROM each WHERE each.topic IS NOT NULL)"
    " SELECT topic FROM each WHERE topic IS NOT NULL"
)
# The second condition lets SQLite use the partial index `log_in_outbox`.
_OF_ID = "SELECT position, target, generation, n FROM log WHERE id = ? AND position < 1 << 38"
_PACKED_ID = "SELECT first, records FROM packed WHERE instr(records, ?) > 0"  # all that may have a record of an id
_SPAN = f"SELECT first, next FROM partition WHERE partition = {OUTBOX}"
_DROP = "DELETE FROM log WHERE position >= ? AND position < ? AND position NOT IN (SELECT offset FROM held)"
_DROP_PACKED = (
    "DELETE FROM packed WHERE first > ?1 AND first + count <= ?2 AND NOT EXISTS"
    " (SELECT 1 FROM held WHERE held.offset >= packed.first AND held.offset < packed.first + packed.count)"
)
_DROP_GONE = (
    "DELETE FROM gone WHERE offset > ?1 AND offset < ?2 AND NOT EXISTS"
    " (SELECT 1 FROM packed WHERE packed.first <= gone.offset AND packed.first + packed.count > gone.offset)"
)
_MISS = (
    "UPDATE finished SET state = 'missed', reason = ?, at = ?, position = NULL"
    " WHERE due = ? AND arrival = ? AND position = ?"
)
_LEFT = "UPDATE finished SET at = ? WHERE due = ? AND arrival = ? AND position = ?"
_MOVE = f"UPDATE partition SET first = ? WHERE partition = {OUTBOX}"


def outgoing(connection: apsw.Connection, writer: Writer, offset: int, limit: int) -> list[Outgoing]:
    """Records from an offset on, without those that are held back: handed over in memory, or read from the file."""
    offset = max(offset, span(connection)[0])
    if handed := writer.handover.take(offset, limit, READ_BYTES_MAX):
        return [record for batch in handed for record in _members(writer, batch)]
    with connection:  # one snapshot: single rows and packed rows have one order
        left_out = {gone for (gone,) in connection.execute(_LEFT_OUT, (offset,))}
        both = merge(_singles(connection, writer, offset), _packed(connection, writer, offset), key=_offset)
        return list(_bounded((record for record in both if record.offset not in left_out), limit))


def _singles(connection: apsw.Connection, writer: Writer, offset: int) -> Iterator[Outgoing]:
    for row in connection.execute(_READ, (OUTBOX << OFFSET_BITS | offset,)):
        yield _outgoing(writer, row)


def _packed(connection: apsw.Connection, writer: Writer, offset: int) -> Iterator[Outgoing]:
    for first, released, records in connection.execute(_READ_PACKED, (offset,)):
        for record in _members(writer, _batch(first, released, records)):
            if record.offset >= offset:
                yield record


def _offset(record: Outgoing) -> int:
    return record.offset


def _bounded(records: Iterable[Outgoing], limit: int) -> Iterator[Outgoing]:
    """The first records, up to a number and `READ_BYTES_MAX`; at least one."""
    size = 0
    for count, record in enumerate(records, 1):
        yield record
        size += len(record.message)
        if count == limit or size >= READ_BYTES_MAX:
            return


def held_topics(connection: apsw.Connection, writer: Writer) -> set[str]:
    """The topics that have records held back."""
    return {split(writer.topic_names[number][1])[1] for (number,) in connection.execute(_HELD_TOPICS).fetchall()}


def held(connection: apsw.Connection, writer: Writer, topic: str, limit: int) -> list[Outgoing]:
    """Records of a topic that are held back, of all tenants."""
    numbers = connection.execute("SELECT topic FROM topic WHERE name = ?", (join("kafka", topic),)).fetchall()
    with connection:
        offsets = sorted(offset for (number,) in numbers for (offset,) in connection.execute(_HELD, (number, limit)))
        return list(_bounded(_at(connection, writer, offsets), limit))


def _at(connection: apsw.Connection, writer: Writer, offsets: Iterable[int]) -> Iterator[Outgoing]:
    """The records at these offsets, in their order. Each packed row is decoded once if they are sorted."""
    members: dict[int, Outgoing] = {}
    for offset in offsets:
        row = connection.execute(_SINGLE, (OUTBOX << OFFSET_BITS | offset,)).fetchone()
        if row is not None:
            yield _outgoing(writer, row)
            continue
        if offset not in members:
            members = {record.offset: record for record in _row_with(connection, writer, offset)}
        if offset in members:
            yield members[offset]


def _row_with(connection: apsw.Connection, writer: Writer, offset: int) -> Iterator[Outgoing]:
    """The records of the packed row that may have an offset."""
    for first, released, records in connection.execute(_PACKED_WITH, (offset,)).fetchall():
        yield from _members(writer, _batch(first, released, records))


def message_at(connection: apsw.Connection, position: int) -> bytes | None:
    """The message of a released one-shot, in the log or in the outbox; None once it is deleted."""
    message: bytes | None = connection.execute(log.MESSAGE, (position,)).get
    if message is not None or position >> OFFSET_BITS != OUTBOX:
        return message
    member = _member(connection, position & OFFSET_MASK)
    return None if member is None else member[-1]


def _member(connection: apsw.Connection, offset: int) -> Member | None:
    """The record at an offset, if it is in a packed row."""
    for first, _, records in connection.execute(_PACKED_WITH, (offset,)).fetchall():
        members = _batch(first, 0, records).members
        if offset - first < len(members):
            return members[int(offset - first)]
    return None


def _batch(first: int, released: int, records: bytes) -> Handed:
    return Handed(first, released, _unpack(records), len(records))


def _members(writer: Writer, handed: Handed) -> Iterator[Outgoing]:
    """The records of a packed row."""
    names, released = _Names(writer), handed.released
    for offset, member in enumerate(handed.members, handed.first):
        target, schedule_id, generation, n, due, _, expires, message = member
        tenant, topic = names[target]
        yield Outgoing(offset, tenant, topic, schedule_id, generation, n, due, released, message, True, expires)


class _Names(dict[int, tuple[str, str]]):
    """Tenants and topics on Kafka by target, looked up once for each."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self._writer = writer

    def __missing__(self, target: int) -> tuple[str, str]:
        tenant, destination = self._writer.topic_names[target // PARTITIONS_MAX]
        self[target] = names = tenant, split(destination)[1]
        return names


def _outgoing(writer: Writer, row: tuple[Any, ...]) -> Outgoing:
    """The record of a single row."""
    position, target, schedule_id, generation, n, due, released, message, final = row
    tenant, destination = writer.topic_names[target // PARTITIONS_MAX]
    return Outgoing(
        position & OFFSET_MASK,
        tenant,
        split(destination)[1],
        schedule_id,
        generation,
        n,
        due,
        released,
        message,
        final == 1,
    )


def in_flight(writer: Writer, tenant: str, schedule_id: str) -> int | None:
    """The number of the latest record of a recurring schedule that is not known to be on Kafka.

    Its id may have been that of a one-shot before, whose record is in a packed row.
    """
    rows = writer.connection.execute(_OF_ID, (schedule_id,)).fetchall()
    found = [(position & OFFSET_MASK, target, *which) for position, target, *which in rows]
    found += _packed_of_id(writer.connection, schedule_id)
    return latest_in_flight(
        (generation, n)
        for offset, target, generation, n in found
        if writer.topic_names[target // PARTITIONS_MAX][0] == tenant
        and (offset >= writer.arrived or offset in writer.held)
    )


def _packed_of_id(connection: apsw.Connection, schedule_id: str) -> list[tuple[int, int, int, int]]:
    """The records of an id in packed rows that have not left: offset, target, generation and number."""
    found: list[tuple[int, int, int, int]] = []
    for first, records in connection.execute(_PACKED_ID, (schedule_id.encode(),)).fetchall():
        gone = {offset for (offset,) in connection.execute("SELECT offset FROM gone WHERE offset >= ?", (first,))}
        for offset, (target, member_id, generation, n, *_) in enumerate(_unpack(records), first):
            if member_id == schedule_id and offset not in gone:
                found.append((offset, target, generation, n))
    return found


def hold(writer: Writer, offsets: Sequence[int], reason: str) -> None:
    """Hold records back."""
    with writer.transaction() as connection:
        found = _at(connection, writer, sorted(offsets))
        topics = [(one.offset, writer.topics[one.tenant, join("kafka", one.topic)], reason) for one in found]
        connection.executemany("INSERT OR REPLACE INTO held VALUES (?, ?, ?)", topics)
    writer.handover.clear()  # it knows of no record that is held back
    writer.hold(offsets, reason)
    writer.room.leave(offsets)


def free(writer: Writer, offsets: Sequence[int]) -> None:
    """Delete records that were held back and are on Kafka now."""
    with writer.transaction() as connection:
        _forget(connection, offsets)
    writer.unhold(offsets)


def drop(writer: Writer, offsets: Sequence[int], reason: str, now: int) -> None:
    """Count records that will never be published as missed, inside the caller's transaction."""
    connection = writer.connection
    keys = _finished_keys(writer, offsets, now)
    connection.executemany(_MISS, [(reason, now, *key, OUTBOX << OFFSET_BITS | offset) for offset, key in keys])
    _forget(connection, offsets)


def expire(writer: Writer, offsets: Sequence[int], now: int) -> None:
    """Count records that expired before they could be published as missed."""
    with writer.transaction():
        drop(writer, offsets, "expired", now)
    writer.handover.clear()  # it knows of no record that is gone
    writer.room.leave(offsets)


def left(writer: Writer, offsets: Sequence[int], at: int) -> None:
    """Store when records left that had waited in the outbox."""
    with writer.transaction() as connection:
        keys = _finished_keys(writer, offsets, at)
        connection.executemany(_LEFT, [(at, *key, OUTBOX << OFFSET_BITS | offset) for offset, key in keys])


def _finished_keys(writer: Writer, offsets: Sequence[int], now: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """The keys (due time, arrival) of the rows in `finished` that belong to one-shots at these offsets."""
    connection = writer.connection
    first, members = 0, list[Member]()
    for offset in sorted(offsets):
        row = connection.execute(_SINGLE, (OUTBOX << OFFSET_BITS | offset,)).fetchone()
        if row is not None:
            record = _outgoing(writer, row)
            if found := id_lookup.find(connection, writer, record.tenant, record.id, now):
                yield offset, (found.origin, found.arrival)
            continue
        if not first <= offset < first + len(members):
            for start, _, records in connection.execute(_PACKED_WITH, (offset,)).fetchall():
                first, members = start, _unpack(records)
        if first <= offset < first + len(members):
            yield offset, members[offset - first][4:6]


def _forget(connection: apsw.Connection, offsets: Sequence[int]) -> None:
    """Delete single records, and packed rows of which no record is needed any more."""
    if not offsets:
        return
    settled, _ = span(connection)
    connection.executemany("DELETE FROM held WHERE offset = ?", [(offset,) for offset in offsets])
    for offset in offsets:
        connection.execute("DELETE FROM log WHERE position = ?", (OUTBOX << OFFSET_BITS | offset,))
        if not connection.changes():
            connection.execute("INSERT OR IGNORE INTO gone VALUES (?)", (offset,))
    _drop_packed(connection, min(offsets) - PACKED_ROWS_MAX, min(max(offsets) + PACKED_ROWS_MAX, settled))


def _drop_packed(connection: apsw.Connection, after: int, end: int) -> None:
    """Delete the packed rows that begin after an offset and end before another, unless a record is held back."""
    connection.execute(_DROP_PACKED, (after, end))
    connection.execute(_DROP_GONE, (after, end))


def span(connection: apsw.Connection) -> tuple[int, int]:
    """The first stored offset, and the next offset to be assigned."""
    first, following = connection.execute(_SPAN).fetchone()
    return first, following


def settle(writer: Writer, offset: int) -> bool:
    """Delete some records before an offset; True if there are more."""
    first, following = span(writer.connection)
    end = min(offset, following, first + SLICE_ROWS)
    if end <= first:
        return False
    with writer.transaction() as connection:
        connection.execute(_DROP, (OUTBOX << OFFSET_BITS | first, OUTBOX << OFFSET_BITS | end))
        _drop_packed(connection, first - PACKED_ROWS_MAX, end)
        connection.execute(_MOVE, (end,))
    writer.room.arrive(end)
    return end < min(offset, following)


def positions(connection: apsw.Connection) -> dict[tuple[str, int], int]:
    """The next position to read in each partition of the request topics."""
    rows = connection.execute("SELECT topic, partition, next FROM source").fetchall()
    return {(topic, partition): following for topic, partition, following in rows}


def advance_positions(connection: apsw.Connection, parts: Sequence[SourcePosition]) -> None:
    """Advance the positions of request topics, inside the caller's transaction; `Moved` if one is unexpected."""
    for part in parts:
        found = connection.execute(
            "SELECT next FROM source WHERE topic = ? AND partition = ?", (part.topic, part.partition)
        ).get
        if (found or 0) != part.expected:
            raise Moved(f"{part.topic}/{part.partition} is at position {found or 0}, not at {part.expected}")
        values = (part.topic, part.partition, part.next)
        connection.execute("INSERT OR REPLACE INTO source VALUES (?, ?, ?)", values)
