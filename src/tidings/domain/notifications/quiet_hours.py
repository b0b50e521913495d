"""Quiet hours: whether a moment lies in them, and when they end, by what the clocks of a zone show."""

import re

from tidings.domain.errors import Invalid
from tidings.domain.notifications.user import Quiet
from tidings.domain.recurrence.days import DAY_S
from tidings.domain.recurrence.timezone import Zone, zone_named
from tidings.domain.schedules.when import SECOND_US

MINUTE_S = 60
STEPS_MAX = 64  # clock changes that one night is followed over; no zone has had three in a week

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*(?:-|\u2013)\s*([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)


def parse_hours(text: str, field: str = "quiet") -> tuple[int, int]:
    """`22:00-07:00` as minutes of the day."""
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise Invalid(field, f"{text[:40]!r} are no hours: write them such as 22:00-07:00")
    start, end = int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])
    check_hours(start, end, field)
    return start, end


def format_hours(quiet: Quiet) -> str:
    """The hours as people write them."""
    return f"{quiet.start // 60:02}:{quiet.start % 60:02}-{quiet.end // 60:02}:{quiet.end % 60:02}"


def check_hours(start: int, end: int, field: str = "quiet") -> None:
    """Hours that begin and end at the same time would be none, or all: neither is meant."""
    if start == end:
        raise Invalid(field, "begin and end at the same time: to leave her alone always, say no in her preferences")


def is_quiet(quiet: Quiet, zone: str, at: int) -> bool:
    """Whether the clocks of the zone show one of the hours at a moment."""
    place, instant = zone_named(zone), at // SECOND_US
    return _seconds_left(quiet, instant + place.offset_at(instant)) > 0


def quiet_until(quiet: Quiet, zone: str, at: int) -> int:
    """The first moment from then on at which the clocks show none of the hours; the same one if they do not now.

    Where clocks jump out of the hours, that is when they end; where they are put back into them, they go on.
    """
    place, instant = zone_named(zone), at // SECOND_US
    for _ in range(STEPS_MAX):
        segment = place.segment(instant)
        left = _seconds_left(quiet, instant + place.offsets[segment])
        if left == 0:
            return max(at, instant * SECOND_US)
        instant = min(instant + left, _next_change(place, segment, instant + left))
    raise AssertionError(f"the clocks of {zone} do not leave {format_hours(quiet)}")


def _next_change(place: Zone, segment: int, default: int) -> int:
    return place.starts[segment + 1] if place.has(segment + 1) else default


def _seconds_left(quiet: Quiet, wall: int) -> int:
    """How long the hours still go on when clocks show this; 0 outside of them."""
    start, end, second = quiet.start * MINUTE_S, quiet.end * MINUTE_S, wall % DAY_S
    length = (end - start) % DAY_S
    passed = (second - start) % DAY_S
    return length - passed if passed < length else 0
