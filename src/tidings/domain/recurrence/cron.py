"""Cron expressions as Vixie cron reads them, with `L`, `LW`, `#` and `?`: five fields, or six with seconds first.

Where both the day and the weekday are given, either is enough: `0 9 1 * MON` is 9:00 on the 1st and on every Monday.
Where one of them begins with `*`, both must hold.
"""

import re
from functools import lru_cache

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.days import (
    CYCLE_YEARS,
    END_YEAR,
    YearKind,
    by_day_mask,
    kind_of,
    month_days_mask,
    months_mask,
    year_kind,
)
from tidings.domain.recurrence.rrule import quoted
from tidings.domain.recurrence.wall_times import Product, TimesOfDay

TEXT_CHARS_MAX = 1_000
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_HINT = (
    'write five fields such as "*/5 9-17 * * MON-FRI" (minute, hour, day, month, weekday), or six with seconds first'
)
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS = (("second", 0, 59), ("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_TERM = re.compile(r"(\*|\?|[0-9A-Z]{1,3}(?:-[0-9A-Z]{1,3})?)(?:/([0-9]{1,4}))?")
_NTH = re.compile(r"([0-9A-Z]{1,3})#([1-5])")
_ZONED = re.compile(r"(?:CRON_)?TZ=\S*", re.IGNORECASE)
_BEFORE_LAST = re.compile(r"L-(\d{1,2})")
_NEAREST = re.compile(r"([1-9]|[12][0-9]|3[01])W")
_LAST = re.compile(r"([0-7]|[A-Z]{3})L")


class CronFields(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A parsed expression. `by_day` is (n, weekday), with Monday as 0, as in RRULEs.

    `either` says that day or weekday is enough, `last_weekday` that the days include `LW`, `every_hour` that the hours
    begin with `*`.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    month_days: tuple[int, ...]
    by_day: tuple[tuple[int, int], ...]
    last_weekday: bool
    either: bool
    every_hour: bool


@lru_cache(maxsize=4_096)  # producers repeat the same few expressions
def parse_cron(text: str, field: str = "cron") -> CronFields:
    """Parse an expression; `Invalid` names the given field."""
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid(field, f"has {len(text)} characters: at most {TEXT_CHARS_MAX} are allowed")
    words = _words(text, field)
    seconds, minutes, hours = (tuple(sorted(_plain(words[index], index, field))) for index in range(3))
    month_days, last_weekday = _month_days(words[3], field)
    by_day = _by_day(words[5], field)
    return CronFields(
        seconds=seconds,
        minutes=minutes,
        hours=hours,
        months=tuple(sorted(_plain(words[4], 4, field))),
        month_days=tuple(sorted(month_days)),
        by_day=tuple(sorted(by_day)),
        last_weekday=last_weekday,
        either=words[3][0] not in "*?" and words[5][0] not in "*?",
        every_hour=words[2][0] == "*",
    )


def _words(text: str, field: str) -> list[str]:
    stripped = text.strip()
    if stripped.startswith("@"):
        stripped = _nickname(stripped, field)
    words = stripped.upper().split()
    if words and (found := _ZONED.match(stripped)):
        raise Invalid(field, f"begins with {quoted(found[0])}: remove it, and give the time zone in the field 'zone'")
    if len(words) == 7:
        advice = "remove the last one, and use the field 'until' for an end"
        raise Invalid(field, f"{quoted(text)} has 7 fields, and years are not supported: {advice}")
    if len(words) not in {5, 6}:
        raise Invalid(field, f"{quoted(text)} has {len(words)} fields: {_HINT}")
    return words if len(words) == 6 else ["0", *words]


def _nickname(text: str, field: str) -> str:
    """The expression of a nickname; for nicknames of other programs an error that says what to write instead."""
    name, _, more = text.lower().partition(" ")
    if name == "@every":
        raise Invalid(field, f"{quoted(text)} is a period: write every={more.strip() or '5m'} instead of 'cron'")
    if name == "@reboot":
        raise Invalid(field, f"{quoted(text)} is not a time: send the message without 'cron' when your program starts")
    if text.lower() not in NICKNAMES:
        raise Invalid(field, f"{quoted(text)} is unknown: use one of {', '.join(NICKNAMES)}")
    return NICKNAMES[text.lower()]


def _plain(word: str, index: int, field: str) -> set[int]:
    """The numbers of a field, or of a field's terms without `L`, `W` and `#`."""
    values: set[int] = set()
    for term in word.split(","):
        values |= _term(term, index, field)
    return values


def _term(term: str, index: int, field: str) -> set[int]:
    name, least, most = _FIELDS[index]
    found = _TERM.fullmatch(term)
    if found is None:
        raise _refused(term, index, field)
    span, step = found[1], found[2]
    if step is not None and int(step) == 0:
        raise Invalid(field, f"{name}: {quoted(term)} has a step of 0: write 1 or more")
    if step is not None and int(step) > most - least + (index != 5):
        raise Invalid(
            field,
            f"{name}: {quoted(term)} starts again at {least} each time, so a step of {step} is never reached: write "
            f"one of up to {most - least + (index != 5)}, or use 'every' or 'rrule' with an INTERVAL",
        )
    if span in "*?":
        if span == "?" and (index not in {3, 5} or step is not None):
            raise Invalid(field, f"{name}: '?' is allowed only as the whole day or weekday field: write '*'")
        first, last = least, 6 if index == 5 else most
    else:
        low, dash, high = span.partition("-")
        first = _number(low, index, field)
        last = _number(high, index, field) if dash else (most if step is not None else first)
        if last < first and index == 5:  # the week wraps around: FRI-MON is four days
            last += 7
        if last < first:
            raise Invalid(
                field,
                f"{name}: {quoted(term)} is a reversed range: write two ranges, such as {first}-{most},{least}-{last}",
            )
    return set(range(first, last + 1, int(step or 1)))


def _number(text: str, index: int, field: str) -> int:
    _, least, most = _FIELDS[index]
    if index == 4 and text in _MONTHS:
        return _MONTHS.index(text) + 1
    if index == 5 and text in _WEEKDAYS:
        return _WEEKDAYS.index(text)
    if not text.isdigit() or not least <= int(text) <= most:
        raise _refused(text, index, field)
    return int(text)


def _month_days(word: str, field: str) -> tuple[set[int], bool]:
    """The days, with -1 for `L`, and whether `LW`, the last working day, is among them."""
    days: set[int] = set()
    last_weekday = False
    for term in word.split(","):
        if term == "L":
            days.add(-1)
        elif term == "LW":
            last_weekday = True
        elif found := _BEFORE_LAST.fullmatch(term):
            rule = f"FREQ=MONTHLY;BYMONTHDAY=-{int(found[1]) + 1}"
            raise Invalid(field, f"day: {quoted(term)} is not supported: use 'rrule', {rule} with BYHOUR")
        elif found := _NEAREST.fullmatch(term):
            raise Invalid(field, f"day: {quoted(term)} is not supported: use {_working_day_from(int(found[1]))}")
        else:
            days |= _term(term, 3, field)
    return days, last_weekday


def _working_day_from(day: int) -> str:
    """The RRULE that is closest to `nW`, the working day nearest to day n."""
    days = ",".join(str(each) for each in range(day, min(day + 2, 31) + 1))
    rule = f"FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYMONTHDAY={days};BYSETPOS=1"
    return f"'rrule', {rule} with BYHOUR, the first working day from day {day} on"


def _by_day(word: str, field: str) -> set[tuple[int, int]]:
    days: set[tuple[int, int]] = set()
    for term in word.split(","):
        if found := _NTH.fullmatch(term):
            days.add((int(found[2]), _from_monday(_number(found[1], 5, field))))
        elif found := _LAST.fullmatch(term):
            days.add((-1, _from_monday(_number(found[1], 5, field))))
        else:
            days |= {(0, _from_monday(day)) for day in _term(term, 5, field)}
    return days


def _from_monday(weekday: int) -> int:
    return (weekday - 1) % 7


def _refused(term: str, index: int, field: str) -> Invalid:
    name, least, most = _FIELDS[index]
    more = {3: ", L for the last day, LW for the last working day", 4: " or JAN to DEC"}.get(index, "")
    if index == 5:
        more = " or SUN to SAT, FRI#2 for the second, 5L for the last Friday"
    return Invalid(
        field, f"{name}: {quoted(term)} is not understood: use {least} to {most}{more}; *, ranges, steps, lists"
    )


def is_exact(fields: CronFields) -> bool:
    """Whether its hours are `*` or `*/n`: it then steps in exact time, like RRULEs below DAILY."""
    return fields.every_hour


class CronDays:
    """The days of an expression, as one mask for each year."""

    cycle_years = CYCLE_YEARS

    def __init__(self, fields: CronFields) -> None:
        self._fields = fields
        self._masks: dict[int, int] = {}

    def mask(self, year: int) -> int:
        """The days of one year."""
        kind = kind_of(year)
        if kind not in self._masks:
            self._masks[kind] = self._made(year_kind(kind))
        return self._masks[kind]

    def _made(self, kind: YearKind) -> int:
        fields = self._fields
        days = month_days_mask(kind, fields.month_days)
        if fields.last_weekday:
            days |= _last_weekdays(kind)
        weekdays = by_day_mask(kind, fields.by_day, within_months=True)
        return months_mask(kind, fields.months) & (days | weekdays if fields.either else days & weekdays)


def _last_weekdays(kind: YearKind) -> int:
    mask = 0
    for stop in kind.starts[1:]:
        weekday = (kind.first + stop - 1) % 7
        mask |= 1 << stop - 1 - max(0, weekday - 4)
    return mask


def cron_walls(fields: CronFields, origin_year: int) -> Product:
    """The wall times of an expression."""
    return Product(CronDays(fields), cron_times(fields), origin_year, END_YEAR)


def cron_times(fields: CronFields) -> TimesOfDay:
    """The times of day of an expression."""
    coarse = [hour * 3_600 + minute * 60 for hour in fields.hours for minute in fields.minutes]
    return TimesOfDay(coarse, fields.seconds, 60)
