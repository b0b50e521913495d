"""BYSETPOS in weeks, months and years: only the elements at certain positions of each period."""

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from tidings.domain.recurrence.calendar import DAY_S, FIRST_YEAR, YEAR_STARTS, kind_of, nth_bit, year_kind, year_of
from tidings.domain.recurrence.days import Days
from tidings.domain.recurrence.parts import MONTHLY, WEEKLY
from tidings.domain.recurrence.steps import GROWTH_LOCK
from tidings.domain.recurrence.times import TimesOfDay, pick_positions
from tidings.domain.recurrence.walls import CountedByYear

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
