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
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from math import gcd

from tidings.domain.recurrence.rule import DAILY, MONTHLY, WEEKLY, YEARLY, RruleParts

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


YEAR_BITS_MAX = 366


class Days:
    """The days of a rule, as one mask for each year. INTERVAL of rules below DAILY is not applied here."""

    def __init__(self, parts: RruleParts, start_day: int) -> None:
        self._parts = parts
        self._interval = parts.interval if parts.frequency <= DAILY else 1
        self._start_day = start_day
        self._start_year = year_of(start_day)
        self._start_month = self._start_year * 12 + month_of(start_day) - 1
        self._filters: dict[int, int] = {}
        self._interval_pattern = _interval_pattern(parts.frequency, self._interval)
        self.cycle_years = _cycle_years(parts.frequency, self._interval)

    def mask(self, year: int) -> int:
        """The days of one year, including those before the start."""
        kind = kind_of(year)
        days = self._filters.get(kind)
        if days is None:
            days = self._filters[kind] = filter_of(self._parts, kind)
        if self._interval == 1 or not days:
            return days
        return days & self._interval_mask(year, year_kind(kind))

    def unfiltered(self) -> bool:
        """Whether the rule allows every day."""
        parts = self._parts
        return not (parts.by_month or parts.by_month_day or parts.by_year_day or parts.by_week or parts.by_day)

    def _interval_mask(self, year: int, kind: YearKind) -> int:
        match self._parts.frequency:
            case 0:
                return 0 if (year - self._start_year) % self._interval else kind.full
            case 1:
                return self._months(year, kind)
            case 2:
                week = (self._start_day + 3 - self._parts.week_start) // 7 * 7 - 3 + self._parts.week_start
                return self._pattern_from(year_start(year) - week, 7 * self._interval)
            case _:
                return self._pattern_from(year_start(year) - self._start_day, self._interval)

    def _pattern_from(self, since: int, step: int) -> int:
        """The INTERVAL pattern in a year that begins `since` days after one of its runs."""
        return (
            self._interval_pattern >> since % step
            if step <= YEAR_BITS_MAX
            else _single(self._interval_pattern, since % step, step)
        )

    def _months(self, year: int, kind: YearKind) -> int:
        mask = 0
        for month in range((self._start_month - year * 12) % self._interval, 12, self._interval):
            mask |= span(kind.starts[month], kind.starts[month + 1])
        return mask


def _single(run: int, since: int, step: int) -> int:
    """The INTERVAL pattern if it is longer than a year: at most the run before and the run after touch the year."""
    return run >> since | run << (step - since) if step - since <= YEAR_BITS_MAX else run >> since


def _interval_pattern(frequency: int, interval: int) -> int:
    if frequency not in {WEEKLY, DAILY} or interval == 1:
        return 0
    width = 7 if frequency == WEEKLY else 1
    step = width * interval
    return repeat_bits(step, width, YEAR_BITS_MAX + step) if step <= YEAR_BITS_MAX else (1 << width) - 1


