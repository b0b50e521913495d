"""IANA time zones as sorted tables of transitions.

They are read from the `tzdata` package, not from the operating system, so that every node has the same version. After
the last transition of its TZif file a zone follows the POSIX `TZ` rule in the file's footer, such as
`CET-1CEST,M3.5.0,M10.5.0/3`; the table is extended by that rule as far as it is needed.
"""

import re
from bisect import bisect_right
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from struct import unpack_from

import msgspec
import tzdata

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cache import GROWTH_LOCK, STEPS
from tidings.domain.recurrence.days import DAY_S, LAST_YEAR, YEAR_STARTS, is_leap, month_starts, year_of, year_start

_NAME = r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]+>)"
_TIME = r"[+-]?[0-9]{1,3}(?::[0-9]{2}){0,2}"
_DAY = rf"(J?[0-9]{{1,3}}|M[0-9]{{1,2}}\.[1-5]\.[0-6])(?:/({_TIME}))?"
_FOOTER = re.compile(rf"{_NAME}({_TIME})(?:{_NAME}({_TIME})?,{_DAY},{_DAY})?")

VERSION: str = tzdata.IANA_VERSION
NAME_CHARS_MAX = 64
BEGINNING = -(1 << 60)
NEVER = 1 << 60
OFFSET_MARGIN_S = 2 * DAY_S  # more than any offset, and than any change of an offset
GROW_YEARS = 40  # how far the table is extended at once

_HEADER = ">4sc15x6l"
_HEADER_BYTES = 44

_past: dict[str, bytes] = {}


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


