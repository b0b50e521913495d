"""Lists of days off, from an .ics file or one date a line, as days since 1970."""

import re

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.calendar import DAY_S
from tidings.domain.recurrence.compiling import compiled
from tidings.domain.recurrence.excluding import EXCLUDED_MAX
from tidings.domain.recurrence.parts import Rule
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.written import parse_moment, quoted

TEXT_CHARS_MAX = 2_000_000
REPEATS_YEARS = 50

_FOLDED = re.compile(r"\r?\n[ \t]")


def parse_calendar(text: str, field: str = "calendar") -> tuple[int, ...]:
    """The days that a calendar's text names, sorted: an iCalendar file, or dates with `#` before remarks."""
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid(field, f"has {len(text):,} characters, at most {TEXT_CHARS_MAX:,} are taken")
    days = _from_ics(text, field) if "BEGIN:VCALENDAR" in text[:1_000].upper() else _from_lines(text, field)
    if len(days) > EXCLUDED_MAX:
        raise Invalid(field, f"names {len(days):,} days, at most {EXCLUDED_MAX:,} are taken: split it")
    return tuple(sorted(days))


def _from_lines(text: str, field: str) -> set[int]:
    days: set[int] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        for word in words:
            moment = parse_moment(word, f"{field} line {number}")
            if moment.form != "date":
                raise Invalid(f"{field} line {number}", f"{quoted(word)} has a time: write a date such as 2026-12-25")
            days.add(moment.seconds // DAY_S)
    return days


def _from_ics(text: str, field: str) -> set[int]:
    """Every day that an event of the file touches; yearly ones and the like for fifty years from their first."""
    days: set[int] = set()
    event: dict[str, str] | None = None
    for line in _FOLDED.sub("", text).splitlines():
        head, _, value = line.partition(":")
        name = head.partition(";")[0].strip().upper()
        if name == "BEGIN" and value.strip().upper() == "VEVENT":
            event = {}
        elif name == "END" and value.strip().upper() == "VEVENT" and event is not None:
            days |= _event_days(event, field)
            event = None
        elif event is not None and name in {"DTSTART", "DTEND", "RRULE"}:
            event.setdefault(name, value.strip())
        if len(days) > EXCLUDED_MAX:
            break
    return days


def _event_days(event: dict[str, str], field: str) -> set[int]:
    if "DTSTART" not in event:
        raise Invalid(field, "has an event without DTSTART: give it one, or take the event out")
    start = parse_moment(event["DTSTART"], field)
    first = start.seconds // DAY_S
    last = first
    if "DTEND" in event:
        last = max(first, (parse_moment(event["DTEND"], field).seconds - 1) // DAY_S)  # the end is not part of it
    if last - first > EXCLUDED_MAX:
        raise Invalid(field, f"has an event of {last - first:,} days, at most {EXCLUDED_MAX:,} are taken")
    firsts = _repeated(event["RRULE"], first, field) if "RRULE" in event else [first]
    return {day + more for day in firsts for more in range(last - first + 1)}


def _repeated(rrule: str, first: int, field: str) -> list[int]:
    parse_rrule(rrule, field)
    moments = compiled(Rule(rrule, first * DAY_S))
    count = min(moments.through((first + REPEATS_YEARS * 366) * DAY_S), EXCLUDED_MAX + 1)
    found = (moments.at(number) for number in range(1, count + 1))
    return [at // DAY_S for at in found if at is not None]
