"""Writes single rows, for changes and recurring schedules. Each function is part of the caller's transaction."""

import msgspec
import numpy as np

from tidings.domain.changes import HISTORY_LINES_MAX
from tidings.domain.schedules.command import NO_CONTENT, State
from tidings.domain.schedules.recurrence_state import RecurrenceState, encode_state
from tidings.domain.schedules.schedule import Event
from tidings.timeline.sqlite.database import queries
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
