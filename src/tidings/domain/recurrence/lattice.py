"""Which units of a day a rule below DAILY allows, by what they leave when divided by its interval."""

from array import array
from bisect import bisect_left, bisect_right
from functools import cache, lru_cache
from itertools import count, pairwise
from math import gcd
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidings.domain.recurrence.cache import METER, Kept
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
from tidings.domain.recurrence.wall_times import ByYear

Numbers = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
TABLES_BYTES_MAX = 48 * 1024 * 1024  # up to 0.7 MB each
Fields = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class Table(Protocol):
    """The allowed units of a day by what they leave when divided by the interval; `most` on any one day."""

    most: int
    weight: int

    def of(self, remainders: Numbers) -> Numbers:
        """How many units leave each of these."""
        ...

    def second(self, remainder: int, number: int) -> int:
        """The second of the day at which the unit with this number, from 0, of those that leave this one begins."""
        ...

    def before(self, remainder: int, second: int) -> tuple[int, bool]:
        """How many of them begin before a second, and whether one begins there."""
        ...

    def distinct(self) -> Numbers:
        """All that allowed units leave."""
        ...


class Every:
    """All units are allowed: nothing but arithmetic."""

    def __init__(self, interval: int, unit: int) -> None:
        self._interval = interval
        self._unit = unit
        self._units = DAY_S // unit
        self.most = -(-self._units // interval)
        self.weight = 200

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

    def distinct(self) -> Numbers:
        """All that allowed units leave."""
        return np.arange(min(self._interval, self._units), dtype=np.int64)


class Remainders:
    """Some units are allowed: their seconds, sorted by what they leave."""

    def __init__(self, units: Numbers, interval: int, unit: int) -> None:
        left = units % interval
        counts = np.bincount(left, minlength=min(interval, DAY_S // unit))
        self.most = int(counts.max())
        self._kept = len(counts)
        self._firsts: Small = np.zeros(self._kept + 2, dtype=np.int32)  # and none leave more than is kept
        np.cumsum(counts, out=self._firsts[1:-1])
        self._firsts[-1] = self._firsts[-2]
        order = units if interval > int(units[-1]) else units[np.argsort(left, kind="stable")]
        self._seconds = packed(order * unit)
        self.weight = 4 * (len(self._firsts) + len(self._seconds)) + 500

    def of(self, remainders: Numbers) -> Numbers:
        """How many units leave each of these."""
        places = np.minimum(remainders, self._kept)
        counts: Numbers = (self._firsts[places + 1] - self._firsts[places]).astype(np.int64)
        return counts

    def second(self, remainder: int, number: int) -> int:
        """The second of the day at which the unit with this number begins."""
        return self._seconds[int(self._firsts[remainder]) + number]

    def before(self, remainder: int, second: int) -> tuple[int, bool]:
        """How many begin before a second, and whether one begins there."""
        if remainder >= self._kept:
            return 0, False
        begin, end = int(self._firsts[remainder]), int(self._firsts[remainder + 1])
        place = bisect_left(self._seconds, second, begin, end)
        return place - begin, place < end and self._seconds[place] == second

    def distinct(self) -> Numbers:
        """All that allowed units leave."""
        return np.flatnonzero(np.diff(self._firsts))


def units_of_day(frequency: int, fields: Fields) -> Numbers:
    """The hours, minutes or seconds of a day that BYHOUR, BYMINUTE and BYSECOND leave."""
    units = np.asarray(fields[0] or range(24), dtype=np.int64)
    for deeper in fields[1 : frequency - HOURLY + 1]:
        finer = np.asarray(deeper or range(60), dtype=np.int64)
        units = (units[:, None] * 60 + finer).ravel()
    return units


def packed(numbers: Numbers) -> "array[int]":
    """Numbers in little room, to search in one by one."""
    return array("i", numbers.astype(np.int32).tobytes())


class Units:
    """Which units of a day a rule allows, and its interval: the name of a table, which may have to be made again."""

    __slots__ = ("_hash", "key")

    def __init__(self, frequency: int, fields: Fields, interval: int, unit: int) -> None:
        self.key = (frequency, fields, interval, unit)
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Units) and self.key == other.key


TABLES: Kept[Units, Table] = Kept(TABLES_BYTES_MAX)


def table_of(units: Units) -> Table:
    """The table of an interval, kept for rules that share it."""
    table = TABLES.get(units)
    if table is None:
        frequency, fields, interval, unit = units.key
        if any(fields[: frequency - HOURLY + 1]):
            table = Remainders(units_of_day(frequency, fields), interval, unit)
        else:
            table = Every(interval, unit)
        TABLES.put(units, table, table.weight)
    return table


Truths = npt.NDArray[np.bool_]
Narrow = npt.NDArray[np.uint16]

KINDS = 56
LOOKED_AT_MAX = 40_000  # in one go, some ten of them a microsecond; what is met more often is met soon


def years_met(days: Days, table: Table, lattice: tuple[int, int, int], years: tuple[int, int]) -> int:
    """A mask of the years, from the first one on, that can hold an element; -1 if that is not known."""
    first, end = YEAR_STARTS[years[0] - FIRST_YEAR], YEAR_STARTS[years[1] + 1 - FIRST_YEAR]
    masks = [(kind, days.mask(example)) for kind, example in _examples()]
    if not any(mask for _, mask in masks):
        return 0
    met = _days_met(table, lattice, first, end)
    if met is None:
        return -1
    year, kind, place = (column[met - YEAR_STARTS[0]] for column in _columns())
    allowed = np.zeros((KINDS, YEAR_BITS_MAX), dtype=np.bool_)
    for number, mask in masks:
        allowed[number] = unpacked(mask)
    some = np.zeros(years[1] + 1 - FIRST_YEAR, dtype=np.bool_)
    some[year[allowed[kind, place]]] = True
    octets = np.packbits(some[years[0] - FIRST_YEAR :], bitorder="little").tobytes()
    return int.from_bytes(octets, "little")


@cache
def _columns() -> tuple[Narrow, Narrow, Narrow]:
    """Of every day up to the end of rules: its year, counted from the first one, the year's kind, its place in it."""
    years = range(FIRST_YEAR, END_YEAR + 1)
    lengths = [YEAR_STARTS[year + 1 - FIRST_YEAR] - YEAR_STARTS[year - FIRST_YEAR] for year in years]
    numbers = np.repeat(np.arange(len(years), dtype=np.uint16), lengths)
    kinds = np.repeat(np.asarray([kind_of(year) for year in years], dtype=np.uint16), lengths)
    return numbers, kinds, np.concatenate([np.arange(length, dtype=np.uint16) for length in lengths])


@cache
def _examples() -> tuple[tuple[int, int], ...]:
    """A year of each kind that there is."""
    return tuple({kind_of(year): year for year in range(FIRST_YEAR, END_YEAR + 1)}.items())


def _days_met(table: Table, lattice: tuple[int, int, int], first: int, end: int) -> Numbers | None:
    """The days from `first` up to `end` that hold a unit of the lattice which the table allows, not sorted."""
    unit, interval, first_unit = lattice
    day_units = DAY_S // unit
    if (end - first) * day_units <= LOOKED_AT_MAX * interval:
        begin = first * day_units
        units = np.arange(begin + (first_unit - begin) % interval, end * day_units, interval, dtype=np.int64)
        return units[table.of(units % day_units) > 0] // day_units  # what they leave is what they are
    return _days_leaving(table.distinct(), lattice, first, end)


def _days_leaving(left: Numbers, lattice: tuple[int, int, int], first: int, end: int) -> Numbers | None:
    """The days whose units leave one of these: day * day_units = first_unit - left, modulo the interval."""
    unit, interval, first_unit = lattice
    day_units = DAY_S // unit
    shared = gcd(interval, day_units)
    turn = interval // shared
    if len(left) * (end - first) > LOOKED_AT_MAX * interval:
        return None
    wanted = (first_unit - left[(first_unit - left) % shared == 0]) // shared
    if len(wanted) * ((end - first) // turn + 1) > LOOKED_AT_MAX:
        return None
    met = (wanted % turn * pow(day_units // shared, -1, turn) - first) % turn + first
    days: Numbers = (met[:, None] + np.arange(0, end - first, turn, dtype=np.int64)).ravel()
    return days[days < end]


@lru_cache(maxsize=2_048)
def unpacked(mask: int) -> Truths:
    """The days of a year as truths, one for each day that a year can have."""
    octets = np.frombuffer(mask.to_bytes(46, "little"), dtype=np.uint8)
    return np.unpackbits(octets, bitorder="little")[:YEAR_BITS_MAX].view(np.bool_)


Block = tuple["array[int]", "array[int]"]

BLOCK_YEARS = 8
BLOCKS_BYTES_MAX = 48 * 1024 * 1024  # of all rules together: up to 18 kB each, where every day is allowed
BLOCKS: Kept[tuple[int, int], Block] = Kept(BLOCKS_BYTES_MAX)

_IDS = count()


def _cycle_years(interval: int, day_units: int) -> int:
    return CYCLE_YEARS * (interval // gcd(interval, CYCLE_DAYS * day_units))


class Lattice(ByYear):
    """Each `interval`-th unit from `first_unit` on, as far as day and unit are allowed, with the same `fine` times."""

    def __init__(
        self,
        days: Days,
        table: Units,
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
        self._turn = self._interval // gcd(self._interval, self._day_units)  # days until the lattice lies the same
        self._hits = self._days_hit()
        self._years: int | None = None  # that may hold something, as a mask: worked out where a rule leaves some empty

    def _days_hit(self) -> int:
        """The days since 1970 that the lattice meets at all, as a mask that repeats: the others need no look."""
        if self._turn > YEAR_BITS_MAX:
            return -1
        left = (self._first_unit - np.arange(self._turn) * self._day_units) % self._interval
        hits = sum(1 << day for day in np.flatnonzero(table_of(self._units).of(left)).tolist())
        return sum(hits << first for first in range(0, YEAR_BITS_MAX + self._turn, self._turn))

    def build_next(self) -> None:
        """Prepare the next years: all of which it is known that they hold nothing, or those of a block."""
        built = len(self._counts) - 1
        missing = self._last_year - self.origin_year + 1 - built
        rest = -1 if self._years is None else self._years >> built
        if not rest & 1:
            METER.taken += 1
            self._counts.extend([self._counts[-1]] * ((rest & -rest).bit_length() - 1 if rest else missing))
            return
        number, passed = divmod(built, BLOCK_YEARS)
        METER.taken += BLOCK_YEARS - passed
        self._counts.extend(self._ends(number, self._counts[-1], passed)[:missing])

    def _ends(self, number: int, before: int, passed: int) -> list[int]:
        """How many elements lie before the end of each year of a block, of which some years have passed."""
        starts = self._starts(number)
        masks = (self._days.mask(year) for year in self._block_years(number))
        if not any(mask & self._hits >> first % self._turn for mask, first in zip(masks, starts, strict=False)):
            self._look_far()
            return [before] * (BLOCK_YEARS - passed)
        places, sums = self._block(number)
        counts = [sums[bisect_left(places, start - starts[0])] for start in starts[passed:]]
        if counts[0] == counts[-1]:
            self._look_far()
        return [before + count - counts[0] for count in counts[1:]]

    def _look_far(self) -> None:
        """Where years are empty, most may be: know which, once."""
        if self._years is None:
            lattice = self._unit, self._interval, self._first_unit
            self._years = years_met(self._days, table_of(self._units), lattice, (self.origin_year, self._last_year))

    def _block_years(self, number: int) -> range:
        first = self.origin_year + number * BLOCK_YEARS
        return range(first, first + BLOCK_YEARS)

    def _starts(self, number: int) -> tuple[int, ...]:
        """The first days of a block's years, and of the year behind them."""
        years = self._block_years(number)
        return YEAR_STARTS[years.start - FIRST_YEAR : years.stop + 1 - FIRST_YEAR]

    def _block(self, number: int) -> Block:
        found = BLOCKS.get((self._id, number))
        if found is None:
            found = self._summed(number)
            BLOCKS.put((self._id, number), found, sum(len(column) * column.itemsize for column in found))
        return found

    def _summed(self, number: int) -> Block:
        """The allowed days of a block, from its first one on, and how many elements lie before each, and in all."""
        starts = self._starts(number)
        masks = (self._days.mask(year) for year in self._block_years(number))
        lengths = (end - first for first, end in pairwise(starts))
        allowed = [unpacked(mask)[:length] for mask, length in zip(masks, lengths, strict=True)]
        places = np.flatnonzero(np.concatenate(allowed))
        left = (self._first_unit - (places + starts[0]) * self._day_units) % self._interval
        sums = np.zeros(len(places) + 1, dtype=np.int32)
        np.cumsum(table_of(self._units).of(left), out=sums[1:])
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
        return day * DAY_S + table_of(self._units).second(self._left(day), units) + self._fine[rest]

    def _before_in(self, day: int, second: int) -> int:
        """How many elements of a day lie before a second of it."""
        rest = second % self._unit
        units, reached = table_of(self._units).before(self._left(day), second - rest)
        whole = units * len(self._fine)
        return whole + bisect_left(self._fine, rest) if reached else whole

    def _left(self, day: int) -> int:
        """What the units of a day that the lattice meets leave."""
        return (self._first_unit - day * self._day_units) % self._interval
