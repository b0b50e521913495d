"""Parsing of RRULE text (RFC 5545): single times, rules, and blocks of DTSTART, RRULE, RDATE and EXDATE lines.

The parsers are strict and bounded, and their errors say what to write instead. Times are accepted in the basic form of
RFC 5545 (`20270328T023000Z`), in the extended form (`2027-03-28 02:30`), and as a date alone.
"""

import re
from datetime import date

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.calendar import DAY_S, LAST_SECOND
from tidings.domain.recurrence.parts import Moment

TEXT_CHARS_MAX = 64
QUOTED_CHARS_MAX = 48  # of a text that an error quotes, with its escapes

_MOMENT = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[Tt ](\d\d):?(\d\d)(?::?(\d\d)(?:[.,]0{1,9})?)?([Zz]|[+-]\d\d:?(?:\d\d)?)?)?", re.ASCII
)
_HINT = "write a time such as 2027-03-28T02:30:00 (or 20270328T023000), with Z or +01:00 unless it is local time"
_EPOCH = date(1970, 1, 1).toordinal()


def parse_moment(text: str, field: str, hint: str = _HINT) -> Moment:
    """Parse a local time, an instant or a date, in whole seconds; `hint` is the advice at the end of an error."""
    found = _MOMENT.fullmatch(text) if len(text) <= TEXT_CHARS_MAX else None
    if found is None:
        whole = " in whole seconds" if "." in text[len("2027-03-28") :] else ""
        raise Invalid(field, f"{quoted(text)} is not a time{whole}: {hint}")
    year, month, day, hour, minute, second, offset = found.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError as problem:
        raise Invalid(field, f"{quoted(text)} is not a valid date ({problem}): {hint}") from None
    if hour is None:
        return Moment(_within(days * DAY_S, text, field), "date")
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        raise Invalid(field, f"{quoted(text)} is not a valid time of day: hours go up to 23, minutes and seconds to 59")
    wall = days * DAY_S + int(hour) * 3_600 + int(minute) * 60 + int(second or 0)
    if offset is None:
        return Moment(_within(wall, text, field), "local")
    return Moment(_within(wall - _offset(offset), text, field), "utc")


def _offset(text: str) -> int:
    if text in {"Z", "z"}:
        return 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3_600 + int(digits[2:]) * 60
    return -seconds if text.startswith("-") else seconds


def _within(seconds: int, text: str, field: str) -> int:
    if not 0 <= seconds <= LAST_SECOND - DAY_S:
        raise Invalid(field, f"{quoted(text)} is not between the years 1970 and 9999: choose a time that is")
    return seconds


def quoted(text: str) -> str:
    """The text in quotes for an error: unprintable characters escaped, then shortened."""
    escaped = repr(text[: QUOTED_CHARS_MAX + 1])
    return escaped if len(escaped) <= QUOTED_CHARS_MAX + 2 else f"{escaped[: QUOTED_CHARS_MAX - 2]}...{escaped[-1]}"
