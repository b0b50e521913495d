"""Parsing of RRULE text (RFC 5545): single times, rules, and blocks of DTSTART, RRULE, RDATE and EXDATE lines.

The parsers are strict and bounded, and their errors say what to write instead. Times are accepted in the basic form of
RFC 5545 (`20270328T023000Z`), in the extended form (`2027-03-28 02:30`), and as a date alone.
"""

import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.days import DAY_S, LAST_SECOND
from tidings.domain.recurrence.rule import FREQUENCIES, MONTHLY, WEEKDAYS, WEEKLY, YEARLY, Moment, RruleParts

MOMENT_CHARS_MAX = 64
QUOTED_CHARS_MAX = 48  # of a text that an error quotes, with its escapes

_MOMENT = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[Tt ](\d\d):?(\d\d)(?::?(\d\d)(?:[.,]0{1,9})?)?([Zz]|[+-]\d\d:?(?:\d\d)?)?)?", re.ASCII
)
_MOMENT_HINT = "write a time such as 2027-03-28T02:30:00 (or 20270328T023000), with Z or +01:00 unless it is local time"
_EPOCH = date(1970, 1, 1).toordinal()

TEXT_CHARS_MAX = 4_000
DIGITS_MAX = 9

_HINT = "write a rule such as FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0"
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")
_BY_DAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")

# By RRULE part: the field of `RruleParts`, and the least and the greatest number that it accepts.
_LISTS = {
    "BYSECOND": ("by_second", 0, 60),
    "BYMINUTE": ("by_minute", 0, 59),
    "BYHOUR": ("by_hour", 0, 23),
    "BYMONTHDAY": ("by_month_day", -31, 31),
    "BYYEARDAY": ("by_year_day", -366, 366),
    "BYWEEKNO": ("by_week", -53, 53),
    "BYMONTH": ("by_month", 1, 12),
    "BYSETPOS": ("by_position", -366, 366),
}

BLOCK_CHARS_MAX = 32_000
LIST_MAX = 500

_FOLDED = re.compile(r"\r?\n[ \t]")
_LINE = re.compile(r"(DTSTART|RRULE|RDATE|EXDATE)((?:;[A-Z-]+=[^:;]+)*):(.*)", re.IGNORECASE)


def parse_moment(text: str, field: str, hint: str = _MOMENT_HINT) -> Moment:
    """Parse a local time, an instant or a date, in whole seconds; `hint` is the advice at the end of an error."""
    found = _MOMENT.fullmatch(text) if len(text) <= MOMENT_CHARS_MAX else None
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


@lru_cache(maxsize=4_096)  # producers repeat the same few rules
def parse_rrule(text: str, field: str = "rrule") -> RruleParts:
    """Parse a rule; `Invalid` names the given field."""
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid(field, f"has {len(text)} characters: at most {TEXT_CHARS_MAX} are allowed")
    found = _split(text, field)
    if "FREQ" not in found:
        raise Invalid(field, f"{quoted(text)} has no FREQ: {_HINT}")
    values: dict[str, object] = {}
    for name, value in found.items():
        values |= _READERS[name](name, value, field)
    parts = RruleParts(**values)  # type: ignore[arg-type]
    _check(parts, field)
    return parts


def _split(text: str, field: str) -> dict[str, str]:
    """Names and values. A trailing semicolon is accepted, because some calendar programs write it."""
    found: dict[str, str] = {}
    for part in text.strip().removesuffix(";").split(";"):
        name, equals, value = part.upper().partition("=")
        if not equals or not value:
            raise Invalid(field, f"{quoted(part)} is not NAME=VALUE: {_HINT}")
        if name not in _READERS:
            known = ", ".join(_READERS)
            raise Invalid(field, f"{quoted(name)} is not a part of an RRULE: use {known}")
        if name in found:
            advice = "join the values with a comma, or remove" if name.startswith("BY") else "remove"
            raise Invalid(field, f"{name} is given twice: {advice} one")
        found[name] = value
    return found


def _frequency(_name: str, value: str, field: str) -> dict[str, object]:
    if value not in FREQUENCIES:
        raise Invalid(field, f"FREQ={quoted(value)} is not one of {', '.join(FREQUENCIES)}")
    return {"frequency": FREQUENCIES.index(value)}


def _positive(name: str, value: str, field: str) -> dict[str, object]:
    if not value.isascii() or not value.isdigit() or len(value) > DIGITS_MAX or int(value) < 1:
        raise Invalid(field, f"{name}={quoted(value)} must be a whole number from 1 to {10**DIGITS_MAX - 1}")
    return {name.lower(): int(value)}


def _until(_name: str, value: str, field: str) -> dict[str, object]:
    return {"until": parse_moment(value, field)}


def _numbers(name: str, value: str, field: str) -> dict[str, object]:
    inside, least, most = _LISTS[name]
    numbers = set()
    for text in value.split(","):
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most or (least and not int(text)):
            zero = ", not 0" if least < 0 else ""
            raise Invalid(field, f"{name}: {quoted(text)} must be a whole number from {least} to {most}{zero}")
        numbers.add(int(text))
    if name == "BYSECOND" and 60 in numbers:  # system clocks have no leap seconds
        numbers = numbers - {60} | {59}
    return {inside: tuple(sorted(numbers))}


def _by_day(_name: str, value: str, field: str) -> dict[str, object]:
    days = set()
    for text in value.split(","):
        found = _BY_DAY.fullmatch(text)
        nth = int(found[1] or 0) if found else 0
        if found is None or abs(nth) > 53 or (found[1] is not None and nth == 0):
            raise Invalid(field, f"BYDAY: {quoted(text)} must be one of {', '.join(WEEKDAYS)}, or numbered: 1MO, -1FR")
        days.add((nth, WEEKDAYS.index(found[2])))
    return {"by_day": tuple(sorted(days))}


