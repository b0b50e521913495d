"""Parsing of calendars (days on which nothing is released) from an .ics file or from one date per line.

The cost of parsing is bounded by the length of the text and by a budget of dates: those that the text names, and those
that its recurring events expand to.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cache import STEPS
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.days import DAY_S
from tidings.domain.recurrence.occurrences import EXCLUDED_MAX, merge_ranges
from tidings.domain.recurrence.rrule import parse_moment, parse_rrule, quoted
from tidings.domain.recurrence.rule import DAILY, Moment, Rule

TEXT_CHARS_MAX = 2_000_000
MOMENTS_MAX = 10_000
RULE_MOMENTS = 10  # the cost of compiling a rule, in dates of the budget
REPEATS_YEARS = 20
PAST_DAYS = 366

_READ = {"DTSTART", "DTEND", "DURATION", "RRULE", "EXDATE", "RDATE", "RECURRENCE-ID", "STATUS", "UID"}
_DURATION = re.compile(r"\+?P(?:(\d{1,3})W)?(?:(\d{1,4})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,6})M)?(?:(\d{1,8})S)?)?")
_UNITS_S = (7 * DAY_S, DAY_S, 3_600, 60, 1)

_DATE = "write a date such as 2026-12-25"
_ICS_DATE = "write a date such as 20261225, or a time such as 20261225T090000"


class SourceText(NamedTuple):
    """A piece of the text, and its line number, for errors."""

    text: str
    line: int


Event = dict[str, list[SourceText]]

_NOTHING = SourceText("", 0)


def parse_calendar(text: str, field: str = "calendar", today: int | None = None) -> tuple[int, ...]:
    """The days of a calendar (since 1970), sorted. The text is an iCalendar file, or dates with `#` before comments.

    Recurring events are expanded from a year before `today` on, or from their start if `today` is None.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid(field, f"has {len(text):,} characters: at most {TEXT_CHARS_MAX:,} are allowed")
    budget = Budget(field, today)
    if "BEGIN:VCALENDAR" in text[:1_000].upper():
        ranges = merge_ranges(_from_ics(text, budget))
    else:
        ranges = merge_ranges(_from_lines(text, budget))
    days = sum(last - first + 1 for first, last in ranges)
    if days > EXCLUDED_MAX:
        raise Invalid(
            field, f"has {days:,} days: at most {EXCLUDED_MAX:,} are allowed; split it, or end its rules with UNTIL"
        )
    return tuple(day for first, last in ranges for day in range(first, last + 1))


class Budget:
    """How many dates one text may still expand to. `field` is for errors; recurring events count from `since` on."""

    def __init__(self, field: str, today: int | None) -> None:
        self.field = field
        self.since = 0 if today is None else today - PAST_DAYS
        self.left = MOMENTS_MAX

    def take(self, moments: int) -> None:
        """Take this many dates from the budget; raises `Invalid` when it is used up."""
        self.left -= moments
        if self.left < 0:
            detail = f"has more than {MOMENTS_MAX:,} dates, with its recurring events over {REPEATS_YEARS} years"
            raise Invalid(self.field, f"{detail}: split it, or end its rules with COUNT or UNTIL")
        STEPS.taken += moments

    def read(self, written: SourceText, name: str, hint: str = _ICS_DATE) -> Moment:
        """Parse a time; an error names the line, and the property `name` if it is of an .ics file."""
        try:
            return parse_moment(written.text, self.field, hint)
        except Invalid as invalid:
            raise self.error(written, name, invalid.detail) from None

    def error(self, written: SourceText, name: str, detail: str) -> Invalid:
        """An error about a piece of the text, with its line number."""
        return Invalid(self.field, f"line {written.line}: {name}{': ' if name else ''}{detail}")


def _from_lines(text: str, budget: Budget) -> Iterable[tuple[int, int]]:
    for number, line in enumerate(text.splitlines(), start=1):
        for word in line.partition("#")[0].replace(",", " ").split():
            budget.take(1)
            moment = budget.read(SourceText(word, number), "", _DATE)
            if moment.form != "date":
                raise Invalid(budget.field, f"line {number}: {quoted(word)} has a time of day: {_DATE}")
            yield moment.seconds // DAY_S, moment.seconds // DAY_S


def _from_ics(text: str, budget: Budget) -> Iterable[tuple[int, int]]:
    """Every day that an event of the file touches, in the event's own local time.

    An event with a RECURRENCE-ID replaces that occurrence of the recurring event with the same UID.
    """
    events = list(_events(text, budget))
    replaced: dict[str, set[int]] = {}
    for event in events:
        replaced.setdefault(_one(event, "UID").text, set()).update(_days(event, "RECURRENCE-ID", budget))
    for event in events:
        if _one(event, "STATUS").text.upper() != "CANCELLED":
            replaced_days = set() if "RECURRENCE-ID" in event else replaced[_one(event, "UID").text]
            yield from _ranges(event, replaced_days, budget)


