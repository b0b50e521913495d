"""BYSETPOS in weeks, months and years: of what each period holds, only the elements at some positions."""

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from tidings.domain.recurrence.calendar import DAY_S, FIRST_YEAR, YEAR_STARTS, kind_named, kind_of, nth_bit, year_of
from tidings.domain.recurrence.days import Days
from tidings.domain.recurrence.parts import MONTHLY, WEEKLY
from tidings.domain.recurrence.steps import GROWING
from tidings.domain.recurrence.times import Times, picked
from tidings.domain.recurrence.walls import ByYear

SHAPES_KEPT = 32  # there are 28 kinds of years


class Positions(ByYear):
    """Periods belong to the year in which they begin, so that a week is never cut in two."""

    def __init__(
        self, days: Days, times: Times, period: tuple[int, int], positions: tuple[int, ...], years: tuple[int, int]
    ) -> None:
        super().__init__(years[0], days.cycle_years, years[1])
        self._days = days
        self._times = times
        self._frequency, self._week_start = period
        self._picked = lru_cache(maxsize=512)(lambda size: picked(positions, size))
        self._known: dict[tuple[int, int, int], Shape] = {}  # years that look the same share theirs

    def build(self, year: int) -> int:
        """Say how many elements the year has."""
        return self._shape_of(year).sums[-1]

    def _shape_of(self, year: int) -> "Shape":
        key = self._days.mask(year), kind_of(year), self._days.mask(year + 1) & 0x7F if self._frequency == WEEKLY else 0
        shape = self._known.get(key)
        if shape is None:
            shape = self._shape(year, key)
            with GROWING:
                if len(self._known) >= SHAPES_KEPT:
                    self._known.clear()
                self._known[key] = shape
        return shape

    def _shape(self, year: int, key: tuple[int, int, int]) -> "Shape":
        firsts, masks, sums = [], [], [0]
        for first, mask in self._periods(year, key[0], key[2]):
            if chosen := len(self._picked(mask.bit_count() * self._times.size)):
                firsts.append(first)
                masks.append(mask)
                sums.append(sums[-1] + chosen)
        return Shape(tuple(firsts), tuple(masks), tuple(sums)) if firsts else _NOTHING

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        day, second = divmod(wall, DAY_S)
        year = year_of(self._week_of(day) if self._frequency == WEEKLY else day)
        if year < self.origin_year:
            return 0
        place = self.reach(year)
        if place + self.origin_year < year:
            return self._counts[-1]
        shape, day = self._shape_of(year), day - YEAR_STARTS[year - FIRST_YEAR]
        period = bisect_right(shape.firsts, day) - 1
        if period < 0:
            return self._counts[place]
        mask, day = shape.masks[period], day - shape.firsts[period]
        passed = (mask & ((1 << day) - 1)).bit_count() * self._times.size
        if mask >> day & 1:
            passed += self._times.before(second)
        chosen = self._picked(mask.bit_count() * self._times.size)
        return self._counts[place] + shape.sums[period] + bisect_left(chosen, passed)

    def at(self, number: int) -> int | None:
        """The element with this number."""
        place = self.place_of(number)
        if place is None:
            return None
        rest, shape = number - self._counts[place], self._shape_of(place + self.origin_year)
        period = bisect_right(shape.sums, rest) - 1
        mask = shape.masks[period]
        chosen = self._picked(mask.bit_count() * self._times.size)
        days, time = divmod(chosen[rest - shape.sums[period]], self._times.size)
        first = YEAR_STARTS[place + self.origin_year - FIRST_YEAR] + shape.firsts[period]
        return (first + nth_bit(mask, days)) * DAY_S + self._times.at(time)

    def _week_of(self, day: int) -> int:
        """The first day of the week that a day lies in."""
        return day - (day + 3 - self._week_start) % 7

    def _periods(self, year: int, mask: int, mask_after: int) -> list[tuple[int, int]]:
        """The first days, from January 1 on, and the masks of the periods that begin in a year."""
        if self._frequency == WEEKLY:
            return self._weeks(year, mask, mask_after)
        if self._frequency == MONTHLY:
            starts = kind_named(kind_of(year)).starts
            months = pairwise(starts) if mask else ()
            return [(begin, mask >> begin & ((1 << end - begin) - 1)) for begin, end in months]
        return [(0, mask)]

    def _weeks(self, year: int, mask: int, mask_after: int) -> list[tuple[int, int]]:
        """The weeks that begin in a year and hold a day of the rule; the last one may end in the next year."""
        kind = kind_named(kind_of(year))
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


class Shape(NamedTuple):
    """What a year's periods that count look like: first days, days, and how many elements come before each."""

    firsts: tuple[int, ...]
    masks: tuple[int, ...]
    sums: tuple[int, ...]


_NOTHING = Shape((), (), (0,))
