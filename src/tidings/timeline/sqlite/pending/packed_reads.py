"""Reads packed rows: lists, forecasts and counts read the heads, and only the bodies of rows that are shown."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from itertools import groupby
from operator import itemgetter

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from tidings.domain.schedules.schedule import Query
from tidings.timeline.sqlite import id_lookup
from tidings.timeline.sqlite.pending import packed_rows
from tidings.timeline.sqlite.pending.packed_rows import (
    ARRIVAL_BITS,
    DAY_LAST,
    DAY_QUARTERS,
    PLACE_LAST,
    QUARTER_LAST,
    QUARTER_US,
    SQL,
    Heads,
    place_of,
)
from tidings.timeline.sqlite.writer import PARTITIONS_MAX

BLOCK_BYTES = 1024 * 1024

_decode_labels = msgspec.json.Decoder(dict[str, str]).decode

_Chosen = tuple[int, int, int]  # due, arrival, the place of its parcel


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a page."""

    query: Query
    streams: list[int]
    after: tuple[int, int]
    until: int
    topics: list[int]

    def among(self, heads: Heads) -> packed_rows.Flags:
        """The rows whose numeric columns match."""
        due, arrival = heads["due"], heads["arrival"]
        fits = (heads["live"] == 1) & np.isin(heads["stream"], self.streams) & (due < self.until)
        fits &= (due > self.after[0]) | ((due == self.after[0]) & (arrival > self.after[1]))
        if self.topics:
            fits &= np.isin(heads["partition"] // PARTITIONS_MAX, self.topics)
        return np.asarray(fits, dtype=np.bool_)

    @property
    def by_text(self) -> bool:
        """Whether ids or labels have to be compared too."""
        return self.query.prefix is not None or self.query.label is not None

    def with_text(self, connection: apsw.Connection, chosen: Iterable[_Chosen]) -> Iterator[_Chosen]:
        """The rows whose id and labels match."""
        prefix = (self.query.prefix or "").encode()
        for place, group in groupby(chosen, itemgetter(2)):
            dues = {arrival: due for due, arrival, _ in group}
            for arrival, schedule_id, labels in _texts(connection, place):
                if arrival in dues and schedule_id.startswith(prefix) and self._has_label(labels):
                    yield dues[arrival], arrival, place

    def _has_label(self, labels: bytes) -> bool:
        if self.query.label is None:
            return True
        name, value = self.query.label
        return bool(labels) and _decode_labels(labels).get(name) == value


def page(connection: apsw.Connection, wanted: Wanted, first: int, end: int) -> Iterator[id_lookup.Found]:
    """The first matching rows of the parcels in a span of places."""
    best: list[_Chosen] = []
    for places, heads in _blocks(connection, first, end):
        fits = wanted.among(heads)
        chosen = zip(heads["due"][fits].tolist(), heads["arrival"][fits].tolist(), places[fits].tolist(), strict=True)
        found = wanted.with_text(connection, chosen) if wanted.by_text else chosen
        best = heapq.nsmallest(wanted.query.limit + 1, (*best, *found))
    for place, group in groupby(sorted(best, key=itemgetter(2)), itemgetter(2)):
        bucket = place >> ARRIVAL_BITS << ARRIVAL_BITS
        for arrival, row in _rows(connection, place, {arrival for _, arrival, _ in group}):
            yield id_lookup.plain("far", arrival, bucket | arrival, row)


def _blocks(connection: apsw.Connection, first: int, end: int) -> Iterator[tuple[npt.NDArray[np.int64], Heads]]:
    """The heads of many parcels in one array, each with the place of its parcel: numpy is slow for small arrays."""
    places, blobs, size = list[int](), list[bytes](), 0
    for place, blob in connection.execute(SQL["heads"], (first, end)):
        places.append(place)
        blobs.append(blob)
        size += len(blob)
        if size >= BLOCK_BYTES:
            yield _block(places, blobs)
            places, blobs, size = [], [], 0
    if blobs:
        yield _block(places, blobs)


def _block(places: list[int], blobs: list[bytes]) -> tuple[npt.NDArray[np.int64], Heads]:
    counts = [len(blob) // packed_rows.HEAD.itemsize for blob in blobs]
    return np.repeat(np.array(places, dtype=np.int64), counts), packed_rows.read_heads(b"".join(blobs))


def _texts(connection: apsw.Connection, place: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Arrival, id and labels of each row of one parcel."""
    blob, bodies = connection.execute(SQL["whole"], (place,)).fetchone()
    heads = packed_rows.read_heads(blob)
    ends = np.cumsum(packed_rows.row_sizes(heads))
    id_starts = ends - heads["message_bytes"] - heads["labels_bytes"] - heads["id_bytes"]
    columns = (heads["arrival"], id_starts, id_starts + heads["id_bytes"], ends - heads["message_bytes"])
    for arrival, id_start, id_end, labels_end in zip(*(column.tolist() for column in columns), strict=True):
        yield arrival, bodies[id_start:id_end], bodies[id_end:labels_end]


def _rows(connection: apsw.Connection, place: int, arrivals: Set[int]) -> Iterator[tuple[int, packed_rows.Plain]]:
    """Some rows of one parcel."""
    rows = packed_rows.unpack(*connection.execute(SQL["whole"], (place,)).fetchone())
    for index, arrival in enumerate(rows.heads["arrival"].tolist()):
        if arrival in arrivals:
            yield arrival, rows.plain(index)


def forecast(connection: apsw.Connection, streams: list[int], start: int, end: int, width_us: int) -> Counter[int]:
    """How many rows are due in each step of time."""
    steps: Counter[int] = Counter()
    for _, heads in _blocks(connection, *_span(start, end)):
        fits = (heads["live"] == 1) & (heads["due"] >= start) & (heads["due"] < end)
        numbers, counts = np.unique(
            heads["due"][fits & np.isin(heads["stream"], streams)] // width_us, return_counts=True
        )
        steps.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    return steps


def overdue(connection: apsw.Connection, now: int, rows_max: int) -> int:
    """How many rows are due, counted up to a limit."""
    total = 0
    for _, heads in _blocks(connection, *_span(0, now + 1)):
        total += int(((heads["live"] == 1) & (heads["due"] <= now)).sum())
        if total >= rows_max:
            break
    return total


def first_overdue(connection: apsw.Connection, now: int) -> int | None:
    """The due time of the first row that is due, within the first block that has one."""
    for _, heads in _blocks(connection, *_span(0, now + 1)):
        dues = heads["due"][(heads["live"] == 1) & (heads["due"] <= now)]
        if len(dues):
            return int(dues.min())
    return None


def _span(start: int, end: int) -> tuple[int, int]:
    """The places of rows that are due in a span of time, starting with the bucket of the first day."""
    first = min(start // QUARTER_US, QUARTER_LAST) // DAY_QUARTERS * DAY_QUARTERS
    last = end // QUARTER_US + 1
    return place_of(first), place_of(last) if last <= QUARTER_LAST else PLACE_LAST


def next_day(connection: apsw.Connection, day: int) -> int | None:
    """The first day from this one on that has rows."""
    if day > DAY_LAST:
        return None
    place: int | None = connection.execute(SQL["first_from"], (place_of(day * DAY_QUARTERS),)).get
    return None if place is None else (place >> ARRIVAL_BITS) // DAY_QUARTERS


def day_places(day: int) -> tuple[int, int]:
    """The first place of a day, and that of the next day."""
    first = day * DAY_QUARTERS << ARRIVAL_BITS
    return first, min(first + (DAY_QUARTERS << ARRIVAL_BITS), PLACE_LAST)
