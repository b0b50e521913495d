"""The release of recurring schedules.

`RecurringBulkRelease` handles the usual case for a whole batch: the occurrence is on time, and there is a next one.
Only numbers and due times pass through Python. A schedule that ends, is late, has missed occurrences or was computed by
older time zone rules is left to `RecurringRelease`, one by one.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import apsw
import numpy as np
import numpy.typing as npt

from tidings.domain.changes import HISTORY_LINES_MAX
from tidings.domain.schedules.command import NO_CONTENT
from tidings.domain.schedules.lateness import MissedRange, deadline
from tidings.domain.schedules.recurrence_state import RecurrenceState, decode_state
from tidings.domain.schedules.schedule import Event
from tidings.domain.schedules.when import is_once
from tidings.timeline.sqlite import row_writes
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.id_lookup import Found, standing
from tidings.timeline.sqlite.pending.packed_rows import ARRIVAL_BITS, NO_DEADLINE
from tidings.timeline.sqlite.writer import OFFSET_BITS, OUTBOX, PARTITIONS_MAX, Writer
from tidings.timeline.store_rules import ended_reason

TRIM_EVERY = 50
STAYS = -1  # instead of a next due time: not for the bulk release

_SQL = queries("standing")
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
        columns = tuple(zip(*self._writer.connection.execute(_SQL["pending"]), strict=True))
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
            places = ordinals[on_time] - 1
            self._count(partitions[on_time], self._now - dues[on_time])
            self._place(places, partitions[on_time], sizes[on_time])
            hashes = self._hashes(streams, names)[on_time]
            self._write(places, next_dues[on_time], arrivals[on_time], numbers[on_time], hashes)
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

    def _place(self, places: Numbers, partitions: Numbers, sizes: Numbers) -> None:
        """Assign each record the next position of its partition, and advance the ends of the partitions."""
        if self._writer.on_kafka:
            on_kafka = np.isin(partitions // PARTITIONS_MAX, list(self._writer.on_kafka))
            partitions = np.where(on_kafka, OUTBOX, partitions)
        for partition in set(partitions.tolist()):
            rows = np.flatnonzero(partitions == partition)
            moved = (partition, len(rows), int(sizes[rows].sum()))
            first = int(self._writer.connection.execute(_ADVANCE, moved).get)
            self._positions[places[rows]] = np.arange(len(rows)) + ((partition << OFFSET_BITS) + first)
            self.bytes += moved[2]
            if partition == OUTBOX:
                self._writer.room.put(first, sizes[rows].tolist())

    def _write(self, places: Numbers, next_dues: Numbers, arrivals: Numbers, numbers: Numbers, hashes: Numbers) -> None:
        connection, writer = self._writer.connection, self._writer
        connection.execute(_SQL["log"], (apsw.carray(self._positions), self._now))
        connection.execute(_SQL["note"], (apsw.carray(self._spread(places, hashes, 0)), self._now))
        for id_hash in hashes[numbers % TRIM_EVERY == 0].tolist():
            connection.execute(_SQL["trim"], (id_hash, HISTORY_LINES_MAX))
        connection.execute(_SQL["go_on"], (apsw.carray(self._spread(places, next_dues)),))
        soon = next_dues < writer.near_until
        if soon.any():
            near = self._spread(places[soon], next_dues[soon])
            connection.execute(_SQL["wait_near"], (apsw.carray(near), NO_DEADLINE, NO_CONTENT))
        if not soon.all():
            far = writer.buckets(next_dues) << ARRIVAL_BITS | arrivals
            later = self._spread(places[~soon], far[~soon])
            connection.execute(_SQL["wait_far"], (apsw.carray(later), NO_DEADLINE, NO_CONTENT))
        writer.add_pending(len(places))

    def _hashes(self, streams: Numbers, names: Sequence[str]) -> Numbers:
        """The hash of each id."""
        hashes = np.zeros(len(names), dtype=np.int64)
        for stream in set(streams.tolist()):
            chosen = np.flatnonzero(streams == stream)
            tenant = self._writer.stream_names[stream][0]
            hashes[chosen] = self._writer.idmap.hashes(tenant, [names[index] for index in chosen.tolist()])
        return hashes

    def _spread(self, places: Numbers, values: Numbers, other: int = -1) -> Numbers:
        """An array over the batch, with values at these places."""
        spread = np.full(self._rows, other, dtype=np.int64)
        spread[places] = values
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
        found = next(standing(self._writer.connection, arrival), None)
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
