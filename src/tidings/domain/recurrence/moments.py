"""The occurrences of one schedule, numbered from 1, with its end, its count, RDATE, EXDATE and its calendar applied.

Instants are in seconds here. The expensive part, `ZonedTimes`, is shared by all schedules with the same rule in the
same time zone. A calendar excludes days; an occurrence on such a day is skipped, or moved to the next allowed day. What
moves is computed one run of excluded days at a time, as calls reach it, so that a calendar of many years costs only the
part that has passed since the schedule's first occurrence.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

from tidings.domain.recurrence.calendar import END_SECOND
from tidings.domain.recurrence.steps import GROWTH_LOCK, STEPS
from tidings.domain.recurrence.zoned import ZonedTimes


class Occurrences(Protocol):
    """Numbered instants, in increasing order."""

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        ...

    def at(self, number: int) -> int | None:
        """The occurrence with this number, from 1; None after the last one."""
        ...


class Listed:
    """Occurrences from a list."""

    def __init__(self, instants: Sequence[int]) -> None:
        self._instants = instants

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        return bisect_right(self._instants, instant)

    def at(self, number: int) -> int | None:
        """The occurrence with this number."""
        return self._instants[number - 1] if number <= len(self._instants) else None


class Bounded:
    """The occurrences of a rule from `lower` to `end`, at most `count`."""

    __slots__ = ("_base", "_count", "_end", "_zoned")

    def __init__(self, zoned: ZonedTimes, lower: int, end: int | None, count: int | None) -> None:
        self._zoned = zoned
        self._base = zoned.through(lower - 1) - 1
        self._end = END_SECOND if end is None else min(end, END_SECOND)
        self._count = count

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        found = max(0, self._zoned.through(min(instant, self._end)) - self._base - 1)
        return found if self._count is None else min(found, self._count)

    def at(self, number: int) -> int | None:
        """The occurrence with this number."""
        if self._count is not None and number > self._count:
            return None
        instant = self._zoned.at(self._base + number)
        return instant if instant is None or instant <= self._end else None


class WithListedDates:
    """Occurrences with RDATE and EXDATE applied: without those in `ranges`, and with those of `added`.

    Ranges are pairs of the first and the last second; they are sorted and do not touch.
    """

    def __init__(self, base: Occurrences, ranges: Sequence[tuple[int, int]], added: Sequence[int]) -> None:
        self._base = base
        self._ranges = ranges
        self._stops = [last for _, last in ranges]
        self._removed = [0]
        STEPS.taken += len(added)
        self._added = [at for at in added if not self._is_excepted(at) and not occurs_at(base, at)]

    def through(self, instant: int) -> int:
        """How many occurrences lie at or before the instant."""
        return self._base.through(instant) - self._removed_through(instant) + bisect_right(self._added, instant)

    def at(self, number: int) -> int | None:
        """The occurrence with this number: the first, of the base or added, through which the count reaches it.

        Among those added it is found by binary search. In the base it cannot lie before number - len(added); upward it
        is first bounded by steps that double, then found by binary search. Example: the base is 10, 20, 30, 40, without
        20, and 35 is added: 10, 30, 35, 40. For number 2 the base's 2nd (20, count 1) is too early, its 3rd (30, count
        2) fits; of the added, 35 (count 3) is the first with at least 2; the earlier of 30 and 35 is the answer.
        """
        place = bisect_left(self._added, number, key=self.through)
        added = self._added[place] if place < len(self._added) else None
        low, high, step = max(1, number - len(self._added)), number, 1
        while (at := self._base.at(high)) is not None and self.through(at) < number:
            STEPS.taken += 1
            low, high, step = high + 1, high + max(step, number - self.through(at)), step * 2
        while low < high:
            middle = (low + high) // 2
            at = self._base.at(middle)
            low, high = (low, middle) if at is None or self.through(at) >= number else (middle + 1, high)
        at = self._base.at(low)
        return min((moment for moment in (at, added) if moment is not None), default=None)

    def _removed_through(self, instant: int) -> int:
        """How many were removed up to the instant: those of whole ranges, counted once, and of a part of one."""
        whole = bisect_right(self._stops, instant)
        if len(self._removed) <= whole:
            with GROWTH_LOCK:
                for place in range(len(self._removed), whole + 1):
                    STEPS.taken += 1
                    self._removed.append(self._removed[-1] + self._between(*self._ranges[place - 1]))
        if whole < len(self._ranges) and self._ranges[whole][0] <= instant:
            return self._removed[whole] + self._between(self._ranges[whole][0], instant)
        return self._removed[whole]

    def _between(self, first: int, last: int) -> int:
        return self._base.through(last) - self._base.through(first - 1)

    def _is_excepted(self, instant: int) -> bool:
        place = bisect_left(self._stops, instant)
        return place < len(self._ranges) and self._ranges[place][0] <= instant


class Renumbered:
    """Occurrences with `shift` added to their numbers, after a change of the rule; numbers below 1 are left out."""

    __slots__ = ("_base", "_shift")

    def __init__(self, base: Occurrences, shift: int) -> None:
        self._base = base
        self._shift = shift

    def through(self, instant: int) -> int:
        """The number of the last occurrence at or before the instant."""
        return max(0, self._base.through(instant) + self._shift)

    def at(self, number: int) -> int | None:
        """The occurrence with this number."""
        assert number > self._shift, "numbers up to the shift belong to an earlier version of the rule"
        return self._base.at(number - self._shift)


def occurs_at(moments: Occurrences, instant: int) -> bool:
    """Whether there is an occurrence at the instant."""
    return moments.through(instant) > moments.through(instant - 1)
