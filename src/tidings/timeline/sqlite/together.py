"""Standing schedules that simply go on, a whole batch of them at once: their number and due times pass through Python,
the rest does not. What ends, is late or has been missed is left to `Recurring`, one by one."""

from functools import lru_cache

import apsw
import numpy as np
import numpy.typing as npt

from tidings.domain.command import NO_CONTENT
from tidings.domain.lateness import deadline
from tidings.domain.when import is_once, occurrence
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.rows import ARRIVAL_BITS, NO_DEADLINE
from tidings.timeline.sqlite.single import HISTORY_LINES_MAX
from tidings.timeline.sqlite.writer import OFFSET_BITS, OUTBOX, PARTITIONS_MAX, Writer
from tidings.timeline.terms import Terms, decode_terms

TRIM_EVERY = 50

_SQL = queries("standing")
_terms = lru_cache(maxsize=4_096)(decode_terms)  # producers use the same few

Numbers = npt.NDArray[np.int64]


class Together:
    """One batch, inside the release transaction, once its rows are off the timeline."""

    def __init__(self, writer: Writer, now: int, rows: int) -> None:
        self._writer = writer
        self._now = now
        self._positions = np.full(rows, -1, dtype=np.int64)
        self._hashes = np.zeros(rows, dtype=np.int64)
        self._dues = np.full(rows, -1, dtype=np.int64)
        self._arrivals = np.zeros(rows, dtype=np.int64)
        self._long: list[int] = []
        self.lateness_us: list[int] = []
        self.topics: set[tuple[str, str]] = set()
        self.handed = self.bytes = 0

    def release(self) -> list[int]:
        """Release those that go on; answers the arrivals of the others."""
        others: list[int] = []
        partitions: dict[int, list[tuple[int, int]]] = {}
        hash_of, names = self._writer.idmap.hash, self._writer.stream_names
        for ordinal, arrival, due, partition, size, stream, n, name, policy in self._pending():
            following = self._following(_terms(policy), n, due)
            if following is None:
                others.append(arrival)
                continue
            place = ordinal - 1
            self._dues[place], self._arrivals[place] = following, arrival
            self._hashes[place] = id_hash = hash_of(names[stream][0], name)
            partitions.setdefault(partition, []).append((place, size))
            if n % TRIM_EVERY == 0:
                self._long.append(id_hash)
            self._count(partition, due)
        if partitions:
            self._place(partitions)
            self._write()
        return others

    def _pending(self) -> list[tuple[int, int, int, int, int, int, int, str, bytes]]:
        found: list[tuple[int, int, int, int, int, int, int, str, bytes]]
        found = self._writer.connection.execute(_SQL["pending"]).fetchall()
        return found

    def _following(self, terms: Terms, n: int, due: int) -> int | None:
        """When the next occurrence is due, if this one is released now and the next is still to come."""
        if terms.pardon is not None or is_once(terms.when):
            return None
        bound = deadline(due, terms.lateness)
        if bound is not None and self._now > bound[0]:
            return None
        following = occurrence(terms.when, n + 1)
        if following is None or following + terms.jitter_us <= self._now:
            return None
        return following + terms.jitter_us

    def _count(self, partition: int, due: int) -> None:
        topic = partition // PARTITIONS_MAX
        if topic in self._writer.on_kafka:
            self.handed += 1
        else:
            self.lateness_us.append(self._now - due)
            self.topics.add(self._writer.topic_names[topic])

    def _place(self, partitions: dict[int, list[tuple[int, int]]]) -> None:
        """Give each the next position of its partition, and move the partitions' ends."""
        outgoing = [row for one, rows in partitions.items() if self._on_kafka(one) for row in rows]
        ways = {one: rows for one, rows in partitions.items() if not self._on_kafka(one)}
        if outgoing:
            ways[OUTBOX] = sorted(outgoing)
        for partition, rows in ways.items():
            sizes = [size for _, size in rows]
            moved = (partition, len(rows), sum(sizes))
            first = int(self._writer.connection.execute(_ADVANCE, moved).get)
            places = np.array([place for place, _ in rows], dtype=np.int64)
            self._positions[places] = np.arange(len(rows)) + ((partition << OFFSET_BITS) + first)
            self.bytes += sum(sizes)
            if partition == OUTBOX:
                self._writer.room.put(first, sizes)

    def _on_kafka(self, partition: int) -> bool:
        return partition // PARTITIONS_MAX in self._writer.on_kafka

    def _write(self) -> None:
        connection, writer = self._writer.connection, self._writer
        positions, dues = apsw.carray(self._positions), self._dues
        connection.execute(_SQL["log"], (positions, self._now))
        connection.execute(_SQL["note"], (apsw.carray(self._hashes), positions, self._now))
        for id_hash in self._long:
            connection.execute(_SQL["trim"], (id_hash, HISTORY_LINES_MAX))
        connection.execute(_SQL["go_on"], (apsw.carray(dues),))
        there = dues >= 0
        soon = there & (dues < writer.near_until)
        if soon.any():
            near = np.where(soon, dues, -1)
            connection.execute(_SQL["wait_near"], (apsw.carray(near), NO_DEADLINE, NO_CONTENT))
        later = there & ~soon
        if later.any():
            places = np.where(later, writer.buckets(dues) << ARRIVAL_BITS | self._arrivals, -1)
            connection.execute(_SQL["wait_far"], (apsw.carray(places), NO_DEADLINE, NO_CONTENT))
        writer.pending += int(there.sum())


_ADVANCE = queries("release")["advance"]
