"""Rules below DAILY whose INTERVAL does not divide the day: `every 7 minutes, on weekdays, from 9 to 5`.

The units of a day that the rule meets shift from day to day, but only their remainder matters: how many allowed units
leave each remainder is counted once, and a year is one sum over its days.
"""

from bisect import bisect_left
from functools import lru_cache
from math import gcd
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidings.domain.recurrence.calendar import CYCLE_DAYS, CYCLE_YEARS, DAY_S, FIRST_YEAR, YEAR_STARTS, year_of
from tidings.domain.recurrence.days import YEAR_BITS_MAX, Days
from tidings.domain.recurrence.parts import HOURLY
from tidings.domain.recurrence.walls import ByYear

Numbers = npt.NDArray[np.int64]
_NOTHING: Numbers = np.zeros(YEAR_BITS_MAX + 1, dtype=np.int64)
RARE_DAYS = 10  # an interval so long is looked at unit by unit, before days are summed
Fields = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class Table(Protocol):
    """The allowed units of a day by what they leave when divided by the interval; `most` on any one day."""

    most: int

    def of(self, remainders: Numbers) -> Numbers:
        """How many units leave each of these."""
        ...

    def second(self, remainder: int, number: int) -> int:
        """The second of the day at which the unit with this number, from 0, of those that leave this one begins."""
        ...

    def before(self, remainder: int, second: int) -> tuple[int, bool]:
        """How many of them begin before a second, and whether one begins there."""
        ...

    def allows(self, unit: int) -> bool:
        """Whether a unit of the day is allowed."""
        ...