class Zone:
    """The offsets of a time zone: from the instant `starts[i]` (seconds) on, wall time is UTC plus `offsets[i]`.

    The time between two transitions is a *segment*, numbered by its index in the table.
    """

    __slots__ = ("_footer", "_known", "_last", "_year", "name", "offsets", "starts")

    def __init__(
        self, name: str, starts: list[int], offsets: list[int], footer: PosixRule | None, last: int = BEGINNING
    ) -> None:
        self.name = name
        self.starts = starts
        self.offsets = offsets
        self._footer = footer
        self._last = last  # the last transition of the file, even if it changes only the abbreviation
        self._year = LAST_YEAR + 2 if footer is None else max(year_of(last // DAY_S), 1970)
        self._known = self._reach()

    def segment(self, instant: int) -> int:
        """The number of the segment that an instant lies in."""
        if instant >= self._known:
            self._grow(instant)
        return bisect_right(self.starts, instant) - 1

    def offset_at(self, instant: int) -> int:
        """The offset from UTC at an instant, in seconds."""
        return self.offsets[self.segment(instant)]

    def has(self, segment: int) -> bool:
        """Whether the segment exists, after extending the table as far as needed."""
        while segment >= len(self.starts) and self._year <= LAST_YEAR:
            self._grow(year_start(self._year) * DAY_S)
        return segment < len(self.starts)

    def instants(self, wall: int) -> list[int]:
        """The instants of a wall time: normally one, two in a DST overlap, none in a DST gap."""
        near = self.segment(wall)
        following = self.starts[near + 1] if self.has(near + 1) else wall + 2 * OFFSET_MARGIN_S
        if self.starts[near] + OFFSET_MARGIN_S <= wall < following - OFFSET_MARGIN_S:
            return [wall - self.offsets[near]]
        return self._near(wall, near)

    def before_gap(self, wall: int) -> int:
        """The instant of a wall time in a DST gap, by the offset before the gap.

        2027-03-28 02:30 does not exist in Berlin (clocks go from 02:00, UTC+1, to 03:00, UTC+2). By the offset UTC+1 it
        is 01:30 UTC, when clocks show 03:30: as long after the gap as 02:30 is after its beginning.
        """
        near = self.segment(wall)
        for segment in range(max(1, near - 2), near + 3):
            if self.has(segment):
                start = self.starts[segment]
                if start + self.offsets[segment - 1] <= wall < start + self.offsets[segment]:
                    return wall - self.offsets[segment - 1]
        raise AssertionError(f"{wall} is not in a DST gap of {self.name}")

    def _near(self, wall: int, near: int) -> list[int]:
        found = []
        for segment in range(max(0, near - 2), near + 3):
            if self.has(segment):
                instant = wall - self.offsets[segment]
                ends = self.starts[segment + 1] if self.has(segment + 1) else instant + 1
                if self.starts[segment] <= instant < ends:
                    found.append(instant)
        return found

    def _grow(self, instant: int) -> None:
        """Extend the table by the footer's rule, up to some years after the instant."""
        assert self._footer is not None, "only a zone with a footer rule has an incomplete table"
        last = min(LAST_YEAR + 1, year_of(min(instant // DAY_S, YEAR_STARTS[-2])) + GROW_YEARS)
        with GROWTH_LOCK:
            for year in range(self._year, last + 1):
                STEPS.taken += 1
                for at, offset in self._footer.transitions(year):
                    if at > self._last and offset != self.offsets[-1]:
                        self.offsets.append(offset)  # first, because readers without the lock search `starts`
                        self.starts.append(at)
            self._year = max(self._year, last + 1)
            self._known = self._reach()

    def _reach(self) -> int:
        """Up to which instant the table is complete."""
        return NEVER if self._footer is None or self._year > LAST_YEAR else (year_start(self._year) - 2) * DAY_S


@lru_cache(maxsize=1_024)
def zone_named(name: str) -> Zone:
    """The time zone with an IANA name, or with an alias of older rules from `recalled`."""
    if name in _past:
        return read_zone(name, _past[name])
    check_zone(name)
    return read_zone(name, content_of(name))


def check_zone(name: str) -> None:
    """Raise `Invalid` unless it is the name of a time zone; the error suggests a similar name if there is one."""
    if name not in names():
        raise Invalid("zone", _advice(name))


def recall(name: str, content: bytes) -> None:
    """Register an older version of a zone's TZif file, so that what was computed by it can be computed again."""
    _past[_alias(name, digest_of(content))] = content


def recalled(name: str, rules: str) -> str | None:
    """The alias of a zone with the rules of this digest; None if that version is not registered."""
    alias = _alias(name, rules)
    return alias if alias in _past else None


def _alias(name: str, rules: str) -> str:
    return f"{name}@{rules}"


@lru_cache(maxsize=1)
def names() -> frozenset[str]:
    """The names of all time zones."""
    return frozenset(files("tzdata").joinpath("zones").read_text("utf-8").split())


def digest_of(content: bytes) -> str:
    """A short digest of a zone's TZif file: it changes when, and only when, the zone's rules change."""
    return blake2b(content, digest_size=8).hexdigest()


@lru_cache(maxsize=1_024)
def rules_of(name: str) -> str:
    """The digest of a zone's current rules; it is stored with what was computed by them."""
    return digest_of(content_of(name))


def content_of(name: str) -> bytes:
    """The TZif file of a zone in the tzdata package."""
    return files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


def _advice(name: str) -> str:
    wanted = name[:NAME_CHARS_MAX].casefold().replace(" ", "_")
    for known in sorted(names()):
        if wanted in {known.casefold(), known.casefold().rpartition("/")[2]}:
            return f"{name[:NAME_CHARS_MAX]!r} is not a time zone: did you mean {known}?"
    return f"{name[:NAME_CHARS_MAX]!r} is not a time zone: write an IANA name such as Europe/Berlin or UTC"


def read_zone(name: str, content: bytes) -> Zone:
    """Parse a TZif file (RFC 8536, version 2 or newer)."""
    assert content[:4] == b"TZif", f"{name} is not a TZif file"
    start = _skip_block(content, 0, 4)
    _, _, _, _, _, times, kinds, _ = unpack_from(_HEADER, content, start)
    data = start + _HEADER_BYTES
    moments = unpack_from(f">{times}q", content, data)
    which = unpack_from(f">{times}B", content, data + times * 8)
    details = data + times * 9
    shifts = [unpack_from(">l", content, details + 6 * kind)[0] for kind in range(kinds)]
    starts, offsets = [BEGINNING], [shifts[0] if kinds else 0]
    for moment, kind in zip(moments, which, strict=True):
        if shifts[kind] != offsets[-1]:  # a transition that changes only the abbreviation does not matter here
            starts.append(moment)
            offsets.append(shifts[kind])
    footer = content[_skip_block(content, start, 8) :].strip(b"\n").decode("ascii")
    return Zone(name, starts, offsets, parse_posix_rule(footer), moments[-1] if moments else BEGINNING)


def _skip_block(content: bytes, start: int, width: int) -> int:
    _, _, isut, isstd, leaps, times, kinds, chars = unpack_from(_HEADER, content, start)
    size = times * (width + 1) + kinds * 6 + chars + leaps * (width + 4) + isstd + isut
    return start + _HEADER_BYTES + int(size)
