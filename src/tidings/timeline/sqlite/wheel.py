"""The wheel: rows move to finer buckets as their time nears, a slice at a time."""

from tidings import crash
from tidings.timeline.sqlite.far import DAY_QUARTERS, DAY_US, QUARTER_US, statement
from tidings.timeline.sqlite.rows import ARRIVAL_BITS
from tidings.timeline.sqlite.writer import Writer

LEAD_US = 600 * 1_000_000
SLICE_ROWS = 500


class Wheel:
    """Turns in the background; the first step of each turn already routes new rows to the finer place."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._settled = False
        self._split_from: dict[int, int] = {}

    def begin(self) -> None:
        """Look for rows to move from the start."""
        self._settled, self._split_from = False, {}

    def behind(self, now: int) -> bool:
        """Whether something that is due may not have reached `near`."""
        first = self._writer.next_far
        return first is not None and first <= now

    def turn(self, now: int) -> bool:
        """One slice; True if more is to be moved."""
        self._route(now)
        if self._settled:
            return False
        moved = self._refine_slice() or self._split_slice()
        if not moved:
            self._settled, self._split_from = True, {}
        return moved

    def _route(self, now: int) -> None:
        """Say from now on how far `near` and the quarters reach; back only after a clock was far ahead."""
        writer = self._writer
        split_until, near_until = _targets(now)
        if split_until <= writer.split_until and near_until <= writer.near_until <= near_until + DAY_US:
            return
        if writer.near_until <= near_until + DAY_US:
            split_until, near_until = max(split_until, writer.split_until), max(near_until, writer.near_until)
        with writer.transaction() as connection:
            connection.execute("UPDATE tally SET split_until = ?, near_until = ?", (split_until, near_until))
            writer.split_until, writer.near_until = split_until, near_until
        self._settled = False

    def _refine_slice(self) -> bool:
        """Move rows whose time is near from the oldest buckets into `near`; a day that is over is dropped."""
        writer = self._writer
        limit = (writer.near_until // QUARTER_US) << ARRIVAL_BITS
        for day in sorted(writer.far.days):
            low = _first_place(day)
            if low >= limit:
                return False
            last = writer.connection.execute(statement("slice", day), (low, limit, SLICE_ROWS)).get
            if last is not None:
                self._refine(day, low, last)
                return True
            if _first_place(day + 1) <= limit:
                with writer.transaction():
                    writer.far.drop(day)
                return True
        return False

    def _refine(self, day: int, low: int, last: int) -> None:
        writer = self._writer
        slice_ = (low, last, writer.near_until)
        with writer.transaction() as connection:
            heads = connection.execute(statement("near_heads", day), slice_).fetchall()
            connection.execute(statement("to_near", day), slice_)
            connection.execute(statement("to_quarters", day), slice_)
            connection.execute(statement("clear", day), (low, last, 0))
            for stream, due in heads:
                writer.heads.offer(stream, due)
            crash.point("refine.written")
        crash.point("refine.committed")

    def _split_slice(self) -> bool:
        """Move rows of a day that has come near from the day's first bucket into its quarters of an hour."""
        writer = self._writer
        first, end = writer.near_until // DAY_US, writer.split_until // DAY_US
        return any(self._split(day) for day in sorted(writer.far.days) if first <= day < end)

    def _split(self, day: int) -> bool:
        """The next rows of a day's first bucket; those of its first quarter are where they belong."""
        writer = self._writer
        low = self._split_from.get(day, _first_place(day))
        high = (day * DAY_QUARTERS + 1) << ARRIVAL_BITS
        last = writer.connection.execute(statement("slice", day), (low, high, SLICE_ROWS)).get
        if last is None:
            return False
        slice_ = (low, last, day * DAY_US + QUARTER_US)
        with writer.transaction() as connection:
            connection.execute(statement("to_quarters", day), slice_)
            connection.execute(statement("clear", day), slice_)
            crash.point("refine.written")
        crash.point("refine.committed")
        self._split_from[day] = last + 1
        return True


def _first_place(day: int) -> int:
    return (day * DAY_QUARTERS) << ARRIVAL_BITS


def _targets(now: int) -> tuple[int, int]:
    """How far the wheel should be turned: days in quarters for a day ahead, `near` for some minutes ahead."""
    near_until = ((now + LEAD_US) // QUARTER_US + 1) * QUARTER_US
    split_until = ((now + DAY_US) // DAY_US + 1) * DAY_US
    return split_until, near_until