def _events(text: str, budget: Budget) -> Iterable[Event]:
    """The properties of each event, without those of components inside it, such as alarms."""
    event: Event | None = None
    inside, whole = 0, False
    for line, number in _unfolded(text):
        head, _, value = line.partition(":")
        name, value = head.partition(";")[0].strip().upper(), value.strip()
        if name == "BEGIN":
            if event is not None:
                inside += 1
            elif value.upper() == "VEVENT":
                budget.take(1)
                event = {"BEGIN": [SourceText(value, number)]}
            else:
                whole = whole and value.upper() != "VCALENDAR"
        elif name == "END" and inside:
            inside -= 1
        elif name == "END" and event is not None:
            if value.upper() != "VEVENT":
                break
            yield event
            event = None
        elif name == "END":
            whole = whole or value.upper() == "VCALENDAR"
        elif event is not None and not inside:
            _check_property(name, head, budget.field)
            if name in _READ:
                event.setdefault(name, []).append(SourceText(value, number))
    if event is not None or not whole:
        missing = "END:VCALENDAR" if event is None else "END:VEVENT"
        raise Invalid(budget.field, f"is truncated: {missing} is missing; send the whole file")


def _unfolded(text: str) -> Iterable[SourceText]:
    """The lines with their numbers; folded lines (continued with a leading space) are joined."""
    parts: list[str] = []
    first_line = 1
    for number, line in enumerate(text.splitlines(), start=1):
        if parts and line[:1] in {" ", "\t"}:
            parts.append(line[1:])
            continue
        if parts:
            yield SourceText("".join(parts), first_line)
        parts, first_line = [line], number
    if parts:
        yield SourceText("".join(parts), first_line)


def _check_property(name: str, head: str, field: str) -> None:
    """Raise `Invalid` for properties that change an event's days and are not supported."""
    if name == "EXRULE":
        raise Invalid(field, "has an event with EXRULE, which is not supported: list the days in EXDATE")
    if name == "RECURRENCE-ID" and "RANGE=" in head.upper():
        raise Invalid(
            field, "has a RECURRENCE-ID with RANGE, which is not supported: end the rule, and add a new event"
        )


def _ranges(event: Event, replaced: set[int], budget: Budget) -> Iterable[tuple[int, int]]:
    if "DTSTART" not in event:
        line = event["BEGIN"][0].line
        raise Invalid(budget.field, f"line {line}: an event has no DTSTART: add it, or remove the event")
    start = budget.read(_one(event, "DTSTART"), "DTSTART").seconds
    first = start // DAY_S
    more = max(0, (_end(event, start, budget) - 1) // DAY_S - first)  # the end is exclusive
    firsts = set(_repeated(_one(event, "RRULE"), first, budget) if "RRULE" in event else [first])
    firsts |= set(_days(event, "RDATE", budget))
    for day in firsts - set(_days(event, "EXDATE", budget)) - replaced:
        yield day, day + more


def _end(event: Event, start: int, budget: Budget) -> int:
    if "DTEND" in event:
        return budget.read(_one(event, "DTEND"), "DTEND").seconds
    if "DURATION" not in event:
        return start
    written = _one(event, "DURATION")
    found = _DURATION.fullmatch(written.text.upper())
    if found is None or not any(found.groups()):
        detail = f"{quoted(written.text)} is not a duration: write one such as P2D or PT8H"
        raise budget.error(written, "DURATION", detail)
    return start + sum(int(size or 0) * unit for size, unit in zip(found.groups(), _UNITS_S, strict=True))


def _repeated(rule: SourceText, first: int, budget: Budget) -> Iterable[int]:
    try:
        frequency = parse_rrule(rule.text, budget.field).frequency
    except Invalid as invalid:
        raise budget.error(rule, "RRULE", invalid.detail) from None
    if frequency > DAILY:
        detail = f"{quoted(rule.text)} repeats within a day: use DAILY, WEEKLY, MONTHLY or YEARLY"
        raise budget.error(rule, "RRULE", detail)
    moments = compiled(Rule(rrule=rule.text, start=first * DAY_S))
    begin = max(first, budget.since)
    before, last = moments.through(begin * DAY_S - 1), moments.through((begin + REPEATS_YEARS * 366) * DAY_S)
    budget.take(RULE_MOMENTS + last - before)
    found = (moments.at(number) for number in range(before + 1, last + 1))
    return [at // DAY_S for at in found if at is not None]


def _days(event: Event, name: str, budget: Budget) -> list[int]:
    """The days of a list property; of a period (`start/end`) its first day."""
    words = [SourceText(word, value.line) for value in event.get(name, ()) for word in value.text.split(",")]
    budget.take(len(words))
    firsts = (SourceText(word.text.partition("/")[0].strip(), word.line) for word in words)
    return [budget.read(first, name).seconds // DAY_S for first in firsts]


def _one(event: Event, name: str) -> SourceText:
    return event[name][0] if name in event else _NOTHING
