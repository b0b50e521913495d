"""Reads the log, and the committed positions of consumer groups."""

from collections.abc import Iterator
from typing import Any

import apsw

from tidings.domain.schedules.schedule import KAFKA, Record, Topic
from tidings.timeline.sqlite.writer import OFFSET_BITS, OFFSET_MASK, PARTITIONS_MAX

_TOPIC = "SELECT topic, name FROM topic WHERE tenant = ? AND name = ?"
_TOPICS = (
    "SELECT name, first, next, bytes FROM topic"
    f" JOIN partition ON partition BETWEEN topic * {PARTITIONS_MAX} AND topic * {PARTITIONS_MAX} + {PARTITIONS_MAX - 1}"
    f" WHERE tenant = ? AND name NOT LIKE '{KAFKA}%' ORDER BY name, partition"
)
_PREFIXED = (
    "SELECT tenant, name, first, next, bytes FROM topic"
    f" JOIN partition ON partition BETWEEN topic * {PARTITIONS_MAX} AND topic * {PARTITIONS_MAX} + {PARTITIONS_MAX - 1}"
    " WHERE substr(name, 1, length(?1)) = ?1 ORDER BY tenant, name, partition"
)
_PARTITIONS = "SELECT first, next, bytes FROM partition WHERE partition BETWEEN ? AND ? ORDER BY partition"
MESSAGE = "SELECT message FROM log WHERE position = ?"
_READ = (
    "SELECT position, id, generation, n, due, released, message, final FROM log"
    " WHERE position >= ? AND position < ? ORDER BY position LIMIT ?"
)
_MESSAGE = 6  # the index of `message` in a row of `_READ`


def topics(connection: apsw.Connection, tenant: str) -> list[Topic]:
    """The topics of a tenant that ever had a record, by name."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for name, *ends in connection.execute(_TOPICS, (tenant,)):
        found.setdefault(name, []).append((ends[0], ends[1], ends[2]))
    return [_summed(name, rows) for name, rows in found.items() if any(row[1] for row in rows)]


def topics_by_prefix(connection: apsw.Connection, prefix: str) -> list[tuple[str, Topic]]:
    """The topics of all tenants that start with a prefix and ever had a record."""
    found: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for tenant, name, *ends in connection.execute(_PREFIXED, (prefix,)):
        found.setdefault((tenant, name), []).append((ends[0], ends[1], ends[2]))
    return [(tenant, _summed(name, rows)) for (tenant, name), rows in found.items() if any(row[1] for row in rows)]


def topic(connection: apsw.Connection, tenant: str, name: str) -> Topic | None:
    """One topic; None if nothing was ever sent to it."""
    row = connection.execute(_TOPIC, (tenant, name)).fetchone()
    return None if row is None else _topic(connection, *row)


def read(
    connection: apsw.Connection,
    tenant: str,
    name: str,
    partition: int,
    offset: int,
    limit: int,
    bytes_max: int | None = None,
) -> list[Record]:
    """Records of one partition from an offset on; `bytes_max` limits their total size, to one record at least."""
    row = connection.execute(_TOPIC, (tenant, name)).fetchone()
    if row is None:
        return []
    number = row[0] * PARTITIONS_MAX + partition
    span = (number << OFFSET_BITS | offset, (number + 1) << OFFSET_BITS, limit)
    rows = connection.execute(_READ, span)
    return [
        Record(
            name,
            partition,
            position & OFFSET_MASK,
            schedule_id,
            generation,
            n,
            due,
            released,
            message,
            final == 1,
        )
        for position, schedule_id, generation, n, due, released, message, final in (
            rows if bytes_max is None else _fitting(rows, bytes_max)
        )
    ]


def _fitting(rows: apsw.Cursor, bytes_max: int) -> Iterator[tuple[Any, ...]]:
    """The rows whose messages fit into this many bytes; always the first one."""
    size = 0
    for row in rows:
        size += len(row[_MESSAGE])
        if size > bytes_max and size > len(row[_MESSAGE]):
            break
        yield row
    rows.close()


def committed(connection: apsw.Connection, tenant: str, name: str, group: str) -> dict[int, int]:
    """The next offset of each partition that a group has committed."""
    row = connection.execute(_TOPIC, (tenant, name)).fetchone()
    if row is None:
        return {}
    first = row[0] * PARTITIONS_MAX
    sql = "SELECT partition - ?1, next FROM committed WHERE partition BETWEEN ?1 AND ?2 AND name = ?3"
    return dict(connection.execute(sql, (first, first + PARTITIONS_MAX - 1, group)).fetchall())


def commit(connection: apsw.Connection, topic_number: int, group: str, offsets: dict[int, int]) -> None:
    """Store the committed offsets of a group, inside the caller's transaction."""
    for partition, offset in offsets.items():
        sql = "INSERT OR REPLACE INTO committed VALUES (?, ?, ?)"
        connection.execute(sql, (topic_number + partition, group, offset))


def _topic(connection: apsw.Connection, number: int, name: str) -> Topic:
    first = number * PARTITIONS_MAX
    return _summed(name, connection.execute(_PARTITIONS, (first, first + PARTITIONS_MAX - 1)).fetchall())


def _summed(name: str, rows: list[tuple[int, int, int]]) -> Topic:
    return Topic(name, tuple(row[0] for row in rows), tuple(row[1] for row in rows), sum(row[2] for row in rows))
