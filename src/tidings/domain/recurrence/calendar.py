"""The days of a rule as bit masks, one integer for each year: bit d is the year's day d, counted from 0.

Days are numbered from 1970-01-01; a wall time is a number of seconds since 1970-01-01T00:00:00 on a local clock, and an
instant, in this package, the same in UTC. The masks of a year depend only on its *kind*: the weekday of January 1,
whether it is a leap year, and whether its neighbours are (which decides how many weeks those have). So the filter of a
rule (BYMONTH, BYMONTHDAY, BYDAY, ...) is computed once for each kind of year, and INTERVAL is a pattern of bits that is
laid over it.

Example: FREQ=WEEKLY;INTERVAL=2;BYDAY=MO from Monday 2027-01-04 (day 3 of the year). The filter of 2027, which begins
with a Friday, has the bits of all Mondays: 3, 10, 17, 24, ... The pattern has 7 bits set out of every 14, and is
shifted so that the week of the start is one of them: bits 3-9, 17-23, ... Both together leave 3, 17, 31, ...
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
END_YEAR = 2999  # rules end with it
CYCLE_YEARS = 400  # the calendar repeats, weekdays included
CYCLE_DAYS = 146_097

MONTH_STARTS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)
MONTH_STARTS_LEAP = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335, 366)


def is_leap(year: int) -> bool:
    """Whether the year has a February 29."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def year_start(year: int) -> int:
    """January 1 of the year, in days since 1970."""
    before = year - 1
    return before * 365 + before // 4 - before // 100 + before // 400 - 719_162


YEAR_STARTS = tuple(year_start(year) for year in range(FIRST_YEAR, LAST_YEAR + 3))


def year_of(day: int) -> int:
    """The year in which a day (since 1970) lies."""
    return bisect_right(YEAR_STARTS, day) + FIRST_YEAR - 1


def decade_of(day: int) -> int:
    """The first year of a day's decade, within the range of rules. Rules of one decade share their tables."""
    return min(max(year_of(day) // 10 * 10, 1970), END_YEAR // 10 * 10)


END_SECOND = year_start(END_YEAR + 1) * DAY_S - 1


def month_starts(*, leap: bool) -> tuple[int, ...]:
    """The day of the year on which each month begins, and the length of the year."""
    return MONTH_STARTS_LEAP if leap else MONTH_STARTS


def days_of(year: int, month: int, day: int) -> int:
    """The day's number since 1970; the date must exist."""
    return year_start(year) + month_starts(leap=is_leap(year))[month - 1] + day - 1


@lru_cache(maxsize=2_048)
def kind_of(year: int) -> int:
    """The kind of a year as a small number: the weekday of January 1 (Monday is 0), and three bits for leap years."""
    return (year_start(year) + 3) % 7 * 8 + is_leap(year) * 4 + is_leap(year - 1) * 2 + is_leap(year + 1)


class YearKind:
    """The properties of a kind of year: the weekday of January 1, month starts, and lengths."""

    __slots__ = ("days", "days_after", "days_before", "first", "full", "starts")

    def __init__(self, kind: int) -> None:
        self.first = kind >> 3
        self.starts = month_starts(leap=bool(kind & 4))
        self.days_before = 366 if kind & 2 else 365
        self.days_after = 366 if kind & 1 else 365
        self.days = self.starts[12]
        self.full = (1 << self.days) - 1


@lru_cache(maxsize=64)
def year_kind(kind: int) -> YearKind:
    """The kind of year with this number."""
    return YearKind(kind)


def span(first: int, stop: int) -> int:
    """The bits from `first` up to, not including, `stop`."""
    return (1 << stop) - (1 << first)


def nth_bit(mask: int, n: int) -> int:
    """The position of the n-th set bit, both counted from 0; the mask must have it.

    The mask is halved until one bit is left. For 0b101100 and n = 2: the low 4 bits (of 8) have two set bits, so the
    wanted one is number 0 of the upper half 0b10; its low 1 bit (of 2) has none, so it is bit 1 there, 4 + 1 = 5.
    """
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


def repeat_bits(step: int, width: int, length: int) -> int:
    """A run of `width` bits every `step` bits, up to `length` bits."""
    pattern = 0
    for first in range(0, length, step):
        pattern |= ((1 << width) - 1) << first
    return pattern
