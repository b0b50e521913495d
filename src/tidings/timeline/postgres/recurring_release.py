"""Releasing standing schedules: the policy decides, the next occurrence follows from the anchor."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from tidings.domain.schedules.lateness import MissedRange
from tidings.domain.schedules.recurrence_state import RecurrenceState
from tidings.domain.schedules.schedule import Event
from tidings.domain.schedules.when import is_once
from tidings.timeline.outbox_capacity import RECORD_BYTES
from tidings.timeline.postgres import database
from tidings.timeline.postgres.apply.unit_of_work import (
    Found,
    Loader,
    Saver,
    ScheduleRow,
    key_of,
    slot_of,
    timeline_row,
)
from tidings.timeline.postgres.context import StoreContext
from tidings.timeline.postgres.database import Connection
from tidings.timeline.postgres.names import TO_KAFKA
from tidings.timeline.postgres.pool import Row, rows
from tidings.timeline.store_rules import ended_why

TRIM_EVERY = 50


class Record(msgspec.Struct, gc=False):
    """One occurrence on its way to the log or the outbox."""

    found: Found
    n: int
    due: int
    final: bool
    offset: int = -1


class Recurring:
    """Some standing schedules of a lane, inside a transaction that owns it."""

    def __init__(self, shared: StoreContext, connection: Connection, lane: int, following: int, now: int) -> None:
        self._shared = shared
        self._connection = connection
        self._lane = lane
        self._following = following
        self._now = now
        self._records: list[Record] = []
        self.lateness_us: list[int] = []
        self.topics: set[int] = set()
        self.missed: Counter[str] = Counter()
        self.bytes = self.handed = 0
        self.outgoing: tuple[int, list[int]] = (following, [])

    async def release(self, places: Sequence[Sequence[int]]) -> int:
        """Release what is due at some (slot, due time, arrival); answers how many. What is being changed is left."""
        waiting = await self._waiting(places)
        names = self._shared.names
        await names.know({found.topic for found in waiting}, {found.stream for found in waiting})
        keys = {key_of(names.tenant_of(found.stream), found.id) for found in waiting}
        loader = Loader(self._connection, self._shared.sql, self._shared.lanes, "lock_free")
        entries = await loader.entries(keys)
        places = [(slot_of(found.stream), found.due, found.arrival) for found in waiting]
        waiting = [found for found in await self._waiting(places) if self._entry(entries, found).known is not None]
        extras: list[tuple[ScheduleRow, Found]] = []
        for found in sorted(waiting, key=lambda each: (each.due, each.arrival)):
            entry = self._entry(entries, found)
            if found.n < 0:
                self._append(entry, found, found.n, found.due, final=False)
                extras.append((entry, found))
            elif entry.now is not None and entry.now.arrival == found.arrival and entry.now.due == found.due:
                self._go_on(entry, entry.now)
        await self._write(list(entries.values()), extras)
        return len(waiting)

    def _entry(self, entries: dict[bytes, ScheduleRow], found: Found) -> ScheduleRow:
        return entries[key_of(self._shared.names.tenant_of(found.stream), found.id)]

    async def _waiting(self, places: Sequence[Sequence[int]]) -> list[Found]:
        """The rows of the timeline at some places that are there."""
        if not places:
            return []
        slots, dues, arrivals = zip(*places, strict=True)
        answer = await self._run(
            "extras",
            database.int2s([self._lane] * len(places)),
            database.int2s(slots),
            database.int8s(dues),
            database.int8s(arrivals),
        )
        return [timeline_row(row) for row in answer]

    def _go_on(self, entry: ScheduleRow, found: Found) -> None:
        """Release what is due of one schedule, and let it wait for its next occurrence or end."""
        terms = found.terms
        assert terms is not None, "a standing schedule has its terms"
        decision = terms.decide(found.n, self._now)
        now = msgspec.structs.replace(found)
        for missed in decision.missed:
            self._miss(entry, terms, missed)
            now.n = missed.last
        record = None
        if decision.release is not None:
            now.n, now.due = decision.release, _due(terms, decision.release)
            now.released += 1
            record = self._append(entry, now, now.n, now.due, final=decision.next is None)
        if decision.next is not None:
            now.n = decision.next
        now.due = _due(terms, now.n)
        entry.now = now
        if decision.next is None:
            self._end(entry, now, terms, record, decision.missed)

    def _end(
        self,
        entry: ScheduleRow,
        now: Found,
        terms: RecurrenceState,
        record: Record | None,
        missed: tuple[MissedRange, ...],
    ) -> None:
        now.table, now.at = "finished", self._now
        now.reason = None
        if not now.released:
            now.state, now.reason = "missed", missed[-1].reason
        elif is_once(terms.when):
            now.state = "released"
            assert record is not None, "a one-shot that left has its record"
            record.found = now  # which learns its offset
        else:
            now.state = "ended"
            entry.notes.append(Event(self._now, "ended", reason=ended_why(terms.when)))

    def _miss(self, entry: ScheduleRow, terms: RecurrenceState, missed: MissedRange) -> None:
        count = missed.last - missed.first + 1
        self.missed[missed.reason] += count
        if not is_once(terms.when):
            entry.notes.append(Event(self._now, "missed", missed.first, terms.due(missed.first), missed.reason, count))

    def _append(self, entry: ScheduleRow, found: Found, n: int, due: int, *, final: bool) -> Record:
        assert due <= self._now, "nothing leaves early"
        record = Record(msgspec.structs.replace(found), n, due, final)
        self._records.append(record)
        if found.terms is None or not is_once(found.terms.when):
            entry.notes.append(Event(self._now, "released", n, due))
        if found.part == TO_KAFKA:
            self.handed += 1
        else:
            self.lateness_us.append(self._now - due)
            self.topics.add(found.topic)
        self.bytes += len(found.message or b"")
        return record

    async def _write(self, entries: list[ScheduleRow], extras: list[tuple[ScheduleRow, Found]]) -> None:
        await self._log([record for record in self._records if record.found.part != TO_KAFKA])
        await self._hand([record for record in self._records if record.found.part == TO_KAFKA])
        for record in self._records:
            if record.found.table == "finished":
                record.found.position = record.offset
        saver = Saver(self._connection, self._shared.sql)
        if extras:
            await saver.leave([(found.lane, slot_of(found.stream), found.due, found.arrival) for _, found in extras])
            schedules = [entry.now.arrival if entry.now is not None else 0 for entry, _ in extras]
            arrivals = [found.arrival for _, found in extras]
            await self._run("left_fired", database.int8s(schedules), database.int8s(arrivals))
        await saver.save(entries)
        long = [entry.key for entry in entries if entry.now is not None and entry.now.n % TRIM_EVERY == 0]
        if long:
            await self._run("trim_notes", database.uuids(long))

    async def _log(self, records: list[Record]) -> None:
        if not records:
            return
        sizes: dict[tuple[int, int], tuple[int, int]] = {}
        for record in records:
            place, (count, size) = _series(record), sizes.get(_series(record), (0, 0))
            more = len(record.found.message or b"") + len(record.found.id.encode()) + RECORD_BYTES
            sizes[place] = count + 1, size + more
        moved = await self._run(
            "advance",
            database.int4s([topic for topic, _ in sizes]),
            database.int2s([part for _, part in sizes]),
            database.int8s([count for count, _ in sizes.values()]),
            database.int8s([size for _, size in sizes.values()]),
            self._lane,
        )
        following = {(topic, part): first for topic, part, first in moved}
        for record in records:
            record.offset = following[_series(record)]
            following[_series(record)] += 1
        parts = database.int2s([record.found.part for record in records])
        topic, *rest = _columns(records)
        await self._run("log", self._now, topic, parts, *rest)

    async def _hand(self, records: list[Record]) -> None:
        if not records:
            return
        for offset, record in enumerate(records, self._following):
            record.offset = offset
        sizes = [len(record.found.message or b"") + len(record.found.id) + RECORD_BYTES for record in records]
        self.outgoing = (self._following, sizes)
        await self._run("hand", len(records), self._lane)
        await self._run("out", self._lane, self._now, *_columns(records))

    async def _run(self, name: str, *values: object) -> list[Row]:
        return await rows(self._connection, self._shared.sql[name], values)


def _series(record: Record) -> tuple[int, int]:
    return record.found.topic, record.found.part


def _columns(records: list[Record]) -> list[object]:
    """Topic, final, offset, due, generation, n, id, message."""
    return [
        database.int4s([record.found.topic for record in records]),
        database.int2s([int(record.final) for record in records]),
        database.int8s([record.offset for record in records]),
        database.int8s([record.due for record in records]),
        database.int4s([record.found.generation for record in records]),
        database.int4s([record.n for record in records]),
        database.texts([record.found.id.encode() for record in records]),
        database.byteas([record.found.message or b"" for record in records]),
    ]


def _due(terms: RecurrenceState, n: int) -> int:
    due = terms.due(n)
    assert due is not None, "a decision names occurrences that exist"
    return due
