"""The release transaction: due rows move to the log or the outbox, or are counted as missed."""

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from tidings import crash
from tidings.clock import Clock
from tidings.domain.changes import HISTORY_LINES_MAX
from tidings.domain.schedules.command import NO_CONTENT, bounded_shares
from tidings.domain.schedules.lateness import MissedRange, deadline
from tidings.domain.schedules.recurrence_state import RecurrenceState, decode_state
from tidings.domain.schedules.schedule import Event
from tidings.domain.schedules.when import is_once
from tidings.ports import Release
from tidings.timeline.sqlite import row_writes
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.id_lookup import Found, plain, recurring
from tidings.timeline.sqlite.pending.packed_rows import ARRIVAL_BITS, NO_DEADLINE
from tidings.timeline.sqlite.pending.wheel import Wheel
from tidings.timeline.sqlite.release import outbox
from tidings.timeline.sqlite.writer import OFFSET_BITS, OUTBOX, PARTITIONS_MAX, Handed, Writer
from tidings.timeline.store_rules import ended_reason

TRIM_EVERY = 50
STAYS = -1  # instead of a next due time: not for the bulk release

_RECURRING_SQL = queries("recurring")
_ADVANCE = queries("release")["advance"]
_terms = lru_cache(maxsize=4_096)(decode_state)  # many schedules have the same terms

Numbers = npt.NDArray[np.int64]


