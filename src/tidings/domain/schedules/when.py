"""When a schedule is due: one-shots, intervals and rules, and the mapping between occurrence numbers and instants.

An instant is a number of microseconds since 1970-01-01T00:00:00Z. Occurrences are numbered from 1, and each is computed
from the anchor alone, so that nothing drifts and a long downtime costs nothing. Rules, cron expressions and local times
are computed by the package `recurrence`.
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
    """A duration: whole calendar months, then an exact part, in which a day has 24 hours."""

    months: int
    us: int

    def min_us(self) -> int:
        """The shortest time that the period can last, with 28 days for each month."""
        return self.months * _MONTH_DAYS_MIN * DAY_US + self.us


class Once(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="once"):
    """A single instant."""

    at: int


class Every(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="every"):
    """An interval: an occurrence every period from the anchor `start`, until `end` (inclusive) or `count` is reached.

    Occurrence n lies `offset + n - 1` periods from `start`. The offset is 0 unless the anchor is not the first
    occurrence and the period has months: `P1M` from January 31 on has offset 1 and gives February 28, March 31, ...
    """

    start: int
    period: Period
    end: int | None = None
    count: int | None = None
    offset: int = 0

    def period_min_us(self) -> int:
        """The shortest time between two occurrences."""
        return self.period.min_us()


When = Once | Every | Local | Rule | Cron


def advance(at: int, period: Period, times: int = 1) -> int:
    """The instant `times` periods after `at` (before it, if negative).

    Months are added in UTC, all at once, and clamped to the last day of the month; the exact part is added after that.
    January 31 plus 2 times P1M is March 31, not March 28. The result may lie outside of the valid range of instants.
    """
    exact = at + period.us * times
    return exact + _months_us(at, period.months * times) if period.months else exact


def occurrence(when: When, n: int) -> int | None:
    """The instant of occurrence n; None after the last one."""
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
    """The number of the last occurrence at or before the instant; 0 if there is none."""
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
    """The number of the first occurrence at or after the instant; None if there is none."""
    index = last_index_at_or_before(when, moment - 1) + 1
    return None if occurrence(when, index) is None else index


def is_final(when: When, n: int) -> bool:
    """Whether no occurrence follows the n-th."""
    return occurrence(when, n + 1) is None


def is_once(when: When) -> bool:
    """Whether it has a single occurrence, whatever the rules of its time zone."""
    return isinstance(when, Once) or (isinstance(when, Local) and when.overlap != "both")


def lasts(when: When | None) -> bool:
    """Whether it recurs, and so can be older than the records that are kept of finished schedules."""
    return when is not None and not is_once(when)


def continued(when: When, first: int, passed: int) -> When:
    """The occurrences after the instant `passed`, numbered from `first` on.

    A count ends with the same number as if the rule had been in place from the beginning.
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
            kept = tuple(second for second in when.kept if second * SECOND_US > passed)
            return msgspec.structs.replace(when, since=since, shift=shift, given=given, kept=kept)
        case _:
            assert_never(when)


def occurrences(when: When, begin: int, end: int, most: int) -> list[tuple[int, int]]:
    """Numbers and instants of the occurrences from `begin` to `end`, both included, at most `most`."""
    first, last = last_index_at_or_before(when, begin - 1) + 1, last_index_at_or_before(when, end)
    numbers = range(first, min(last, first + most - 1) + 1)
    return [(n, at) for n in numbers if (at := occurrence(when, n)) is not None]


def _last_moment(every: Every) -> int:
    return LAST_INSTANT if every.end is None else min(every.end, LAST_INSTANT)


def _index_until(every: Every, moment: int) -> int:
    """How many occurrences lie at or before the instant, without regard to `count`.

    Without months this is a division. With months it divides by the shortest possible period, which gives an upper
    bound, and searches below it. P1M from 2027-01-31, up to 2027-05-30: 119 days are at most 119 // 28 + 1 = 5
    occurrences; of January 31, February 28, March 31, April 30 and May 31 the first four are not later.
    """
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
    """How far to move `at` so that it is that many months later, on the same day of the month or the month's last."""
    ordinal = _EPOCH_ORDINAL + at // DAY_US
    day = date.fromordinal(ordinal)
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return (_ordinal(year, month, day.day) - ordinal) * DAY_US


def _ordinal(year: int, month: int, day: int) -> int:
    """The proleptic Gregorian day number, with months from 0; unlike `date`, it works for any year."""
    starts = month_starts(leap=is_leap(year))
    return _EPOCH_ORDINAL - 1 + year_start(year) + starts[month] + min(day, starts[month + 1] - starts[month])
