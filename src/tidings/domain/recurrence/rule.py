"""The values of this package: what a rule, a cron expression or a local time is, as it is stored with a schedule."""

from typing import Literal

import msgspec

Gap = Literal["forward", "skip"]
Overlap = Literal["first", "second", "both"]
OnExcluded = Literal["skip", "next_day"]

GAPS: dict[str, Gap] = {"forward": "forward", "skip": "skip"}
OVERLAPS: dict[str, Overlap] = {"first": "first", "second": "second", "both": "both"}
ON_EXCLUDED: dict[str, OnExcluded] = {"skip": "skip", "next_day": "next_day"}

YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, SECONDLY = range(7)
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


class Moment(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A time as written: `utc` is an instant, `local` a wall time (with `fold` the second of two), `date` a day."""

    seconds: int
    form: Literal["utc", "local", "date"]
    fold: int = 0


class Parts(msgspec.Struct, frozen=True, gc=False):
    """An RRULE, read: every list sorted and without repeats. `by_day` is (n, weekday), n = 0 for each one."""

    frequency: int
    interval: int = 1
    count: int | None = None
    until: Moment | None = None
    by_second: tuple[int, ...] = ()
    by_minute: tuple[int, ...] = ()
    by_hour: tuple[int, ...] = ()
    by_day: tuple[tuple[int, int], ...] = ()
    by_month_day: tuple[int, ...] = ()
    by_year_day: tuple[int, ...] = ()
    by_week: tuple[int, ...] = ()
    by_month: tuple[int, ...] = ()
    by_position: tuple[int, ...] = ()
    week_start: int = 0


class Handled(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What was done with when the rules of a zone or a calendar changed, so that it stays so at the next change.

    Nothing is due again up to the second `at`. `wall` is what clocks showed at the last occurrence that was handled,
    and `second` says that they showed it for the second time; None where wall times do not count, or none was handled.
    """

    at: int
    wall: int | None = None
    second: bool = False


class Local(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="local"):
    """One wall time in a zone. Kept as such, so that it follows when the zone's rules change."""

    wall: int
    zone: str
    gap: Gap = "forward"
    overlap: Overlap = "first"


class Rule(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="rule"):
    """An RRULE with its anchor: `start` is a wall time in `zone`, `fold` 1 where it is the second of two equal ones.

    Nothing occurs before the start, nor before the instant `since` (microseconds). `added` and `excepted` are RDATE
    and EXDATE; `excluded` are days (since 1970) on which nothing may happen, and `on_excluded` what then becomes of it:
    the days of the named `calendar`, as it stood. `shift` is added to what is counted to get an occurrence's number,
    and `given` is how many of COUNT were given before this rule took over. `handled` is what lies behind it since the
    last change of its zone's rules or its calendar.
    """

    rrule: str
    start: int
    zone: str = "UTC"
    fold: int = 0
    gap: Gap = "forward"
    overlap: Overlap = "first"
    since: int = 0
    added: tuple[Moment, ...] = ()
    excepted: tuple[Moment, ...] = ()
    excluded: tuple[int, ...] = ()
    on_excluded: OnExcluded = "skip"
    calendar: str | None = None
    shift: int = 0
    given: int = 0
    handled: Handled | None = None


class Cron(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="cron"):
    """A cron expression in a zone, from the instant `since` to `end` (microseconds, inclusive) or `count` moments."""

    expression: str
    since: int
    zone: str = "UTC"
    gap: Gap = "forward"
    overlap: Overlap = "first"
    end: int | None = None
    count: int | None = None
    added: tuple[Moment, ...] = ()
    excepted: tuple[Moment, ...] = ()
    excluded: tuple[int, ...] = ()
    on_excluded: OnExcluded = "skip"
    calendar: str | None = None
    shift: int = 0
    given: int = 0
    handled: Handled | None = None


Recurrence = Local | Rule | Cron
