"""The outbox: a partition of the log that belongs to no topic. Also the positions of Kafka request topics."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw

from tidings.domain.changes import latest_in_flight
from tidings.domain.errors import Moved
from tidings.domain.schedules.schedule import Outgoing, join, split
from tidings.ports import SourcePosition
from tidings.timeline.sqlite.writer import OFFSET_BITS, OFFSET_MASK, OUTBOX, PARTITIONS_MAX, Writer

SLICE_ROWS = 5_000
READ_BYTES_MAX = 16 * 1024 * 1024

_COLUMNS = "SELECT position, target, id, generation, n, due, released, message, final FROM log"
_READ = (
    f"{_COLUMNS} WHERE position >= ? AND position < {(OUTBOX + 1) << OFFSET_BITS}"
    " AND position NOT IN (SELECT offset FROM held) ORDER BY position LIMIT ?"
)
_HELD = (
    f"{_COLUMNS} JOIN held ON position = {OUTBOX << OFFSET_BITS} | held.offset"
    " WHERE held.topic = ? ORDER BY held.offset LIMIT ?"
)
# One step for each topic, however many records are held back.
_HELD_TOPICS = (
    "WITH RECURSIVE each(topic) AS (SELECT min(topic) FROM held UNION ALL"
    " SELECT (SELECT min(held.topic) FROM held WHERE held.topic > each.topic) FROM each WHERE each.topic IS NOT NULL)"
    " SELECT topic FROM each WHERE topic IS NOT NULL"
)
_HOLD = (
    f"INSERT OR REPLACE INTO held SELECT position & {OFFSET_MASK}, target / {PARTITIONS_MAX}, ? FROM log"
    " WHERE position = ?"
)
# The second condition lets SQLite use the partial index `log_in_outbox`.
_OF_ID = "SELECT position, target, generation, n FROM log WHERE id = ? AND position < 1 << 38"
_SPAN = f"SELECT first, next FROM partition WHERE partition = {OUTBOX}"
_KEPT = "position NOT IN (SELECT offset FROM held)"
_SIZE = (
    "SELECT ifnull(sum(length(message) + length(id) + 64), 0) FROM log"
    f" WHERE position >= ? AND position < ? AND {_KEPT}"
)
_DROP = f"DELETE FROM log WHERE position >= ? AND position < ? AND {_KEPT}"
# The second condition lets SQLite use the partial index `finished_in_outbox`.
_MISS = (
    "UPDATE finished SET state = 'missed', reason = ?, at = ?, position = NULL"
    " WHERE position = ? AND position < 1 << 38"
)
_LIGHTEN = f"UPDATE partition SET bytes = bytes - ? WHERE partition = {OUTBOX}"
_MOVE = f"UPDATE partition SET first = ?, bytes = bytes - ? WHERE partition = {OUTBOX}"


def outgoing(connection: apsw.Connection, writer: Writer, offset: int, limit: int) -> list[Outgoing]:
    """Records from an offset on, without those that are held back."""
    rows = connection.execute(_READ, (OUTBOX << OFFSET_BITS | offset, limit))
    return [_outgoing(writer, row) for row in _bounded(rows)]


def _bounded(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The first rows, up to `READ_BYTES_MAX`; at least one."""
    size = 0
    for row in rows:
        yield row
        size += len(row[7])
        if size >= READ_BYTES_MAX:
            return


def held_topics(connection: apsw.Connection, writer: Writer) -> set[str]:
    """The topics that have records held back."""
    return {split(writer.topic_names[number][1])[1] for (number,) in connection.execute(_HELD_TOPICS).fetchall()}


def held(connection: apsw.Connection, writer: Writer, topic: str, limit: int) -> list[Outgoing]:
    """Records of a topic that are held back, of all tenants."""
    numbers = connection.execute("SELECT topic FROM topic WHERE name = ?", (join("kafka", topic),)).fetchall()
    rows = [row for (number,) in numbers for row in _bounded(connection.execute(_HELD, (number, limit)))]
    return [_outgoing(writer, row) for row in _bounded(sorted(rows)[:limit])]


def _outgoing(writer: Writer, row: tuple[Any, ...]) -> Outgoing:
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
    """The number of the latest record of a schedule that is not known to be on Kafka."""
    rows = writer.connection.execute(_OF_ID, (schedule_id,)).fetchall()
    return latest_in_flight(
        (generation, n)
        for position, target, generation, n in rows
        if writer.topic_names[target // PARTITIONS_MAX][0] == tenant
        and (position & OFFSET_MASK >= writer.arrived or position & OFFSET_MASK in writer.held)
    )


def hold(writer: Writer, offsets: Sequence[int], reason: str) -> None:
    """Hold records back."""
    with writer.transaction() as connection:
        connection.executemany(_HOLD, [(reason, OUTBOX << OFFSET_BITS | offset) for offset in offsets])
    writer.hold(offsets, reason)
    writer.room.leave(offsets)


def free(writer: Writer, offsets: Sequence[int]) -> None:
    """Delete records that were held back and are on Kafka now."""
    with writer.transaction() as connection:
        _forget(connection, offsets)
    writer.unhold(offsets)


def drop(writer: Writer, offset: int, reason: str, now: int) -> None:
    """Count a record that will never be published as missed, inside the caller's transaction."""
    connection = writer.connection
    connection.execute(_MISS, (reason, now, OUTBOX << OFFSET_BITS | offset))
    _forget(connection, [offset])


def _forget(connection: apsw.Connection, offsets: Sequence[int]) -> None:
    for offset in offsets:
        position = OUTBOX << OFFSET_BITS | offset
        connection.execute("DELETE FROM held WHERE offset = ?", (offset,))
        size = connection.execute(_SIZE, (position, position + 1)).get
        connection.execute(_LIGHTEN, (size,))
        connection.execute("DELETE FROM log WHERE position = ?", (position,))


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
        places = (OUTBOX << OFFSET_BITS | first, OUTBOX << OFFSET_BITS | end)
        size = connection.execute(_SIZE, places).get
        connection.execute(_DROP, places)
        connection.execute(_MOVE, (end, size))
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
