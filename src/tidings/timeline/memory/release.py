"""The release: due occurrences move to the log or the outbox, or are counted as missed, in fair shares."""

from bisect import bisect_left
from collections import Counter
from zlib import crc32

from tidings.domain.schedules.command import bounded_shares
from tidings.domain.schedules.lateness import Decision, MissedRange
from tidings.domain.schedules.schedule import Event, is_kafka
from tidings.domain.schedules.when import is_once
from tidings.ports import Release
from tidings.timeline.memory.log import MemoryLog
from tidings.timeline.memory.rows import Row, Rows, Stream, Waiting
from tidings.timeline.store_rules import RECORD_BYTES, ended_reason

BACKLOG_AFTER_US = 1_000_000


class Releaser:
    """One release and its result."""

    def __init__(self, rows: Rows, log: MemoryLog, now: int) -> None:
        self._rows = rows
        self._log = log
        self._now = now
        self._lateness_us: list[int] = []
        self._topics: set[tuple[str, str]] = set()
        self._missed: Counter[str] = Counter()
        self._handed = 0

    def run(self, rows_max: int) -> Release:
        """Release at most that many due rows."""
        for waiting in sorted(self._choose(rows_max)):
            self._rows.take(waiting)
            if waiting.number < 0:
                self._append(waiting.row, waiting.number, waiting.due, final=False)
            else:
                self._release(waiting.row)
        following = self._rows.next_due()
        more = following is not None and following <= self._now
        return Release(
            lateness_us=self._lateness_us,
            topics=frozenset(self._topics),
            missed=dict(self._missed),
            more=more,
            handed=self._handed,
        )

    def _choose(self, rows_max: int) -> list[Waiting]:
        """The rows to release; if those for Kafka have too many bytes for the outbox, fewer of them."""
        due, room = self._rows.due(self._now), self._rows.room
        chosen = select(due, self._now, rows_max, room.rows)
        sizes = [size_of(waiting.row) for waiting in chosen if is_kafka(waiting.row.add.topic)]
        if sum(sizes) > room.bytes:
            chosen = select(due, self._now, rows_max, max(1, len(sizes) * room.bytes // sum(sizes)))
        return chosen

    def _release(self, row: Row) -> None:
        decision = row.terms.decide(row.number, self._now)
        last, record = row.number, None
        for missed in decision.missed:
            last = missed.last
            self._miss(row, missed, _due(row, missed.first))
        if decision.release is not None:
            last = decision.release
            record = self._append(row, last, _due(row, last), final=decision.next is None)
        row.number = last if decision.next is None else decision.next
        row.due = _due(row, row.number)
        if decision.next is None:
            self._end(row, decision, record)
        else:
            self._rows.hold(row)

    def _end(self, row: Row, decision: Decision, record: tuple[int | None, int] | None) -> None:
        if not row.released:
            self._rows.finish(row, "missed", self._now, decision.missed[-1].reason)
        elif is_once(row.terms.when) and record is not None:
            row.partition, row.offset = record
            self._rows.finish(row, "released", self._now)
        else:
            self._rows.finish(row, "ended", self._now)
            row.note(Event(self._now, "ended", reason=ended_reason(row.terms.when)))

    def _miss(self, row: Row, missed: MissedRange, due: int) -> None:
        count = missed.last - missed.first + 1
        self._missed[missed.reason] += count
        if row.terms.recurs:
            row.note(Event(self._now, "missed", missed.first, due, missed.reason, count))

    def _append(self, row: Row, number: int, due: int, *, final: bool) -> tuple[int | None, int]:
        """Append a record to the log, or to the outbox; returns its partition and offset."""
        assert due <= self._now, "nothing is released early"
        if is_kafka(row.add.topic):
            return self._hand(row, number, due, final=final)
        partition = _hash(row) % self._log.partitions
        offset = self._log.append(row, number, due, partition, self._now, final)
        self._note_release(row, number, due)
        self._lateness_us.append(self._now - due)
        self._topics.add((row.add.tenant, row.add.topic))
        return partition, offset

    def _hand(self, row: Row, number: int, due: int, *, final: bool) -> tuple[None, int]:
        """Put a record into the outbox; returns its offset."""
        offset = self._log.hand(row, number, due, self._now, final)
        self._rows.room.put(offset, [size_of(row)])
        self._note_release(row, number, due)
        self._handed += 1
        return None, offset

    def _note_release(self, row: Row, number: int, due: int) -> None:
        """Count a released record, and add it to the history; a one-shot has it in its row."""
        row.released += number > 0
        if row.terms.recurs:
            row.note(Event(self._now, "released", number, due))


def select(due: dict[Stream, list[Waiting]], now: int, rows_max: int, room: int) -> list[Waiting]:
    """The rows to release if more is due than the batch or the outbox holds: shared by priority and tenant."""
    queues = [_Queue(stream, waiting, now) for stream, waiting in due.items()]
    queues.sort(key=_Queue.head)
    taken: list[Waiting] = []
    while queues and len(taken) < rows_max:
        streams = [(index, queue.priority) for index, queue in enumerate(queues)]
        narrow = {index for index, queue in enumerate(queues) if queue.to_kafka}
        quotas = bounded_shares(streams, rows_max - len(taken), narrow, room)
        for index, queue in enumerate(queues):
            quota = min(quotas[index], rows_max - len(taken), room if queue.to_kafka else rows_max)
            found = queue.take(quota)
            taken += found
            room -= len(found) if queue.to_kafka else 0
        queues = [queue for queue in queues if (queue.fresh or queue.backlog) and (room or not queue.to_kafka)]
    return taken


class _Queue:
    """The due rows of one stream: fresh ones, and an overdue backlog that must not delay them."""

    def __init__(self, stream: Stream, waiting: list[Waiting], now: int) -> None:
        _, self.priority, self.to_kafka = stream
        fresh_from = bisect_left(waiting, now - BACKLOG_AFTER_US, key=lambda each: each.due)
        self.backlog, self.fresh = waiting[:fresh_from], waiting[fresh_from:]

    def head(self) -> Waiting:
        return (self.backlog or self.fresh)[0]

    def take(self, quota: int) -> list[Waiting]:
        """The next rows; at most half of the quota is backlog while there are fresh rows."""
        old = min(len(self.backlog), quota // 2 if self.fresh else quota)
        new = min(len(self.fresh), quota - old)
        taken = self.backlog[:old] + self.fresh[:new]
        del self.backlog[:old], self.fresh[:new]
        return taken


def size_of(row: Row) -> int:
    """The size of a record of this schedule."""
    return len(row.add.message) + len(row.id) + RECORD_BYTES


def _hash(row: Row) -> int:
    """The hash that selects the partition: of the message key, or of the schedule id if there is no key."""
    return crc32(row.id.encode()) if row.add.key_hash is None else row.add.key_hash


def _due(row: Row, number: int) -> int:
    due = row.terms.due(number)
    assert due is not None, "a decision names occurrences that exist"
    return due
