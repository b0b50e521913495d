"""Schedules that are sent again as they are, recognised many at a time.

Looking each id up by itself reads a chunk of the map and the heads of a parcel for every row. Here each chunk and each
parcel is read once for all the rows of a batch that it concerns. Whatever is not found in this way, or is overdue, or
is not as it was sent, is left to `domain.changes`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apsw
import numpy as np

from tidings.domain.schedules.command import CONTENT_BYTES, Add, Outcome, Priority
from tidings.timeline.sqlite import id_lookup
from tidings.timeline.sqlite.id_lookup import FINISHED_SQL, NEAR, far_places
from tidings.timeline.sqlite.pending import packed_rows
from tidings.timeline.sqlite.pending.packed_rows import ARRIVAL_MASK
from tidings.timeline.sqlite.writer import Writer

_BELOW = "SELECT place, heads, bodies FROM parcel WHERE place >= ?1 AND place <= ?2 ORDER BY place DESC LIMIT 1"


class _Sought(NamedTuple):
    """The number of a schedule in its batch, and where the newest row of its id lies."""

    number: int
    arrival: int
    due: int


class Repeats:
    """Answers new schedules whose id is there with the same content, inside the writer's transaction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def unchanged(
        self, adds: Sequence[Add], hashes: Sequence[int], suspects: Iterable[int], now: int
    ) -> dict[int, Outcome]:
        """The answers by index, of those that are recognised; all are of one tenant."""
        sought = [
            _Sought(index, *place) for index, place in self._writer.idmap.newest(self._connection, hashes, suspects)
        ]
        found: dict[int, Outcome] = {}
        for which in (0, -1):  # where its day is in `far`, then where its quarter of an hour is
            left = [one for one in sought if one.number not in found]
            places = sorted((far_places(one.arrival, one.due)[which], one) for one in left)
            found.update(self._in_parcels(adds, places, now))
        for one in sought:
            if one.number not in found:
                found.update(self._by_itself(adds[one.number], one, now))
        return found

    @property
    def _connection(self) -> apsw.Connection:
        return self._writer.connection

    def _in_parcels(
        self, adds: Sequence[Add], places: Sequence[tuple[int, _Sought]], now: int
    ) -> Iterator[tuple[int, Outcome]]:
        """From the last place to the first, so that each parcel is read once."""
        end = len(places)
        while end:
            last = places[end - 1][0]
            parcel = self._connection.execute(_BELOW, (last & ~ARRIVAL_MASK, last)).fetchone()
            start = end - 1
            if parcel is not None:
                while start and places[start - 1][0] >= parcel[0]:
                    start -= 1
                yield from self._in_parcel(adds, places[start:end], now, *parcel[1:])
            end = start

    def _in_parcel(
        self, adds: Sequence[Add], places: Sequence[tuple[int, _Sought]], now: int, heads_blob: bytes, bodies: bytes
    ) -> Iterator[tuple[int, Outcome]]:
        heads = packed_rows.read_heads(heads_blob)
        arrivals = np.array([one.arrival & ARRIVAL_MASK for _, one in places], dtype=np.int64)
        rows = np.searchsorted(heads["arrival"], arrivals)
        rows[rows == len(heads)] = 0
        there = np.flatnonzero((heads["arrival"][rows] == arrivals) & (heads["live"][rows] == 1))
        rows = rows[there]
        sizes = packed_rows.row_sizes(heads)
        starts = (np.cumsum(sizes) - sizes)[rows]
        columns = (there, starts, *(heads[name][rows] for name in ("id_bytes", "stream", "due")))
        for at, start, id_bytes, stream, due in zip(*(column.tolist() for column in columns), strict=True):
            index = places[at][1].number
            add = adds[index]
            assert add.id is not None, "what is looked up has an id"
            sent = add.content + add.id.encode()
            is_same = bodies[start : start + CONTENT_BYTES + id_bytes] == sent
            if is_same and due > now and self._writer.stream_names[stream][0] == add.tenant:
                yield index, Outcome(add.id, "unchanged", due, "pending")

    def _by_itself(self, add: Add, one: _Sought, now: int) -> Iterator[tuple[int, Outcome]]:
        """A row that is due soon, or finished."""
        for priority in Priority:
            for to_kafka in (False, True):
                stream = self._writer.streams.get((add.tenant, priority, to_kafka))
                for row in () if stream is None else self._connection.execute(NEAR, (stream, one.due, one.arrival)):
                    near = id_lookup.plain("near", one.arrival, 0, row)
                    if near.n == 1 and near.due > now and (near.id, near.content) == (add.id, add.content):
                        yield one.number, Outcome(near.id, "unchanged", near.due, "pending")
                        return
        for row in self._connection.execute(FINISHED_SQL, (one.due, one.arrival)):
            left = id_lookup.finished(one.arrival, one.due, row)
            tenant = self._writer.stream_names[left.stream][0]
            is_same = (left.id, left.content, tenant) == (add.id, add.content, add.tenant)
            if is_same and not id_lookup.forgotten(left, self._writer, now):
                yield one.number, Outcome(left.id, "unchanged", left.due, left.state)
