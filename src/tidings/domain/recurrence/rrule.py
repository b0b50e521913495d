"""Parsing of an RRULE (RFC 5545, 3.3.10) into its parts."""

import re
from collections.abc import Callable
from functools import lru_cache

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.parts import FREQUENCIES, MONTHLY, WEEKDAYS, WEEKLY, YEARLY, RruleParts
from tidings.domain.recurrence.written import parse_moment, quoted

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