class RecurringBulkRelease:
    """Releases the on-time schedules of one batch, inside the release transaction, after its rows left the timeline."""

    def __init__(self, writer: Writer, now: int, rows: int) -> None:
        self._writer = writer
        self._now = now
        self._rows = rows
        self._positions = np.full(rows, -1, dtype=np.int64)
        self.lateness_us: list[int] = []
        self.topics: set[tuple[str, str]] = set()
        self.handed = self.bytes = 0

    def release(self) -> list[int]:
        """Release the schedules that are on time and continue; returns the arrivals of the others."""
        columns = tuple(zip(*self._writer.connection.execute(_RECURRING_SQL["pending"]), strict=True))
        if not columns:
            return []
        *numeric, names, policies = columns
        ordinals, arrivals, dues, partitions, sizes, streams, numbers = np.array(numeric, dtype=np.int64)
        decided = _NextDueCache(self._following)
        asked = zip(policies, numbers.tolist(), dues.tolist(), strict=True)
        next_dues = np.array([decided[terms] for terms in asked], dtype=np.int64)
        in_order = np.lexsort((arrivals, dues))
        on_time = in_order[next_dues[in_order] != STAYS]
        if len(on_time):
            indexes = ordinals[on_time] - 1
            self._count(partitions[on_time], self._now - dues[on_time])
            self._place(indexes, partitions[on_time], sizes[on_time])
            hashes = self._hashes(streams, names)[on_time]
            self._write(indexes, next_dues[on_time], arrivals[on_time], numbers[on_time], hashes)
        others: list[int] = arrivals[in_order[next_dues[in_order] == STAYS]].tolist()
        return others

    def _following(self, policy: bytes, n: int, due: int) -> int:
        """The next due time, if this occurrence is on time and the next one is in the future; else `STAYS`."""
        terms = _terms(policy)
        if terms.pardon is not None or is_once(terms.when) or terms.due(n) != due:
            return STAYS
        bound = deadline(due, terms.lateness)
        if bound is not None and self._now > bound[0]:
            return STAYS
        following = terms.due(n + 1)
        return STAYS if following is None or following <= self._now else following

    def _count(self, partitions: Numbers, late_us: Numbers) -> None:
        topics = partitions // PARTITIONS_MAX
        for topic in set(topics.tolist()):
            if topic in self._writer.on_kafka:
                self.handed += int((topics == topic).sum())
            else:
                self.lateness_us += late_us[topics == topic].tolist()
                self.topics.add(self._writer.topic_names[topic])

    def _place(self, indexes: Numbers, partitions: Numbers, sizes: Numbers) -> None:
        """Assign each record the next position of its partition, and advance the ends of the partitions."""
        if self._writer.on_kafka:
            on_kafka = np.isin(partitions // PARTITIONS_MAX, list(self._writer.on_kafka))
            partitions = np.where(on_kafka, OUTBOX, partitions)
        for partition in set(partitions.tolist()):
            rows = np.flatnonzero(partitions == partition)
            size = int(sizes[rows].sum())
            moved = (partition, len(rows), 0 if partition == OUTBOX else size)
            first = int(self._writer.connection.execute(_ADVANCE, moved).get)
            self._positions[indexes[rows]] = np.arange(len(rows)) + ((partition << OFFSET_BITS) + first)
            self.bytes += size
            if partition == OUTBOX:
                self._writer.room.put(first, sizes[rows])

    def _write(
        self, indexes: Numbers, next_dues: Numbers, arrivals: Numbers, numbers: Numbers, hashes: Numbers
    ) -> None:
        connection, writer = self._writer.connection, self._writer
        connection.execute(_RECURRING_SQL["log"], (apsw.carray(self._positions), self._now))
        connection.execute(_RECURRING_SQL["note"], (apsw.carray(self._spread(indexes, hashes, 0)), self._now))
        for id_hash in hashes[numbers % TRIM_EVERY == 0].tolist():
            connection.execute(_RECURRING_SQL["trim"], (id_hash, HISTORY_LINES_MAX))
        connection.execute(_RECURRING_SQL["go_on"], (apsw.carray(self._spread(indexes, next_dues)),))
        soon = next_dues < writer.near_until
        if soon.any():
            near = self._spread(indexes[soon], next_dues[soon])
            connection.execute(_RECURRING_SQL["wait_near"], (apsw.carray(near), NO_DEADLINE, NO_CONTENT))
        if not soon.all():
            far = writer.buckets(next_dues) << ARRIVAL_BITS | arrivals
            later = self._spread(indexes[~soon], far[~soon])
            connection.execute(_RECURRING_SQL["wait_far"], (apsw.carray(later), NO_DEADLINE, NO_CONTENT))
        writer.add_pending(len(indexes))

    def _hashes(self, streams: Numbers, names: Sequence[str]) -> Numbers:
        """The hash of each id."""
        hashes = np.zeros(len(names), dtype=np.int64)
        for stream in set(streams.tolist()):
            chosen = np.flatnonzero(streams == stream)
            tenant = self._writer.stream_names[stream][0]
            hashes[chosen] = self._writer.idmap.hashes(tenant, [names[index] for index in chosen.tolist()])
        return hashes

    def _spread(self, indexes: Numbers, values: Numbers, other: int = -1) -> Numbers:
        """An array over the batch, with values at these indexes."""
        spread = np.full(self._rows, other, dtype=np.int64)
        spread[indexes] = values
        return spread


class _NextDueCache(dict[tuple[bytes, int, int], int]):
    """The next due time by terms, number and due time; equal schedules are computed once."""

    def __init__(self, following: Callable[[bytes, int, int], int]) -> None:
        super().__init__()
        self._following = following

    def __missing__(self, asked: tuple[bytes, int, int]) -> int:
        self[asked] = following = self._following(*asked)
        return following


class RecurringRelease:
    """Releases recurring schedules one by one, inside the release transaction."""

    def __init__(self, writer: Writer, now: int) -> None:
        self._writer = writer
        self._now = now
        self.lateness_us: list[int] = []
        self.topics: set[tuple[str, str]] = set()
        self.handed = 0
        self.missed: dict[str, int] = {}

    def release(self, arrival: int) -> None:
        """Release the due occurrences of one schedule, and put the next one onto the timeline."""
        found = next(recurring(self._writer.connection, arrival), None)
        assert found is not None, "a row on the timeline points to a missing schedule"
        assert found.terms is not None, "a recurring schedule has terms"
        terms = found.terms
        decision = terms.decide(found.n, self._now)
        for missed in decision.missed:
            count = missed.last - missed.first + 1
            self.missed[missed.reason] = self.missed.get(missed.reason, 0) + count
            if not is_once(terms.when):
                of = (missed.first, terms.due(missed.first), missed.reason, count)
                row_writes.note(self._writer, found, Event(self._now, "missed", *of))
        position = None
        if decision.release is not None:
            position = self._append(found, terms, decision.release, final=decision.next is None)
        if decision.next is None:
            self._end(found, terms, position, decision.missed)
        else:
            self._continue(found, terms, decision.next)

    def release_extra(self, found: Found) -> None:
        """Release a record that was fired by hand."""
        row_writes.append(self._writer, found, self._now, found.n, found.due, final=False)
        self._writer.connection.execute("DELETE FROM fired WHERE arrival = ?", (found.arrival,))
        self._note_release(found, found.n, found.due)

    def _note_release(self, found: Found, n: int, due: int) -> None:
        self._count(found, due)
        row_writes.note(self._writer, found, Event(self._now, "released", n, due))

    def _count(self, found: Found, due: int) -> None:
        topic = found.partition // PARTITIONS_MAX
        if topic in self._writer.on_kafka:
            self.handed += 1
        else:
            self.lateness_us.append(self._now - due)
            self.topics.add(self._writer.topic_names[topic])

    def _append(self, found: Found, terms: RecurrenceState, n: int, *, final: bool) -> int:
        due = terms.due(n)
        assert due is not None
        position = row_writes.append(self._writer, found, self._now, n, due, final=final)
        found.released += 1
        found.n, found.due = n, due
        if is_once(terms.when):
            self._count(found, due)
        else:
            self._note_release(found, n, due)
        return position

    def _end(self, found: Found, terms: RecurrenceState, position: int | None, missed: tuple[MissedRange, ...]) -> None:
        self._writer.connection.execute("DELETE FROM standing WHERE arrival = ?", (found.arrival,))
        if missed and position is None:
            found.n = missed[-1].last
            found.due = terms.due(found.n) or found.due
        if not found.released:
            row_writes.finish(self._writer, found, "missed", self._now, missed[-1].reason)
        elif is_once(terms.when):
            row_writes.finish(self._writer, found, "released", self._now, position=position)
        else:
            row_writes.finish(self._writer, found, "ended", self._now)
            row_writes.note(self._writer, found, Event(self._now, "ended", reason=ended_reason(terms.when)))

    def _continue(self, found: Found, terms: RecurrenceState, n: int) -> None:
        due = terms.due(n)
        assert due is not None
        found.n, found.due = n, due
        self._writer.connection.execute(
            "UPDATE standing SET n = ?, due = ?, released = ? WHERE arrival = ?",
            (n, due, found.released, found.arrival),
        )
        row_writes.insert_pointer(self._writer, found)


FRESH_US = 1_000_000
DAMAGED = "damaged"
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)  # a damaged row; any other error ends the process
ROUNDS_MAX = 4
BATCH_BYTES_MAX = 8 * 1024 * 1024

