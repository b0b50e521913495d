"""The moments of one schedule: numbered from 1, bounded by an end and a count, with single ones added or left out.

Instants are seconds here. The heavy part, `Zoned`, is shared by all schedules with the same rule in the same zone.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

from tidings.domain.recurrence.calendar import END_SECOND
from tidings.domain.recurrence.steps import GROWING, METER
from tidings.domain.recurrence.zoned import Zoned


class Moments(Protocol):
    """Numbered instants."""

    def through(self, instant: int) -> int:
        """How many lie at or before the instant."""
        ...

    def at(self, number: int) -> int | None:
        """The moment with this number, from 1; None behind the last one."""
        ...


class Few:
    """Instants that are simply listed."""

    def __init__(self, instants: Sequence[int]) -> None:
        self._instants = instants

    def through(self, instant: int) -> int:
        """How many lie at or before the instant."""
        return bisect_right(self._instants, instant)

    def at(self, number: int) -> int | None:
        """The moment with this number."""
        return self._instants[number - 1] if number <= len(self._instants) else None


class Bounded:
    """What a rule gives from `lower` to `end`, at most `count` of it."""

    __slots__ = ("_base", "_count", "_end", "_zoned")

    def __init__(self, zoned: Zoned, lower: int, end: int | None, count: int | None) -> None:
        self._zoned = zoned
        self._base = zoned.through(lower - 1) - 1
        self._end = END_SECOND if end is None else min(end, END_SECOND)
        self._count = count

    def through(self, instant: int) -> int:
        """How many lie at or before the instant."""
        found = max(0, self._zoned.through(min(instant, self._end)) - self._base - 1)
        return found if self._count is None else min(found, self._count)

    def at(self, number: int) -> int | None:
        """The moment with this number."""
        if self._count is not None and number > self._count:
            return None
        instant = self._zoned.at(self._base + number)
        return instant if instant is None or instant <= self._end else None


class Amended:
    """Moments without what lies in some ranges (first and last second, sorted, apart), and with some more."""

    def __init__(self, base: Moments, ranges: Sequence[tuple[int, int]], added: Sequence[int]) -> None:
        self._base = base
        self._ranges = ranges
        self._stops = [last for _, last in ranges]
        self._removed = [0]
        METER.taken += len(added)
        self._added = [at for at in added if not self._falls_out(at) and not has(base, at)]

    def through(self, instant: int) -> int:
        """How many lie at or before the instant."""
        return self._base.through(instant) - self._removed_through(instant) + bisect_right(self._added, instant)

    def at(self, number: int) -> int | None:
        """The moment with this number: of what was there and of what was added, the first at which the count fits."""
        place = bisect_left(self._added, number, key=self.through)
        added = self._added[place] if place < len(self._added) else None
        low, high, step = max(1, number - len(self._added)), number, 1
        while (at := self._base.at(high)) is not None and self.through(at) < number:
            METER.taken += 1
            low, high, step = high + 1, high + max(step, number - self.through(at)), step * 2
        while low < high:
            middle = (low + high) // 2
            at = self._base.at(middle)
            low, high = (low, middle) if at is None or self.through(at) >= number else (middle + 1, high)
        at = self._base.at(low)
        return min((moment for moment in (at, added) if moment is not None), default=None)

    def _removed_through(self, instant: int) -> int:
        """How many were taken out up to the instant: whole ranges, counted once, and part of one."""
        whole = bisect_right(self._stops, instant)
        if len(self._removed) <= whole:
            with GROWING:
                for place in range(len(self._removed), whole + 1):
                    METER.taken += 1
                    self._removed.append(self._removed[-1] + self._between(*self._ranges[place - 1]))
        if whole < len(self._ranges) and self._ranges[whole][0] <= instant:
            return self._removed[whole] + self._between(self._ranges[whole][0], instant)
        return self._removed[whole]

    def _between(self, first: int, last: int) -> int:
        return self._base.through(last) - self._base.through(first - 1)

    def _falls_out(self, instant: int) -> bool:
        place = bisect_left(self._stops, instant)
        return place < len(self._ranges) and self._ranges[place][0] <= instant


class Shifted:
    """Moments whose numbers go on from what was numbered before, or leave out the first ones."""

    __slots__ = ("_base", "_shift")

    def __init__(self, base: Moments, shift: int) -> None:
        self._base = base
        self._shift = shift

    def through(self, instant: int) -> int:
        """The number of the last one at or before the instant."""
        return max(0, self._base.through(instant) + self._shift)

    def at(self, number: int) -> int | None:
        """The moment with this number."""
        assert number > self._shift, "what was numbered before has no moment here"
        return self._base.at(number - self._shift)


def has(moments: Moments, instant: int) -> bool:
    """Whether one lies at the instant."""
    return moments.through(instant) > moments.through(instant - 1)
