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
from bisect import bisect_left
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidings.domain.recurrence.calendar import DAY_S
from tidings.domain.recurrence.kept import BoundedCache
from tidings.domain.recurrence.parts import HOURLY

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
        places = np.minimum(remainders, self._kept)
        counts: Numbers = (self._firsts[places + 1] - self._firsts[places]).astype(np.int64)
        return counts

    def second(self, remainder: int, number: int) -> int:
        """The second of the day at which the unit with this number begins."""
        return self._seconds[int(self._firsts[remainder]) + number]

    def before(self, remainder: int, second: int) -> tuple[int, bool]:
        """How many units begin before a second, and whether one begins at it."""
        if remainder >= self._kept:
            return 0, False
        begin, end = int(self._firsts[remainder]), int(self._firsts[remainder + 1])
        place = bisect_left(self._seconds, second, begin, end)
        return place - begin, place < end and self._seconds[place] == second

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
