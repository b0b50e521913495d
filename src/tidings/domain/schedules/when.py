"""When a schedule falls due, and the arithmetic between an occurrence's number and its moment.

An instant is an integer of microseconds since 1970-01-01T00:00:00Z. Occurrences are numbered from 1, and each
follows from the anchor alone, so that nothing drifts and a long downtime costs nothing. Rules, cron expressions and
local times are counted by the package `recurrence`.
"""

from bisect import bisect_right
from datetime import date
from typing import assert_never

import msgspec

from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.days import DAY_US, LAST_INSTANT, SECOND_US, is_leap, month_starts, year_start
from tidings.domain.recurrence.rule import Cron, Local, Rule

__all__ = [
    "DAY_US",
    "LAST_INSTANT",
    "SECOND_US",
    "Cron",
    "Every",
    "Local",
    "Once",
    "Period",
    "Rule",
    "When",
    "advance",
    "continued",
    "first_index_at_or_after",
    "is_final",
    "is_once",
    "last_index_at_or_before",
    "lasts",
    "occurrence",
    "occurrences",
]

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_MONTH_DAYS_MIN = 28


class Period(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A length of time: whole calendar months, then an exact part (days and weeks are 24 h each, in UTC)."""

    months: int
    us: int

    def min_us(self) -> int:
        """The least that this can last, with every month as short as a month can be."""
        return self.months * _MONTH_DAYS_MIN * DAY_US + self.us


class Once(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="once"):
    """A single moment."""

    at: int


class Every(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="every"):
    """A moment every period from the anchor `start`, until `end` (inclusive) or `count` is reached.

    Occurrence n lies `offset + n - 1` periods from `start`. The offset is not 0 only where the anchor is not
    the first occurrence and months make that matter: one month after Jan 31, or counted back from May 31.
    """

    start: int
    period: Period
    end: int | None = None
    count: int | None = None
    offset: int = 0

    def period_min_us(self) -> int:
        """The least time that can pass between two occurrences."""
        return self.period.min_us()


When = Once | Every | Local | Rule | Cron


def advance(at: int, period: Period, times: int = 1) -> int:
    """The instant `times` periods after `at` (before it, if negative).

    Months are counted in UTC in one step and clamped to the last day of the month; the exact part follows.
    The answer may lie outside of the years that an instant can have.
    """
    exact = at + period.us * times
    return exact + _months_us(at, period.months * times) if period.months else exact


def occurrence(when: When, n: int) -> int | None:
    """The moment of occurrence n, or None once the schedule has ended."""
    assert n >= 1, "occurrences are numbered from 1"
    match when:
        case Once():
            return when.at if n == 1 else None
        case Every():
            if when.count is not None and n > when.count:
                return None
            at = advance(when.start, when.period, when.offset + n - 1)
            return at if at <= _last_moment(when) else None
        case Local() | Rule() | Cron():
            second = compiled(when).at(n)
            return None if second is None else second * SECOND_US
        case _:
            assert_never(when)


def last_index_at_or_before(when: When, moment: int) -> int:
    """The number of the latest occurrence that is not after the moment, 0 if there is none."""
    match when:
        case Once():
            return 1 if when.at <= moment else 0
        case Every():
            index = _index_until(when, min(moment, _last_moment(when)))
            return index if when.count is None else min(index, when.count)
        case Local() | Rule() | Cron():
            return compiled(when).through(moment // SECOND_US)
        case _:
            assert_never(when)


def first_index_at_or_after(when: When, moment: int) -> int | None:
    """The number of the earliest occurrence that is not before the moment, None if there is none."""
    index = last_index_at_or_before(when, moment - 1) + 1
    return None if occurrence(when, index) is None else index


def is_final(when: When, n: int) -> bool:
    """Whether no occurrence follows the n-th."""
    return occurrence(when, n + 1) is None


def is_once(when: When) -> bool:
    """Whether it is a single moment, whatever the clocks do."""
    return isinstance(when, Once) or (isinstance(when, Local) and when.overlap != "both")


def lasts(when: When | None) -> bool:
    """Whether it can be older than what is remembered of finished schedules: it recurs."""
    return when is not None and not is_once(when)


def continued(when: When, first: int, passed: int) -> When:
    """The moments behind the instant `passed`, with numbers from `first` on.

    A count ends with the same number as if the rule had held from the beginning.
    """
    match when:
        case Once() | Local():
            return when
        case Every():
            before = last_index_at_or_before(msgspec.structs.replace(when, count=None), passed)
            return msgspec.structs.replace(when, offset=when.offset + before - (first - 1))
        case Rule() | Cron():
            since = max(when.since, passed + 1)
            given, shift = when.given + first - 1, when.shift + first - 1
            return msgspec.structs.replace(when, since=since, shift=shift, given=given)
        case _:
            assert_never(when)


def occurrences(when: When, begin: int, end: int, most: int) -> list[tuple[int, int]]:
    """Numbers and moments from `begin` to `end`, both included, at most so many."""
    first, last = last_index_at_or_before(when, begin - 1) + 1, last_index_at_or_before(when, end)
    numbers = range(first, min(last, first + most - 1) + 1)
    return [(n, at) for n in numbers if (at := occurrence(when, n)) is not None]


def _last_moment(every: Every) -> int:
    return LAST_INSTANT if every.end is None else min(every.end, LAST_INSTANT)


def _index_until(every: Every, moment: int) -> int:
    """How many occurrences lie at or before the moment, whatever `count` says."""
    first = advance(every.start, every.period, every.offset)
    if moment < first:
        return 0
    most = (moment - first) // every.period_min_us() + 1
    if every.period.months == 0:
        return most

    def occurs_at(index: int) -> int:
        return advance(every.start, every.period, every.offset + index)

    return bisect_right(range(most), moment, key=occurs_at)


def _months_us(at: int, months: int) -> int:
    """What to add to `at` so that it lies that many months later, on its own day or the month's last."""
    ordinal = _EPOCH_ORDINAL + at // DAY_US
    day = date.fromordinal(ordinal)
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return (_ordinal(year, month, day.day) - ordinal) * DAY_US


def _ordinal(year: int, month: int, day: int) -> int:
    """The proleptic Gregorian day number, month from 0; unlike `date` it knows no first and no last year."""
    starts = month_starts(leap=is_leap(year))
    return _EPOCH_ORDINAL - 1 + year_start(year) + starts[month] + min(day, starts[month + 1] - starts[month])
