"""The schedules in memory, the timeline of their pending occurrences, lists of them, and calendars."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tidings.domain.changes import HISTORY_LINES_MAX, Begin, next_occurrence
from tidings.domain.recurrence import timezone
from tidings.domain.schedules.command import FINISHED, Add, Command, Priority, Replace, State
from tidings.domain.schedules.recurrence_state import RecurrenceState, revised, terms_of
from tidings.domain.schedules.reschedule import CalendarChange, Pending, Revise, Seen, Slice, calendar_of, zone_of
from tidings.domain.schedules.schedule import (
    Calendar,
    Event,
    KeptZone,
    ListPosition,
    Moved,
    Page,
    Query,
    Schedule,
    decode_cursor,
    encode_cursor,
    is_kafka,
    make_id,
    split,
)
from tidings.domain.schedules.when import Once
from tidings.timeline import store_rules
from tidings.timeline.store_rules import OutboxCapacity

Stream = tuple[str, Priority, bool]  # tenant, priority, whether it goes to Kafka


@dataclass(slots=True, eq=False)
class Row:
    """One generation of a schedule and its state.

    `number` and `due` belong to the pending occurrence, or to the last one of a finished schedule. `released` counts
    its released occurrences, `fired` the extra records fired by hand.
    """

    id: str
    add: Add
    terms: RecurrenceState
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
        """Add a line to the history, which keeps only its latest lines."""
        self.events.append(event)
        del self.events[:-HISTORY_LINES_MAX]


class Waiting(NamedTuple):
    """An entry of the timeline: the pending occurrence of a schedule, or a record fired by hand (number < 0)."""

    due: int
    arrival: int
    number: int
    row: Row


class Rows:
    """Every schedule by tenant and id, and the timeline: by stream, in order of (due, arrival)."""

    def __init__(
        self,
        created: int,
        id_retention_us: int,
        room: OutboxCapacity,
        *,
        held: Mapping[int, str],
        leaving: Callable[[str, str, int], int | None],
    ) -> None:
        self._created = created
        self._id_retention_us = id_retention_us
        self._rows: dict[tuple[str, str], Row] = {}
        self._streams: dict[Stream, list[Waiting]] = {}
        self._arrivals = 0
        self.room = room
        self._held = held
        self._leaving = leaving

    # Schedules

    def drop(self, offset: int, reason: str, now: int) -> None:
        """The record at this offset of the outbox is missed."""
        for row in self._rows.values():
            if is_kafka(row.add.topic) and row.state == "released" and row.offset == offset:
                row.state, row.reason, row.finished, row.offset = "missed", reason, now, None

    def left(self, offset: int, at: int) -> None:
        """The record at this offset of the outbox left at this moment."""
        for row in self._rows.values():
            if is_kafka(row.add.topic) and row.state == "released" and row.offset == offset:
                row.finished = at

    def in_flight(self, row: Row) -> bool:
        """Whether it is in the outbox and not known to be on Kafka."""
        on_its_way = is_kafka(row.add.topic) and row.state == "released" and row.offset is not None
        return on_its_way and ((row.offset or 0) >= self.room.arrived or row.offset in self._held)

    def latest_in_flight(self, row: Row) -> int | None:
        """The number of its latest occurrence in the outbox that is not known to be on Kafka."""
        if not is_kafka(row.add.topic) or row.state in {"released", "missed"}:
            return None
        return self._leaving(row.add.tenant, row.id, self.room.arrived)

    def known(self, tenant: str, schedule_id: str, now: int) -> Row | None:
        """The schedule of this id, unless it finished before the retention of ids."""
        row = self._rows.get((tenant, schedule_id))
        return None if row is None or self._is_forgotten(row, now) else row

    def of_tenant(self, tenant: str, now: int) -> list[Row]:
        """Every known schedule of a tenant."""
        return [row for row in self._rows.values() if row.add.tenant == tenant and not self._is_forgotten(row, now)]

    def pending(self) -> list[Row]:
        """The pending schedules of all tenants."""
        return [row for row in self._rows.values() if row.state == "pending"]

    def recurring(self) -> list[Row]:
        """The recurring schedules that are pending or paused, by arrival."""
        rows = [row for row in self._rows.values() if not row.is_finished and not isinstance(row.terms.when, Once)]
        return sorted(rows, key=lambda row: row.arrival)

    def remembered_since(self, now: int) -> int:
        """Ids that finished at this time or later are known."""
        return max(self._created, now - self._id_retention_us)

    def forgotten_until(self, now: int) -> int:
        """Ids that finished at this time or earlier are forgotten."""
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
        """Give a schedule a new arrival number, the highest one."""
        row.arrival = self._next_arrival()

    def finish(self, row: Row, state: State, now: int, reason: str | None = None) -> None:
        """Finish a schedule; its id is remembered for the retention of ids."""
        row.state, row.finished, row.reason = state, now, reason

    def forget(self, now: int) -> None:
        """Delete schedules that finished before the retention of ids."""
        forgotten = [row_id for row_id, row in self._rows.items() if self._is_forgotten(row, now)]
        for row_id in forgotten:
            del self._rows[row_id]

    def _is_forgotten(self, row: Row, now: int) -> bool:
        return row.finished is not None and row.finished <= self.forgotten_until(now)

    # Timeline

    def hold(self, row: Row) -> None:
        """Put the pending occurrence onto the timeline."""
        self._put(Waiting(row.due, row.arrival, row.number, row))

    def hold_fire(self, row: Row, now: int) -> None:
        """Put one more record of a recurring schedule onto the timeline, due now."""
        row.fired += 1
        self._put(Waiting(now, self._next_arrival(), -row.fired, row))

    def take(self, waiting: Waiting) -> None:
        """Take an entry off the timeline."""
        waiting.row.waiting.remove(waiting)
        stream = self._streams[_stream(waiting)]
        del stream[bisect_left(stream, waiting)]
        if not stream:
            del self._streams[_stream(waiting)]

    def withdraw(self, row: Row, *, fires: bool) -> None:
        """Take a schedule off the timeline; without `fires` its records fired by hand stay."""
        for waiting in list(row.waiting):
            if fires or waiting.number > 0:
                self.take(waiting)

    def due(self, now: int) -> dict[Stream, list[Waiting]]:
        """The due entries that may be released now, by stream, in order."""
        streams = {
            stream: waiting[: bisect_left(waiting, now + 1, key=lambda each: each.due)]
            for stream, waiting in self._open()
        }
        return {stream: waiting for stream, waiting in streams.items() if waiting}

    def next_due(self) -> int | None:
        """The earliest due time among the entries that may be released now."""
        return min((waiting[0].due for _, waiting in self._open()), default=None)

    def _open(self) -> "list[tuple[Stream, list[Waiting]]]":
        """The streams that may be released now: those for Kafka only while there is room in the outbox."""
        has_room = self.room.rows > 0
        return [(stream, waiting) for stream, waiting in self._streams.items() if has_room or not stream[2]]

    def _put(self, waiting: Waiting) -> None:
        waiting.row.waiting.append(waiting)
        insort(self._streams.setdefault(_stream(waiting), []), waiting)

    def _next_arrival(self) -> int:
        self._arrivals += 1
        return self._arrivals


def _stream(waiting: Waiting) -> Stream:
    add = waiting.row.add
    return add.tenant, add.priority, is_kafka(add.topic)


def view(row: Row, now: int | None = None, *, in_flight: bool = False, held: str | None = None) -> Schedule:
    """The schedule as shown to readers; a finished one has no rule, policy and message any more."""
    add, kept = row.add, not row.is_finished
    upcoming = next_occurrence(row.terms if row.state == "pending" else None, row.number, row.due, now)
    return Schedule(
        tenant=add.tenant,
        id=row.id,
        generation=row.generation,
        topic=add.topic,
        state="in_flight" if in_flight else row.state,
        due=upcoming.due,
        accepted=row.accepted,
        priority=add.priority,
        occurrence=upcoming.number,
        when=row.terms.when if kept else None,
        lateness=row.terms.lateness if kept else None,
        labels=add.labels,
        message=add.message if kept else None,
        finished=row.finished,
        reason=held if held is not None else row.reason,
        partition=row.partition,
        offset=None if row.partition is None else row.offset,
        tzdata=row.terms.tzdata if kept else None,
        jitter_window_us=row.terms.jitter_window_us if kept else 0,
    )


def page(
    rows: Iterable[Row], query: Query, in_flight: Callable[[Row], bool], held: Callable[[Row], str | None]
) -> Page:
    """The matching rows after the cursor, in the order of lists."""
    found = sorted((row for row in rows if _fits(row, query, in_flight)), key=lambda row: _list_position(row).order())
    if query.after is not None:
        after = decode_cursor(query.after).order()
        found = [row for row in found if _list_position(row).order() > after]
    shown = found[: query.limit]
    cursor = encode_cursor(_list_position(shown[-1])) if len(found) > len(shown) else None
    return Page(tuple(view(row, in_flight=in_flight(row), held=held(row)) for row in shown), cursor)


def forecast(rows: Iterable[Row], start: int, end: int, width_us: int) -> list[tuple[int, int]]:
    """How many rows are due from `start` to `end` (exclusive); steps begin at multiples of the width."""
    steps = Counter(row.due // width_us for row in rows if start <= row.due < end)
    return [(step * width_us, steps[step]) for step in sorted(steps)]


def _fits(row: Row, query: Query, in_flight: Callable[[Row], bool]) -> bool:
    return (
        (query.topic is None or split(row.add.topic)[1] == query.topic)
        and (query.state is None or ("in_flight" if in_flight(row) else row.state) == query.state)
        and (query.due_from is None or row.due >= query.due_from)
        and (query.due_to is None or row.due < query.due_to)
        and (query.prefix is None or row.id.startswith(query.prefix))
        and (query.label is None or _has_label(row, *query.label))
    )


def _has_label(row: Row, name: str, value: str) -> bool:
    if row.add.labels is None:
        return False
    labels = msgspec.json.decode(row.add.labels, type=dict[str, str])
    return labels.get(name) == value


def _list_position(row: Row) -> ListPosition:
    return ListPosition(row.is_finished, row.due, row.arrival)


class Calendars:
    """Calendars and time zone rules, and the recurring schedules that a change of them moves."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._calendars: dict[tuple[str, str], Calendar] = {}
        self._turns: dict[tuple[str, str], int] = {}
        self._unsettled: dict[tuple[str, str], CalendarChange] = {}
        self.zones: dict[tuple[str, str], KeptZone] = {}
        self._moved: dict[str, list[Moved]] = {}

    def of_tenant(self, tenant: str) -> list[Calendar]:
        """All calendars of a tenant, ordered by name."""
        return [calendar for (owner, _), calendar in sorted(self._calendars.items()) if owner == tenant]

    def calendar(self, tenant: str, name: str) -> Calendar | None:
        """One calendar; None if there is none of this name."""
        return self._calendars.get((tenant, name))

    def days_of(self, tenant: str, name: str) -> tuple[int, ...] | None:
        """The days of a calendar, None if there is none."""
        calendar = self.calendar(tenant, name)
        return None if calendar is None else calendar.days

    def put(self, tenant: str, calendar: Calendar) -> CalendarChange:
        """Create or replace a calendar."""
        if (tenant, calendar.name) not in self._calendars and len(self.of_tenant(tenant)) >= store_rules.CALENDARS_MAX:
            raise store_rules.too_many_calendars()
        self._calendars[tenant, calendar.name] = calendar
        return self._changed(tenant, calendar.name)

    def drop(self, tenant: str, name: str) -> CalendarChange | None:
        """Delete a calendar."""
        return None if self._calendars.pop((tenant, name), None) is None else self._changed(tenant, name)

    def _changed(self, tenant: str, name: str) -> CalendarChange:
        self._turns[tenant, name] = turn = self._turns.get((tenant, name), 0) + 1
        self._unsettled[tenant, name] = change = CalendarChange(tenant, name, turn)
        return change

    def unsettled(self) -> list[CalendarChange]:
        """Changes that are not applied to pending occurrences yet."""
        return list(self._unsettled.values())

    def settle(self, changes: Sequence[CalendarChange]) -> None:
        """Mark changes as applied."""
        for change in changes:
            if self._unsettled.get((change.tenant, change.name)) == change:
                del self._unsettled[change.tenant, change.name]

    def keep(self, zone: KeptZone) -> None:
        """Store the rules of a time zone."""
        self.zones.setdefault((zone.name, timezone.digest_of(zone.content)), zone)

    def forget(self, zone: KeptZone) -> None:
        """Delete the rules of a time zone."""
        self.zones.pop((zone.name, timezone.digest_of(zone.content)), None)

    def keep_zones(self, commands: Sequence[Command]) -> None:
        """Store the rules of the time zones that commands use."""
        for command in commands:
            add = command.add if isinstance(command, Replace) else command
            name = zone_of(getattr(add, "when", None))
            if name is not None and (name, timezone.rules_of(name)) not in self.zones:
                self.keep(store_rules.kept_zone(name))

    def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        """Recompute one slice of recurring schedules after a cursor."""
        found = [row for row in self._rows.recurring() if cursor is None or row.arrival > int(cursor)][:limit]
        moved = []
        for row in found:
            answer = revise(self._seen(row))
            if answer is not None and (one := self._change(row, answer, cause, now)) is not None:
                moved.append(one)
                self._moved[one.tenant] = [*self._moved.get(one.tenant, []), one][-store_rules.MOVED_MAX :]
        return Slice(moved, str(found[-1].arrival) if len(found) == limit else None)

    def moved(self, tenant: str, limit: int) -> list[Moved]:
        """The occurrences that were moved most recently, newest first."""
        return self._moved.get(tenant, [])[: -limit - 1 : -1]

    def _seen(self, row: Row) -> Seen:
        terms, tenant = row.terms, row.add.tenant
        name = calendar_of(terms.when)
        days = None if name is None else self.days_of(tenant, name) or ()
        return Seen(tenant, Pending(terms.when, row.number, row.due - terms.jitter_us), terms.rules, days)

    def _change(self, row: Row, pending: Pending, cause: str, now: int) -> Moved | None:
        before, jitter_us = row.due, row.terms.jitter_us
        row.terms = revised(row.terms, pending.when)
        after = None if pending.due is None else pending.due + jitter_us
        if after == before:
            return None
        if row.state == "pending":
            self._rows.withdraw(row, fires=False)
        if after is None:
            self._rows.withdraw(row, fires=True)
            self._rows.finish(row, "ended", now)
            row.note(Event(now, "ended", reason=cause))
        else:
            row.due = after
            row.note(Event(now, "moved", row.number, after, store_rules.moved_reason(cause, before)))
            if row.state == "pending":
                self._rows.hold(row)
        return Moved(now, cause, row.add.tenant, row.id, row.number, before, after)
