"""Sets of wall times with two operations: how many elements lie before a time, and which element is the k-th.

Everything else follows from these two: the next occurrence, the previous one, how many were missed. A set begins with a
year (`origin_year`, nothing lies before it) and keeps the number of elements before each year, so that later calls cost
a few microseconds, however old the anchor of the rule is.

Example: 9:00 and 17:00 on weekdays, from 2027 on. 2027 has 261 weekdays, so 522 elements, and 2028 begins with number
522. Before Tuesday 2027-01-05 12:00 lie the elements of two earlier weekdays (January 1 and 4), 4 in all, and one of
the day itself: 5. Number 5 is found the other way round: 5 = 2 * 2 + 1, the second time of the third weekday.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Protocol

from tidings.domain.recurrence.cache import GROWTH_LOCK, STEPS
from tidings.domain.recurrence.days import (
    DAY_S,
    END_SECOND,
    FIRST_YEAR,
    YEAR_STARTS,
    Days,
    kind_of,
    nth_bit,
    year_kind,
    year_of,
)
from tidings.domain.recurrence.rule import MONTHLY, WEEKLY


class TimesOfDay:
    """A set of seconds of the day: each of `coarse` (multiples of `unit`) plus each of `fine` (less than `unit`).

    9:00, 9:30, 17:00 and 17:30 are coarse = (9 h, 17 h), fine = (0, 30 min) and unit = 1 h.
    """

    __slots__ = ("_coarse", "_fine", "_fines", "_unit", "size")

    def __init__(self, coarse: Sequence[int], fine: Sequence[int], unit: int) -> None:
        self._coarse = coarse
        self._fine = fine
        self._fines = len(fine)
        self._unit = unit
        self.size = len(coarse) * len(fine)

    def before(self, second: int) -> int:
        """How many elements lie before this second of the day."""
        rest = second % self._unit
        begin = second - rest
        index = bisect_left(self._coarse, begin)
        if index < len(self._coarse) and self._coarse[index] == begin:
            return index * self._fines + bisect_left(self._fine, rest)
        return index * self._fines

    def at(self, number: int) -> int:
        """The element with this number, from 0."""
        index, rest = divmod(number, self._fines)
        return self._coarse[index] + self._fine[rest]

    def listed(self, first: int, stop: int) -> list[int]:
        """The elements from `first` up to, not including, `stop`."""
        begin = bisect_left(self._coarse, first - self._unit + 1)
        coarse = self._coarse[begin : bisect_left(self._coarse, stop)]
        seconds = [start + fine for start in coarse for fine in self._fine]
        return seconds[bisect_left(seconds, first) : bisect_left(seconds, stop)]

    def least_distance(self) -> int:
        """The shortest time from one element to the next, including across midnight."""
        near = [later - earlier for earlier, later in pairwise(self._fine)]
        wide = [later - earlier for earlier, later in pairwise(self._coarse)]
        inner = self._fine[-1] - self._fine[0]
        over = DAY_S - (self._coarse[-1] + self._fine[-1]) + self._coarse[0] + self._fine[0]
        return min([over, *near, *([min(wide) - inner] if wide else [])])


def pick_positions(positions: Sequence[int], size: int) -> list[int]:
    """The elements that BYSETPOS selects of `size`, as sorted numbers from 0; negative positions count from the end."""
    indexes = {position - 1 if position > 0 else size + position for position in positions}
    return sorted(index for index in indexes if 0 <= index < size)


class WallTimes(Protocol):
    """A set of wall times."""

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        ...

    def at(self, number: int) -> int | None:
        """The element with this number, from 0; None if there is none."""
        ...


class DayMasks(Protocol):
    """The days of a rule, as one mask for each year."""

    cycle_years: int

    def mask(self, year: int) -> int:
        """The days of one year."""
        ...


class Progression:
    """An endless progression: every `step` seconds from `origin` on, each of the offsets `fine`."""

    def __init__(self, origin: int, step: int, fine: tuple[int, ...]) -> None:
        self._origin = origin
        self._times = TimesOfDay((0,), fine, step)
        self._step = step

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        steps, rest = divmod(wall - self._origin, self._step)
        return steps * self._times.size + self._times.before(rest) if steps >= 0 else 0

    def at(self, number: int) -> int | None:
        """The element with this number."""
        steps, rest = divmod(number, self._times.size)
        return self._origin + steps * self._step + self._times.at(rest)


class CountedByYear:
    """Base of the sets that are counted year by year."""

    def __init__(self, origin_year: int, cycle_years: int, last_year: int) -> None:
        self.origin_year = origin_year
        self._last_year = last_year
        self._cycle_years = cycle_years
        self._counts = array("q", [0])  # how many elements lie before origin_year, the year after it, and so on

    def build(self, year: int) -> int:
        """Prepare the year and return how many elements it has; called once for each year, in order."""
        raise NotImplementedError

    def reach(self, year: int) -> int:
        """Build all years up to this one, or up to the last year of rules; return the year's index."""
        index = min(year, self._last_year) - self.origin_year
        if len(self._counts) <= index + 1:
            with GROWTH_LOCK:
                while len(self._counts) <= index + 1:
                    self.build_next()
        return index

    def index_of(self, number: int) -> int | None:
        """The index of the year that holds the element with this number; None if there is none."""
        counts = self._counts
        if counts[-1] <= number:
            with GROWTH_LOCK:
                while counts[-1] <= number:
                    built = self.origin_year + len(counts) - 1
                    if built > self._last_year or (counts[-1] == 0 and len(counts) > self._cycle_years + 2):
                        return None
                    self.build_next()
        return bisect_right(counts, number) - 1

    def build_next(self) -> None:
        """Prepare the next year."""
        STEPS.taken += 1
        year = self.origin_year + len(self._counts) - 1
        self._counts.append(self._counts[-1] + self.build(year))


