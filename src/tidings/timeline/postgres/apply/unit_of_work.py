"""The unit of work of a transaction: schedules are loaded (`Loader`), changed in memory, and written back (`Saver`)."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec

from tidings.domain.changes import next_occurrence
from tidings.domain.schedules.command import FINISHED, Priority, State
from tidings.domain.schedules.lateness import MissedReason
from tidings.domain.schedules.recurrence_state import RecurrenceState, decode_state, encode_state
from tidings.domain.schedules.schedule import Event, Schedule
from tidings.domain.schedules.when import Once
from tidings.timeline.postgres import database
from tidings.timeline.postgres.database import Connection, Contended
from tidings.timeline.postgres.names import PRIORITIES, SLOTS, TO_KAFKA, Names
from tidings.timeline.postgres.pool import Row, rows
from tidings.timeline.store_rules import lateness_of

Table = Literal["timeline", "standing", "finished"]
Lock = Literal["lock", "lock_free", "registered"]  # the query of the registry: `registered` takes no locks
TimelineKey = tuple[int, int, int, int]  # lane, slot, due time, arrival

STATES: tuple[State, ...] = ("released", "missed", "cancelled", "ended")
REASONS = ("", *get_args(MissedReason))  # rows store the index, so reasons are only ever appended
KEY_BYTES = 16
POINTER_CONTENT = bytes(16)
LOAD_TRIES_MAX = 20
HEAD = 12  # the number of leading columns that all tables share


class Found(msgspec.Struct, gc=False):
    """One generation of a schedule. `flying`: it is in the outbox and not known to be on Kafka.

    Not `kw_only`: it is built from the leading columns of a row.
    """

    table: Table
    arrival: int
    due: int
    lane: int
    stream: int
    topic: int
    part: int
    generation: int
    n: int
    accepted: int
    content: bytes
    id: str
    labels: str | None
    state: State = "pending"
    message: bytes | None = None
    deadline: int | None = None
    reason: str | None = None
    fires: int = 0
    released: int = 0
    terms: RecurrenceState | None = None
    at: int | None = None
    position: int | None = None
    flying: bool = False
    held: str | None = None

    @property
    def last_moment(self) -> int | None:
        return self.deadline


def key_of(tenant: str, schedule_id: str) -> bytes:
    """The key of an id; `tidings.key` computes the same in SQL."""
    return sha256(b"%b\0%b" % (tenant.encode(), schedule_id.encode())).digest()[:KEY_BYTES]


def slot_of(stream: int) -> int:
    """The slot of a stream. With very many streams some share a slot; slot modulo 3 is the priority."""
    return stream % SLOTS


def timeline_key(found: Found | None) -> TimelineKey | None:
    """The key of a schedule's row on the timeline; None if it has no row there."""
    if found is None or found.table == "finished" or found.state == "paused":
        return None
    return found.lane, slot_of(found.stream), found.due, found.arrival


def route_of(found: Found) -> int:
    """The route of a row: the number of its lane for the log, the complement for Kafka."""
    return ~found.lane if found.part == TO_KAFKA else found.lane


def present(names: Names, found: Found, now: int | None = None) -> Schedule:
    """A row as shown to readers."""
    upcoming = next_occurrence(found.terms if found.state == "pending" else None, found.n, found.due, now)
    on_log = found.position is not None and found.part >= 0
    return Schedule(
        tenant=names.tenant_of(found.stream),
        id=found.id,
        generation=found.generation,
        topic=names.destination(found.topic)[1],
        state="in_flight" if found.flying else found.state,
        due=upcoming.due,
        accepted=found.accepted,
        priority=Priority(found.stream % PRIORITIES),
        occurrence=upcoming.number,
        when=found.terms.when if found.terms else None if found.table == "finished" else Once(found.due),
        lateness=lateness_of(found),
        labels=found.labels,
        message=found.message,
        finished=found.at,
        reason=found.held if found.flying else found.reason if found.state in FINISHED else None,
        partition=found.part if on_log else None,
        offset=found.position if on_log else None,
        tzdata=None if found.terms is None else found.terms.tzdata,
        jitter_window_us=0 if found.terms is None else found.terms.jitter_window_us,
    )


