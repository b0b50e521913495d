"""Lists of days off, from an .ics file or one date a line, as days since 1970.

Whatever a text says, reading it costs its length and a budget of moments: single ones, and what events repeat to.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cache import METER
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.days import DAY_S
from tidings.domain.recurrence.occurrences import EXCLUDED_MAX, merged
from tidings.domain.recurrence.rrule import parse_moment, parse_rrule, quoted
from tidings.domain.recurrence.rule import DAILY, Moment, Rule

TEXT_CHARS_MAX = 2_000_000
MOMENTS_MAX = 10_000
RULE_MOMENTS = 10  # what preparing a rule costs, in moments
REPEATS_YEARS = 20
PAST_DAYS = 366

_READ = {"DTSTART", "DTEND", "DURATION", "RRULE", "EXDATE", "RDATE", "RECURRENCE-ID", "STATUS", "UID"}
_DURATION = re.compile(r"\+?P(?:(\d{1,3})W)?(?:(\d{1,4})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,6})M)?(?:(\d{1,8})S)?)?")
_UNITS_S = (7 * DAY_S, DAY_S, 3_600, 60, 1)

_DATE = "write a date such as 2026-12-25"
_ICS_DATE = "write a date such as 20261225, or a time such as 20261225T090000"


class Written(NamedTuple):
    """A text, and the line on which it stands."""

    text: str
    line: int


Event = dict[str, list[Written]]

_NOTHING = Written("", 0)


def parse_calendar(text: str, field: str = "calendar", today: int | None = None) -> tuple[int, ...]:
    """The days that a calendar's text names, sorted: an iCalendar file, or dates with `#` before remarks.

    What an event repeats to counts from a year before today on; without that from the event itself on.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid(field, f"has {len(text):,} characters, at most {TEXT_CHARS_MAX:,} are taken")
    budget = Budget(field, today)
    if "BEGIN:VCALENDAR" in text[:1_000].upper():
        ranges = merged(_from_ics(text, budget))
    else:
        ranges = merged(_from_lines(text, budget))
    days = sum(last - first + 1 for first, last in ranges)
    if days > EXCLUDED_MAX:
        raise Invalid(
            field, f"names {days:,} days, at most {EXCLUDED_MAX:,} are taken: split it, or end its rules with UNTIL"
        )
    return tuple(day for first, last in ranges for day in range(first, last + 1))


class Budget:
    """What a whole text may still ask for; `field` names it in errors, and what repeats is read from `since` on."""

    def __init__(self, field: str, today: int | None) -> None:
        self.field = field
        self.since = 0 if today is None else today - PAST_DAYS
        self.left = MOMENTS_MAX

    def take(self, moments: int) -> None:
        """Use up so many."""
        self.left -= moments
        if self.left < 0:
            detail = f"has more than {MOMENTS_MAX:,} dates, with what its events repeat to over {REPEATS_YEARS} years"
            raise Invalid(self.field, f"{detail}: split it, or end its rules with COUNT or UNTIL")
        METER.taken += moments

    def read(self, written: Written, name: str, hint: str = _ICS_DATE) -> Moment:
        """The moment that is written there, as the property of this name where it is of a file."""
        try:
            return parse_moment(written.text, self.field, hint)
        except Invalid as invalid:
            raise self.wrong(written, name, invalid.detail) from None

    def wrong(self, written: Written, name: str, detail: str) -> Invalid:
        """The refusal of what is written there."""
        return Invalid(self.field, f"line {written.line}: {name}{': ' if name else ''}{detail}")


def _from_lines(text: str, budget: Budget) -> Iterable[tuple[int, int]]:
    for number, line in enumerate(text.splitlines(), start=1):
        for word in line.partition("#")[0].replace(",", " ").split():
            budget.take(1)
            moment = budget.read(Written(word, number), "", _DATE)
            if moment.form != "date":
                raise Invalid(budget.field, f"line {number}: {quoted(word)} has a time of day: {_DATE}")
            yield moment.seconds // DAY_S, moment.seconds // DAY_S


def _from_ics(text: str, budget: Budget) -> Iterable[tuple[int, int]]:
    """Every day that an event of the file touches, as written; what replaces one of a rule's days stands instead."""
    events = list(_events(text, budget))
    replaced: dict[str, set[int]] = {}
    for event in events:
        replaced.setdefault(_one(event, "UID").text, set()).update(_days(event, "RECURRENCE-ID", budget))
    for event in events:
        if _one(event, "STATUS").text.upper() != "CANCELLED":
            gone = set() if "RECURRENCE-ID" in event else replaced[_one(event, "UID").text]
            yield from _ranges(event, gone, budget)


