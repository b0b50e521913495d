"""IANA time zones as sorted tables of transitions.

They are read from the `tzdata` package, not from the operating system, so that every node has the same version. After
the last transition of its TZif file a zone follows the POSIX `TZ` rule in the file's footer, such as
`CET-1CEST,M3.5.0,M10.5.0/3`; the table is extended by that rule as far as it is needed.
"""

import re
from functools import lru_cache

import msgspec

from tidings.domain.recurrence.calendar import DAY_S, is_leap, month_starts, year_start

_NAME = r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]+>)"
_TIME = r"[+-]?[0-9]{1,3}(?::[0-9]{2}){0,2}"
_DAY = rf"(J?[0-9]{{1,3}}|M[0-9]{{1,2}}\.[1-5]\.[0-6])(?:/({_TIME}))?"
_FOOTER = re.compile(rf"{_NAME}({_TIME})(?:{_NAME}({_TIME})?,{_DAY},{_DAY})?")


class PosixChange(msgspec.Struct, frozen=True, gc=False):
    """A yearly change of the offset: the day of the year, and the seconds after its midnight."""

    day: str
    seconds: int

    def wall(self, year: int) -> int:
        """The wall time of the change in a year, by the offset before the change."""
        start = year_start(year)
        return (start + _day_of_year(self.day, is_leap(year), start % 7)) * DAY_S + self.seconds


class PosixRule(msgspec.Struct, frozen=True, gc=False):
    """A POSIX `TZ` rule with DST: the offsets of standard and summer time, and the changes between them."""

    standard: int
    summer: int
    begins: PosixChange
    ends: PosixChange

    def transitions(self, year: int) -> list[tuple[int, int]]:
        """The instants of the two changes of a year, each with the new offset."""
        return sorted(
            [
                (self.begins.wall(year) - self.standard, self.summer),
                (self.ends.wall(year) - self.summer, self.standard),
            ]
        )


def parse_posix_rule(text: str) -> PosixRule | None:
    """Parse a POSIX `TZ` rule; None if it has no DST, so that the offset stays the same."""
    found = _FOOTER.fullmatch(text)
    assert found is not None, f"{text} is not a POSIX time zone"
    standard, summer, first_day, first_time, last_day, last_time = found.groups()
    if first_day is None:
        return None
    offset = -_seconds(standard)  # in POSIX, offsets west of Greenwich are positive
    return PosixRule(
        offset,
        offset + 3_600 if summer is None else -_seconds(summer),
        PosixChange(first_day, _seconds(first_time or "2")),
        PosixChange(last_day, _seconds(last_time or "2")),
    )


def _seconds(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    parts = [int(part) for part in text.lstrip("+-").split(":")]
    return sign * sum(part * size for part, size in zip(parts, (3_600, 60, 1), strict=False))


@lru_cache(maxsize=1_024)  # there are 14 different years, and few rules
def _day_of_year(day: str, leap: bool, start: int) -> int:
    """The day of the year, from 0, that a POSIX day names; `start` is January 1 in days since 1970, modulo 7.

    `J60` is March 1 in every year, `59` is February 29 in leap years and March 1 in others, `M3.5.0` is the last
    Sunday of March. For `M3.5.0` in 2027: March begins at day 59 with a Monday, so its first Sunday is at offset 6;
    four weeks later is offset 34, beyond the month's 31 days, so that it is offset 27: day 86, March 28.
    """
    if day.startswith("J"):
        number = int(day[1:]) - 1
        return number + 1 if leap and number >= 59 else number
    if not day.startswith("M"):
        return int(day)
    month, week, weekday = (int(part) for part in day[1:].split("."))
    starts = month_starts(leap=leap)
    first, length = starts[month - 1], starts[month] - starts[month - 1]
    first_weekday = (start + first + 4) % 7  # Sunday is 0
    offset = (weekday - first_weekday) % 7 + (week - 1) * 7
    return first + (offset if offset < length else offset - 7)
