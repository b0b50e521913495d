"""Sets of wall times: a progression, the product of days and times, a union."""

from array import array
from bisect import bisect_right
from typing import Protocol

from tidings.domain.recurrence.calendar import DAY_S, END_SECOND, FIRST_YEAR, YEAR_STARTS, nth_bit, year_of
from tidings.domain.recurrence.steps import GROWTH_LOCK, STEPS
from tidings.domain.recurrence.times import TimesOfDay


class WallTimes(Protocol):
    """A set of wall times."""

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        ...

    def at(self, number: int) -> int | None:
        """The element with this number, from 0; None if there is none."""
        ...


class DayMasks(Protocol):
    """The days of a rule, as one mask for each year."""

    cycle_years: int

    def mask(self, year: int) -> int:
        """The days of one year."""
        ...


class Progression:
    """An endless progression: every `step` seconds from `origin` on, each of the offsets `fine`."""

    def __init__(self, origin: int, step: int, fine: tuple[int, ...]) -> None:
        self._origin = origin
        self._times = TimesOfDay((0,), fine, step)
        self._step = step

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        steps, rest = divmod(wall - self._origin, self._step)
        return steps * self._times.size + self._times.before(rest) if steps >= 0 else 0

    def at(self, number: int) -> int | None:
        """The element with this number."""
        steps, rest = divmod(number, self._times.size)
        return self._origin + steps * self._step + self._times.at(rest)


class CountedByYear:
    """Base of the sets that are counted year by year."""

    def __init__(self, origin_year: int, cycle_years: int, last_year: int) -> None:
        self.origin_year = origin_year
        self._last_year = last_year
        self._cycle_years = cycle_years
        self._counts = array("q", [0])  # how many elements lie before origin_year, the year after it, and so on

    def build(self, year: int) -> int:
        """Prepare the year and return how many elements it has; called once for each year, in order."""
        raise NotImplementedError

    def reach(self, year: int) -> int:
        """Build all years up to this one, or up to the last year of rules; return the year's index."""
        place = min(year, self._last_year) - self.origin_year
        if len(self._counts) <= place + 1:
            with GROWTH_LOCK:
                while len(self._counts) <= place + 1:
                    self.build_next()
        return place

    def place_of(self, number: int) -> int | None:
        """The index of the year that holds the element with this number; None if there is none."""
        counts = self._counts
        if counts[-1] <= number:
            with GROWTH_LOCK:
                while counts[-1] <= number:
                    built = self.origin_year + len(counts) - 1
                    if built > self._last_year or (counts[-1] == 0 and len(counts) > self._cycle_years + 2):
                        return None
                    self.build_next()
        return bisect_right(counts, number) - 1

    def build_next(self) -> None:
        """Prepare the next year."""
        STEPS.taken += 1
        year = self.origin_year + len(self._counts) - 1
        self._counts.append(self._counts[-1] + self.build(year))


class Product(CountedByYear):
    """The product of days and times: the same times on every day."""

    def __init__(self, days: DayMasks, times: TimesOfDay, origin_year: int, last_year: int) -> None:
        super().__init__(origin_year, days.cycle_years, last_year)
        self._days = days
        self._times = times
        self._masks: list[int] = []

    def build(self, year: int) -> int:
        """Prepare the year and return how many elements it has."""
        mask = self._days.mask(year)
        self._masks.append(mask)
        return mask.bit_count() * self._times.size

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        day, second = divmod(wall, DAY_S)
        year = year_of(day)
        if year < self.origin_year:
            return 0
        place = self.reach(year)
        mask = self._masks[place]
        if place + self.origin_year < year:
            return self._counts[-1]
        day -= YEAR_STARTS[year - FIRST_YEAR]
        number = self._counts[place] + (mask & ((1 << day) - 1)).bit_count() * self._times.size
        return number + self._times.before(second) if mask >> day & 1 else number

    def at(self, number: int) -> int | None:
        """The element with this number."""
        place = self.place_of(number)
        if place is None:
            return None
        days, rest = divmod(number - self._counts[place], self._times.size)
        day = YEAR_STARTS[place + self.origin_year - FIRST_YEAR] + nth_bit(self._masks[place], days)
        return day * DAY_S + self._times.at(rest)

    def listed(self, begin: int, end: int) -> list[int]:
        """The elements from `begin` up to, not including, `end`, for a range of a few days."""
        found: list[int] = []
        for day in range(begin // DAY_S, (end - 1) // DAY_S + 1):
            if self.has_day(day):
                midnight = day * DAY_S
                seconds = self._times.listed(max(0, begin - midnight), min(DAY_S, end - midnight))
                found += [midnight + second for second in seconds]
        return found

    def has_day(self, day: int) -> bool:
        """Whether the rule allows a day."""
        year = year_of(day)
        if year < self.origin_year:
            return False
        place = self.reach(year)
        return place + self.origin_year == year and bool(self._masks[place] >> day - YEAR_STARTS[year - FIRST_YEAR] & 1)


class DisjointUnion:
    """The union of two disjoint sets. Needed only where an offset changed by less than the unit of an exact rule."""

    def __init__(self, one: WallTimes, other: WallTimes, origin_year: int) -> None:
        self._one = one
        self._other = other
        self._origin = YEAR_STARTS[origin_year - FIRST_YEAR] * DAY_S

    def before(self, wall: int) -> int:
        """How many elements lie before the wall time."""
        return self._one.before(wall) + self._other.before(wall)

    def at(self, number: int) -> int | None:
        """The element with this number, by binary search for the wall time at which the count exceeds it."""
        low, width = self._origin, 366 * DAY_S
        while self.before(low + width) <= number:
            low, width = low + width, width * 2
            if low > END_SECOND:
                return None
        return low + bisect_right(range(low + 1, low + width + 1), number, key=self.before)