def _events(text: str, budget: Budget) -> Iterable[Event]:
    """The properties of each event; what lies inside of it, such as an alarm, is not its own."""
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
                event = {"BEGIN": [Written(value, number)]}
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
                event.setdefault(name, []).append(Written(value, number))
    if event is not None or not whole:
        missing = "END:VCALENDAR" if event is None else "END:VEVENT"
        raise Invalid(budget.field, f"is cut off: {missing} is missing; send the whole file")


def _unfolded(text: str) -> Iterable[Written]:
    """The lines, each with its number; what is broken over several is one."""
    parts: list[str] = []
    begun = 1
    for number, line in enumerate(text.splitlines(), start=1):
        if parts and line[:1] in {" ", "\t"}:
            parts.append(line[1:])
            continue
        if parts:
            yield Written("".join(parts), begun)
        parts, begun = [line], number
    if parts:
        yield Written("".join(parts), begun)


def _check_property(name: str, head: str, field: str) -> None:
    """Raise `Invalid` for what changes an event's days and is not understood."""
    if name == "EXRULE":
        raise Invalid(field, "has an event with EXRULE, which is not taken: name its days in EXDATE")
    if name == "RECURRENCE-ID" and "RANGE=" in head.upper():
        raise Invalid(field, "has a RECURRENCE-ID with RANGE, which is not taken: end the rule, and begin a new event")


def _ranges(event: Event, gone: set[int], budget: Budget) -> Iterable[tuple[int, int]]:
    if "DTSTART" not in event:
        begun = event["BEGIN"][0].line
        raise Invalid(budget.field, f"line {begun}: has an event without DTSTART: give it one, or take the event out")
    start = budget.read(_one(event, "DTSTART"), "DTSTART").seconds
    first = start // DAY_S
    more = max(0, (_end(event, start, budget) - 1) // DAY_S - first)  # the end is not part of it
    firsts = set(_repeated(_one(event, "RRULE"), first, budget) if "RRULE" in event else [first])
    firsts |= set(_days(event, "RDATE", budget))
    for day in firsts - set(_days(event, "EXDATE", budget)) - gone:
        yield day, day + more


def _end(event: Event, start: int, budget: Budget) -> int:
    if "DTEND" in event:
        return budget.read(_one(event, "DTEND"), "DTEND").seconds
    if "DURATION" not in event:
        return start
    written = _one(event, "DURATION")
    found = _DURATION.fullmatch(written.text.upper())
    if found is None or not any(found.groups()):
        detail = f"{quoted(written.text)} is not a duration: write such as P2D or PT8H"
        raise budget.wrong(written, "DURATION", detail)
    return start + sum(int(size or 0) * unit for size, unit in zip(found.groups(), _UNITS_S, strict=True))


def _repeated(rule: Written, first: int, budget: Budget) -> Iterable[int]:
    try:
        frequency = parse_rrule(rule.text, budget.field).frequency
    except Invalid as invalid:
        raise budget.wrong(rule, "RRULE", invalid.detail) from None
    if frequency > DAILY:
        detail = f"{quoted(rule.text)} repeats within a day: use DAILY, WEEKLY, MONTHLY or YEARLY"
        raise budget.wrong(rule, "RRULE", detail)
    moments = compiled(Rule(rule.text, first * DAY_S))
    begin = max(first, budget.since)
    before, last = moments.through(begin * DAY_S - 1), moments.through((begin + REPEATS_YEARS * 366) * DAY_S)
    budget.take(RULE_MOMENTS + last - before)
    found = (moments.at(number) for number in range(before + 1, last + 1))
    return [at // DAY_S for at in found if at is not None]


def _days(event: Event, name: str, budget: Budget) -> list[int]:
    """The days of a property that is a list; of a period its first."""
    words = [Written(word, value.line) for value in event.get(name, ()) for word in value.text.split(",")]
    budget.take(len(words))
    firsts = (Written(word.text.partition("/")[0].strip(), word.line) for word in words)
    return [budget.read(first, name).seconds // DAY_S for first in firsts]


def _one(event: Event, name: str) -> Written:
    return event[name][0] if name in event else _NOTHING