class Every:
    """All units are allowed: nothing but arithmetic."""

    def __init__(self, interval: int, unit: int) -> None:
        self._interval = interval
        self._unit = unit
        self._units = DAY_S // unit
        self.most = -(-self._units // interval)

    def of(self, remainders: Numbers) -> Numbers:
        """How many units leave each of these."""
        counts: Numbers = np.maximum(0, -((remainders - self._units) // self._interval))
        return counts

    def second(self, remainder: int, number: int) -> int:
        """The second of the day at which the unit with this number begins."""
        return (remainder + number * self._interval) * self._unit

    def before(self, remainder: int, second: int) -> tuple[int, bool]:
        """How many begin before a second, and whether one begins there."""
        unit = second // self._unit
        return max(0, -((remainder - unit) // self._interval)), unit >= remainder and not (
            (unit - remainder) % self._interval
        )

    def allows(self, _unit: int) -> bool:
        """Whether a unit of the day is allowed."""
        return True


class Remainders:
    """Some units are allowed: their seconds, sorted by what they leave."""

    def __init__(self, units: Numbers, interval: int, unit: int) -> None:
        left = units % interval
        self._allowed = np.isin(np.arange(DAY_S // unit), units).tobytes()
        self._kept = min(interval, DAY_S)
        self._counts: Numbers = np.bincount(left, minlength=self._kept + 1).astype(np.int64)  # the last one is 0
        self.most = int(self._counts.max())
        self._firsts: Numbers = np.concatenate(([0], np.cumsum(self._counts)))
        self._seconds: Numbers = np.sort(left * DAY_S + units) % DAY_S * unit

    def of(self, remainders: Numbers) -> Numbers:
        """How many units leave each of these."""
        counts: Numbers = self._counts[np.minimum(remainders, self._kept)]
        return counts

    def second(self, remainder: int, number: int) -> int:
        """The second of the day at which the unit with this number begins."""
        return int(self._seconds[int(self._firsts[remainder]) + number])

    def before(self, remainder: int, second: int) -> tuple[int, bool]:
        """How many begin before a second, and whether one begins there."""
        if remainder >= self._kept:
            return 0, False
        begin, end = int(self._firsts[remainder]), int(self._firsts[remainder + 1])
        place = begin + int(np.searchsorted(self._seconds[begin:end], second))
        return place - begin, place < end and bool(self._seconds[place] == second)

    def allows(self, unit: int) -> bool:
        """Whether a unit of the day is allowed."""
        return bool(self._allowed[unit])


def units_of_day(frequency: int, fields: Fields) -> Numbers:
    """The hours, minutes or seconds of a day that BYHOUR, BYMINUTE and BYSECOND leave."""
    units = np.asarray(fields[0] or range(24), dtype=np.int64)
    for deeper in fields[1 : frequency - HOURLY + 1]:
        finer = np.asarray(deeper or range(60), dtype=np.int64)
        units = (units[:, None] * 60 + finer).ravel()
    return units


@lru_cache(maxsize=64)  # up to a few megabytes each
def remainders(frequency: int, fields: Fields, interval: int, unit: int) -> Table:
    """The table of an interval, kept for rules that share it."""
    if not any(fields[: frequency - HOURLY + 1]):
        return Every(interval, unit)
    return Remainders(units_of_day(frequency, fields), interval, unit)


def _cycle_years(interval: int, day_units: int) -> int:
    return CYCLE_YEARS * (interval // gcd(interval, CYCLE_DAYS * day_units))


class Lattice(ByYear):
    """Each `interval`-th unit from `first_unit` on, as far as day and unit are allowed, with the same `fine` times."""

    def __init__(
        self,
        days: Days,
        table: Table,
        lattice: tuple[int, int, int],
        fine: tuple[int, ...],
        years: tuple[int, int],
    ) -> None:
        self._unit, self._interval, self._first_unit = lattice
        self._day_units = DAY_S // self._unit
        super().__init__(years[0], _cycle_years(self._interval, self._day_units), years[1])
        self._days = days
        self._table = table
        self._fine = fine
        self._sums: list[Numbers] = []
        self._bits: dict[int, Numbers] = {}
        self._steps: Numbers = np.arange(YEAR_BITS_MAX, dtype=np.int64) * self._day_units
        self._turn = self._interval // gcd(self._interval, self._day_units)  # days until the lattice lies the same
        self._hits = self._days_hit()
        self._rare = self._interval >= RARE_DAYS * self._day_units

    def _days_hit(self) -> int:
        """The days since 1970 that the lattice meets at all, as a mask that repeats: the others need no look."""
        if self._turn > YEAR_BITS_MAX:
            return -1
        left = (self._first_unit - self._steps[: self._turn]) % self._interval
        hits = sum(1 << day for day in np.flatnonzero(self._table.of(left)).tolist())
        return sum(hits << first for first in range(0, YEAR_BITS_MAX + self._turn, self._turn))

    def _meets(self, first: int, length: int, mask: int) -> bool:
        """Whether one of the few units of a year that a long interval meets is allowed: most years need no more."""
        begin = first * self._day_units
        met = begin + (self._first_unit - begin) % self._interval
        for unit in range(met, begin + length * self._day_units, self._interval):
            day, place = divmod(unit, self._day_units)
            if mask >> day - first & 1 and self._table.allows(place):
                return True
        return False

    def build(self, year: int) -> int:
        """Prepare the year and say how many elements it has."""
        first = YEAR_STARTS[year - FIRST_YEAR]
        length = YEAR_STARTS[year + 1 - FIRST_YEAR] - first
        mask = self._days.mask(year)
        if not mask & self._hits >> first % self._turn or (self._rare and not self._meets(first, length, mask)):
            self._sums.append(_NOTHING)
            return 0
        if mask not in self._bits:
            octets = np.frombuffer(mask.to_bytes(46, "little"), dtype=np.uint8)
            self._bits[mask] = np.unpackbits(octets, bitorder="little") * np.int64(len(self._fine))
        left = (self._first_unit - first * self._day_units - self._steps) % self._interval
        sums = np.zeros(length + 1, dtype=np.int64)
        np.cumsum((self._table.of(left) * self._bits[mask][:YEAR_BITS_MAX])[:length], out=sums[1:])
        self._sums.append(sums)
        return int(self._sums[-1][-1])

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        day, second = divmod(wall, DAY_S)
        year = year_of(day)
        if year < self.origin_year:
            return 0
        place = self.reach(year)
        if place + self.origin_year < year:
            return self._counts[-1]
        sums = self._sums[place]
        day_place = day - YEAR_STARTS[year - FIRST_YEAR]
        number = self._counts[place] + int(sums[day_place])
        return number if sums[day_place] == sums[day_place + 1] else number + self._before_in(day, second)

    def at(self, number: int) -> int | None:
        """The element with this number."""
        place = self.place_of(number)
        if place is None:
            return None
        rest = number - self._counts[place]
        day_place = int(np.searchsorted(self._sums[place], rest, side="right")) - 1
        day = YEAR_STARTS[place + self.origin_year - FIRST_YEAR] + day_place
        units, rest = divmod(rest - int(self._sums[place][day_place]), len(self._fine))
        return day * DAY_S + self._table.second(self._left(day), units) + self._fine[rest]

    def _before_in(self, day: int, second: int) -> int:
        """How many elements of a day lie before a second of it."""
        rest = second % self._unit
        units, reached = self._table.before(self._left(day), second - rest)
        whole = units * len(self._fine)
        return whole + bisect_left(self._fine, rest) if reached else whole

    def _left(self, day: int) -> int:
        """What the units of a day that the lattice meets leave."""
        return (self._first_unit - day * self._day_units) % self._interval
