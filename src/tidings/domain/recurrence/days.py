"""The Gregorian calendar as bits: a year is an integer whose bit d is its day d, counted from 0.

Wall time is an integer of seconds since 1970-01-01T00:00:00 on the clock of some place; an instant, inside of this
package, the same in UTC. A year's masks depend only on its *kind*: on which weekday it begins, whether it is a leap
year, and whether its neighbours are (which decides how many weeks those have).
"""

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from math import gcd

from tidings.domain.recurrence.rule import DAILY, MONTHLY, WEEKLY, YEARLY, Parts

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


YEAR_BITS_MAX = 366


class Days:
    """The days of a rule, year by year, as masks. Rules below DAILY have no stripes here: they count finer."""

    def __init__(self, parts: Parts, start_day: int) -> None:
        self._parts = parts
        self._interval = parts.interval if parts.frequency <= DAILY else 1
        self._start_day = start_day
        self._start_year = year_of(start_day)
        self._start_month = self._start_year * 12 + month_of(start_day) - 1
        self._filters: dict[int, int] = {}
        self._stripes = _stripes(parts.frequency, self._interval)
        self.cycle_years = _cycle_years(parts.frequency, self._interval)

    def mask(self, year: int) -> int:
        """The days of one year, also before the start."""
        kind = kind_of(year)
        days = self._filters.get(kind)
        if days is None:
            days = self._filters[kind] = filter_of(self._parts, kind)
        if self._interval == 1 or not days:
            return days
        return days & self._striped(year, kind_named(kind))

    def unfiltered(self) -> bool:
        """Whether every day is one of the rule's."""
        parts = self._parts
        return not (parts.by_month or parts.by_month_day or parts.by_year_day or parts.by_week or parts.by_day)

    def _striped(self, year: int, kind: Kind) -> int:
        match self._parts.frequency:
            case 0:
                return 0 if (year - self._start_year) % self._interval else kind.full
            case 1:
                return self._months(year, kind)
            case 2:
                week = (self._start_day + 3 - self._parts.week_start) // 7 * 7 - 3 + self._parts.week_start
                return self._shifted(year_start(year) - week, 7 * self._interval)
            case _:
                return self._shifted(year_start(year) - self._start_day, self._interval)

    def _shifted(self, since: int, step: int) -> int:
        """The stripes as they lie in a year that begins so many days after one of them."""
        return self._stripes >> since % step if step <= YEAR_BITS_MAX else _single(self._stripes, since % step, step)

    def _months(self, year: int, kind: Kind) -> int:
        mask = 0
        for month in range((self._start_month - year * 12) % self._interval, 12, self._interval):
            mask |= span(kind.starts[month], kind.starts[month + 1])
        return mask


def _single(run: int, since: int, step: int) -> int:
    """Stripes so far apart that at most the run before and the run after touch a year."""
    return run >> since | run << (step - since) if step - since <= YEAR_BITS_MAX else run >> since


def _stripes(frequency: int, interval: int) -> int:
    if frequency not in {WEEKLY, DAILY} or interval == 1:
        return 0
    width = 7 if frequency == WEEKLY else 1
    step = width * interval
    return stride(step, width, YEAR_BITS_MAX + step) if step <= YEAR_BITS_MAX else (1 << width) - 1


def _cycle_years(frequency: int, interval: int) -> int:
    """After how many years the days of a rule repeat: what has not come by then never comes."""
    units = {YEARLY: CYCLE_YEARS, MONTHLY: CYCLE_YEARS * 12, WEEKLY: CYCLE_DAYS // 7}.get(frequency, CYCLE_DAYS)
    return CYCLE_YEARS * (interval // gcd(interval, units))


def month_of(day: int) -> int:
    """The month, from 1, of a day since 1970."""
    year = year_of(day)
    starts = kind_named(kind_of(year)).starts
    place = day - year_start(year)
    return next(month for month in range(12, 0, -1) if starts[month - 1] <= place)


def filter_of(parts: Parts, number: int) -> int:
    """The days of a kind of year that pass every part of the rule that speaks of days."""
    kind = kind_named(number)
    days = kind.full
    if parts.by_month:
        days &= months_mask(kind, parts.by_month)
    if parts.by_month_day:
        days &= month_days_mask(kind, parts.by_month_day)
    if parts.by_year_day:
        days &= _places(((day - 1 if day > 0 else kind.days + day) for day in parts.by_year_day), kind.days)
    if parts.by_week:
        days &= _weeks_mask(kind, parts.by_week, parts.week_start)
    if parts.by_day:
        within_months = parts.frequency == MONTHLY or bool(parts.by_month)
        days &= by_day_mask(kind, parts.by_day, within_months=within_months)
    return days


def months_mask(kind: Kind, months: Iterable[int]) -> int:
    """Every day of these months."""
    mask = 0
    for month in months:
        mask |= span(kind.starts[month - 1], kind.starts[month])
    return mask


def month_days_mask(kind: Kind, days: Iterable[int]) -> int:
    """These days of every month; negative ones count from its end."""
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


def by_day_mask(kind: Kind, by_day: Iterable[tuple[int, int]], *, within_months: bool) -> int:
    """Each of these weekdays, or the n-th of them in its month or year; negative n counts from the end."""
    periods = list(pairwise(kind.starts)) if within_months else [(0, kind.days)]
    mask = 0
    for nth, weekday in by_day:
        if not nth:
            mask |= (_EVERY_SEVENTH << (weekday - kind.first) % 7) & kind.full
            continue
        for first, stop in periods:
            earliest = first + (weekday - kind.first - first) % 7
            latest = stop - 1 - (kind.first + stop - 1 - weekday) % 7
            place = earliest + (nth - 1) * 7 if nth > 0 else latest + (nth + 1) * 7
            if first <= place < stop:
                mask |= 1 << place
    return mask


_EVERY_SEVENTH = stride(7, 1, YEAR_BITS_MAX + 7)


def _places(places: Iterable[int], length: int) -> int:
    mask = 0
    for place in places:
        if 0 <= place < length:
            mask |= 1 << place
    return mask


def _weeks_mask(kind: Kind, weeks: tuple[int, ...], week_start: int) -> int:
    """The days whose week has one of these numbers. Week 1 is the first with four days in its year."""
    mask = 0
    for begins, numbered in _week_years(kind, week_start):
        for week in weeks:
            place = week - 1 if week > 0 else numbered + week
            if 0 <= place < numbered:
                mask |= _clipped(begins + place * 7)
    return mask & kind.full


def _week_years(kind: Kind, week_start: int) -> list[tuple[int, int]]:
    """Where week 1 of last, this and next year begins, counted from January 1, and how many weeks each has."""
    lengths = (kind.days_before, kind.days, kind.days_after)
    begins, first, weekday = [], -kind.days_before, kind.first - kind.days_before
    for length in (*lengths, 0):
        begins.append(first + _first_week(weekday % 7, week_start))
        first, weekday = first + length, weekday + length
    return [(begin, (end - begin) // 7) for begin, end in pairwise(begins)]


def _first_week(first_weekday: int, week_start: int) -> int:
    """Where week 1 begins, counted from January 1: between three days before and three days after it."""
    offset = (week_start - first_weekday) % 7
    return offset if offset <= 3 else offset - 7


def _clipped(first: int) -> int:
    """Seven days from there on, as far as they lie behind January 1."""
    return 0x7F << first if first >= 0 else 0x7F >> -first
