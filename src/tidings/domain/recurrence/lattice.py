"""Rules below DAILY whose INTERVAL does not divide the day: every 7 minutes, on weekdays, from 9:00 to 17:00.

Hours, minutes or seconds (*units*) are numbered from 1970. A rule hits every INTERVAL-th unit, so that it hits other
units of each day. But only one remainder per day matters: how many allowed units have each remainder modulo INTERVAL is
counted once, and the elements of a year are one sum over its days.

Example: FREQ=HOURLY;INTERVAL=5;BYHOUR=9,10,...,17. Hour h of day d is unit 24 d + h. It is hit if 24 d + h = first_unit
(mod 5), that is, if h has the remainder first_unit - 24 d (mod 5). The allowed hours by remainder are 10 and 15 (0),
11 and 16 (1), 12 and 17 (2), 13 (3), 9 and 14 (4). Since 24 = -1 (mod 5), the remainder grows by 1 each day, and five
days have 2 + 2 + 2 + 1 + 2 = 9 elements.
"""

from array import array
from bisect import bisect_left, bisect_right
from functools import cache, lru_cache
from itertools import count, pairwise
from math import gcd
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidings.domain.recurrence.cache import STEPS, BoundedCache
from tidings.domain.recurrence.days import (
    CYCLE_DAYS,
    CYCLE_YEARS,
    DAY_S,
    END_YEAR,
    FIRST_YEAR,
    YEAR_BITS_MAX,
    YEAR_STARTS,
    Days,
    kind_of,
    year_of,
)
from tidings.domain.recurrence.rule import HOURLY
from tidings.domain.recurrence.wall_times import CountedByYear

Numbers = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
TABLES_BYTES_MAX = 48 * 1024 * 1024  # of all tables together; up to 0.7 MB each
TimeFields = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class UnitTable(Protocol):
    """The allowed units of a day by their remainder modulo the interval; `most` is the greatest number on one day."""

    most: int
    weight: int

    def counts(self, remainders: Numbers) -> Numbers:
        """How many allowed units have each of these remainders."""
        ...

    def second(self, remainder: int, number: int) -> int:
        """The second of the day at which a unit begins: number `number`, from 0, of those with the remainder."""
        ...

    def before(self, remainder: int, second: int) -> tuple[int, bool]:
        """How many units with the remainder begin before a second of the day, and whether one begins at it."""
        ...

    def distinct(self) -> Numbers:
        """The remainders that allowed units have."""
        ...


