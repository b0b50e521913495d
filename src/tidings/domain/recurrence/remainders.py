"""Which units of a day a rule below DAILY allows, by what they leave when divided by its interval."""

from array import array
from bisect import bisect_left
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidings.domain.recurrence.calendar import DAY_S
from tidings.domain.recurrence.kept import Kept
from tidings.domain.recurrence.parts import HOURLY

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