class IdTaken(Exception):
    """Another transaction has used one of our new ids: retry with what it stored."""


class ArrivalReused(Contended):
    """An arrival number belongs to another schedule: after a failover the server gave it out again."""


class ScheduleRow:
    """One id in a transaction: its schedule before and now, new history lines, and records fired by hand.

    `in_flight` is the number of its latest record in the outbox that is not known to be on Kafka.
    """

    def __init__(self, key: bytes, lane: int) -> None:
        self.key = key
        self.lane = lane
        self.known: tuple[int, int, int] | None = None
        self.before: Found | None = None
        self.now: Found | None = None
        self.notes: list[Event] = []
        self.in_flight: int | None = None
        self.fired: list[Found] = []
        self.unfired: dict[int, Found] = {}

    def withdraw(self) -> None:
        """Remove the current schedule, and its fired records that are not released yet."""
        if self.now is not None and self.now.table == "standing":
            self.unfired[self.now.arrival] = self.now
        self.fired = []
        self.now = None


class Loader:
    """Reads schedules by key, with or without locks."""

    def __init__(self, connection: Connection, queries: dict[str, str], lanes: int, lock: Lock) -> None:
        self._connection = connection
        self._queries = queries
        self._lanes = lanes
        self._lock = lock

    async def entries(self, keys: Iterable[bytes]) -> dict[bytes, ScheduleRow]:
        """The rows of some keys, each with its newest schedule."""
        entries = {key: ScheduleRow(key, key[0] & (self._lanes - 1)) for key in keys}
        searched = list(entries)
        for _ in range(LOAD_TRIES_MAX):
            searched = await self._search(entries, searched)
            if not searched:
                return entries
        raise AssertionError("ids point to missing schedules")

    async def _search(self, entries: dict[bytes, ScheduleRow], keys: list[bytes]) -> list[bytes]:
        """Read the schedules of some keys; returns the keys whose schedules moved between tables meanwhile."""
        wanted: dict[tuple[int, int], ScheduleRow] = {}
        for key, due, arrival, stream in await self._rows(self._lock, database.uuids(sorted(keys))):
            entry = entries[key]
            entry.known = (due, arrival, stream)
            wanted[stream, arrival] = entry
        for look in (self._timeline, self._recurring, self._finished):
            if not wanted:
                return []
            for found in await look([entry for entry in wanted.values() if entry.known is not None]):
                entry = wanted.pop((found.stream, found.arrival))
                entry.before = entry.now = found
        return [entry.key for entry in wanted.values()]

    async def _timeline(self, entries: list[ScheduleRow]) -> list[Found]:
        known = [(entry.lane, *entry.known) for entry in entries if entry.known is not None]
        answer = await self._rows(
            "timeline_seen" if self._lock == "registered" else "timeline",
            database.int2s([lane for lane, *_ in known]),
            database.int2s([slot_of(stream) for *_, stream in known]),
            database.int8s([due for _, due, _, _ in known]),
            database.int8s([arrival for _, _, arrival, _ in known]),
        )
        return [timeline_row(row) for row in answer]

    async def _recurring(self, entries: list[ScheduleRow]) -> list[Found]:
        arrivals = [entry.known[1] for entry in entries if entry.known is not None]
        return [recurring_row(row) for row in await self._rows("recurring", database.int8s(arrivals))]

    async def _finished(self, entries: list[ScheduleRow]) -> list[Found]:
        known = [entry.known for entry in entries if entry.known is not None]
        answer = await self._rows(
            "finished",
            database.int4s([stream for _, _, stream in known]),
            database.int8s([due for due, _, _ in known]),
            database.int8s([arrival for _, arrival, _ in known]),
        )
        return [finished_row(row) for row in answer]

    async def _rows(self, name: str, *values: object) -> list[Row]:
        return await rows(self._connection, self._queries[name], values)


def timeline_row(row: Row) -> Found:
    """A pending one-shot."""
    found = Found("timeline", *row[:HEAD])
    found.message, found.deadline, reason = row[HEAD:]
    found.reason = REASONS[reason] or None
    return found


