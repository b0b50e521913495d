"""Times relative to today: `today 17:00`, `tomorrow 09:00`, `monday 8:30`, in a time zone."""

import re

from tidings.domain.recurrence.calendar import DAY_S
from tidings.domain.recurrence.preview import wall_text
from tidings.domain.recurrence.zones import zone_named
from tidings.domain.when import SECOND_US

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
