"""The timing wheel: moves rows to finer buckets, and then to `near`, as their due time comes closer."""

from tidings import crash
from tidings.timeline.sqlite.pending.packed_rows import (
    ARRIVAL_BITS,
    DAY_LAST,
    DAY_QUARTERS,
    DAY_US,
    QUARTER_US,
    SQL,
    Rows,
    join,
    place_of,
    quarters,
    unpack,
)
from tidings.timeline.sqlite.writer import Writer

LEAD_US = 600 * 1_000_000
SPLIT_LEAD_US = 2 * 3_600 * 1_000_000
SLICE_ROWS = 500
SLICE_BYTES_MAX = 2 * 1024 * 1024


class Wheel:
    """Moves rows slice by slice. Each turn first changes where new rows go, then moves the existing ones."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._done = False
        self._rows_from: dict[int, int] = {}
        self._parcels_from: dict[int, int] = {}
        self._split_days: set[int] = set()

    def begin(self) -> None:
        """Look for rows to move from the beginning."""
        self._done, self._rows_from, self._parcels_from = False, {}, {}
        self._split_days = set()

    def turn(self, now: int) -> bool:
        """Move one slice; True if it moved something."""
        self._route(now)
        if self._done:
            return False
        moved = self._refine_slice() or self._split_slice()
        if not moved:
            self._done, self._rows_from, self._parcels_from = True, {}, {}
        return moved

    def _route(self, now: int) -> None:
        """Advance the horizons of `near` and of split days; they go back only if the clock was far ahead before."""
        writer = self._writer
        split_until, near_until = _targets(now)
        if split_until <= writer.split_until and near_until <= writer.near_until <= near_until + DAY_US:
            return
        if writer.near_until <= near_until + DAY_US:
            split_until, near_until = max(split_until, writer.split_until), max(near_until, writer.near_until)
        else:
            split_until, self._split_days = max(split_until, self._first_unsplit(split_until)), set()
        with writer.transaction():
            writer.set_horizons(split_until, near_until)
        self._done = False

    def _first_unsplit(self, split_until: int) -> int:
        """The start of the first day from which on no day is split: split days must stay split.

        If a split day became whole again, its new parcels would overlap with those in its quarters of an hour.
        """
        place = place_of(self._writer.split_until // QUARTER_US)
        while (found := self._writer.connection.execute(SQL["last_before"], (place,)).get) is not None:
            quarter = int(found) >> ARRIVAL_BITS
            if quarter % DAY_QUARTERS:
                return (quarter // DAY_QUARTERS + 1) * DAY_US
            if quarter * QUARTER_US < split_until:
                break
            place = place_of(quarter)
        return 0

    def _refine_slice(self) -> bool:
        """Move rows that are due soon from the oldest buckets to `near`, and the others there to their quarters."""
        near_until = self._writer.near_until
        limit = place_of(near_until // QUARTER_US)
        return (
            self._move_rows(0, limit, near_until, near_until) is not None
            or self._move_parcels(0, limit, near_until) is not None
        )

    def _split_slice(self) -> bool:
        """Move rows of a day that begins soon from the bucket of the day to its quarters of an hour."""
        writer = self._writer
        first, end = writer.near_until // DAY_US, writer.split_until // DAY_US
        return any(self._split(day) for day in range(first, min(end, DAY_LAST)))

    def _split(self, day: int) -> bool:
        if day in self._split_days:
            return False
        moved = self._split_rows(day) or self._split_parcels(day)
        if not moved:
            self._split_days.add(day)
        return moved

    def _split_rows(self, day: int) -> bool:
        """Split the next single rows of a day; those of its first quarter are in the right bucket already."""
        low, high = self._rows_from.get(day, _first_place(day)), _first_place(day) + (1 << ARRIVAL_BITS)
        last = self._move_rows(low, high, 0, day * DAY_US + QUARTER_US)
        if last is not None:
            self._rows_from[day] = last + 1
        return last is not None

    def _split_parcels(self, day: int) -> bool:
        """Split the next parcels of a day; their rows of the first quarter are packed again."""
        low, high = self._parcels_from.get(day, _first_place(day)), _first_place(day) + (1 << ARRIVAL_BITS)
        last = self._move_parcels(low, high, 0)
        if last is not None:
            self._parcels_from[day] = last + 1
        return last is not None

    def _move_rows(self, low: int, high: int, near_until: int, quarters_from: int) -> int | None:
        """Move the next single rows of a span of places by their due times; returns the last place."""
        writer = self._writer
        last = self._slice_end(low, high)
        if last is None:
            return None
        with writer.transaction() as connection:
            heads = connection.execute(SQL["near_heads"], (low, last, near_until)).fetchall()
            connection.execute(SQL["to_near"], (low, last, near_until))
            connection.execute(SQL["to_quarters"], (low, last, quarters_from))
            connection.execute(SQL["clear"], (low, last, 0 if near_until else quarters_from))
            for stream, due in heads:
                writer.lookahead.offer(stream, due)
            crash.point("refine.written")
        crash.point("refine.committed")
        return last

    def _move_parcels(self, low: int, high: int, near_until: int) -> int | None:
        """The same for the next parcels."""
        writer = self._writer
        parts, last = self._slice(low, high)
        if last is None:
            return None
        with writer.transaction() as connection:
            connection.execute(SQL["clear_parcels"], (low, last))
            rows = join(parts)
            soon = rows.heads["due"] < near_until
            writer.near.insert(rows.where(soon))
            writer.far.insert(later := rows.where(~soon), quarters(later.heads["due"]))
            crash.point("refine.written")
        crash.point("refine.committed")
        return last

    def _slice_end(self, low: int, high: int) -> int | None:
        """The place of the last row of the next slice of a span."""
        last, total = None, 0
        for place, size in self._writer.connection.execute(SQL["slice"], (low, high, SLICE_ROWS)):
            last, total = place, total + size
            if total >= SLICE_BYTES_MAX:
                break
        return last

    def _slice(self, low: int, high: int) -> tuple[list[Rows], int | None]:
        """The next parcels of a span, and the place of the last one."""
        parts: list[Rows] = []
        last, count, size = None, 0, 0
        for place, heads, bodies in self._writer.connection.execute(SQL["parcels"], (low, high)):
            parts.append(unpack(heads, bodies))
            last, count, size = place, count + len(parts[-1]), size + len(bodies)
            if count >= SLICE_ROWS or size >= SLICE_BYTES_MAX:
                break
        return parts, last


def _first_place(day: int) -> int:
    return place_of(day * DAY_QUARTERS)


def _targets(now: int) -> tuple[int, int]:
    """The horizons at `now`: days are split some hours ahead, and rows are in `near` some minutes ahead."""
    near_until = ((now + LEAD_US) // QUARTER_US + 1) * QUARTER_US
    split_until = ((now + SPLIT_LEAD_US) // DAY_US + 1) * DAY_US
    return split_until, near_until
