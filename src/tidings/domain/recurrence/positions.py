"""BYSETPOS in weeks, months and years: of what each period holds, only the elements at some positions."""

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import pairwise

from tidings.domain.recurrence.calendar import DAY_S, FIRST_YEAR, YEAR_STARTS, kind_named, kind_of, nth_bit, year_of
from tidings.domain.recurrence.days import Days
from tidings.domain.recurrence.parts import MONTHLY, WEEKLY
from tidings.domain.recurrence.times import Times, picked
from tidings.domain.recurrence.walls import ByYear


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
        self._firsts: list[list[int]] = []  # by year: the first days of its periods
        self._masks: list[list[int]] = []  # their days, from the first one on
        self._sums: list[list[int]] = []  # how many elements come before each period, and at the year's end

    def build(self, year: int) -> int:
        """Prepare the year and say how many elements it has."""
        firsts, masks, sums = [], [], [0]
        for first, mask in self._periods(year):
            if chosen := len(self._picked(mask.bit_count() * self._times.size)):
                firsts.append(first)
                masks.append(mask)
                sums.append(sums[-1] + chosen)
        self._firsts.append(firsts)
        self._masks.append(masks)
        self._sums.append(sums)
        return sums[-1]

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        day, second = divmod(wall, DAY_S)
        year = year_of(self._week_of(day) if self._frequency == WEEKLY else day)
        if year < self.origin_year:
            return 0
        place = self.reach(year)
        if place + self.origin_year < year:
            return self._counts[-1]
        period = bisect_right(self._firsts[place], day) - 1
        if period < 0:
            return self._counts[place]
        mask, day = self._masks[place][period], day - self._firsts[place][period]
        passed = (mask & ((1 << day) - 1)).bit_count() * self._times.size
        if mask >> day & 1:
            passed += self._times.before(second)
        chosen = self._picked(mask.bit_count() * self._times.size)
        return self._counts[place] + self._sums[place][period] + bisect_left(chosen, passed)

    def at(self, number: int) -> int | None:
        """The element with this number."""
        place = self.place_of(number)
        if place is None:
            return None
        rest = number - self._counts[place]
        period = bisect_right(self._sums[place], rest) - 1
        mask = self._masks[place][period]
        chosen = self._picked(mask.bit_count() * self._times.size)
        days, time = divmod(chosen[rest - self._sums[place][period]], self._times.size)
        return (self._firsts[place][period] + nth_bit(mask, days)) * DAY_S + self._times.at(time)

    def _week_of(self, day: int) -> int:
        """The first day of the week that a day lies in."""
        return day - (day + 3 - self._week_start) % 7

    def _periods(self, year: int) -> list[tuple[int, int]]:
        first = YEAR_STARTS[year - FIRST_YEAR]
        mask = self._days.mask(year)
        if self._frequency == WEEKLY:
            return self._weeks(year, first, mask)
        if self._frequency == MONTHLY:
            starts = kind_named(kind_of(year)).starts
            months = pairwise(starts) if mask else ()
            return [(first + begin, mask >> begin & ((1 << end - begin) - 1)) for begin, end in months]
        return [(first, mask)]

    def _weeks(self, year: int, first: int, mask: int) -> list[tuple[int, int]]:
        """The weeks that begin in a year and hold a day of the rule; the last one may end in the next year."""
        length = YEAR_STARTS[year + 1 - FIRST_YEAR] - first
        mask |= self._days.mask(year + 1) << length
        week = (self._week_start - first - 3) % 7
        rest = mask >> week
        weeks = []
        while rest and week < length:
            empty = ((rest & -rest).bit_length() - 1) // 7 * 7
            week, rest = week + empty, rest >> empty
            if week < length:
                weeks.append((first + week, rest & 0x7F))
            week, rest = week + 7, rest >> 7
        return weeks