def recurring_row(row: Row) -> Found:
    """A recurring or paused schedule."""
    found = Found("standing", *row[:HEAD])
    found.message, found.state, found.fires, found.released, terms = row[HEAD:]
    found.terms = decode_state(terms)
    return found


def finished_row(row: Row) -> Found:
    """A finished schedule."""
    found = Found("finished", *row[:HEAD])
    state, reason, found.at, found.position, beyond, found.held = row[HEAD:]
    found.state, found.reason = STATES[state], REASONS[reason] or None
    found.flying = found.part < 0 and found.position is not None and (beyond is True or found.held is not None)
    return found


class Saver:
    """Writes changed rows, with one statement for each kind of change."""

    def __init__(self, connection: Connection, queries: dict[str, str]) -> None:
        self._connection = connection
        self._queries = queries

    async def save(self, entries: Sequence[ScheduleRow]) -> None:
        """Write the rows; `IdTaken` if an id is not new any more."""
        changed = [entry for entry in entries if entry.now is not None and entry.now is not entry.before]
        await self._register(changed)
        await self._unfire(entries)
        gone = [key for entry in changed if (key := timeline_key(entry.before)) is not None]
        if gone:
            await self.leave(gone)
        before = [entry.before for entry in changed if entry.before is not None]
        now = [entry.now for entry in changed if entry.now is not None]
        stay = {found.arrival for found in now if found.table == "standing"}
        over = [found.arrival for found in before if found.table == "standing" and found.arrival not in stay]
        if over:
            await self._run("drop_recurring", database.int8s(over))
        await self._forget([found for found in before if found.table == "finished"])
        await self.write_recurring([found for found in now if found.table == "standing"])
        await self.finish([found for found in now if found.table == "finished"])
        fired = [(entry, extra) for entry in entries for extra in entry.fired]
        waiting = [_waiting(found) for found in now if timeline_key(found) is not None]
        await self.wait([*waiting, *(extra for _, extra in fired)])
        if fired:
            schedules = [entry.now.arrival for entry, _ in fired if entry.now is not None]
            dues, arrivals = [extra.due for _, extra in fired], [extra.arrival for _, extra in fired]
            await self._run("fire", *(database.int8s(column) for column in (schedules, dues, arrivals)))
        await self.note([(entry.key, note) for entry in entries for note in entry.notes])

    async def _register(self, entries: list[ScheduleRow]) -> None:
        """Write the registry; an id without a schedule keeps its entry."""
        new = sorted((e for e in entries if e.known is None and e.now is not None), key=lambda entry: entry.key)
        if new:
            added = await self._run("register", *_registry_columns(new))
            if len(added) < len(new):
                raise IdTaken
        moved = [entry for entry in entries if entry.known is not None and _moved(entry)]
        if moved:
            await self._run("move", *_registry_columns(moved))

    async def _unfire(self, entries: Sequence[ScheduleRow]) -> None:
        schedules = {arrival: found for entry in entries for arrival, found in entry.unfired.items()}
        if schedules:
            fired = await self._run("drop_fired", database.int8s(list(schedules)))
            if fired:
                homes = [schedules[schedule] for schedule, _, _ in fired]
                pairs = zip(homes, fired, strict=True)
                await self.leave([(h.lane, slot_of(h.stream), due, arrival) for h, (_, due, arrival) in pairs])

    async def leave(self, keys: Sequence[TimelineKey]) -> None:
        """Take rows off the timeline."""
        lanes, slots, dues, arrivals = zip(*keys, strict=True)
        await self._run(
            "leave", database.int2s(lanes), database.int2s(slots), database.int8s(dues), database.int8s(arrivals)
        )

    async def wait(self, found: Sequence[Found]) -> None:
        """Put rows onto the timeline."""
        if found:
            slots = [slot_of(each.stream) for each in found]
            await self._run(
                "wait",
                database.int2s(list(set(slots))),
                *_head(found),
                database.int4s([each.n for each in found]),
                database.int2s([each.lane for each in found]),
                database.int2s(slots),
                database.int2s([each.part for each in found]),
                database.int2s([_reason(each) for each in found]),
                database.texts([each.id.encode() for each in found]),
                database.byteas([each.message or b"" for each in found]),
                database.maybe_int8s([each.deadline for each in found]),
                database.maybe_texts([each.labels for each in found]),
            )

    async def write_recurring(self, found: Sequence[Found]) -> None:
        """Write recurring and paused schedules."""
        if found:
            arrival, *rest = _head(found, arrival_first=True)
            written = await self._run(
                "stand",
                arrival,
                *rest,
                database.int4s([each.n for each in found]),
                database.int4s([each.fires for each in found]),
                database.int4s([each.released for each in found]),
                database.int2s([each.lane for each in found]),
                database.int2s([each.part for each in found]),
                database.texts([each.state.encode() for each in found]),
                database.texts([each.id.encode() for each in found]),
                database.byteas([each.message or b"" for each in found]),
                database.byteas([encode_state(_terms(each)) for each in found]),
                database.maybe_texts([each.labels for each in found]),
            )
            if len(written) < len(found):
                raise ArrivalReused(
                    "an arrival number was given out twice, as after a failover, and nothing was changed: try again"
                )

    async def finish(self, found: Sequence[Found]) -> None:
        """Store finished schedules."""
        if found:
            due, arrival, *rest = _head(found)
            await self._run(
                "finish",
                due,
                arrival,
                database.int8s([each.at or 0 for each in found]),
                *rest,
                database.int4s([each.n for each in found]),
                database.int2s([each.lane for each in found]),
                database.int2s([each.part for each in found]),
                database.int2s([STATES.index(each.state) for each in found]),
                database.int2s([_reason(each) for each in found]),
                database.texts([each.id.encode() for each in found]),
                database.maybe_int8s([each.position for each in found]),
                database.maybe_texts([each.labels for each in found]),
            )

    async def _forget(self, found: list[Found]) -> None:
        if found:
            await self._run(
                "forget",
                database.int4s([each.stream for each in found]),
                database.int8s([each.due for each in found]),
                database.int8s([each.arrival for each in found]),
            )

    async def note(self, notes: Sequence[tuple[bytes, Event]]) -> None:
        """Add lines to histories."""
        if notes:
            await self._run(
                "note",
                database.uuids([key for key, _ in notes]),
                database.int8s([note.at for _, note in notes]),
                database.texts([note.event.encode() for _, note in notes]),
                database.maybe_int8s([note.occurrence for _, note in notes]),
                database.maybe_int8s([note.due for _, note in notes]),
                database.maybe_texts([note.reason for _, note in notes]),
                database.maybe_int8s([note.count for _, note in notes]),
            )

    async def _run(self, name: str, *values: object) -> list[Row]:
        return await rows(self._connection, self._queries[name], values)


