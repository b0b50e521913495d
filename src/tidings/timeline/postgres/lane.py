"""A lane: its release, with that of recurring schedules, and its outbox.

Every write first locks the row of the lane, and checks our fencing token.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from tidings import crash
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.schedules.command import Command
from tidings.domain.schedules.lateness import MissedRange
from tidings.domain.schedules.recurrence_state import RecurrenceState
from tidings.domain.schedules.schedule import Event, Outgoing, join, split
from tidings.domain.schedules.when import is_once
from tidings.ports import Release
from tidings.timeline.postgres import database
from tidings.timeline.postgres.apply.intake import Intake
from tidings.timeline.postgres.apply.unit_of_work import (
    REASONS,
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
from tidings.timeline.postgres.group_release import ReleaseRequest, Route
from tidings.timeline.postgres.names import TO_KAFKA
from tidings.timeline.postgres.pool import Row, rows
from tidings.timeline.store_rules import RECORD_BYTES, ended_reason

TRIM_EVERY = 50
LOCKED_US = 2_000  # pause before rows that another transaction has locked are tried again


class PostgresLane:
    """One lane that we own, with a fencing token."""

    def __init__(
        self, context: StoreContext, intake: Intake, number: int, token: UUID, elapsed: Callable[[], int]
    ) -> None:
        self.number = number
        self.token = token
        self._until = 0
        self._elapsed = elapsed
        self._context = context
        self._intake = intake
        self._log, self._kafka, self._room = context.next_due.own(number)
        self._room_is_known = False
        self._not_before = 0
        self._ahead_us = 0

    @property
    def is_ours(self) -> bool:
        """Whether our lease is valid by our own clock; the store may know better."""
        return self._elapsed() < self._until

    def renew(self, until: int) -> None:
        """Note until when our lease is valid, on the clock of `elapsed`."""
        self._until = until

    def _check(self) -> None:
        if not self.is_ours:
            raise NotOwner("our lease of this lane has expired")

    # Release

    async def release(self, now: int, rows_max: int, clock: Clock | None = None) -> Release:
        """Release what is due; with a clock, what is due by both that clock and the clock of the store."""
        self._check()
        await self._know_room()
        log, kafka, room = self._log, self._kafka, self._room
        news = (log.news, kafka.news)
        given = now if clock is None else clock.now()
        bounds = (log.low, kafka.low, room.rows, room.bytes)
        self._room_is_known = False  # until the result of this release is known
        crash.point("release.begun")
        request = ReleaseRequest(self.number, self.token, given, clock is not None, rows_max, *bounds)
        row = await self._context.releases.release(request)
        crash.point("release.committed")
        at, late, topics, missed, size, handed, offset, outgoing, recurring, due, kafka_due, taken = row
        self._ahead_us = given - at
        done = _ReleaseResult(
            late or [], set(topics or ()), Counter(REASONS[reason] for reason in missed or ()), size, handed
        )
        room.put(offset, [outgoing // handed] * handed if handed else [])
        _update_route(log, due, at, log.news == news[0])
        _update_route(kafka, kafka_due, at, kafka.news == news[1])
        if recurring:
            try:
                taken += await self._release_recurring(recurring, at, done)
                self._room_is_known = True
            except (NotOwner, StoreError):
                if not taken:
                    raise
                # The first part is committed and must be reported; the next release raises the error again.
            await self._context.look_again([self.number, ~self.number])
        else:
            self._room_is_known = True
        following = self._next()
        more = following is not None and following <= at
        if more and not taken:
            self._not_before = given + LOCKED_US
        with contextlib.suppress(StoreError):  # a topic that is unknown here has no reader here
            await self._context.names.know(done.topics)
        return done.release(self._context, more=more and taken > 0)

    async def _know_room(self) -> None:
        """Read the size of the outbox if it is not known: at the beginning, and after a failed release."""
        if not self._room_is_known:
            values = (self.number, self._room.arrived)
            found = await self._context.pool.read(self._context.sql["in_outbox"], values)
            self._room.begin((offset, [size]) for offset, size in found)

    async def _release_recurring(self, keys: Sequence[Sequence[int]], now: int, done: "_ReleaseResult") -> int:
        async with self._context.pool.transaction() as connection:
            ((following,),) = await rows(connection, self._context.sql["own"], (self.number, self.token))
            recurring = RecurringRelease(self._context, connection, self.number, following, now)
            count = await recurring.release(keys)
            crash.point("release.settled")
        done.late += recurring.lateness_us
        done.topics |= recurring.topics
        done.missed += recurring.missed
        done.bytes += recurring.bytes
        done.handed += recurring.handed
        self._room.put(*recurring.outgoing)
        return count

    def next_due(self) -> int | None:
        """When the next release has work to do, on the clock of the caller."""
        due = self._next()
        return None if due is None else max(due + max(0, self._ahead_us), self._not_before)

    def _next(self) -> int | None:
        """The next due time; rows for Kafka count only while there is room in the outbox."""
        dues = (self._log.due, self._kafka.due if self._kafka.due is not None and self._room.rows else None)
        return min((due for due in dues if due is not None), default=None)

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` when something is due earlier than was known, or there is room in the outbox again."""
        self._log.watch(wake)
        self._kafka.watch(wake)

    # Outbox

    async def outgoing(self, offset: int, limit: int) -> list[Outgoing]:
        """Records from an offset on, without those that are held back."""
        found = await self._context.pool.read(self._context.sql["outgoing"], (self.number, offset, limit))
        return await self._outgoing(found)

    async def held_topics(self) -> set[str]:
        """The topics that have records held back."""
        found = await self._context.pool.read(self._context.sql["held_topics"], (self.number,))
        return {split(name)[1] for (name,) in found}

    async def held(self, topic: str, limit: int = 1_000) -> list[Outgoing]:
        """Records of a topic that are held back."""
        values = (self.number, limit, join("kafka", topic), limit)
        return await self._outgoing(await self._context.pool.read(self._context.sql["held"], values))

    async def _outgoing(self, found: list[Row]) -> list[Outgoing]:
        names = self._context.names
        await names.know({row[1] for row in found})
        records = []
        for offset, topic, *columns in found:
            tenant, destination = names.destination(topic)
            records.append(Outgoing(offset, tenant, split(destination)[1], *columns))
        return records

    async def outbox(self) -> tuple[int, int]:
        """The first stored offset, and the next offset to be assigned."""
        ((first, following),) = await self._context.pool.read(self._context.sql["span"], (self.number,))
        return first, following

    def shut(self, is_shut: bool) -> None:
        """Stop or resume accepting records for Kafka."""
        if self._room.shut(is_shut):
            self._kafka.wake()

    def arrived(self, offset: int) -> None:
        """Everything before this offset is on Kafka."""
        if self._room.arrive(offset):
            self._kafka.wake()

    async def settle(self, offset: int) -> None:
        """The same, durably, slice by slice."""
        while True:
            self._check()
            answer = await self._context.pool.write(self._context.sql["settle"], (offset, self.number, self.token))
            if not answer:
                raise NotOwner("another node owns this lane")
            first, following = answer[0]
            self.arrived(first)
            if first >= min(offset, following):
                return

    async def hold(self, offsets: Sequence[int], reason: str) -> None:
        """Hold records back."""
        await self._write("hold", reason, self.number, database.int8s(offsets))
        self._room.leave(offsets)
        self._kafka.wake()

    async def free(self, offsets: Sequence[int]) -> None:
        """Delete records that were held back and are on Kafka now."""
        await self._write("free", self.number, database.int8s(offsets))

    async def drop(self, offset: int, reason: str, instead: Sequence[Command], now: int) -> None:
        """Count a record that was held back as missed, and apply the commands that report it, in one transaction."""
        sql = self._context.sql
        async with self._context.pool.transaction() as connection:
            await rows(connection, sql["own"], (self.number, self.token))
            await rows(connection, sql["miss"], (REASONS.index(reason), now, self.number, database.int8s([offset])))
            await rows(connection, sql["free"], (self.number, database.int8s([offset])))
            run = await self._intake.inside(connection, instead, now)
        await run.announce()

    async def expire(self, offsets: Sequence[int], now: int) -> None:
        """Count records as missed, because they expired in the outbox."""
        sql, places = self._context.sql, database.int8s(offsets)
        async with self._context.pool.transaction() as connection:
            await rows(connection, sql["own"], (self.number, self.token))
            await rows(connection, sql["miss"], (REASONS.index("expired"), now, self.number, places))
            await rows(connection, sql["expired"], (self.number, places))
        self._room.leave(offsets)

    async def left(self, offsets: Sequence[int], at: int) -> None:
        """Store when records left that had waited in the outbox."""
        await self._write("left", at, self.number, database.int8s(offsets))

    async def confirm(self) -> None:
        """Raise `NotOwner` unless we own the lane."""
        if not await self._context.pool.read(self._context.sql["confirm"], (self.number, self.token)):
            raise NotOwner("another node owns this lane")

    async def _write(self, name: str, *values: object) -> None:
        async with self._context.pool.transaction() as connection:
            await rows(connection, self._context.sql["own"], (self.number, self.token))
            await rows(connection, self._context.sql[name], values)


