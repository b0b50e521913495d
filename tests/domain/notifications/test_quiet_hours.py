"""Quiet hours compared with zoneinfo, in every zone and around every clock change of a year."""

from datetime import UTC, datetime, timedelta
from importlib.resources import files
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.domain.errors import Invalid
from tidings.domain.notifications.quiet_hours import format_hours, is_quiet, parse_hours, quiet_until
from tidings.domain.notifications.user import Quiet
from tidings.domain.recurrence.timezone import names, zone_named

SECOND = 1_000_000
MINUTE = 60 * SECOND
YEAR = range(1_767_225_600, 1_798_761_600)  # 2026


def clocks(zone: ZoneInfo, at: int) -> int:
    """The minute of the day, in local time."""
    shown = datetime.fromtimestamp(at // SECOND, UTC).astimezone(zone)
    return shown.hour * 60 + shown.minute


def shows_quiet(quiet: Quiet, zone: ZoneInfo, at: int) -> bool:
    minute = clocks(zone, at)
    if quiet.start < quiet.end:
        return quiet.start <= minute < quiet.end
    return minute >= quiet.start or minute < quiet.end


def by_steps(quiet: Quiet, zone: ZoneInfo, at: int) -> int:
    """The end of the hours, found minute by minute."""
    while shows_quiet(quiet, zone, at):
        at = (at // MINUTE + 1) * MINUTE
    return at


def moments(name: str) -> list[int]:
    """Instants around each clock change of the year, and one far from any."""
    place = zone_named(name)
    place.segment(YEAR.stop)
    changes = [start for start in place.starts if start in YEAR]
    return [at * SECOND for change in changes for at in (change - 5_400, change - 1, change, change + 1_800)] + [
        (YEAR.start + 7_777_777) * SECOND
    ]


def zone_of(name: str) -> ZoneInfo:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@pytest.mark.slow
@pytest.mark.parametrize("hours", ["22:00-07:00", "01:30-02:30", "23:15-02:15"])
def test_every_zone_around_every_clock_change_of_a_year(hours: str) -> None:
    quiet = Quiet(*parse_hours(hours))
    asked = 0
    for name in sorted(names()):
        zone = zone_of(name)
        for at in moments(name):
            asked += 1
            assert is_quiet(quiet, name, at) == shows_quiet(quiet, zone, at), (name, at)
            assert quiet_until(quiet, name, at) == by_steps(quiet, zone, at), (name, at)
    assert asked > 1_500


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.integers(0, 1439),
    st.integers(1, 1439),
    st.sampled_from(["America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Europe/Dublin", "Asia/Tehran"]),
    st.integers(YEAR.start, YEAR.stop - 1),
)
def test_any_hours_at_any_instant(start: int, length: int, name: str, second: int) -> None:
    quiet, zone, at = Quiet(start, (start + length) % 1440), zone_of(name), second * SECOND + 250_000
    end = quiet_until(quiet, name, at)
    assert end == by_steps(quiet, zone, at)
    assert not is_quiet(quiet, name, end)
    assert end == at or is_quiet(quiet, name, end - 1)


def test_gap_can_end_quiet_hours_and_overlap_prolongs_them() -> None:
    quiet = Quiet(*parse_hours("22:00-02:30"))
    spring = int(datetime(2026, 3, 8, 6, 30, tzinfo=UTC).timestamp()) * SECOND  # 01:30 in New York
    assert quiet_until(quiet, "America/New_York", spring) == spring + 30 * MINUTE  # at 03:00
    autumn = int(datetime(2026, 11, 1, 4, 30, tzinfo=UTC).timestamp()) * SECOND  # 00:30; 01:00 exists twice
    assert quiet_until(quiet, "America/New_York", autumn) == autumn + 180 * MINUTE


def test_parse_and_format_hours() -> None:
    assert parse_hours("22:00-07:00") == (1320, 420)
    assert parse_hours(" 9:05 - 17:00 ") == (545, 1020)
    assert format_hours(Quiet(545, 1020)) == "09:05-17:00"
    for wrong in ("22-7", "24:00-07:00", "22:60-07:00", "", "07:00-07:00", "22:00-07:00x"):
        with pytest.raises(Invalid, match=r"22:00-07:00|same time"):
            parse_hours(wrong, "quiet.hours")


def test_outside_of_quiet_hours_the_end_is_now() -> None:
    noon = int(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()) * SECOND + 7
    assert quiet_until(Quiet(1320, 420), "UTC", noon) == noon
    assert timedelta(microseconds=quiet_until(Quiet(720, 780), "UTC", noon) - noon) == timedelta(
        hours=1, microseconds=-7
    )
