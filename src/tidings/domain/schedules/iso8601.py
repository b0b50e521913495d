"""Parsing and formatting of instants, durations, repeating intervals and relative days: ISO 8601, RFC 3339, `+5s`."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.days import DAY_S
from tidings.domain.recurrence.preview import wall_text
from tidings.domain.recurrence.rrule import quoted
from tidings.domain.recurrence.timezone import zone_named
from tidings.domain.schedules.when import DAY_US, LAST_INSTANT, SECOND_US, Every, Period, advance

__all__ = [
    "Period",
    "format_duration",
    "format_instant",
    "is_duration",
    "parse_duration",
    "parse_exact_duration",
    "parse_instant",
    "parse_interval",
]

TEXT_CHARS_MAX = 64
INTERVAL_CHARS_MAX = 200
DIGITS_MAX = 15
MONTHS_MAX = 120_000  # 10,000 years
PERIOD_MAX_US = 3_652_425 * DAY_US  # the same in Gregorian days

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_read = datetime.fromisoformat
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,]([0-9]{1,9}))?)?)"
    r"([Zz]|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?"
)
_NUMBER = r"([0-9]+)(?:[.,]([0-9]+))?"
_ISO_DURATION = re.compile(
    r"\+?P(?:#Y)?(?:#M)?(?:#W)?(?:#D)?(?:T(?=[0-9])(?:#H)?(?:#M)?(?:#S)?)?".replace("#", _NUMBER)
)
_SHORT_DURATION = re.compile(r"\+?(?:#w)?(?:#d)?(?:#h)?(?:#m)?(?:#s)?(?:#ms)?".replace("#", _NUMBER))
_HOUR_US, _MINUTE_US = 3_600 * SECOND_US, 60 * SECOND_US
_SHORT_UNITS = tuple(Period(0, us) for us in (7 * DAY_US, DAY_US, _HOUR_US, _MINUTE_US, SECOND_US, 1_000))
_ISO_UNITS = (Period(12, 0), Period(1, 0), *_SHORT_UNITS[:-1])
_COUNT = re.compile(r"R([0-9]*)")

_INSTANT_HINT = "write an instant such as 2026-11-20T09:00:00Z or 2026-11-20T10:00:00+01:00"
_DURATION_HINT = "write a duration such as PT5S, P1M, P1DT12H, 5s, 250ms or 1h30m"
_PERIOD_HINT = "write a period such as PT10M, P1M, P1DT12H, 5s or 1h30m"  # the shortest is a second (limits.period_min)
_EXACT_HINT = "write a duration such as PT5S, P1DT12H, 5s, 250ms or 1h30m"
_INTERVAL_HINT = (
    "write PT10M, R/<start>/<period>, R/<start>/<period>/<end>, Rn/<start>/<end> or Rn/<period>/<end>, "
    "for example R/2026-11-20T09:00:00Z/PT1H"
)


def parse_instant(text: str, field: str = "at") -> int:
    """Parse an instant. Fractions of a microsecond round up, so that nothing is released early."""
    at = usual_instant(text)
    return _parse_any_instant(text, field) if at is None else at


def usual_instant(text: str) -> int | None:
    """Parse an instant in UTC as most clients write it, with or without a fraction; None for anything else."""
    # The check of the shape excludes other forms that `fromisoformat` accepts.
    shape = text[4:20:3]
    length = len(text)
    if (shape == "--T::Z" and length == 20) or (shape == "--T::." and 22 <= length <= 27 and text[-1] == "Z"):
        try:
            since = _read(text) - _EPOCH
        except ValueError:
            return None
        at = (since.days * 86_400 + since.seconds) * SECOND_US + since.microseconds
        if at >= 0:
            return at
    return None


def _parse_any_instant(text: str, field: str) -> int:
    found = _INSTANT.fullmatch(text) if len(text) <= TEXT_CHARS_MAX else None
    if found is None:
        raise _refused(field, text, f"is not a time with a date: {_INSTANT_HINT}")
    moment, fraction, offset = found.groups()
    if offset is None:
        raise _refused(field, text, "has no offset: add Z for UTC, or one such as +01:00")
    whole = moment if fraction is None else moment[: -len(fraction) - 1]
    try:
        since = _read(whole + offset.upper()) - _EPOCH
    except ValueError as problem:
        raise _refused(field, text, f"is not a valid time ({problem}): {_INSTANT_HINT}") from None
    nanoseconds = int((fraction or "").ljust(9, "0"))
    at = (since.days * 86_400 + since.seconds) * SECOND_US - (-nanoseconds // 1_000)
    if not 0 <= at <= LAST_INSTANT:
        raise _refused(field, text, "is not between the years 1970 and 9999 (UTC): choose a time that is")
    return at


def format_instant(at: int) -> str:
    """The instant in RFC 3339, in UTC, always with six fractional digits."""
    second = at // SECOND_US
    minute = second // 60
    day = minute // 1_440
    micros = at - second * SECOND_US
    return (
        f"{_date(day)}{_MINUTES[minute - day * 1_440]}{_SECONDS[second - minute * 60]}"
        f"{_THOUSANDTHS[micros // 1_000]}{_THOUSANDTHS[micros % 1_000]}Z"
    )


# Tables instead of number formatting: three times as fast.
_MINUTES = tuple(f"T{hour:02}:{minute:02}:" for hour in range(24) for minute in range(60))
_SECONDS = tuple(f"{second:02}." for second in range(60))
_THOUSANDTHS = tuple(f"{number:03}" for number in range(1_000))


@lru_cache(maxsize=4_096)  # the days of ten years
def _date(day: int) -> str:
    return date.fromordinal(_EPOCH_ORDINAL + day).isoformat()


def is_duration(text: str) -> bool:
    """Whether a text is meant as a duration (PT10M, +5s, 1h30m) and not as an instant; it may still be invalid."""
    return text[:1] in {"+", "P"} or (text[:1].isdigit() and text[-1:].isalpha() and text[-1:] not in {"Z", "z"})


@lru_cache(maxsize=1_024)  # producers repeat the same few durations
def parse_duration(text: str, field: str, hint: str = _DURATION_HINT) -> Period:
    """Parse an ISO 8601 duration (`P1DT2H`) or a short form (`+5s`, `1h30m`); zero is an error."""
    if len(text) > TEXT_CHARS_MAX:
        raise _refused(field, text, f"is longer than {TEXT_CHARS_MAX} characters: {hint}")
    if text.startswith("-") or (text.startswith("P") and "-" in text):
        raise _refused(field, text, f"is negative: {hint}")
    if found := _ISO_DURATION.fullmatch(text):
        period = _sum(text, found.groups(), _ISO_UNITS, field, hint)
    elif found := _SHORT_DURATION.fullmatch(text):
        period = _sum(text, found.groups(), _SHORT_UNITS, field, hint)
    else:
        raise _refused(field, text, f"is not a duration: {hint}")
    if period.months > MONTHS_MAX or period.min_us() > PERIOD_MAX_US:
        raise _refused(field, text, "is longer than 10,000 years: write a shorter duration")
    return period


def parse_exact_duration(text: str, field: str) -> int:
    """Parse a duration without years and months, in microseconds."""
    period = parse_duration(text, field, _EXACT_HINT)
    if period.months:
        raise _refused(field, text, "has months or years, which vary: write days, for example P30D")
    return period.us


def _sum(text: str, numbers: Sequence[str | None], units: Sequence[Period], field: str, hint: str) -> Period:
    """The sum of the components; numbers are (whole, fraction) for each unit, None where absent."""
    components = list(_components(numbers, units))
    if any(fraction for _, fraction, _ in components[:-1]):
        raise _refused(
            field, text, "has a fraction before its last part: only the last part can have one, as in PT1H1.5S"
        )
    if any(len(whole) > DIGITS_MAX or len(fraction) > DIGITS_MAX for whole, fraction, _ in components):
        raise _refused(field, text, f"has a number of more than {DIGITS_MAX} digits: use a larger unit")
    months = us = 0
    for whole, fraction, unit in components:
        scale = 10 ** len(fraction)
        amount = int(whole + fraction)
        if amount * unit.months % scale:
            raise _refused(field, text, "has a fraction of a month: write days, for example P15D")
        months += amount * unit.months // scale
        us -= -amount * unit.us // scale  # rounded up: never early
    if months == us == 0:
        raise _refused(field, text, f"is zero: {hint}")
    return Period(months, us)


def _components(numbers: Sequence[str | None], units: Sequence[Period]) -> Iterator[tuple[str, str, Period]]:
    for whole, fraction, unit in zip(numbers[::2], numbers[1::2], units, strict=True):
        if whole is not None:
            yield whole, fraction or "", unit


def format_duration(us: int) -> str:
    """The duration for people, with units: `850 us`, `4.2 ms`, `12.5 s`, `1 h 5 min`, `3 d`."""
    if us < 0:
        return f"-{format_duration(-us)}"
    if us < 1_000:
        return f"{us} us"
    for unit, size, limit in (("ms", 1_000, 1_000), ("s", SECOND_US, 60)):
        tenths = (us * 10 + size // 2) // size
        if tenths < limit * 10:
            return f"{tenths // 10}.{tenths % 10} {unit}".replace(".0", "")
    rest = us + SECOND_US // 2
    sizes = [("d", DAY_US), ("h", _HOUR_US), ("min", _MINUTE_US), ("s", SECOND_US)]
    while rest < sizes[0][1]:
        del sizes[0]
    words = []
    for unit, size in sizes[:2]:
        amount, rest = divmod(rest, size)
        words += [f"{amount} {unit}"] if amount else []
    return " ".join(words)


def parse_interval(text: str, anchor: int, field: str = "every") -> Every:
    """Parse an ISO 8601 repeating interval or a bare duration.

    Start and end are inclusive, and `Rn` is n occurrences. A period alone (`PT10M`, `R5/PT10M`) begins one period after
    the anchor. `R/<start>/<end>` repeats the time between the two without end. `R/<period>/<end>` is an error, because
    it has no first occurrence.
    """
    if len(text) > INTERVAL_CHARS_MAX:
        raise _refused(field, text, f"is longer than {INTERVAL_CHARS_MAX} characters: {_INTERVAL_HINT}")
    head, *parts = text.split("/")
    if not parts and not head.startswith("R"):
        return _after(anchor, parse_duration(head, field, _PERIOD_HINT), None, field)
    count = _parse_count(head, field)
    match parts, [part[4:5] == "-" for part in parts]:
        case [period], [False]:
            return _after(anchor, parse_duration(period, field, _PERIOD_HINT), count, field)
        case [start, period], [True, False]:
            return Every(parse_instant(start, field), parse_duration(period, field, _PERIOD_HINT), None, count)
        case [start, period, end], [True, False, True]:
            first, last = _parse_bounds(start, end, field)
            return Every(first, parse_duration(period, field, _PERIOD_HINT), last, count)
        case [start, end], [True, True]:
            first, last = _parse_bounds(start, end, field)
            if first == last:
                raise Invalid(
                    field, "the start and the end are the same: the period is the time between them, so change one"
                )
            return Every(first, Period(0, last - first), None, count)
        case [period, end], [False, True]:
            return _until(parse_instant(end, field), parse_duration(period, field, _PERIOD_HINT), count, field)
        case _:
            raise _refused(field, text, f"is not a repeating interval: {_INTERVAL_HINT}")


def _parse_count(head: str, field: str) -> int | None:
    """The n of `Rn`, None for a plain `R`."""
    found = _COUNT.fullmatch(head)
    if found is None:
        raise _refused(field, head, f"is not R or Rn: {_INTERVAL_HINT}")
    digits = found[1]
    if len(digits) > DIGITS_MAX:
        raise _refused(field, head, f"has more than {DIGITS_MAX} digits: write R to repeat without end")
    if digits and int(digits) == 0:
        raise _refused(field, head, "means no occurrence: write R1 for one, R to repeat without end")
    return int(digits) if digits else None


def _parse_bounds(start: str, end: str, field: str) -> tuple[int, int]:
    first, last = parse_instant(start, field), parse_instant(end, field)
    if last < first:
        raise Invalid(field, f"the end {end} is before the start {start}: swap them, or change one")
    return first, last


def _after(anchor: int, period: Period, count: int | None, field: str) -> Every:
    """A recurrence that begins one period after the anchor; months are counted from the anchor itself.

    So `P1M` from January 31 gives February 28, March 31, April 30: not March 28, as it would from the first occurrence.
    """
    first = advance(anchor, period)
    if first > LAST_INSTANT:
        raise Invalid(field, "the first occurrence would be after the year 9999: write a shorter period")
    if period.months:
        return Every(anchor, period, None, count, offset=1)
    return Every(first, period, None, count)


def _until(end: int, period: Period, count: int | None, field: str) -> Every:
    """A recurrence whose last of `count` occurrences is at the end, with the others counted back from it."""
    if count is None:
        raise Invalid(field, "R/<period>/<end> has no first occurrence: add a number, as in R5, or a start")
    first = advance(end, period, 1 - count)
    if first < 0:
        raise Invalid(field, f"{count} occurrences before the end begin before 1970: lower the number after R")
    if period.months:
        return Every(end, period, end, count, offset=1 - count)
    return Every(first, period, end, count)


def _refused(field: str, text: str, problem: str) -> Invalid:
    """An error that quotes the text."""
    return Invalid(field, f"{quoted(text)} {problem}")


WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
WEEK_DAYS = 7
THURSDAY = 3  # 1970-01-01 was a Thursday

_DAYS = "|".join(WEEKDAYS)
_RELATIVE = re.compile(rf"(today|tomorrow|{_DAYS})\s+(?:at\s+)?([01]?\d|2[0-3]):([0-5]\d)", re.IGNORECASE | re.ASCII)


def is_relative_day(text: str) -> bool:
    """Whether the text has the form of a day relative to today and a time."""
    return _RELATIVE.fullmatch(text.strip()) is not None


def resolve_relative_day(text: str, zone: str, now: int) -> str:
    """The local time in ISO 8601. A weekday means the next one whose time is still to come, perhaps today."""
    found = _RELATIVE.fullmatch(text.strip())
    assert found is not None, f"{text} is not a relative day"
    instant = now // SECOND_US
    wall = instant + zone_named(zone).offset_at(instant)
    today, time = wall // DAY_S, int(found[2]) * 3_600 + int(found[3]) * 60
    word = found[1].lower()
    if word in WEEKDAYS:
        ahead = (WEEKDAYS.index(word) - today - THURSDAY) % WEEK_DAYS
        if ahead == 0 and time <= wall % DAY_S:
            ahead = WEEK_DAYS
    else:
        ahead = int(word == "tomorrow")
    return wall_text((today + ahead) * DAY_S + time)
