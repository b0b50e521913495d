"""The schedules that the store knows, and what of them waits for its time."""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidings.domain.changes import Begin
from tidings.domain.command import FINISHED, Add, Priority, State
from tidings.domain.destination import is_kafka
from tidings.domain.history import HISTORY_LINES_MAX
from tidings.domain.schedule import Event, make_id
from tidings.domain.terms import Terms, terms_of
from tidings.domain.when import Once
from tidings.timeline.room import Room

Stream = tuple[str, Priority, bool]  # tenant, priority, whether it goes to Kafka


@dataclass(slots=True, eq=False)
class Row:
    """One generation of a schedule: what was asked for, and where it stands.

    `number` and `due` are those of the pending occurrence, of a finished schedule those of its last. `released`
    counts its occurrences that left, `fired` what was asked for in addition.
    """

    id: str
    add: Add
    terms: Terms
    generation: int
    arrival: int
    accepted: int
    due: int
    number: int = 1
    state: State = "pending"
    reason: str | None = None
    finished: int | None = None
    partition: int | None = None
    offset: int | None = None
    released: int = 0
    fired: int = 0
    events: list[Event] = field(default_factory=list)
    waiting: "list[Waiting]" = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    def note(self, event: Event) -> None:
        """Add a line to the history; of a long one the latest lines are kept."""
        self.events.append(event)
        del self.events[:-HISTORY_LINES_MAX]


class Waiting(NamedTuple):
    """What waits for its time: the pending occurrence of a schedule, or a fire of it (number < 0)."""

    due: int
    arrival: int
    number: int
    row: Row


