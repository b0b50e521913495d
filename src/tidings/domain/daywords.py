"""Days as people say them: `tomorrow 09:00`, `monday 8:30`, on the clocks of a zone."""

import re

from tidings.domain.recurrence.calendar import DAY_S
from tidings.domain.recurrence.preview import wall_text
from tidings.domain.recurrence.zones import zone_named
from tidings.domain.when import SECOND_US

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
WEEK_DAYS = 7
THURSDAY = 3  # the first day of 1970

_DAYS = "|".join(WEEKDAYS)
_SAID = re.compile(rf"(today|tomorrow|{_DAYS})\s+(?:at\s+)?([01]?\d|2[0-3]):([0-5]\d)", re.IGNORECASE | re.ASCII)


def is_said(text: str) -> bool:
    """Whether a day is named by a word."""
    return _SAID.fullmatch(text.strip()) is not None


def said(text: str, zone: str, now: int) -> str:
    """The wall time that is meant, as a local time of ISO 8601. A weekday is the next one whose time is to come."""
    found = _SAID.fullmatch(text.strip())
    assert found is not None, f"{text} names no day by a word"
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
