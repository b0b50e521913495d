"""Recurrences as they are stored with a schedule: an RRULE, a cron expression, or a single local time.

A *wall time* is what a clock shows in a time zone, as seconds since 1970-01-01T00:00:00 on that clock.
"""

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
    """A time as the request wrote it: an instant (`utc`), a wall time (`local`) or a day (`date`).

    `fold` is 1 for the second of two equal wall times in a DST overlap.
    """

    seconds: int
    form: Literal["utc", "local", "date"]
    fold: int = 0


class RruleParts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A parsed RRULE. Lists are sorted and without duplicates.

    `by_day` holds pairs (n, weekday): (0, 4) is every Friday, (-1, 4) the last Friday of the period.
    """

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
    """How far a rule had been handled when its calendar or the rules of its time zone changed.

    It is kept for the next such change. Nothing becomes due again up to and including the second `at`. `wall` is the
    wall time of the last handled occurrence, and `second` says whether it was the second of two equal wall times;
    `wall` is None for rules in exact time, and if no occurrence was handled.
    """

    at: int
    wall: int | None = None
    second: bool = False


class Local(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="local"):
    """One wall time in a time zone. It is stored as wall time, so that it follows changes of the zone's rules."""

    wall: int
    zone: str
    gap: Gap = "forward"
    overlap: Overlap = "first"


class Rule(msgspec.Struct, frozen=True, gc=False, array_like=True, kw_only=True, tag="rule"):
    """An RRULE with its anchor: the wall time `start` in `zone`; `fold` is 1 for the second of two equal wall times.

    Nothing occurs before the start, nor before the instant `since` (microseconds). `added` and `excepted` are RDATE
    and EXDATE. `excluded` are the days (since 1970) of `calendar` when it was last read; `on_excluded` says whether
    occurrences on these days are skipped or moved to the next day. An occurrence's number is its number by the rule
    plus `shift`. `given` is how many occurrences of COUNT were used up before this version of the rule. `handled` is
    how far the rule had been handled at the last change of its calendar or its zone's rules. `kept` are instants
    (seconds) that were due when the rule moved to another time zone. They occur before the rule itself, whatever its
    calendar and EXDATE, and are a part of COUNT.
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
    kept: tuple[int, ...] = ()


class Cron(msgspec.Struct, frozen=True, gc=False, array_like=True, kw_only=True, tag="cron"):
    """A cron expression in a time zone, from the instant `since` until `end` (microseconds, inclusive) or `count`.

    The other fields are as in `Rule`.
    """

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
    kept: tuple[int, ...] = ()


Recurrence = Local | Rule | Cron
