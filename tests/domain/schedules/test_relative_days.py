"""Relative days in a time zone."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tidings.domain.schedules.iso8601 import WEEKDAYS, is_relative_day, resolve_relative_day

SECOND = 1_000_000
NEW_YORK = ZoneInfo("America/New_York")


def at(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=NEW_YORK).timestamp()) * SECOND  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("words", "wall"),
    [
        ("tomorrow 09:00", "2026-11-21T09:00:00"),
        ("Tomorrow at 9:00", "2026-11-21T09:00:00"),
        ("today 23:30", "2026-11-20T23:30:00"),
        ("friday 08:59", "2026-11-27T08:59:00"),  # now is Friday, 9:00
        ("friday 09:01", "2026-11-20T09:01:00"),
        ("monday 7:00", "2026-11-23T07:00:00"),
    ],
)
def test_relative_days(words: str, wall: str) -> None:
    assert is_relative_day(words)
    assert resolve_relative_day(words, "America/New_York", at(2026, 11, 20, 9)) == wall


def test_today_is_the_day_in_the_time_zone() -> None:
    late = at(2026, 11, 20, 23, 30)  # already the 21st in UTC
    assert resolve_relative_day("tomorrow 09:00", "America/New_York", late) == "2026-11-21T09:00:00"
    assert resolve_relative_day("tomorrow 09:00", "UTC", late) == "2026-11-22T09:00:00"


def test_weekdays_agree_with_the_standard_library() -> None:
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for day in range(0, 400, 13):
        now = start + timedelta(days=day)
        for number, name in enumerate(WEEKDAYS):
            found = datetime.fromisoformat(
                resolve_relative_day(f"{name} 12:00", "UTC", int(now.timestamp()) * SECOND)
            ).replace(tzinfo=UTC)
            assert found.weekday() == number
            assert timedelta(0) < found - now <= timedelta(days=7)


@pytest.mark.parametrize("text", ["2026-11-21T09:00", "+5s", "tomorrow", "tomorrow 25:00", "someday 09:00", ""])
def test_other_texts_are_not_relative_days(text: str) -> None:
    assert not is_relative_day(text)
