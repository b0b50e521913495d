"""Quiet hours: whether an instant lies in them, and when they end, by the local time of a zone.

`delivery/deciding.py` applies them before each attempt.
"""

import re

from tidings.domain.errors import Invalid
from tidings.domain.notifications.user import Quiet
from tidings.domain.recurrence.days import DAY_S
from tidings.domain.recurrence.timezone import Zone, zone_named
from tidings.domain.schedules.when import SECOND_US

MINUTE_S = 60
STEPS_MAX = 64  # clock changes considered within one night; no zone has had three in a week

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*(?:-|\u2013)\s*([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)


def parse_hours(text: str, field: str = "quiet") -> tuple[int, int]:
    """`22:00-07:00` as minutes of the day."""
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise Invalid(field, f"{text[:40]!r} is not a range of hours: write one such as 22:00-07:00")
    start, end = int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])
    check_hours(start, end, field)
    return start, end


def format_hours(quiet: Quiet) -> str:
    """The hours as in a request: `22:00-07:00`."""
    return f"{quiet.start // 60:02}:{quiet.start % 60:02}-{quiet.end // 60:02}:{quiet.end % 60:02}"


def check_hours(start: int, end: int, field: str = "quiet") -> None:
    """Raise `Invalid` for hours that begin and end at the same time: that could mean none or all."""
    if start == end:
        raise Invalid(field, "begin and end at the same time: to send nothing at any time, use the user's preferences")


def is_quiet(quiet: Quiet, zone: str, at: int) -> bool:
    """Whether an instant lies in the quiet hours, by local time."""
    rules, instant = zone_named(zone), at // SECOND_US
    return _seconds_left(quiet, instant + rules.offset_at(instant)) > 0


def quiet_until(quiet: Quiet, zone: str, at: int) -> int:
    """The first instant from `at` on outside of the quiet hours; `at` itself if it is outside.

    If clocks are set forward past the end of the hours, they end then; if clocks are set back into them, they continue.
    With hours until 02:30 in Berlin on 2027-03-28, when clocks go from 02:00 to 03:00, they end at that change.
    """
    rules, instant = zone_named(zone), at // SECOND_US
    for _ in range(STEPS_MAX):
        segment = rules.segment(instant)
        left = _seconds_left(quiet, instant + rules.offsets[segment])
        if left == 0:
            return max(at, instant * SECOND_US)
        instant = min(instant + left, _next_change(rules, segment, instant + left))
    raise AssertionError(f"quiet hours {format_hours(quiet)} do not end in {zone}")


def _next_change(rules: Zone, segment: int, default: int) -> int:
    return rules.starts[segment + 1] if rules.has(segment + 1) else default


def _seconds_left(quiet: Quiet, wall: int) -> int:
    """How many seconds of the quiet hours are left at a wall time; 0 outside of them."""
    start, end, second = quiet.start * MINUTE_S, quiet.end * MINUTE_S, wall % DAY_S
    length = (end - start) % DAY_S
    passed = (second - start) % DAY_S
    return length - passed if passed < length else 0
