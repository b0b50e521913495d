"""The release transaction: due rows move to the log or the outbox, or are counted as missed."""

import logging

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from tidings import crash
from tidings.clock import Clock
from tidings.domain.schedules.command import bounded_shares
from tidings.ports import Release
from tidings.timeline.sqlite import row_writes
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.id_lookup import Found, plain
from tidings.timeline.sqlite.pending.wheel import Wheel
from tidings.timeline.sqlite.release.recurring_release import RecurringBulkRelease, RecurringRelease
from tidings.timeline.sqlite.writer import OFFSET_BITS, OUTBOX, PARTITIONS_MAX, Writer

FRESH_US = 1_000_000
DAMAGED = "damaged"
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)  # a damaged row; any other error ends the process
ROUNDS_MAX = 4
BATCH_BYTES_MAX = 8 * 1024 * 1024

_SQL = queries("release")
logger = logging.getLogger("tidings.store")

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Releaser:
    """Releases batches of due rows."""

    def __init__(self, writer: Writer, wheel: Wheel) -> None:
        self._writer = writer
        self._wheel = wheel
        self._single_rows = 0
        self._current: tuple[int, ...] = ()

    def release(self, now: int, rows_max: int, clock: Clock | None) -> Release:
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
        if self._wheel.behind(now):
            self._wheel.turn(now)
        with writer.transaction() as connection:
            if clock is not None:
                now = clock.now()
            due = writer.lookahead.take(now, rows_max, writer.room.rows)
            if not due:
                return Release(more=self._wheel.behind(now))
            crash.point("release.begun")
            connection.execute("DELETE FROM batch")
            spans, total = self._select_bounded(due, now, rows_max)
            if rows_max == 1:
                self._current = connection.execute("SELECT stream, due, arrival FROM batch").fetchone() or ()
            done = _ReleaseResult()
            fired, pointers = self._move(spans, now, done) if total else ([], False)
            writer.add_pending(-total)
            self._release_recurring(fired, total if pointers else 0, now, done)
            for stream in due:
                row_writes.refresh_next_due(writer, stream)
            crash.point("release.settled")
        crash.point("release.committed")
        done.more = writer.next_due is not None and writer.next_due <= now
        return done.release()

    def _select_bounded(self, due: dict[int, int], now: int, rows_max: int) -> tuple[list["_Span"], int]:
        """Select the batch, and again a smaller one if it has too many bytes for a transaction or for the outbox."""
        connection, room = self._writer.connection, self._writer.room
        rows, space = room.rows, room.bytes
        spans, total = self._select(due, now, rows_max, rows)
        size = connection.execute("SELECT ifnull(sum(size), 0) FROM batch").get
        narrow = [span for span in spans if span.stream in self._writer.streams_on_kafka]
        outgoing = self._size(narrow) if size > space else 0
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
            for stream, share in bounded_shares(streams, rows_max - total, narrow, room).items():
                quota = min(share, rows_max - total, room if stream in narrow else rows_max)
                taken = self._take(spans[stream], quota, total)
                total += taken
                room -= taken if stream in narrow else 0
                if taken < quota or (stream in narrow and not room):
                    hungry.discard(stream)
        return [span for pair in spans.values() for span in pair if span.taken], total

    def _take(self, spans: "tuple[_Span, ...]", quota: int, total: int) -> int:
        """Take the share of a stream: half fresh rows and half backlog while there are both."""
        fresh, *backlog = spans
        if not backlog:
            return self._take_span(fresh, quota, total)
        taken = self._take_span(fresh, quota // 2, total)
        taken += self._take_span(backlog[0], quota - taken, total + taken)
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
        leaving, standing = leaves == 1, numbers <= 0
        on_kafka = self._on_kafka(partitions)
        partitions = np.where(on_kafka, OUTBOX, partitions)
        if leaving.any():
            positions = apsw.carray(self._positions(leaving, partitions, sizes, done))
            connection.execute(_SQL["log"], (positions, now))
            crash.point("release.logged")
            connection.execute(_SQL["finish"], (positions, now))
            done.lateness_us = (now - dues[leaving & ~on_kafka]).tolist()
            done.handed = int((leaving & on_kafka).sum())
            done.bytes = int(sizes[leaving].sum())
        if not (leaving | standing).all():
            self._miss(now, done)
        fired = self._fired() if (numbers < 0).any() else []
        self._writer.add_pending(len(fired))
        for span in spans:
            last = span.last_ordinal - 1
            connection.execute(_SQL["leave"], (span.stream, span.low, int(dues[last]), int(arrivals[last])))
        return fired, bool((numbers == 0).any())

    def _fired(self) -> list[Found]:
        rows = self._writer.connection.execute(_SQL["fired"]).fetchall()
        return [plain("near", arrival, 0, row) for arrival, *row in rows]

    def _positions(self, leaving: Flags, partitions: Numbers, sizes: Numbers, done: "_ReleaseResult") -> Numbers:
        """Assign each released row the next position of its partition, and advance the ends of the partitions."""
        positions = np.full(len(leaving), -1, dtype=np.int64)
        for partition in set(partitions[leaving].tolist()):
            rows = np.flatnonzero(leaving & (partitions == partition))
            moved = (partition, len(rows), int(sizes[rows].sum()))
            first = self._writer.connection.execute(_SQL["advance"], moved).get
            positions[rows] = np.arange(len(rows)) + ((partition << OFFSET_BITS) + first)
            if partition == OUTBOX:
                self._writer.room.put(first, sizes[rows].tolist())
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
        self.more = False
        self.bytes = 0
        self.handed = 0

    def add(self, more: RecurringRelease | RecurringBulkRelease) -> None:
        self.lateness_us += more.lateness_us
        self.topics |= more.topics
        self.handed += more.handed

    def miss(self, reason: str, count: int) -> None:
        self.missed[reason] = self.missed.get(reason, 0) + count

    def release(self) -> Release:
        return Release(
            lateness_us=self.lateness_us,
            topics=frozenset(self.topics),
            missed=self.missed,
            more=self.more,
            bytes=self.bytes,
            handed=self.handed,
        )
