"""Finds a schedule by its id: through the id map, or by the place that is part of an id made by Tidings."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

import apsw
import msgspec

from tidings.domain.changes import next_occurrence
from tidings.domain.schedules.command import FINISHED, Priority, State
from tidings.domain.schedules.lateness import Lateness, bounded_by
from tidings.domain.schedules.recurrence_state import RecurrenceState, decode_state, single
from tidings.domain.schedules.schedule import MADE_ID, Schedule
from tidings.domain.schedules.when import Once
from tidings.timeline.sqlite.pending.packed_rows import (
    ARRIVAL_BITS,
    DAY_QUARTERS,
    NO_DEADLINE,
    QUARTER_LAST,
    QUARTER_US,
    REASONS,
    row_at,
)
from tidings.timeline.sqlite.writer import OFFSET_BITS, OFFSET_MASK, OUTBOX, PARTITIONS_MAX, Writer

Table = Literal["near", "far", "standing", "finished"]

_PLAIN = "stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message"
NEAR = f"SELECT {_PLAIN} FROM near WHERE stream = ? AND due = ? AND arrival = ?"
STANDING = (
    "SELECT stream, due, partition, generation, n, accepted, content, id, labels, message, state, origin, fires,"
    " released, policy FROM standing WHERE arrival = ?"
)
FINISHED_SQL = (
    "SELECT stream, ifnull(last_due, due), partition, generation, n, accepted, content, id, labels, state, reason, at,"
    " position FROM finished WHERE due = ? AND arrival = ?"
)


class Found(msgspec.Struct, gc=False):
    """A schedule's row, from whichever table. Not `kw_only`: it is built from the leading columns of a row."""

    table: Table
    arrival: int
    place: int
    stream: int
    due: int
    partition: int
    generation: int
    n: int
    accepted: int
    content: bytes
    id: str
    labels: str | None
    state: State = "pending"
    message: bytes | None = None
    deadline: int = NO_DEADLINE
    reason: str | None = None
    origin: int = 0
    fires: int = 0
    released: int = 0
    terms: RecurrenceState | None = None
    at: int | None = None
    position: int | None = None


def find(connection: apsw.Connection, writer: Writer, tenant: str, schedule_id: str, now: int) -> Found | None:
    """The newest schedule of this id that is pending, paused, or finished and still remembered."""
    for arrival, due in _places(connection, writer, tenant, schedule_id):
        found = _at_place(connection, writer, tenant, schedule_id, arrival, due)
        if found is not None:
            return None if forgotten(found, writer, now) else found
    return None


def forgotten(found: Found, writer: Writer, now: int) -> bool:
    """Whether a finished schedule is past its retention, even if its row is not deleted yet."""
    return found.at is not None and found.at + writer.options.id_retention_us <= now


def _places(connection: apsw.Connection, writer: Writer, tenant: str, schedule_id: str) -> Iterator[tuple[int, int]]:
    yield from writer.idmap.places(connection, writer.idmap.hash(tenant, schedule_id))
    made = MADE_ID.match(schedule_id)
    if made and int(made[1]) <= writer.arrival:
        yield int(made[1]), int(made[2])


def _at_place(
    connection: apsw.Connection, writer: Writer, tenant: str, schedule_id: str, arrival: int, due: int
) -> Found | None:
    for found in _rows_at(connection, writer, tenant, arrival, due):
        if found.id == schedule_id and writer.stream_names[found.stream][0] == tenant:
            return found
    return None


def _rows_at(connection: apsw.Connection, writer: Writer, tenant: str, arrival: int, due: int) -> Iterator[Found]:
    """The rows at a place. Tables are read in the order in which rows move, so that a moving row is not missed."""
    for place in far_places(arrival, due):
        for row in row_at(connection, place):
            yield from _resolve(connection, plain("far", arrival, place, row))
    for priority, to_kafka in product(Priority, (False, True)):
        stream = writer.streams.get((tenant, priority, to_kafka))
        if stream is not None:
            for row in connection.execute(NEAR, (stream, due, arrival)):
                yield from _resolve(connection, plain("near", arrival, 0, row))
    yield from standing(connection, arrival)
    for row in connection.execute(FINISHED_SQL, (due, arrival)):
        yield finished(arrival, due, row)