def _week_start(_name: str, value: str, field: str) -> dict[str, object]:
    if value not in WEEKDAYS:
        raise Invalid(field, f"WKST={quoted(value)} must be one of {', '.join(WEEKDAYS)}")
    return {"week_start": WEEKDAYS.index(value)}


_READERS: dict[str, Callable[[str, str, str], dict[str, object]]] = {
    "FREQ": _frequency,
    "INTERVAL": _positive,
    "COUNT": _positive,
    "UNTIL": _until,
    **dict.fromkeys(_LISTS, _numbers),
    "BYDAY": _by_day,
    "WKST": _week_start,
}


def _check(parts: RruleParts, field: str) -> None:
    """Raise `Invalid` for parts that RFC 5545 does not allow together."""
    frequency = FREQUENCIES[parts.frequency]
    if parts.count is not None and parts.until is not None:
        raise Invalid(field, "COUNT and UNTIL cannot be used together: remove one")
    if parts.by_week and parts.frequency != YEARLY:
        raise Invalid(field, f"BYWEEKNO needs FREQ=YEARLY, not {frequency}: use FREQ=YEARLY, or BYDAY instead")
    if parts.by_year_day and YEARLY < parts.frequency <= WEEKLY + 1:
        raise Invalid(field, f"BYYEARDAY cannot be used with FREQ={frequency}: use FREQ=YEARLY")
    if parts.by_month_day and parts.frequency == WEEKLY:
        raise Invalid(field, "BYMONTHDAY cannot be used with FREQ=WEEKLY: use FREQ=MONTHLY or DAILY")
    if any(nth for nth, _ in parts.by_day):
        if parts.frequency not in {YEARLY, MONTHLY}:
            raise Invalid(field, f"BYDAY with a number cannot be used with FREQ={frequency}: use MONTHLY or YEARLY")
        if parts.by_week:
            raise Invalid(field, "BYDAY with a number cannot be used with BYWEEKNO: remove the number")
        if parts.frequency == MONTHLY and any(abs(nth) > 5 for nth, _ in parts.by_day):
            raise Invalid(field, "BYDAY: no month has six of any weekday: use -5 to 5")
    by = (parts.by_second, parts.by_minute, parts.by_hour, parts.by_day, parts.by_month_day)
    if parts.by_position and not any((*by, parts.by_year_day, parts.by_week, parts.by_month)):
        raise Invalid(field, "BYSETPOS needs another BY... part to choose from: add one, such as BYDAY")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an RRULE text of one or more lines; `zone` is their common TZID."""

    rrule: str
    start: Moment | None = None
    zone: str | None = None
    added: tuple[Moment, ...] = ()
    excepted: tuple[Moment, ...] = ()


@lru_cache(maxsize=4_096)  # producers repeat the same few rules
def parse_block(text: str, field: str = "rrule") -> Block:
    """Parse a bare rule (`FREQ=...`), or lines of DTSTART, RRULE, RDATE and EXDATE."""
    if len(text) > BLOCK_CHARS_MAX:
        raise Invalid(field, f"has {len(text)} characters: at most {BLOCK_CHARS_MAX} are allowed")
    lines = [line for line in _FOLDED.sub("", text.strip()).splitlines() if line.strip()]
    if len(lines) <= 1 and not _LINE.match(text.strip()):
        parse_rrule(text, field)  # before it is normalized, so that an error quotes the original
        return Block(rrule=text.strip().upper().removesuffix(";"))
    found: dict[str, list[str]] = {"DTSTART": [], "RRULE": [], "RDATE": [], "EXDATE": []}
    zones: set[str] = set()
    for line in lines:
        name, zone, value = _line(line.strip(), field)
        found[name].append(value)
        zones |= {zone} if zone else set()
    if len(found["RRULE"]) != 1 or len(found["DTSTART"]) > 1:
        raise Invalid(field, "needs one RRULE line and at most one DTSTART line")
    if len(zones) > 1:
        raise Invalid(field, f"names several time zones ({', '.join(sorted(zones))}): use one TZID for all lines")
    return Block(
        rrule=found["RRULE"][0].upper().removesuffix(";"),
        start=parse_moment(found["DTSTART"][0], field) if found["DTSTART"] else None,
        zone=zones.pop() if zones else None,
        added=parse_moments([text for value in found["RDATE"] for text in value.split(",")], field),
        excepted=parse_moments([text for value in found["EXDATE"] for text in value.split(",")], field),
    )


def _line(line: str, field: str) -> tuple[str, str | None, str]:
    parsed = _LINE.fullmatch(line)
    if parsed is None:
        raise Invalid(field, f"{quoted(line)} is not a DTSTART, RRULE, RDATE or EXDATE line: remove it")
    zone = None
    for option in parsed[2].split(";")[1:]:
        name, _, value = option.partition("=")
        if name.upper() == "TZID":
            zone = value.strip('"')
        elif name.upper() != "VALUE" or value.upper() not in {"DATE", "DATE-TIME"}:
            raise Invalid(field, f"{quoted(option)} is not supported: use TZID, VALUE=DATE or VALUE=DATE-TIME")
    return parsed[1].upper(), zone, parsed[3].strip()


def parse_moments(texts: list[str] | tuple[str, ...], field: str) -> tuple[Moment, ...]:
    """Parse the times of a list; the result is sorted and without duplicates."""
    if len(texts) > LIST_MAX:
        raise Invalid(field, f"has {len(texts)} times: at most {LIST_MAX} are allowed")
    found = {parse_moment(text.strip(), field) for text in texts}
    return tuple(sorted(found, key=lambda moment: (moment.seconds, moment.form)))