def _registry_columns(entries: list[ScheduleRow]) -> tuple[Any, ...]:
    found = [entry.now for entry in entries if entry.now is not None]
    return (
        database.uuids([entry.key for entry in entries]),
        database.int8s([each.due for each in found]),
        database.int8s([each.arrival for each in found]),
        database.int4s([each.stream for each in found]),
    )


def _moved(entry: ScheduleRow) -> bool:
    return entry.now is not None and entry.known != (entry.now.due, entry.now.arrival, entry.now.stream)


def _head(found: Sequence[Found], *, arrival_first: bool = False) -> list[Any]:
    """The columns that all tables share: due, arrival, accepted, content, stream, topic, generation."""
    due, arrival = database.int8s([each.due for each in found]), database.int8s([each.arrival for each in found])
    return [
        *((arrival, due) if arrival_first else (due, arrival)),
        database.int8s([each.accepted for each in found]),
        database.uuids([each.content for each in found]),
        database.int4s([each.stream for each in found]),
        database.int4s([each.topic for each in found]),
        database.int4s([each.generation for each in found]),
    ]


def _waiting(found: Found) -> Found:
    """The row on the timeline: the one-shot itself, or a pointer to a recurring schedule."""
    if found.table == "timeline":
        return found
    return msgspec.structs.replace(
        found, n=0, message=b"", content=POINTER_CONTENT, deadline=None, reason=None, labels=None
    )


def _terms(found: Found) -> RecurrenceState:
    assert found.terms is not None, "a recurring schedule has terms"
    return found.terms


def _reason(found: Found) -> int:
    return REASONS.index(found.reason) if found.reason else 0