def _update_route(route: Route, due: int | None, at: int, undisturbed: bool) -> None:
    """Set the next due time of a route after a release; rows that came meanwhile may be missing in its result."""
    if undisturbed:
        route.due = due
        route.low = at if due is None else min(due, at)
    elif due is not None:
        route.offer(due)


class _ReleaseResult:
    """Collects the result of a release."""

    def __init__(self, late: list[int], topics: set[int], missed: Counter[str], size: int, handed: int) -> None:
        self.late = late
        self.topics = topics
        self.missed = missed
        self.bytes = size
        self.handed = handed

    def release(self, context: StoreContext, *, more: bool) -> Release:
        names = context.names
        topics = frozenset(names.destination(topic) for topic in self.topics if names.knows(topic))
        return Release(
            lateness_us=self.late,
            topics=topics,
            missed=dict(self.missed),
            more=more,
            bytes=self.bytes,
            handed=self.handed,
        )


class ReleasedRecord(msgspec.Struct, gc=False):
    """One occurrence to be appended to the log or the outbox."""

    found: Found
    n: int
    due: int
    final: bool
    offset: int = -1


class RecurringRelease:
    """Releases recurring schedules and records fired by hand, inside a transaction of the lane's owner."""

    def __init__(self, context: StoreContext, connection: Connection, lane: int, following: int, now: int) -> None:
        self._context = context
        self._connection = connection
        self._lane = lane
        self._following = following
        self._now = now
        self._records: list[ReleasedRecord] = []
        self.lateness_us: list[int] = []
        self.topics: set[int] = set()
        self.missed: Counter[str] = Counter()
        self.bytes = self.handed = 0
        self.outgoing: tuple[int, list[int]] = (following, [])

    async def release(self, keys: Sequence[Sequence[int]]) -> int:
        """Release the rows with these keys (slot, due time, arrival), except locked ones; returns how many."""
        waiting = await self._waiting(keys)
        names = self._context.names
        await names.know({found.topic for found in waiting}, {found.stream for found in waiting})
        ids = {key_of(names.tenant_of(found.stream), found.id) for found in waiting}
        loader = Loader(self._connection, self._context.sql, self._context.lanes, "lock_free")
        entries = await loader.entries(ids)
        keys = [(slot_of(found.stream), found.due, found.arrival) for found in waiting]
        waiting = [found for found in await self._waiting(keys) if self._entry(entries, found).known is not None]
        extras: list[tuple[ScheduleRow, Found]] = []
        for found in sorted(waiting, key=lambda each: (each.due, each.arrival)):
            entry = self._entry(entries, found)
            if found.n < 0:
                self._append(entry, found, found.n, found.due, final=False)
                extras.append((entry, found))
            elif entry.now is not None and entry.now.arrival == found.arrival and entry.now.due == found.due:
                self._release_schedule(entry, entry.now)
        await self._write(list(entries.values()), extras)
        return len(waiting)

    def _entry(self, entries: dict[bytes, ScheduleRow], found: Found) -> ScheduleRow:
        return entries[key_of(self._context.names.tenant_of(found.stream), found.id)]

    async def _waiting(self, keys: Sequence[Sequence[int]]) -> list[Found]:
        """The rows of the timeline that exist with these keys."""
        if not keys:
            return []
        slots, dues, arrivals = zip(*keys, strict=True)
        answer = await self._run(
            "extras",
            database.int2s([self._lane] * len(keys)),
            database.int2s(slots),
            database.int8s(dues),
            database.int8s(arrivals),
        )
        return [timeline_row(row) for row in answer]

    def _release_schedule(self, entry: ScheduleRow, found: Found) -> None:
        """Release the due occurrences of one schedule, and advance it to the next one, or end it."""
        terms = found.terms
        assert terms is not None, "a recurring schedule has terms"
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
        record: ReleasedRecord | None,
        missed: tuple[MissedRange, ...],
    ) -> None:
        now.table, now.at = "finished", self._now
        now.reason = None
        if not now.released:
            now.state, now.reason = "missed", missed[-1].reason
        elif is_once(terms.when):
            now.state = "released"
            assert record is not None, "a released one-shot has its record"
            record.found = now  # so that `_write` sets its position
        else:
            now.state = "ended"
            entry.notes.append(Event(self._now, "ended", reason=ended_reason(terms.when)))

    def _miss(self, entry: ScheduleRow, terms: RecurrenceState, missed: MissedRange) -> None:
        count = missed.last - missed.first + 1
        self.missed[missed.reason] += count
        if not is_once(terms.when):
            entry.notes.append(Event(self._now, "missed", missed.first, terms.due(missed.first), missed.reason, count))

    def _append(self, entry: ScheduleRow, found: Found, n: int, due: int, *, final: bool) -> ReleasedRecord:
        assert due <= self._now, "nothing is released early"
        record = ReleasedRecord(msgspec.structs.replace(found), n, due, final)
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
        saver = Saver(self._connection, self._context.sql)
        if extras:
            await saver.leave([(found.lane, slot_of(found.stream), found.due, found.arrival) for _, found in extras])
            schedules = [entry.now.arrival if entry.now is not None else 0 for entry, _ in extras]
            arrivals = [found.arrival for _, found in extras]
            await self._run("left_fired", database.int8s(schedules), database.int8s(arrivals))
        await saver.save(entries)
        long = [entry.key for entry in entries if entry.now is not None and entry.now.n % TRIM_EVERY == 0]
        if long:
            await self._run("trim_notes", database.uuids(long))

    async def _log(self, records: list[ReleasedRecord]) -> None:
        if not records:
            return
        sizes: dict[tuple[int, int], tuple[int, int]] = {}
        for record in records:
            series, (count, size) = _series(record), sizes.get(_series(record), (0, 0))
            more = len(record.found.message or b"") + len(record.found.id.encode()) + RECORD_BYTES
            sizes[series] = count + 1, size + more
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

    async def _hand(self, records: list[ReleasedRecord]) -> None:
        if not records:
            return
        for offset, record in enumerate(records, self._following):
            record.offset = offset
        sizes = [len(record.found.message or b"") + len(record.found.id) + RECORD_BYTES for record in records]
        self.outgoing = (self._following, sizes)
        await self._run("hand", len(records), self._lane)
        await self._run("out", self._lane, self._now, *_columns(records))

    async def _run(self, name: str, *values: object) -> list[Row]:
        return await rows(self._connection, self._context.sql[name], values)


def _series(record: ReleasedRecord) -> tuple[int, int]:
    return record.found.topic, record.found.part


def _columns(records: list[ReleasedRecord]) -> list[object]:
    """The columns topic, final, offset, due, generation, n, id and message."""
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
