"""The POSIX `TZ` rule in the footer of a zone's file: `CET-1CEST,M3.5.0,M10.5.0/3`."""

import re
from functools import lru_cache

import msgspec

from tidings.domain.recurrence.calendar import DAY_S, is_leap, month_starts, year_start

_NAME = r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]+>)"
_TIME = r"[+-]?[0-9]{1,3}(?::[0-9]{2}){0,2}"
_DAY = rf"(J?[0-9]{{1,3}}|M[0-9]{{1,2}}\.[1-5]\.[0-6])(?:/({_TIME}))?"
_FOOTER = re.compile(rf"{_NAME}({_TIME})(?:{_NAME}({_TIME})?,{_DAY},{_DAY})?")


class Change(msgspec.Struct, frozen=True, gc=False):
    """A day of every year, and the seconds after its midnight, at which the offset changes."""

    day: str
    seconds: int

    def wall(self, year: int) -> int:
        """The wall time of the change in a year, on the clock that it ends."""
        start = year_start(year)
        return (start + _day_of_year(self.day, is_leap(year), start % 7)) * DAY_S + self.seconds


class Footer(msgspec.Struct, frozen=True, gc=False):
    """Standard and summer time and the changes between them."""

    standard: int
    summer: int
    begins: Change
    ends: Change

    def transitions(self, year: int) -> list[tuple[int, int]]:
        """The instants of the two changes of a year, each with the offset that holds from then on."""
        return sorted(
            [
                (self.begins.wall(year) - self.standard, self.summer),
                (self.ends.wall(year) - self.summer, self.standard),
            ]
        )


def parse_footer(text: str) -> Footer | None:
    """The rule, None where nothing changes any more."""
    found = _FOOTER.fullmatch(text)
    assert found is not None, f"{text} is no POSIX time zone"
    standard, summer, first_day, first_time, last_day, last_time = found.groups()
    if first_day is None:
        return None
    offset = -_seconds(standard)  # POSIX counts west of Greenwich
    return Footer(
        offset,
        offset + 3_600 if summer is None else -_seconds(summer),
        Change(first_day, _seconds(first_time or "2")),
        Change(last_day, _seconds(last_time or "2")),
    )


def _seconds(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    parts = [int(part) for part in text.lstrip("+-").split(":")]
    return sign * sum(part * size for part, size in zip(parts, (3_600, 60, 1), strict=False))


@lru_cache(maxsize=1_024)  # there are fourteen kinds of years, and few rules
def _day_of_year(day: str, leap: bool, start: int) -> int:
    """Counted from 0; `start` is the year's first day since 1970, or what it leaves when divided by 7.

    `J60` is March 1 in every year, `59` is February 29 in leap years, `M3.5.0` the last Sunday of March.
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