def far_places(arrival: int, due: int) -> tuple[int, ...]:
    """The places of a row in `far` and `parcel`: in the bucket of its quarter of an hour, or of its day."""
    quarter = min(due // QUARTER_US, QUARTER_LAST)
    day = quarter - quarter % DAY_QUARTERS
    places = (day << ARRIVAL_BITS) | arrival, (quarter << ARRIVAL_BITS) | arrival
    return places if quarter != day else places[:1]


def _resolve(connection: apsw.Connection, found: Found) -> Iterator[Found]:
    """Follow a row that only points to a recurring schedule (n = 0)."""
    if found.n == 0:
        yield from standing(connection, found.arrival)
    elif found.n > 0:
        yield found


def plain(table: Table, arrival: int, place: int, row: tuple[Any, ...]) -> Found:
    """A row of `near` or `far`."""
    (
        stream,
        due,
        partition,
        deadline,
        reason,
        generation,
        n,
        accepted,
        content,
        schedule_id,
        labels,
        message,
    ) = row
    return Found(
        table=table,
        arrival=arrival,
        place=place,
        stream=stream,
        due=due,
        partition=partition,
        generation=generation,
        n=n,
        accepted=accepted,
        content=content,
        id=schedule_id,
        labels=labels,
        message=message,
        deadline=deadline,
        reason=REASONS[reason] or None,
    )


def standing(connection: apsw.Connection, arrival: int) -> Iterator[Found]:
    """The recurring or paused schedule of an arrival, if there is one."""
    for row in connection.execute(STANDING, (arrival,)):
        yield standing_row(arrival, row)


def standing_row(arrival: int, row: tuple[Any, ...]) -> Found:
    """A row of `standing`; its columns from the stream to the labels are in the order of `Found`."""
    found = Found("standing", arrival, 0, *row[:9])
    found.message, found.state, found.origin, found.fires, found.released, policy = row[9:]
    found.terms = decode_state(policy)
    return found


def finished(arrival: int, origin: int, row: tuple[Any, ...]) -> Found:
    """A row of `finished`; its columns from the stream to the state are in the order of `Found`.

    `origin` is the due time in its key.
    """
    found = Found("finished", arrival, 0, *row[:10])
    found.reason, found.at, found.position = row[10:]
    found.origin = origin
    return found


def present(writer: Writer, found: Found, now: int | None = None) -> Schedule:
    """A row as shown to readers."""
    upcoming = next_occurrence(found.terms if found.state == "pending" else None, found.n, found.due, now)
    tenant, priority = writer.stream_names[found.stream]
    position = None if _in_outbox(found) else found.position
    return Schedule(
        tenant=tenant,
        id=found.id,
        generation=found.generation,
        topic=writer.topic_names[found.partition // PARTITIONS_MAX][1],
        state="in_flight" if in_flight(writer, found) else found.state,
        due=upcoming.due,
        accepted=found.accepted,
        priority=priority,
        occurrence=upcoming.number,
        when=found.terms.when if found.terms else None if found.table == "finished" else Once(found.due),
        lateness=found.terms.lateness if found.terms else lateness_of(found),
        labels=found.labels,
        message=found.message,
        finished=found.at,
        reason=_reason(writer, found),
        partition=None if position is None else (position >> OFFSET_BITS) % PARTITIONS_MAX,
        offset=None if position is None else position & OFFSET_MASK,
        tzdata=None if found.terms is None else found.terms.tzdata,
    )


def _reason(writer: Writer, found: Found) -> str | None:
    """Why it was missed, or why it is held back."""
    if in_flight(writer, found):
        return writer.held.get((found.position or 0) & OFFSET_MASK)
    return found.reason if found.state in FINISHED else None


def in_flight(writer: Writer, found: Found) -> bool:
    """Whether it is in the outbox and not known to be on Kafka."""
    if found.position is None or not _in_outbox(found):
        return False
    offset = found.position & OFFSET_MASK
    return offset >= writer.arrived or offset in writer.held


def _in_outbox(found: Found) -> bool:
    return found.position is not None and found.position >> OFFSET_BITS == OUTBOX


def lateness_of(found: Found) -> Lateness | None:
    """The lateness policy behind the deadline of a one-shot; None if it is finished."""
    if found.table == "finished":
        return None
    return Lateness() if found.deadline == NO_DEADLINE else bounded_by(found.deadline - found.due, found.reason)


def effective_terms(found: Found) -> RecurrenceState | None:
    """The terms of a schedule; a one-shot stores none, so they are derived. None if it is finished."""
    lateness = lateness_of(found)
    return single(found.due, lateness) if found.terms is None and lateness is not None else found.terms