_SQL = queries("release")
logger = logging.getLogger("tidings.store")

Flags = npt.NDArray[np.bool_]


class Releaser:
    """Releases batches of due rows."""

    def __init__(self, writer: Writer, wheel: Wheel) -> None:
        self._writer = writer
        self._wheel = wheel
        self._single_rows = 0
        self._current: tuple[int, ...] = ()

    def release(self, now: int, rows_max: int, clock: Clock | None = None) -> Release:
        """Release one batch. If a row cannot be read, rows are released singly to find it and count it as missed."""
        if self._single_rows:
            self._single_rows -= 1
            rows_max = 1
        try:
            return self._release(now, rows_max, clock)
        except UNREADABLE:
            if rows_max > 1:
                self._single_rows = rows_max
                return Release(more=True)
            logger.exception("a row is damaged and cannot be released: it is counted as missed")
            return self._miss_damaged(now)

    def _miss_damaged(self, now: int) -> Release:
        """Count the current row as missed, with the reason `damaged`."""
        writer = self._writer
        with writer.transaction() as connection:
            for arrival, *row in connection.execute(_SQL["damaged"], self._current).fetchall():
                found = plain("near", arrival, 0, tuple(row))
                connection.execute("DELETE FROM standing WHERE arrival = ?", (arrival,))
                row_writes.remove(writer, found)
                row_writes.finish(writer, found, "missed", now, DAMAGED)
        return Release(missed={DAMAGED: 1}, more=True)

    def _release(self, now: int, rows_max: int, clock: Clock | None) -> Release:
        """Release one batch in one transaction; due rows that are still in `far` are moved to `near` first."""
        writer = self._writer
        writer.refresh()
        if writer.is_behind(now):
            self._wheel.turn(now)
        with writer.transaction() as connection:
            if clock is not None:
                now = clock.now()
            due = writer.lookahead.take(now, rows_max, writer.room.rows if writer.streams_on_kafka else 0)
            if not due:
                return Release(more=writer.is_behind(now))
            if crash.IS_ARMED:
                crash.point("release.begun")
            connection.execute("DELETE FROM batch")
            spans, total = self._select_bounded(due, now, rows_max)
            if rows_max == 1:
                self._current = connection.execute("SELECT stream, due, arrival FROM batch").fetchone() or ()
            done = _ReleaseResult()
            fired, pointers = self._move(spans, now, done) if total else ([], False)
            if fired or pointers:
                self._release_recurring(fired, total if pointers else 0, now, done)
            writer.add_pending(len(fired) - total)
            for stream in due:
                writer.refresh_next_due(stream)
            if crash.IS_ARMED:
                crash.point("release.settled")
        if crash.IS_ARMED:
            crash.point("release.committed")
        if done.batch is not None:
            writer.handover.put(done.batch)
            if crash.IS_ARMED:
                crash.point("release.handed")
        following = writer.next_due()
        return Release(
            lateness_us=done.lateness_us,
            topics=frozenset(done.topics),
            missed=done.missed,
            more=following is not None and following <= now,
            bytes=done.bytes,
            handed=done.handed,
        )

    def _select_bounded(self, due: dict[int, int], now: int, rows_max: int) -> tuple[list["_Span"], int]:
        """Select the batch, and again a smaller one if it has too many bytes for a transaction or for the outbox."""
        connection, room = self._writer.connection, self._writer.room
        rows, space = (room.rows, room.bytes) if self._writer.streams_on_kafka else (0, 0)
        spans, total = self._select(due, now, rows_max, rows)
        size = connection.execute("SELECT ifnull(sum(size), 0) FROM batch").get
        narrow = [span for span in spans if span.stream in self._writer.streams_on_kafka]
        outgoing = self._size(narrow) if narrow and size > space else 0
        if outgoing > space:
            rows = max(1, sum(span.taken for span in narrow) * space // outgoing)
        if size > BATCH_BYTES_MAX and total > 1:
            rows_max = max(1, total * BATCH_BYTES_MAX // size)
        elif outgoing <= space:
            return spans, total
        connection.execute("DELETE FROM batch")
        return self._select(due, now, rows_max, rows)

    def _size(self, spans: "list[_Span]") -> int:
        """The total size of the rows of some streams in the batch."""
        sizes = dict(self._writer.connection.execute("SELECT stream, sum(size) FROM batch GROUP BY stream"))
        return sum(sizes[stream] for stream in {span.stream for span in spans})

    def _select(self, due: dict[int, int], now: int, rows_max: int, room: int) -> tuple[list["_Span"], int]:
        """Select the batch: fair shares in rounds, until it is full or nothing is left to release."""
        names, narrow = self._writer.stream_names, self._writer.streams_on_kafka
        spans = {stream: _spans(stream, due[stream], now) for stream in due}
        hungry, total = set(due), 0
        for _ in range(ROUNDS_MAX):
            if not hungry or total >= rows_max:
                break
            streams = [(stream, names[stream][1]) for stream in due if stream in hungry]
            rest = rows_max - total
            shares = {streams[0][0]: rest} if len(streams) == 1 else bounded_shares(streams, rest, narrow, room)
            for stream, share in shares.items():
                quota = min(share, rows_max - total, room if stream in narrow else rows_max)
                taken = self._take(spans[stream], quota, total)
                total += taken
                room -= taken if stream in narrow else 0
                if taken < quota or (stream in narrow and not room):
                    hungry.discard(stream)
        return [span for pair in spans.values() for span in pair if span.taken], total

    def _take(self, spans: "tuple[_Span, ...]", quota: int, total: int) -> int:
        """Take the share of a stream in order of due times: at most half of it backlog while there are fresh rows."""
        fresh, *backlog = spans
        if not backlog:
            return self._take_span(fresh, quota, total)
        there = self._writer.connection.execute(_SQL["count"], (fresh.stream, fresh.low, fresh.high, quota // 2)).get
        taken = self._take_span(backlog[0], quota - there, total)
        return taken + self._take_span(fresh, quota - taken, total + taken)

    def _take_span(self, span: "_Span", limit: int, total: int) -> int:
        if limit <= 0:
            return 0
        connection = self._writer.connection
        connection.execute(_SQL["select"], (span.stream, span.low, span.high, limit, span.taken))
        taken = int(connection.changes())
        if taken:
            span.taken += taken
            span.last_ordinal = total + taken
        return taken

    def _move(self, spans: "list[_Span]", now: int, done: "_ReleaseResult") -> tuple[list[Found], bool]:
        """Move the batch from the timeline to the log, the outbox and the table of finished schedules.

        Returns the records fired by hand, and whether there are recurring schedules, which are released after that.
        """
        connection = self._writer.connection
        columns = connection.execute(_SQL["survey"], (now,)).fetchone()
        batch = [np.fromstring(text, dtype=np.int64, sep=",") for text in columns]
        leaves, numbers, partitions, dues, arrivals, sizes = batch
        leaving, recurring = leaves == 1, numbers <= 0
        on_kafka = self._on_kafka(partitions)
        partitions = np.where(on_kafka, OUTBOX, partitions)
        if leaving.any():
            numbered = self._positions(leaving, partitions, sizes, done)
            positions = apsw.carray(numbered)
            handed = leaving & on_kafka
            if (leaving & ~on_kafka).any():
                connection.execute(_SQL["log"], (positions, now))
            if handed.any():
                self._pack(int(numbered[handed][0]), sizes[handed], now, done)
            if crash.IS_ARMED:
                crash.point("release.logged")
            connection.execute(_SQL["finish"], (positions, now))
            done.lateness_us = (now - dues[leaving & ~on_kafka]).tolist()
            done.handed = int(handed.sum())
            done.bytes = int(sizes[leaving].sum())
        if not (leaving | recurring).all():
            self._miss(now, done)
        fired = self._fired() if (numbers < 0).any() else []
        for span in spans:
            last = span.last_ordinal - 1
            connection.execute(_SQL["leave"], (span.stream, span.low, int(dues[last]), int(arrivals[last])))
        return fired, bool((numbers == 0).any())

    def _pack(self, first: int, sizes: Numbers, now: int, done: "_ReleaseResult") -> None:
        """Put the rows for Kafka into the outbox. The same rows are handed over in memory after the commit."""
        connection = self._writer.connection
        members = connection.execute(_SQL["outgoing"], (now,)).fetchall()
        assert len(members) == len(sizes), "every row for Kafka has an offset"
        for start in range(0, len(members), outbox.PACKED_ROWS_MAX):
            part = members[start : start + outbox.PACKED_ROWS_MAX]
            size = int(sizes[start : start + outbox.PACKED_ROWS_MAX].sum())
            connection.execute(_SQL["pack"], (first + start, len(part), size, now, outbox.pack(part)))
        if crash.IS_ARMED:
            crash.point("release.packed")
        done.batch = Handed(first, now, members, int(sizes.sum()))

    def _fired(self) -> list[Found]:
        rows = self._writer.connection.execute(_SQL["fired"]).fetchall()
        return [plain("near", arrival, 0, row) for arrival, *row in rows]

    def _positions(self, leaving: Flags, partitions: Numbers, sizes: Numbers, done: "_ReleaseResult") -> Numbers:
        """Assign each released row the next position of its partition, and advance the ends of the partitions."""
        positions = np.full(len(leaving), -1, dtype=np.int64)
        for partition in set(partitions[leaving].tolist()):
            rows = np.flatnonzero(leaving & (partitions == partition))
            moved = (partition, len(rows), 0 if partition == OUTBOX else int(sizes[rows].sum()))
            first = self._writer.connection.execute(_SQL["advance"], moved).get
            positions[rows] = np.arange(len(rows)) + ((partition << OFFSET_BITS) + first)
            if partition == OUTBOX:
                self._writer.room.put(first, sizes[rows])
            else:
                done.topics.add(self._writer.topic_names[partition // PARTITIONS_MAX])
        return positions

    def _on_kafka(self, partitions: Numbers) -> Flags:
        """Which rows go to the outbox."""
        if not self._writer.on_kafka:
            return np.zeros(len(partitions), dtype=np.bool_)
        return np.isin(partitions // PARTITIONS_MAX, list(self._writer.on_kafka))

    def _miss(self, now: int, done: "_ReleaseResult") -> None:
        connection = self._writer.connection
        for reason, count in connection.execute(_SQL["missed_by_reason"], (now,)):
            done.miss(reason, count)
        connection.execute(_SQL["miss"], (now,))

    def _release_recurring(self, fired: list[Found], rows: int, now: int, done: "_ReleaseResult") -> None:
        """Release the recurring schedules and the records fired by hand, after the batch has left the timeline."""
        recurring = RecurringRelease(self._writer, now)
        if rows:
            bulk = RecurringBulkRelease(self._writer, now, rows)
            for arrival in bulk.release():
                recurring.release(arrival)
            done.add(bulk)
            done.bytes += bulk.bytes
        for found in fired:
            recurring.release_extra(found)
        done.add(recurring)
        for reason, count in recurring.missed.items():
            done.miss(reason, count)


class _Span:
    """A range of due times of a stream (`low` excluded): the rows taken for this batch, and the last ordinal."""

    def __init__(self, stream: int, low: int, high: int) -> None:
        self.stream = stream
        self.low = low
        self.high = high
        self.taken = 0
        self.last_ordinal = 0


def _spans(stream: int, first_due: int, now: int) -> tuple[_Span, ...]:
    """The span of fresh rows, and that of the backlog if there is one."""
    fresh = _Span(stream, now - FRESH_US, now)
    return (fresh, _Span(stream, -1, now - FRESH_US)) if first_due <= now - FRESH_US else (fresh,)


class _ReleaseResult:
    """Collects the result of a release."""

    def __init__(self) -> None:
        self.lateness_us: list[int] = []
        self.topics: set[tuple[str, str]] = set()
        self.missed: dict[str, int] = {}
        self.bytes = 0
        self.handed = 0
        self.batch: Handed | None = None

    def add(self, more: RecurringRelease | RecurringBulkRelease) -> None:
        self.lateness_us += more.lateness_us
        self.topics |= more.topics
        self.handed += more.handed

    def miss(self, reason: str, count: int) -> None:
        self.missed[reason] = self.missed.get(reason, 0) + count
