"""The years in which a sparse lattice has an element, computed for all years at once.

A rule with an interval of months, or with a single allowed second of the day, leaves most years empty, perhaps all of
them. Then either the units that the lattice hits are few, or the remainders of the allowed units are; the function
enumerates the smaller set.
"""

from functools import cache, lru_cache
from math import gcd

import numpy as np
import numpy.typing as npt

from tidings.domain.recurrence.calendar import DAY_S, END_YEAR, FIRST_YEAR, YEAR_STARTS, kind_of
from tidings.domain.recurrence.days import YEAR_BITS_MAX, Days
from tidings.domain.recurrence.remainders import Numbers, UnitTable

Truths = npt.NDArray[np.bool_]
Small = npt.NDArray[np.uint16]

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
    year, kind, place = (column[met - YEAR_STARTS[0]] for column in _day_columns())
    allowed = np.zeros((KINDS, YEAR_BITS_MAX), dtype=np.bool_)
    for number, mask in masks:
        allowed[number] = unpack_days(mask)
    some = np.zeros(years[1] + 1 - FIRST_YEAR, dtype=np.bool_)
    some[year[allowed[kind, place]]] = True
    octets = np.packbits(some[years[0] - FIRST_YEAR :], bitorder="little").tobytes()
    return int.from_bytes(octets, "little")


@cache
def _day_columns() -> tuple[Small, Small, Small]:
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
