"""In which years a lattice meets a day of its rule at all, where that is rare: known before any year is prepared.

A unit in months, or one allowed second of the day: such a rule leaves most years empty, and may leave all of them so.
Either the units that the lattice meets are few, or the remainders that it may leave are: the fewer are looked at.
"""

from functools import cache, lru_cache
from math import gcd

import numpy as np
import numpy.typing as npt

from tidings.domain.recurrence.calendar import DAY_S, END_YEAR, FIRST_YEAR, YEAR_STARTS, kind_of
from tidings.domain.recurrence.days import YEAR_BITS_MAX, Days
from tidings.domain.recurrence.remainders import Numbers, Table

Truths = npt.NDArray[np.bool_]
Small = npt.NDArray[np.uint16]

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
def _columns() -> tuple[Small, Small, Small]:
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