class Product(CountedByYear):
    """The product of days and times: the same times on every day."""

    def __init__(self, days: DayMasks, times: TimesOfDay, origin_year: int, last_year: int) -> None:
        super().__init__(origin_year, days.cycle_years, last_year)
        self._days = days
        self._times = times
        self._masks: list[int] = []

    def build(self, year: int) -> int:
        """Prepare the year and return how many elements it has."""
        mask = self._days.mask(year)
        self._masks.append(mask)
        return mask.bit_count() * self._times.size

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        day, second = divmod(wall, DAY_S)
        year = year_of(day)
        if year < self.origin_year:
            return 0
        index = self.reach(year)
        mask = self._masks[index]
        if index + self.origin_year < year:
            return self._counts[-1]
        day -= YEAR_STARTS[year - FIRST_YEAR]
        number = self._counts[index] + (mask & ((1 << day) - 1)).bit_count() * self._times.size
        return number + self._times.before(second) if mask >> day & 1 else number

    def at(self, number: int) -> int | None:
        """The element with this number."""
        index = self.index_of(number)
        if index is None:
            return None
        days, rest = divmod(number - self._counts[index], self._times.size)
        day = YEAR_STARTS[index + self.origin_year - FIRST_YEAR] + nth_bit(self._masks[index], days)
        return day * DAY_S + self._times.at(rest)

    def listed(self, begin: int, end: int) -> list[int]:
        """The elements from `begin` up to, not including, `end`, for a range of a few days."""
        found: list[int] = []
        for day in range(begin // DAY_S, (end - 1) // DAY_S + 1):
            if self.has_day(day):
                midnight = day * DAY_S
                seconds = self._times.listed(max(0, begin - midnight), min(DAY_S, end - midnight))
                found += [midnight + second for second in seconds]
        return found

    def has_day(self, day: int) -> bool:
        """Whether the rule allows a day."""
        year = year_of(day)
        if year < self.origin_year:
            return False
        index = self.reach(year)
        return index + self.origin_year == year and bool(self._masks[index] >> day - YEAR_STARTS[year - FIRST_YEAR] & 1)


class DisjointUnion:
    """The union of two disjoint sets. Needed only where an offset changed by less than the unit of an exact rule."""

    def __init__(self, one: WallTimes, other: WallTimes, origin_year: int) -> None:
        self._one = one
        self._other = other
        self._origin = YEAR_STARTS[origin_year - FIRST_YEAR] * DAY_S

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        return self._one.before(wall) + self._other.before(wall)

    def at(self, number: int) -> int | None:
        """The element with this number, by binary search for the wall time at which the count exceeds it."""
        low, width = self._origin, 366 * DAY_S
        while self.before(low + width) <= number:
            low, width = low + width, width * 2
            if low > END_SECOND:
                return None
        return low + bisect_right(range(low + 1, low + width + 1), number, key=self.before)


SHAPES_KEPT = 32  # there are 28 kinds of years


class SetPositions(CountedByYear):
    """A rule with BYSETPOS. A period belongs to the year in which it begins, so that no week is cut in two.

    Example: FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1, the last weekday of the month. January 2027 has 21 weekdays,
    of which position -1 selects number 20, January 29. Each month has one such element, so the sums are 0, 1, 2, ...
    """

    def __init__(
        self, days: Days, times: TimesOfDay, period: tuple[int, int], positions: tuple[int, ...], years: tuple[int, int]
    ) -> None:
        super().__init__(years[0], days.cycle_years, years[1])
        self._days = days
        self._times = times
        self._frequency, self._week_start = period
        self._picked = lru_cache(maxsize=512)(lambda size: pick_positions(positions, size))
        self._known: dict[tuple[int, int, int], YearShape] = {}  # shared by equal years

    def build(self, year: int) -> int:
        """Return how many elements the year has."""
        return self._shape_of(year).sums[-1]

    def _shape_of(self, year: int) -> "YearShape":
        key = self._days.mask(year), kind_of(year), self._days.mask(year + 1) & 0x7F if self._frequency == WEEKLY else 0
        shape = self._known.get(key)
        if shape is None:
            shape = self._shape(year, key)
            with GROWTH_LOCK:
                if len(self._known) >= SHAPES_KEPT:
                    self._known.clear()
                self._known[key] = shape
        return shape

    def _shape(self, year: int, key: tuple[int, int, int]) -> "YearShape":
        firsts, masks, sums = [], [], [0]
        for first, mask in self._periods(year, key[0], key[2]):
            if chosen := len(self._picked(mask.bit_count() * self._times.size)):
                firsts.append(first)
                masks.append(mask)
                sums.append(sums[-1] + chosen)
        return YearShape(tuple(firsts), tuple(masks), tuple(sums)) if firsts else _NOTHING

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        day, second = divmod(wall, DAY_S)
        year = year_of(self._week_of(day) if self._frequency == WEEKLY else day)
        if year < self.origin_year:
            return 0
        index = self.reach(year)
        if index + self.origin_year < year:
            return self._counts[-1]
        shape, day = self._shape_of(year), day - YEAR_STARTS[year - FIRST_YEAR]
        period = bisect_right(shape.firsts, day) - 1
        if period < 0:
            return self._counts[index]
        mask, day = shape.masks[period], day - shape.firsts[period]
        passed = (mask & ((1 << day) - 1)).bit_count() * self._times.size
        if mask >> day & 1:
            passed += self._times.before(second)
        chosen = self._picked(mask.bit_count() * self._times.size)
        return self._counts[index] + shape.sums[period] + bisect_left(chosen, passed)

    def at(self, number: int) -> int | None:
        """The element with this number."""
        index = self.index_of(number)
        if index is None:
            return None
        rest, shape = number - self._counts[index], self._shape_of(index + self.origin_year)
        period = bisect_right(shape.sums, rest) - 1
        mask = shape.masks[period]
        chosen = self._picked(mask.bit_count() * self._times.size)
        days, time = divmod(chosen[rest - shape.sums[period]], self._times.size)
        first = YEAR_STARTS[index + self.origin_year - FIRST_YEAR] + shape.firsts[period]
        return (first + nth_bit(mask, days)) * DAY_S + self._times.at(time)

    def _week_of(self, day: int) -> int:
        """The first day of a day's week."""
        return day - (day + 3 - self._week_start) % 7

    def _periods(self, year: int, mask: int, mask_after: int) -> list[tuple[int, int]]:
        """The periods that begin in a year: first day, counted from January 1, and mask of days."""
        if self._frequency == WEEKLY:
            return self._weeks(year, mask, mask_after)
        if self._frequency == MONTHLY:
            starts = year_kind(kind_of(year)).starts
            months = pairwise(starts) if mask else ()
            return [(begin, mask >> begin & ((1 << end - begin) - 1)) for begin, end in months]
        return [(0, mask)]

    def _weeks(self, year: int, mask: int, mask_after: int) -> list[tuple[int, int]]:
        """The weeks that begin in a year and have a day of the rule; the last one may end in the next year."""
        kind = year_kind(kind_of(year))
        mask |= mask_after << kind.days
        week = (self._week_start - kind.first) % 7
        rest = mask >> week
        weeks = []
        while rest and week < kind.days:
            empty = ((rest & -rest).bit_length() - 1) // 7 * 7
            week, rest = week + empty, rest >> empty
            if week < kind.days:
                weeks.append((week, rest & 0x7F))
            week, rest = week + 7, rest >> 7
        return weeks


class YearShape(NamedTuple):
    """The non-empty periods of a year: their first days, their days, and how many elements lie before each."""

    firsts: tuple[int, ...]
    masks: tuple[int, ...]
    sums: tuple[int, ...]


_NOTHING = YearShape((), (), (0,))
