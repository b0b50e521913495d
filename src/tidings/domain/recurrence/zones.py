"""IANA time zones as sorted tables of transitions, from the `tzdata` package."""

from bisect import bisect_right
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from struct import unpack_from

import tzdata

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.calendar import DAY_S, LAST_YEAR, YEAR_STARTS, year_of, year_start
from tidings.domain.recurrence.posix import PosixRule, parse_posix_rule
from tidings.domain.recurrence.steps import GROWTH_LOCK, STEPS

VERSION: str = tzdata.IANA_VERSION
NAME_CHARS_MAX = 64
BEGINNING = -(1 << 60)
NEVER = 1 << 60
OFFSET_MARGIN_S = 2 * DAY_S  # more than any offset, and than any change of an offset
GROW_YEARS = 40  # how far the table is extended at once

_HEADER = ">4sc15x6l"
_HEADER_BYTES = 44


class Zone:
    """The offsets of a time zone: from the instant `starts[i]` (seconds) on, wall time is UTC plus `offsets[i]`.

    The time between two transitions is a *segment*, numbered by its place in the table.
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
        place = self.segment(wall)
        following = self.starts[place + 1] if self.has(place + 1) else wall + 2 * OFFSET_MARGIN_S
        if self.starts[place] + OFFSET_MARGIN_S <= wall < following - OFFSET_MARGIN_S:
            return [wall - self.offsets[place]]
        return self._near(wall, place)

    def before_gap(self, wall: int) -> int:
        """The instant of a wall time in a DST gap, by the offset before the gap.

        2027-03-28 02:30 does not exist in Berlin (clocks go from 02:00, UTC+1, to 03:00, UTC+2). By the offset UTC+1 it
        is 01:30 UTC, when clocks show 03:30: as long after the gap as 02:30 is after its beginning.
        """
        place = self.segment(wall)
        for segment in range(max(1, place - 2), place + 3):
            if self.has(segment):
                start = self.starts[segment]
                if start + self.offsets[segment - 1] <= wall < start + self.offsets[segment]:
                    return wall - self.offsets[segment - 1]
        raise AssertionError(f"{wall} is not in a DST gap of {self.name}")

    def _near(self, wall: int, place: int) -> list[int]:
        found = []
        for segment in range(max(0, place - 2), place + 3):
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


_past: dict[str, bytes] = {}


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
    place = _skip_block(content, 0, 4)
    _, _, _, _, _, times, kinds, _ = unpack_from(_HEADER, content, place)
    data = place + _HEADER_BYTES
    moments = unpack_from(f">{times}q", content, data)
    which = unpack_from(f">{times}B", content, data + times * 8)
    details = data + times * 9
    shifts = [unpack_from(">l", content, details + 6 * kind)[0] for kind in range(kinds)]
    starts, offsets = [BEGINNING], [shifts[0] if kinds else 0]
    for moment, kind in zip(moments, which, strict=True):
        if shifts[kind] != offsets[-1]:  # a transition that changes only the abbreviation does not matter here
            starts.append(moment)
            offsets.append(shifts[kind])
    footer = content[_skip_block(content, place, 8) :].strip(b"\n").decode("ascii")
    return Zone(name, starts, offsets, parse_posix_rule(footer), moments[-1] if moments else BEGINNING)


def _skip_block(content: bytes, place: int, width: int) -> int:
    _, _, isut, isstd, leaps, times, kinds, chars = unpack_from(_HEADER, content, place)
    size = times * (width + 1) + kinds * 6 + chars + leaps * (width + 4) + isstd + isut
    return place + _HEADER_BYTES + int(size)
