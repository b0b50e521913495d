"""Finding schedules by id: one by the id map or the row key in a generated id, or a whole batch that is sent again."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import apsw
import msgspec
import numpy as np

from tidings.domain.changes import next_occurrence
from tidings.domain.schedules.command import CONTENT_BYTES, FINISHED, Add, Outcome, Priority, State
from tidings.domain.schedules.recurrence_state import RecurrenceState, decode_state
from tidings.domain.schedules.schedule import MADE_ID, Schedule
from tidings.domain.schedules.when import Once
from tidings.timeline.sqlite.pending import packed_rows
from tidings.timeline.sqlite.pending.packed_rows import (
    ARRIVAL_BITS,
    ARRIVAL_MASK,
    DAY_QUARTERS,
    NO_DEADLINE,
    QUARTER_LAST,
    QUARTER_US,
    REASONS,
    row_at,
)
from tidings.timeline.sqlite.writer import OFFSET_BITS, OFFSET_MASK, OUTBOX, PARTITIONS_MAX, Writer
from tidings.timeline.store_rules import lateness_of

Table = Literal["near", "far", "standing", "finished"]

_PLAIN = "stream, due, partition, deadline, reason, generation, n, accepted, content, id, labels, message"
NEAR = f"SELECT {_PLAIN} FROM near WHERE stream = ? AND due = ? AND arrival = ?"
RECURRING = (
    "SELECT stream, due, partition, generation, n, accepted, content, id, labels, message, state, origin, fires,"
    " released, policy FROM standing WHERE arrival = ?"
)
FINISHED_SQL = (
    "SELECT stream, ifnull(last_due, due), partition, generation, n, accepted, content, id, labels, state, reason, at,"
    " position FROM finished WHERE due = ? AND arrival = ?"
)
_BELOW = "SELECT place, heads, bodies FROM parcel WHERE place >= ?1 AND place <= ?2 ORDER BY place DESC LIMIT 1"


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

    @property
    def last_moment(self) -> int | None:
        return None if self.deadline == NO_DEADLINE else self.deadline


def find(connection: apsw.Connection, writer: Writer, tenant: str, schedule_id: str, now: int) -> Found | None:
    """The newest schedule of this id that is pending, paused, or finished and still remembered."""
    for arrival, due in _row_keys(connection, writer, tenant, schedule_id):
        found = _with_key(connection, writer, tenant, schedule_id, arrival, due)
        if found is not None:
            return None if forgotten(found, writer, now) else found
    return None


def forgotten(found: Found, writer: Writer, now: int) -> bool:
    """Whether a finished schedule is past its retention, even if its row is not deleted yet."""
    return found.at is not None and found.at + writer.options.id_retention_us <= now


def _row_keys(connection: apsw.Connection, writer: Writer, tenant: str, schedule_id: str) -> Iterator[tuple[int, int]]:
    yield from writer.idmap.row_keys(connection, writer.idmap.hash(tenant, schedule_id))
    made = MADE_ID.match(schedule_id)
    if made and int(made[1]) <= writer.arrival:
        yield int(made[1]), int(made[2])


def _with_key(
    connection: apsw.Connection, writer: Writer, tenant: str, schedule_id: str, arrival: int, due: int
) -> Found | None:
    for found in _rows_at(connection, writer, tenant, arrival, due):
        if found.id == schedule_id and writer.stream_names[found.stream][0] == tenant:
            return found
    return None


def _rows_at(connection: apsw.Connection, writer: Writer, tenant: str, arrival: int, due: int) -> Iterator[Found]:
    """The rows with a key. Tables are read in the order in which rows move, so that a moving row is not missed."""
    for place in far_places(arrival, due):
        for row in row_at(connection, place):
            yield from _resolve(connection, plain("far", arrival, place, row))
    for priority, to_kafka in product(Priority, (False, True)):
        stream = writer.streams.get((tenant, priority, to_kafka))
        if stream is not None:
            for row in connection.execute(NEAR, (stream, due, arrival)):
                yield from _resolve(connection, plain("near", arrival, 0, row))
    yield from recurring(connection, arrival)
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
        yield from recurring(connection, found.arrival)
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


def recurring(connection: apsw.Connection, arrival: int) -> Iterator[Found]:
    """The recurring or paused schedule of an arrival, if there is one."""
    for row in connection.execute(RECURRING, (arrival,)):
        yield recurring_row(arrival, row)


def recurring_row(arrival: int, row: tuple[Any, ...]) -> Found:
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
        lateness=lateness_of(found),
        labels=found.labels,
        message=found.message,
        finished=found.at,
        reason=_reason(writer, found),
        partition=None if position is None else (position >> OFFSET_BITS) % PARTITIONS_MAX,
        offset=None if position is None else position & OFFSET_MASK,
        tzdata=None if found.terms is None else found.terms.tzdata,
        jitter_window_us=0 if found.terms is None else found.terms.jitter_window_us,
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


class _Sought(NamedTuple):
    """The number of a schedule in its batch, and where the newest row of its id lies."""

    number: int
    arrival: int
    due: int


class Repeats:
    """Answers new schedules whose id is there with the same content, inside the writer's transaction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def unchanged(self, adds: Sequence[Add], keys: Mapping[int, tuple[int, int]], now: int) -> dict[int, Outcome]:
        """The answers by index, of those that are recognised; all of one tenant. `keys` are of their newest rows."""
        sought = [_Sought(index, *key) for index, key in keys.items()]
        found: dict[int, Outcome] = {}
        for which in (0, -1):  # where its day is in `far`, then where its quarter of an hour is
            left = [one for one in sought if one.number not in found]
            places = sorted((far_places(one.arrival, one.due)[which], one) for one in left)
            found.update(self._in_parcels(adds, places, now))
        for one in sought:
            if one.number not in found:
                found.update(self._by_itself(adds[one.number], one, now))
        return found

    @property
    def _connection(self) -> apsw.Connection:
        return self._writer.connection

    def _in_parcels(
        self, adds: Sequence[Add], places: Sequence[tuple[int, _Sought]], now: int
    ) -> Iterator[tuple[int, Outcome]]:
        """From the last place to the first, so that each parcel is read once."""
        end = len(places)
        while end:
            last = places[end - 1][0]
            parcel = self._connection.execute(_BELOW, (last & ~ARRIVAL_MASK, last)).fetchone()
            start = end - 1
            if parcel is not None:
                while start and places[start - 1][0] >= parcel[0]:
                    start -= 1
                yield from self._in_parcel(adds, places[start:end], now, *parcel[1:])
            end = start

    def _in_parcel(
        self, adds: Sequence[Add], places: Sequence[tuple[int, _Sought]], now: int, heads_blob: bytes, bodies: bytes
    ) -> Iterator[tuple[int, Outcome]]:
        heads = packed_rows.read_heads(heads_blob)
        arrivals = np.array([one.arrival & ARRIVAL_MASK for _, one in places], dtype=np.int64)
        rows = np.searchsorted(heads["arrival"], arrivals)
        rows[rows == len(heads)] = 0
        there = np.flatnonzero((heads["arrival"][rows] == arrivals) & (heads["live"][rows] == 1))
        rows = rows[there]
        sizes = packed_rows.row_sizes(heads)
        starts = (np.cumsum(sizes) - sizes)[rows]
        columns = (there, starts, *(heads[name][rows] for name in ("id_bytes", "stream", "due")))
        for at, start, id_bytes, stream, due in zip(*(column.tolist() for column in columns), strict=True):
            index = places[at][1].number
            add = adds[index]
            assert add.id is not None, "what is looked up has an id"
            sent = add.content + add.id.encode()
            is_same = bodies[start : start + CONTENT_BYTES + id_bytes] == sent
            if is_same and due > now and self._writer.stream_names[stream][0] == add.tenant:
                yield index, Outcome(add.id, "unchanged", due, "pending")

    def _by_itself(self, add: Add, one: _Sought, now: int) -> Iterator[tuple[int, Outcome]]:
        """A row that is due soon, or finished."""
        for priority in Priority:
            for to_kafka in (False, True):
                stream = self._writer.streams.get((add.tenant, priority, to_kafka))
                for row in () if stream is None else self._connection.execute(NEAR, (stream, one.due, one.arrival)):
                    near = plain("near", one.arrival, 0, row)
                    if near.n == 1 and near.due > now and (near.id, near.content) == (add.id, add.content):
                        yield one.number, Outcome(near.id, "unchanged", near.due, "pending")
                        return
        for row in self._connection.execute(FINISHED_SQL, (one.due, one.arrival)):
            left = finished(one.arrival, one.due, row)
            tenant = self._writer.stream_names[left.stream][0]
            is_same = (left.id, left.content, tenant) == (add.id, add.content, add.tenant)
            if is_same and not forgotten(left, self._writer, now):
                yield one.number, Outcome(left.id, "unchanged", left.due, left.state)
