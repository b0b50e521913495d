"""Standing schedules that simply go on, a whole batch of them at once: their number and due times pass through Python,
the rest does not. What ends, is late or has been missed, or was due by other rules of its zone, is left to `Recurring`,
one by one."""

from functools import lru_cache

import apsw
import numpy as np
import numpy.typing as npt

from tidings.domain.command import NO_CONTENT
from tidings.domain.lateness import deadline
from tidings.domain.when import is_once
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
        self._rows = rows
        self._positions = np.full(rows, -1, dtype=np.int64)
        self.lateness_us: list[int] = []
        self.topics: set[tuple[str, str]] = set()
        self.handed = self.bytes = 0

    def release(self) -> list[int]:
        """Release those that go on; answers the arrivals of the others."""
        others: list[int] = []
        going: list[tuple[int, int, int, int, int]] = []  # place, next due time, arrival, stream, number
        names: list[str] = []
        partitions: dict[int, list[tuple[int, int]]] = {}
        decided: dict[tuple[bytes, int, int], int | None] = {}  # what is equal is decided once
        late: dict[int, list[int]] = {}
        for ordinal, arrival, due, partition, size, stream, n, name, policy in self._pending():
            asked = policy, n, due
            if asked not in decided:
                decided[asked] = self._following(_terms(policy), n, due)
            following = decided[asked]
            if following is None:
                others.append(arrival)
                continue
            going.append((ordinal - 1, following, arrival, stream, n))
            names.append(name)
            if partition not in partitions:
                partitions[partition], late[partition] = [], []
            partitions[partition].append((ordinal - 1, size))
            late[partition].append(self._now - due)
        if going:
            self._count(late)
            self._place(partitions)
            self._write(going, names)
        return others

    def _pending(self) -> list[tuple[int, int, int, int, int, int, int, str, bytes]]:
        found: list[tuple[int, int, int, int, int, int, int, str, bytes]]
        found = self._writer.connection.execute(_SQL["pending"]).fetchall()
        return found

    def _following(self, terms: Terms, n: int, due: int) -> int | None:
        """When the next occurrence is due, if this one is due as it says, and the next is still to come."""
        if terms.pardon is not None or is_once(terms.when) or terms.due(n) != due:
            return None
        bound = deadline(due, terms.lateness)
        if bound is not None and self._now > bound[0]:
            return None
        following = terms.due(n + 1)
        return None if following is None or following <= self._now else following

    def _count(self, late: dict[int, list[int]]) -> None:
        for partition, lateness_us in late.items():
            if self._on_kafka(partition):
                self.handed += len(lateness_us)
            else:
                self.lateness_us += lateness_us
                self.topics.add(self._writer.topic_names[partition // PARTITIONS_MAX])

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

    def _write(self, going: list[tuple[int, int, int, int, int]], names: list[str]) -> None:
        connection, writer = self._writer.connection, self._writer
        places, next_dues, next_arrivals, streams, numbers = np.array(going, dtype=np.int64).T
        hashes = self._hashes(streams, names)
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
            far = writer.buckets(next_dues) << ARRIVAL_BITS | next_arrivals
            later = self._spread(places[~soon], far[~soon])
            connection.execute(_SQL["wait_far"], (apsw.carray(later), NO_DEADLINE, NO_CONTENT))
        writer.pending += len(going)

    def _hashes(self, streams: Numbers, names: list[str]) -> Numbers:
        """The hash of each id; 0 is for rows that are none of ours."""
        hashes = np.zeros(len(names), dtype=np.int64)
        for stream in set(streams.tolist()):
            chosen = np.flatnonzero(streams == stream)
            tenant = self._writer.stream_names[stream][0]
            hashes[chosen] = self._writer.idmap.hashes(tenant, [names[index] for index in chosen.tolist()])
        return hashes

    def _spread(self, places: Numbers, values: Numbers, other: int = -1) -> Numbers:
        """Values at their places in the batch."""
        spread = np.full(self._rows, other, dtype=np.int64)
        spread[places] = values
        return spread


_ADVANCE = queries("release")["advance"]
