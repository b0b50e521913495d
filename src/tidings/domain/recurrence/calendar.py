"""The Gregorian calendar as bits: a year is an integer whose bit d is its day d, counted from 0.

Wall time is an integer of seconds since 1970-01-01T00:00:00 on the clock of some place; an instant, inside of this
package, the same in UTC. A year's masks depend only on its *kind*: on which weekday it begins, whether it is a leap
year, and whether its neighbours are (which decides how many weeks those have).
"""

from bisect import bisect_right
from functools import lru_cache

SECOND_US = 1_000_000
DAY_S = 86_400
DAY_US = DAY_S * SECOND_US
LAST_INSTANT = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z
LAST_SECOND = LAST_INSTANT // SECOND_US

FIRST_YEAR = 1967
LAST_YEAR = 9999
END_YEAR = 2999  # rules end with it: what has not come by then is not waited for
CYCLE_YEARS = 400  # the calendar repeats, weekdays included
CYCLE_DAYS = 146_097

MONTH_STARTS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)
MONTH_STARTS_LEAP = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335, 366)


def is_leap(year: int) -> bool:
    """Whether the year has a February 29."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def year_start(year: int) -> int:
    """The number of January 1, in days since 1970."""
    before = year - 1
    return before * 365 + before // 4 - before // 100 + before // 400 - 719_162


YEAR_STARTS = tuple(year_start(year) for year in range(FIRST_YEAR, LAST_YEAR + 3))


def year_of(day: int) -> int:
    """The year in which a day (since 1970) lies."""
    return bisect_right(YEAR_STARTS, day) + FIRST_YEAR - 1


def decade_of(day: int) -> int:
    """The first year of a day's decade, within what rules can cover: starts of one decade share their tables."""
    return min(max(year_of(day) // 10 * 10, 1970), END_YEAR // 10 * 10)


END_SECOND = year_start(END_YEAR + 1) * DAY_S - 1


def month_starts(*, leap: bool) -> tuple[int, ...]:
    """On which day of the year each month begins, and where the year ends."""
    return MONTH_STARTS_LEAP if leap else MONTH_STARTS


def days_of(year: int, month: int, day: int) -> int:
    """The day's number since 1970; the date must exist."""
    return year_start(year) + month_starts(leap=is_leap(year))[month - 1] + day - 1


@lru_cache(maxsize=2_048)
def kind_of(year: int) -> int:
    """What the masks of a year depend on, as a small number: weekday of January 1 (Monday is 0), leap years."""
    return (year_start(year) + 3) % 7 * 8 + is_leap(year) * 4 + is_leap(year - 1) * 2 + is_leap(year + 1)


class Kind:
    """A kind of year, unpacked."""

    __slots__ = ("days", "days_after", "days_before", "first", "full", "starts")

    def __init__(self, kind: int) -> None:
        self.first = kind >> 3
        self.starts = month_starts(leap=bool(kind & 4))
        self.days_before = 366 if kind & 2 else 365
        self.days_after = 366 if kind & 1 else 365
        self.days = self.starts[12]
        self.full = (1 << self.days) - 1


@lru_cache(maxsize=64)
def kind_named(kind: int) -> Kind:
    """The kind of year with this number."""
    return Kind(kind)


def span(first: int, stop: int) -> int:
    """The bits from `first` up to, not including, `stop`."""
    return (1 << stop) - (1 << first)


def nth_bit(mask: int, n: int) -> int:
    """The place of the n-th set bit, counted from 0; the mask must have it."""
    base = 0
    width = 1 << max(0, (mask.bit_length() - 1).bit_length())
    while width > 1:
        width >>= 1
        low = mask & ((1 << width) - 1)
        below = low.bit_count()
        if n < below:
            mask = low
        else:
            n -= below
            mask >>= width
            base += width
    return base


def stride(step: int, width: int, length: int) -> int:
    """A run of `width` bits every `step` bits, up to `length` bits."""
    pattern = 0
    for first in range(0, length, step):
        pattern |= ((1 << width) - 1) << first
    return pattern
