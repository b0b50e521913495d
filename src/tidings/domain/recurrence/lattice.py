"""Rules below DAILY whose INTERVAL does not divide the day, as a set of wall times."""

from array import array
from bisect import bisect_left, bisect_right
from itertools import count, pairwise
from math import gcd

import numpy as np

from tidings.domain.recurrence.calendar import CYCLE_DAYS, CYCLE_YEARS, DAY_S, FIRST_YEAR, YEAR_STARTS, year_of
from tidings.domain.recurrence.days import YEAR_BITS_MAX, Days
from tidings.domain.recurrence.kept import BoundedCache
from tidings.domain.recurrence.remainders import UnitTableKey, table_of
from tidings.domain.recurrence.sparse import unpack_days, years_met
from tidings.domain.recurrence.steps import STEPS
from tidings.domain.recurrence.walls import CountedByYear

YearBlock = tuple["array[int]", "array[int]"]

BLOCK_YEARS = 8
BLOCKS_BYTES_MAX = 48 * 1024 * 1024  # of all rules together; up to 18 kB each, if every day is allowed
YEAR_BLOCKS: BoundedCache[tuple[int, int], YearBlock] = BoundedCache(BLOCKS_BYTES_MAX)

_IDS = count()


def _cycle_years(interval: int, day_units: int) -> int:
    return CYCLE_YEARS * (interval // gcd(interval, CYCLE_DAYS * day_units))


class Lattice(CountedByYear):
    """Every `interval`-th unit from `first_unit` on, if it and its day are allowed; in each unit the offsets `fine`."""

    def __init__(
        self,
        days: Days,
        table: UnitTableKey,
        lattice: tuple[int, int, int],
        fine: tuple[int, ...],
        years: tuple[int, int],
    ) -> None:
        self._unit, self._interval, self._first_unit = lattice
        self._day_units = DAY_S // self._unit
        super().__init__(years[0], _cycle_years(self._interval, self._day_units), years[1])
        self._days = days
        self._units = table
        self._id = next(_IDS)
        self._fine = fine
        self._cycle_days = self._interval // gcd(
            self._interval, self._day_units
        )  # days until the same units are hit again
        self._hits = self._days_hit()
        self._years: int | None = None  # a mask of those that can have an element; computed once an empty one is found

    def _days_hit(self) -> int:
        """The days since 1970 that the lattice hits, as a repeating mask; -1 if the cycle is longer than a year."""
        if self._cycle_days > YEAR_BITS_MAX:
            return -1
        left = (self._first_unit - np.arange(self._cycle_days) * self._day_units) % self._interval
        hits = sum(1 << day for day in np.flatnonzero(table_of(self._units).counts(left)).tolist())
        return sum(hits << first for first in range(0, YEAR_BITS_MAX + self._cycle_days, self._cycle_days))

    def build_next(self) -> None:
        """Prepare the next years: all that are known to be empty, or the rest of a block."""
        built = len(self._counts) - 1
        missing = self._last_year - self.origin_year + 1 - built
        rest = -1 if self._years is None else self._years >> built
        if not rest & 1:
            STEPS.taken += 1
            self._counts.extend([self._counts[-1]] * ((rest & -rest).bit_length() - 1 if rest else missing))
            return
        number, passed = divmod(built, BLOCK_YEARS)
        STEPS.taken += BLOCK_YEARS - passed
        self._counts.extend(self._year_end_counts(number, self._counts[-1], passed)[:missing])

    def _year_end_counts(self, number: int, before: int, passed: int) -> list[int]:
        """How many elements lie before the end of each year of a block, without its first `passed` years."""
        starts = self._starts(number)
        masks = (self._days.mask(year) for year in self._block_years(number))
        if not any(mask & self._hits >> first % self._cycle_days for mask, first in zip(masks, starts, strict=False)):
            self._find_years_hit()
            return [before] * (BLOCK_YEARS - passed)
        places, sums = self._block(number)
        counts = [sums[bisect_left(places, start - starts[0])] for start in starts[passed:]]
        if counts[0] == counts[-1]:
            self._find_years_hit()
        return [before + count - counts[0] for count in counts[1:]]

    def _find_years_hit(self) -> None:
        """Compute which years can have an element: where one year is empty, most may be."""
        if self._years is None:
            lattice = self._unit, self._interval, self._first_unit
            self._years = years_met(self._days, table_of(self._units), lattice, (self.origin_year, self._last_year))

    def _block_years(self, number: int) -> range:
        first = self.origin_year + number * BLOCK_YEARS
        return range(first, first + BLOCK_YEARS)

    def _starts(self, number: int) -> tuple[int, ...]:
        """The first days of a block's years, and of the year after them."""
        years = self._block_years(number)
        return YEAR_STARTS[years.start - FIRST_YEAR : years.stop + 1 - FIRST_YEAR]

    def _block(self, number: int) -> YearBlock:
        found = YEAR_BLOCKS.get((self._id, number))
        if found is None:
            found = self._build_block(number)
            YEAR_BLOCKS.put((self._id, number), found, sum(len(column) * column.itemsize for column in found))
        return found

    def _build_block(self, number: int) -> YearBlock:
        """The allowed days of a block, counted from its first, and how many elements lie before each, and in all."""
        starts = self._starts(number)
        masks = (self._days.mask(year) for year in self._block_years(number))
        lengths = (end - first for first, end in pairwise(starts))
        allowed = [unpack_days(mask)[:length] for mask, length in zip(masks, lengths, strict=True)]
        places = np.flatnonzero(np.concatenate(allowed))
        left = (self._first_unit - (places + starts[0]) * self._day_units) % self._interval
        sums = np.zeros(len(places) + 1, dtype=np.int32)
        np.cumsum(table_of(self._units).counts(left), out=sums[1:])
        sums *= len(self._fine)
        return array("H", places.astype(np.uint16).tobytes()), array("i", sums.tobytes())

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        day, second = divmod(wall, DAY_S)
        year = year_of(day)
        if year < self.origin_year:
            return 0
        place = self.reach(year)
        if place + self.origin_year < year:
            return self._counts[-1]
        if self._counts[place] == self._counts[place + 1]:
            return self._counts[place]
        number = place // BLOCK_YEARS
        places, sums = self._block(number)
        day_place = day - self._starts(number)[0]
        nth = bisect_left(places, day_place)
        passed = self._counts[number * BLOCK_YEARS] + sums[nth]
        if nth == len(places) or places[nth] != day_place:
            return passed
        return passed + self._before_in(day, second)

    def at(self, number: int) -> int | None:
        """The element with this number."""
        place = self.place_of(number)
        if place is None:
            return None
        place //= BLOCK_YEARS
        places, sums = self._block(place)
        rest = number - self._counts[place * BLOCK_YEARS]
        nth = bisect_right(sums, rest) - 1
        day = self._starts(place)[0] + places[nth]
        units, rest = divmod(rest - sums[nth], len(self._fine))
        return day * DAY_S + table_of(self._units).second(self._remainder(day), units) + self._fine[rest]

    def _before_in(self, day: int, second: int) -> int:
        """How many elements of a day lie before a second of it."""
        rest = second % self._unit
        units, reached = table_of(self._units).before(self._remainder(day), second - rest)
        whole = units * len(self._fine)
        return whole + bisect_left(self._fine, rest) if reached else whole

    def _remainder(self, day: int) -> int:
        """The remainder modulo the interval of the units of a day that the lattice hits."""
        return (self._first_unit - day * self._day_units) % self._interval
