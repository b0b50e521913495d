"""Reading parcels: lists, forecasts and counts look at heads and open only the bodies that they show."""

import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import apsw
import msgspec
import numpy as np

from tidings.domain.schedule import Query
from tidings.timeline.sqlite import lookup, parcels
from tidings.timeline.sqlite.far import DAY_QUARTERS, PLACE_LAST, QUARTER_LAST, SQL, heads_between
from tidings.timeline.sqlite.parcels import Heads, Rows
from tidings.timeline.sqlite.rows import ARRIVAL_BITS
from tidings.timeline.sqlite.writer import PARTITIONS_MAX

DAY_LAST = QUARTER_LAST // DAY_QUARTERS

_decode_labels = msgspec.json.Decoder(dict[str, str]).decode

_Chosen = tuple[int, int, int]  # due, arrival, the place of its parcel


class Wanted(msgspec.Struct, frozen=True):
    """Which rows a page is looking for."""

    query: Query
    streams: list[int]
    after: tuple[int, int]
    until: int
    first_partition: int | None

    def among(self, heads: Heads) -> Heads:
        """Those whose numbers fit."""
        due, arrival = heads["due"], heads["arrival"]
        fits = (heads["live"] == 1) & np.isin(heads["stream"], self.streams) & (due < self.until)
        fits &= (due > self.after[0]) | ((due == self.after[0]) & (arrival > self.after[1]))
        if self.first_partition is not None:
            fits &= heads["partition"] // PARTITIONS_MAX == self.first_partition // PARTITIONS_MAX
        chosen: Heads = heads[fits]
        return chosen

    @property
    def by_text(self) -> bool:
        """Whether their numbers alone do not tell."""
        return self.query.prefix is not None or self.query.label is not None

    def has(self, row: parcels.Plain) -> bool:
        """Whether a row's id and labels fit."""
        schedule_id, labels = row[9], row[10]
        if self.query.prefix is not None and not schedule_id.startswith(self.query.prefix):
            return False
        if self.query.label is None:
            return True
        name, value = self.query.label
        return labels is not None and _decode_labels(labels).get(name) == value


def page(connection: apsw.Connection, wanted: Wanted, first: int, end: int) -> Iterator[lookup.Found]:
    """The first rows that fit, of the parcels in a span of places."""
    best = heapq.nsmallest(wanted.query.limit + 1, _chosen(connection, wanted, first, end))
    for place, group in groupby(sorted(best, key=itemgetter(2)), itemgetter(2)):
        arrivals = {arrival for _, arrival, _ in group}
        rows = _open(connection, place)
        for index, arrival in enumerate(rows.heads["arrival"].tolist()):
            if arrival in arrivals:
                far_place = place >> ARRIVAL_BITS << ARRIVAL_BITS | arrival
                yield lookup.plain("far", arrival, far_place, rows.plain(index))


def _chosen(connection: apsw.Connection, wanted: Wanted, first: int, end: int) -> Iterator[_Chosen]:
    for place, blob in connection.execute(SQL["heads"], (first, end)).fetchall():
        heads = wanted.among(parcels.read_heads(blob))
        if not len(heads):
            continue
        if wanted.by_text:
            rows = _open(connection, place)
            kept = {
                arrival for index, arrival in enumerate(rows.heads["arrival"].tolist()) if wanted.has(rows.plain(index))
            }
            heads = heads[np.isin(heads["arrival"], list(kept))]
        yield from (
            (due, arrival, place) for due, arrival in zip(heads["due"].tolist(), heads["arrival"].tolist(), strict=True)
        )


def _open(connection: apsw.Connection, place: int) -> Rows:
    heads, bodies = connection.execute("SELECT heads, bodies FROM parcel WHERE place = ?", (place,)).fetchone()
    return parcels.unpack(heads, bodies)


def forecast(connection: apsw.Connection, streams: list[int], start: int, end: int, width_us: int) -> Counter[int]:
    """How many are due in each step of time."""
    steps: Counter[int] = Counter()
    for heads in heads_between(connection, start, end):
        chosen = heads["due"][np.isin(heads["stream"], streams)] // width_us
        numbers, counts = np.unique(chosen, return_counts=True)
        steps.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    return steps


def overdue(connection: apsw.Connection, now: int, rows_max: int) -> int:
    """How many are due, counted up to a bound."""
    total = 0
    for heads in heads_between(connection, 0, now + 1):
        total += len(heads)
        if total >= rows_max:
            break
    return total


def next_day(connection: apsw.Connection, day: int) -> int | None:
    """The first day from this one on that holds something."""
    place: int | None = connection.execute(SQL["first_from"], (min(day, DAY_LAST) * DAY_QUARTERS << ARRIVAL_BITS,)).get
    return None if place is None else (place >> ARRIVAL_BITS) // DAY_QUARTERS


def day_places(day: int) -> tuple[int, int]:
    """The first place of a day, and that of the next."""
    first = day * DAY_QUARTERS << ARRIVAL_BITS
    return first, min(first + (DAY_QUARTERS << ARRIVAL_BITS), PLACE_LAST)