class Rows:
    """Every schedule by tenant and id; and what waits, by stream, in order of (due, arrival)."""

    def __init__(self, created: int, id_retention_us: int, room: Room) -> None:
        self._created = created
        self._id_retention_us = id_retention_us
        self._rows: dict[tuple[str, str], Row] = {}
        self._streams: dict[Stream, list[Waiting]] = {}
        self._arrivals = 0
        self.room = room
        self.held: dict[int, str] = {}
        self.leaving: Callable[[str, str, int], int | None] = _none_leaves

    # Schedules

    def drop(self, offset: int, reason: str, now: int) -> None:
        """What was in the outbox there is missed."""
        for row in self._rows.values():
            if is_kafka(row.add.topic) and row.state == "released" and row.offset == offset:
                row.state, row.reason, row.finished, row.offset = "missed", reason, now, None

    def in_flight(self, row: Row) -> bool:
        """Whether it is in the outbox and not known to be on Kafka."""
        on_its_way = is_kafka(row.add.topic) and row.state == "released" and row.offset is not None
        return on_its_way and ((row.offset or 0) >= self.room.arrived or row.offset in self.held)

    def latest_in_flight(self, row: Row) -> int | None:
        """The number of its latest occurrence in the outbox that is not known to be on Kafka."""
        if not is_kafka(row.add.topic) or row.state in {"released", "missed"}:
            return None
        return self.leaving(row.add.tenant, row.id, self.room.arrived)

    def known(self, tenant: str, schedule_id: str, now: int) -> Row | None:
        """The schedule of this id, unless it finished so long ago that the id is free again."""
        row = self._rows.get((tenant, schedule_id))
        return None if row is None or self._is_forgotten(row, now) else row

    def of_tenant(self, tenant: str, now: int) -> list[Row]:
        """Every schedule of a tenant that is known."""
        return [row for row in self._rows.values() if row.add.tenant == tenant and not self._is_forgotten(row, now)]

    def pending(self) -> list[Row]:
        """The pending schedules of all tenants."""
        return [row for row in self._rows.values() if row.state == "pending"]

    def standing(self) -> list[Row]:
        """What is pending or paused and has terms of its own, by arrival."""
        rows = [row for row in self._rows.values() if not row.is_finished and not isinstance(row.terms.when, Once)]
        return sorted(rows, key=lambda row: row.arrival)

    def remembered_since(self, now: int) -> int:
        """An id that finished at this moment or later is known."""
        return max(self._created, now - self._id_retention_us)

    def forgotten_until(self, now: int) -> int:
        """What finished at this moment or earlier is forgotten."""
        return now - self._id_retention_us

    def begin(self, begin: Begin, now: int, before: Row | None = None) -> Row:
        """Store a new schedule, or a new generation of the one before it."""
        add, arrival = begin.add, self._next_arrival()
        schedule_id = make_id(arrival, add.due, add.priority) if add.id is None else add.id
        terms = begin.terms or terms_of(add)
        row = Row(schedule_id, add, terms, begin.generation, arrival, accepted=now, due=add.due, number=begin.n)
        if before is not None:
            row.events = before.events
        self._rows[add.tenant, schedule_id] = row
        if begin.paused:
            row.state = "paused"
        else:
            self.hold(row)
        return row

    def arrive(self, row: Row) -> None:
        """Let a schedule be the latest one that arrived."""
        row.arrival = self._next_arrival()

    def finish(self, row: Row, state: State, now: int, reason: str | None = None) -> None:
        """From now on nothing of this schedule is pending; its id is remembered for a while."""
        row.state, row.finished, row.reason = state, now, reason

    def forget(self, now: int) -> None:
        """Drop what finished so long ago that its id is free."""
        forgotten = [place for place, row in self._rows.items() if self._is_forgotten(row, now)]
        for place in forgotten:
            del self._rows[place]

    def _is_forgotten(self, row: Row, now: int) -> bool:
        return row.finished is not None and row.finished <= self.forgotten_until(now)

    # What waits

    def hold(self, row: Row) -> None:
        """Let the pending occurrence wait for its time."""
        self._put(Waiting(row.due, row.arrival, row.number, row))

    def hold_fire(self, row: Row, now: int) -> None:
        """Let one more record of a recurring schedule leave at the next release."""
        row.fired += 1
        self._put(Waiting(now, self._next_arrival(), -row.fired, row))

    def take(self, waiting: Waiting) -> None:
        """It waits no longer."""
        waiting.row.waiting.remove(waiting)
        stream = self._streams[_stream(waiting)]
        del stream[bisect_left(stream, waiting)]
        if not stream:
            del self._streams[_stream(waiting)]

    def withdraw(self, row: Row, *, fires: bool) -> None:
        """Nothing of this schedule waits any longer; without `fires` only what was fired still does."""
        for waiting in list(row.waiting):
            if fires or waiting.number > 0:
                self.take(waiting)

    def due(self, now: int) -> dict[Stream, list[Waiting]]:
        """What waits, is due and may leave now, by stream, in order."""
        streams = {
            stream: waiting[: bisect_left(waiting, now + 1, key=lambda each: each.due)]
            for stream, waiting in self._open()
        }
        return {stream: waiting for stream, waiting in streams.items() if waiting}

    def next_due(self) -> int | None:
        """The earliest moment that anything which may leave now waits for."""
        return min((waiting[0].due for _, waiting in self._open()), default=None)

    def _open(self) -> "list[tuple[Stream, list[Waiting]]]":
        """The streams that may leave now: those of Kafka only while there is room in the outbox."""
        has_room = self.room.rows > 0
        return [(stream, waiting) for stream, waiting in self._streams.items() if has_room or not stream[2]]

    def _put(self, waiting: Waiting) -> None:
        waiting.row.waiting.append(waiting)
        insort(self._streams.setdefault(_stream(waiting), []), waiting)

    def _next_arrival(self) -> int:
        self._arrivals += 1
        return self._arrivals


def _none_leaves(_tenant: str, _id: str, _arrived: int) -> None:
    """There is no outbox."""


def _stream(waiting: Waiting) -> Stream:
    add = waiting.row.add
    return add.tenant, add.priority, is_kafka(add.topic)