def _cycle_years(frequency: int, interval: int) -> int:
    """After how many years the days of a rule repeat. A rule without a day in that time never occurs.

    The calendar repeats after 400 years of 146,097 days. Every 3 days: 3 divides 146,097, so the days repeat with it.
    Every 2 days: 146,097 is odd, so they repeat after twice that time.
    """
    units = {YEARLY: CYCLE_YEARS, MONTHLY: CYCLE_YEARS * 12, WEEKLY: CYCLE_DAYS // 7}.get(frequency, CYCLE_DAYS)
    return CYCLE_YEARS * (interval // gcd(interval, units))


def month_of(day: int) -> int:
    """The month, from 1, of a day since 1970."""
    year = year_of(day)
    starts = year_kind(kind_of(year)).starts
    index = day - year_start(year)
    return next(month for month in range(12, 0, -1) if starts[month - 1] <= index)


def filter_of(parts: RruleParts, number: int) -> int:
    """The days of a kind of year that all BY... parts about days allow."""
    kind = year_kind(number)
    days = kind.full
    if parts.by_month:
        days &= months_mask(kind, parts.by_month)
    if parts.by_month_day:
        days &= month_days_mask(kind, parts.by_month_day)
    if parts.by_year_day:
        days &= _mask_of(((day - 1 if day > 0 else kind.days + day) for day in parts.by_year_day), kind.days)
    if parts.by_week:
        days &= _weeks_mask(kind, parts.by_week, parts.week_start)
    if parts.by_day:
        within_months = parts.frequency == MONTHLY or bool(parts.by_month)
        days &= by_day_mask(kind, parts.by_day, within_months=within_months)
    return days


def months_mask(kind: YearKind, months: Iterable[int]) -> int:
    """Every day of these months."""
    mask = 0
    for month in months:
        mask |= span(kind.starts[month - 1], kind.starts[month])
    return mask


def month_days_mask(kind: YearKind, days: Iterable[int]) -> int:
    """These days of every month; negative numbers count from its end."""
    named, from_end = 0, []
    for day in days:
        if day > 0:
            named |= 1 << day - 1
        else:
            from_end.append(day)
    mask = 0
    for first, stop in pairwise(kind.starts):
        mask |= (named & (1 << stop - first) - 1) << first
        for day in from_end:
            if stop + day >= first:
                mask |= 1 << stop + day
    return mask


def by_day_mask(kind: YearKind, by_day: Iterable[tuple[int, int]], *, within_months: bool) -> int:
    """These weekdays: all of them (n = 0), or the n-th of its month or year; negative n counts from the end."""
    periods = list(pairwise(kind.starts)) if within_months else [(0, kind.days)]
    mask = 0
    for nth, weekday in by_day:
        if not nth:
            mask |= (_EVERY_SEVENTH << (weekday - kind.first) % 7) & kind.full
            continue
        for first, stop in periods:
            earliest = first + (weekday - kind.first - first) % 7
            latest = stop - 1 - (kind.first + stop - 1 - weekday) % 7
            index = earliest + (nth - 1) * 7 if nth > 0 else latest + (nth + 1) * 7
            if first <= index < stop:
                mask |= 1 << index
    return mask


_EVERY_SEVENTH = repeat_bits(7, 1, YEAR_BITS_MAX + 7)


def _mask_of(indexes: Iterable[int], length: int) -> int:
    mask = 0
    for index in indexes:
        if 0 <= index < length:
            mask |= 1 << index
    return mask


def _weeks_mask(kind: YearKind, weeks: tuple[int, ...], week_start: int) -> int:
    """The days whose week has one of these numbers. Week 1 is the first with at least four days in its year.

    Weeks at both ends may belong to a neighbouring year. 2027 begins with a Friday, so January 1 to 3 are in week 53 of
    2026, and week 1 begins on day 3, January 4.
    """
    mask = 0
    for begins, numbered in _week_years(kind, week_start):
        for week in weeks:
            index = week - 1 if week > 0 else numbered + week
            if 0 <= index < numbered:
                mask |= _clipped(begins + index * 7)
    return mask & kind.full


def _week_years(kind: YearKind, week_start: int) -> list[tuple[int, int]]:
    """For last, this and next year: the first day of week 1, counted from this year's January 1, and how many weeks."""
    lengths = (kind.days_before, kind.days, kind.days_after)
    begins, first, weekday = [], -kind.days_before, kind.first - kind.days_before
    for length in (*lengths, 0):
        begins.append(first + _first_week(weekday % 7, week_start))
        first, weekday = first + length, weekday + length
    return [(begin, (end - begin) // 7) for begin, end in pairwise(begins)]


def _first_week(first_weekday: int, week_start: int) -> int:
    """The first day of week 1, counted from January 1: from -3 to 3."""
    offset = (week_start - first_weekday) % 7
    return offset if offset <= 3 else offset - 7


def _clipped(first: int) -> int:
    """Seven days from `first` on, without those before January 1."""
    return 0x7F << first if first >= 0 else 0x7F >> -first