class AllUnits:
    """A table in which all units are allowed; it needs only arithmetic."""

    def __init__(self, interval: int, unit: int) -> None:
        self._interval = interval
        self._unit = unit
        self._units = DAY_S // unit
        self.most = -(-self._units // interval)
        self.weight = 200

    def counts(self, remainders: Numbers) -> Numbers:
        """How many allowed units have each of these remainders."""
        counts: Numbers = np.maximum(0, -((remainders - self._units) // self._interval))
        return counts

    def second(self, remainder: int, number: int) -> int:
        """The second of the day at which the unit with this number begins."""
        return (remainder + number * self._interval) * self._unit

    def before(self, remainder: int, second: int) -> tuple[int, bool]:
        """How many units begin before a second, and whether one begins at it."""
        unit = second // self._unit
        return max(0, -((remainder - unit) // self._interval)), unit >= remainder and not (
            (unit - remainder) % self._interval
        )

    def distinct(self) -> Numbers:
        """The remainders that allowed units have."""
        return np.arange(min(self._interval, self._units), dtype=np.int64)


class UnitsByRemainder:
    """A table in which some units are allowed: their seconds, grouped by remainder."""

    def __init__(self, units: Numbers, interval: int, unit: int) -> None:
        left = units % interval
        counts = np.bincount(left, minlength=min(interval, DAY_S // unit))
        self.most = int(counts.max())
        self._kept = len(counts)
        self._firsts: Small = np.zeros(
            self._kept + 2, dtype=np.int32
        )  # the last entry is an empty group for all greater remainders
        np.cumsum(counts, out=self._firsts[1:-1])
        self._firsts[-1] = self._firsts[-2]
        order = units if interval > int(units[-1]) else units[np.argsort(left, kind="stable")]
        self._seconds = packed(order * unit)
        self.weight = 4 * (len(self._firsts) + len(self._seconds)) + 500

    def counts(self, remainders: Numbers) -> Numbers:
        """How many allowed units have each of these remainders."""
        indexes = np.minimum(remainders, self._kept)
        counts: Numbers = (self._firsts[indexes + 1] - self._firsts[indexes]).astype(np.int64)
        return counts

    def second(self, remainder: int, number: int) -> int:
        """The second of the day at which the unit with this number begins."""
        return self._seconds[int(self._firsts[remainder]) + number]

    def before(self, remainder: int, second: int) -> tuple[int, bool]:
        """How many units begin before a second, and whether one begins at it."""
        if remainder >= self._kept:
            return 0, False
        begin, end = int(self._firsts[remainder]), int(self._firsts[remainder + 1])
        index = bisect_left(self._seconds, second, begin, end)
        return index - begin, index < end and self._seconds[index] == second

    def distinct(self) -> Numbers:
        """The remainders that allowed units have."""
        return np.flatnonzero(np.diff(self._firsts))


def units_of_day(frequency: int, fields: TimeFields) -> Numbers:
    """The hours, minutes or seconds of a day that BYHOUR, BYMINUTE and BYSECOND allow."""
    units = np.asarray(fields[0] or range(24), dtype=np.int64)
    for deeper in fields[1 : frequency - HOURLY + 1]:
        finer = np.asarray(deeper or range(60), dtype=np.int64)
        units = (units[:, None] * 60 + finer).ravel()
    return units


def packed(numbers: Numbers) -> "array[int]":
    """Numbers as a compact array for binary search."""
    return array("i", numbers.astype(np.int32).tobytes())


class UnitTableKey:
    """The key of a table: the allowed units of a day, and the interval. An evicted table is built again from it."""

    __slots__ = ("_hash", "key")

    def __init__(self, frequency: int, fields: TimeFields, interval: int, unit: int) -> None:
        self.key = (frequency, fields, interval, unit)
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnitTableKey) and self.key == other.key


UNIT_TABLES: BoundedCache[UnitTableKey, UnitTable] = BoundedCache(TABLES_BYTES_MAX)


def table_of(units: UnitTableKey) -> UnitTable:
    """The table of a key, cached for all rules that share it."""
    table = UNIT_TABLES.get(units)
    if table is None:
        frequency, fields, interval, unit = units.key
        if any(fields[: frequency - HOURLY + 1]):
            table = UnitsByRemainder(units_of_day(frequency, fields), interval, unit)
        else:
            table = AllUnits(interval, unit)
        UNIT_TABLES.put(units, table, table.weight)
    return table


Truths = npt.NDArray[np.bool_]
Narrow = npt.NDArray[np.uint16]

KINDS = 56
CANDIDATES_MAX = 40_000  # takes about 4 ms; a rule with more candidates has an element soon anyway


def years_met(days: Days, table: UnitTable, lattice: tuple[int, int, int], years: tuple[int, int]) -> int:
    """A mask of the years, from the first one on, that can have an element; -1 if that is unknown."""
    first, end = YEAR_STARTS[years[0] - FIRST_YEAR], YEAR_STARTS[years[1] + 1 - FIRST_YEAR]
    masks = [(kind, days.mask(example)) for kind, example in _year_of_each_kind()]
    if not any(mask for _, mask in masks):
        return 0
    met = _days_met(table, lattice, first, end)
    if met is None:
        return -1
    year, kind, index = (column[met - YEAR_STARTS[0]] for column in _day_columns())
    allowed = np.zeros((KINDS, YEAR_BITS_MAX), dtype=np.bool_)
    for number, mask in masks:
        allowed[number] = unpack_days(mask)
    some = np.zeros(years[1] + 1 - FIRST_YEAR, dtype=np.bool_)
    some[year[allowed[kind, index]]] = True
    octets = np.packbits(some[years[0] - FIRST_YEAR :], bitorder="little").tobytes()
    return int.from_bytes(octets, "little")


@cache
def _day_columns() -> tuple[Narrow, Narrow, Narrow]:
    """For every day up to the end of rules: its year, counted from the first, the kind of the year, the day in it."""
    years = range(FIRST_YEAR, END_YEAR + 1)
    lengths = [YEAR_STARTS[year + 1 - FIRST_YEAR] - YEAR_STARTS[year - FIRST_YEAR] for year in years]
    numbers = np.repeat(np.arange(len(years), dtype=np.uint16), lengths)
    kinds = np.repeat(np.asarray([kind_of(year) for year in years], dtype=np.uint16), lengths)
    return numbers, kinds, np.concatenate([np.arange(length, dtype=np.uint16) for length in lengths])


@cache
def _year_of_each_kind() -> tuple[tuple[int, int], ...]:
    """One year of each kind."""
    return tuple({kind_of(year): year for year in range(FIRST_YEAR, END_YEAR + 1)}.items())


def _days_met(table: UnitTable, lattice: tuple[int, int, int], first: int, end: int) -> Numbers | None:
    """The days from `first` up to `end` with a unit that is hit and allowed, unsorted; None if that is unknown."""
    unit, interval, first_unit = lattice
    day_units = DAY_S // unit
    if (end - first) * day_units <= CANDIDATES_MAX * interval:
        begin = first * day_units
        units = np.arange(begin + (first_unit - begin) % interval, end * day_units, interval, dtype=np.int64)
        # The first unit that is hit on a day, counted within the day, is the remainder of that day's units.
        return units[table.counts(units % day_units) > 0] // day_units
    return _days_leaving(table.distinct(), lattice, first, end)


def _days_leaving(left: Numbers, lattice: tuple[int, int, int], first: int, end: int) -> Numbers | None:
    """The days with an allowed unit: those with day * day_units = first_unit - left (mod interval), `left` a remainder.

    Example: FREQ=HOURLY;INTERVAL=1000;BYHOUR=9 with first_unit = 17: 24 day = 17 - 9 = 8 (mod 1000). Divided by
    gcd(1000, 24) = 8 it is 3 day = 1 (mod 125). The inverse of 3 is 42, because 3 * 42 = 126, so the days are 42, 167,
    292 and so on. Were 17 - 9 not divisible by 8, there would be none.
    """
    unit, interval, first_unit = lattice
    day_units = DAY_S // unit
    shared = gcd(interval, day_units)
    turn = interval // shared
    if len(left) * (end - first) > CANDIDATES_MAX * interval:
        return None
    wanted = (first_unit - left[(first_unit - left) % shared == 0]) // shared
    if len(wanted) * ((end - first) // turn + 1) > CANDIDATES_MAX:
        return None
    met = (wanted % turn * pow(day_units // shared, -1, turn) - first) % turn + first
    days: Numbers = (met[:, None] + np.arange(0, end - first, turn, dtype=np.int64)).ravel()
    return days[days < end]


@lru_cache(maxsize=2_048)
def unpack_days(mask: int) -> Truths:
    """The days of a year as an array of 366 booleans."""
    octets = np.frombuffer(mask.to_bytes(46, "little"), dtype=np.uint8)
    return np.unpackbits(octets, bitorder="little")[:YEAR_BITS_MAX].view(np.bool_)


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
        indexes, sums = self._block(number)
        counts = [sums[bisect_left(indexes, start - starts[0])] for start in starts[passed:]]
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
        indexes = np.flatnonzero(np.concatenate(allowed))
        left = (self._first_unit - (indexes + starts[0]) * self._day_units) % self._interval
        sums = np.zeros(len(indexes) + 1, dtype=np.int32)
        np.cumsum(table_of(self._units).counts(left), out=sums[1:])
        sums *= len(self._fine)
        return array("H", indexes.astype(np.uint16).tobytes()), array("i", sums.tobytes())

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        day, second = divmod(wall, DAY_S)
        year = year_of(day)
        if year < self.origin_year:
            return 0
        index = self.reach(year)
        if index + self.origin_year < year:
            return self._counts[-1]
        if self._counts[index] == self._counts[index + 1]:
            return self._counts[index]
        number = index // BLOCK_YEARS
        indexes, sums = self._block(number)
        day_index = day - self._starts(number)[0]
        nth = bisect_left(indexes, day_index)
        passed = self._counts[number * BLOCK_YEARS] + sums[nth]
        if nth == len(indexes) or indexes[nth] != day_index:
            return passed
        return passed + self._before_in(day, second)

    def at(self, number: int) -> int | None:
        """The element with this number."""
        index = self.index_of(number)
        if index is None:
            return None
        index //= BLOCK_YEARS
        indexes, sums = self._block(index)
        rest = number - self._counts[index * BLOCK_YEARS]
        nth = bisect_right(sums, rest) - 1
        day = self._starts(index)[0] + indexes[nth]
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
