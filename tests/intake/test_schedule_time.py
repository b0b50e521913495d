"""The time fields of a request: read, or refused with the field and what to change."""

import pytest

from tests.contract.factories import DAY, HOUR, MINUTE, NOW, SECOND
from tidings.domain.errors import Invalid
from tidings.domain.schedules.command import Add
from tidings.domain.schedules.schedule import Limits, Request, Timing
from tidings.domain.schedules.when import Cron, Every, Local, Once, Period, Rule, occurrence
from tidings.intake.admission import Admission

BERLIN = "Europe/Berlin"


def admitted(
    at: int | str | None = None,
    every: str | None = None,
    now: int = NOW,
    limits: Limits | None = None,
    **fields: object,
) -> Add:
    late = fields.pop("late", None)
    request = Request("t", at=at, every=every, id="one", late=late, timing=Timing(**fields))  # type: ignore[arg-type]
    return Admission(limits or Limits()).admit("default", request, now)


def refusal(at: str | None = None, every: str | None = None, limits: Limits | None = None, **fields: object) -> str:
    with pytest.raises(Invalid) as refused:
        admitted(at, every, limits=limits, **fields)  # type: ignore[arg-type]
    return str(refused.value)


def test_a_rule() -> None:
    add = admitted(rrule="FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0", zone="America/New_York")
    assert isinstance(add.when, Rule)
    assert add.due == 1_795_442_400_000_000  # 2026-11-23T09:00:00-05:00


def test_without_a_start_the_anchor_is_now_with_its_seconds_at_zero() -> None:
    add = admitted(rrule="FREQ=HOURLY", now=NOW + 17 * MINUTE + 23 * SECOND + 5)
    assert add.due == NOW + HOUR + 17 * MINUTE
    minutely = admitted(rrule="FREQ=MINUTELY", now=NOW + 23 * SECOND)
    assert minutely.due == NOW + MINUTE
    assert admitted(rrule="FREQ=MINUTELY", now=NOW).due == NOW


def test_a_cron_expression() -> None:
    add = admitted(cron="*/5 9-17 * * MON-FRI", zone=BERLIN, now=NOW + 1)
    assert isinstance(add.when, Cron)
    assert add.due == NOW + 5 * MINUTE
    assert occurrence(admitted(cron="@hourly", count=2).when, 3) is None


def test_a_local_time() -> None:
    add = admitted("2027-03-28 01:30", zone=BERLIN)
    assert add.when == Local(1_806_197_400, BERLIN)
    assert add.due == 1_806_193_800_000_000
    assert admitted("2027-03-28 02:30", zone=BERLIN).due == 1_806_197_400_000_000  # 03:30 after the jump


def test_a_local_time_that_has_passed_is_due_at_once() -> None:
    add = admitted("2026-11-20 09:30", zone=BERLIN)
    assert (add.when, add.due) == (Once(NOW), NOW)


def test_a_local_time_in_an_overlap_can_mean_both_instants() -> None:
    add = admitted("2027-10-31 02:30", zone=BERLIN, overlap="both")
    assert occurrence(add.when, 2) == add.due + HOUR


def test_an_interval_with_start_until_and_count() -> None:
    add = admitted(every="PT1H", start="2026-11-20T10:00:00Z", until="2026-11-20T12:00:00Z", count=9)
    assert add.when == Every(NOW + HOUR, Period(0, HOUR), NOW + 3 * HOUR, 9)
    local = admitted(every="PT1H", start="2026-11-20T11:00", zone=BERLIN)
    assert local.due == NOW + HOUR


def test_dates_bound_an_interval_as_they_bound_a_rule() -> None:
    local = admitted(every="P1D", start="2026-11-21", until="2026-11-22", zone=BERLIN).when
    assert local == Every(NOW + 14 * HOUR, Period(0, DAY), NOW + 2 * DAY + 14 * HOUR - SECOND)
    assert occurrence(local, 3) is None
    assert admitted(every="P1D", start="2026-11-21").due == NOW + 15 * HOUR


def test_the_calendar_is_filled_in_by_the_store() -> None:
    add = admitted(rrule="FREQ=DAILY", calendar="off", on_excluded="next_day")
    assert isinstance(add.when, Rule)
    assert (add.when.calendar, add.when.on_excluded, add.when.excluded) == ("off", "next_day", ())


def test_the_same_request_has_the_same_content_digest() -> None:
    one, again = admitted(rrule="FREQ=DAILY"), admitted(rrule="FREQ=DAILY", now=NOW + DAY)
    assert one.content == again.content
    assert one.content != admitted(rrule="FREQ=DAILY", zone=BERLIN).content


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rrule": "FREQ=DAILY", "cron": "@daily"}, "rrule: give either 'rrule' or 'cron', not both"),
        ({"at": "+5s", "rrule": "FREQ=DAILY"}, "at: give either 'at' or 'rrule', not both"),
        ({"every": "PT1H", "cron": "@daily"}, "every: give either 'every' or 'cron', not both"),
        ({"rrule": "FREQ=DAYLY"}, "rrule: FREQ='DAYLY' is not one of"),
        ({"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "rrule: has no occurrence"),
        ({"rrule": "FREQ=DAILY;INTERVAL=0"}, "rrule: INTERVAL='0' must be"),
        ({"rrule": "FREQ=DAILY;COUNT=2", "count": 3}, "count: the rule has its own end"),
        ({"rrule": "FREQ=DAILY", "count": 0}, "count: must lie between 1 and"),
        ({"rrule": "FREQ=DAILY", "zone": "Berlin"}, "zone: 'Berlin' is not a time zone: did you mean Europe/Berlin?"),
        ({"rrule": "FREQ=DAILY", "zone": "America"}, "zone: 'America' is not a time zone"),
        ({"rrule": "FREQ=DAILY", "gap": "jump"}, "gap: 'jump' is not known: use forward or skip"),
        ({"rrule": "FREQ=DAILY", "overlap": "x"}, "overlap: 'x' is not known: use first or second or both"),
        ({"rrule": "FREQ=DAILY", "on_excluded": "skip"}, "on_excluded: says what to do on the days of a 'calendar'"),
        ({"rrule": "FREQ=DAILY", "calendar": "a b"}, "calendar: use 1 to 63 letters"),
        ({"rrule": "FREQ=DAILY", "start": "soon"}, "start: 'soon' is not a time"),
        ({"rrule": "FREQ=DAILY", "start": "2050-01-01"}, "rrule: is more than 3653 days ahead"),
        ({"rrule": "FREQ=DAILY", "until": "2020-01-01"}, "until: is before the first occurrence"),
        ({"rrule": "FREQ=DAILY", "rdates": ("x",)}, "rdates: 'x' is not a time"),
        ({"cron": "61 * * * *"}, "cron: minute: '61' is not understood"),
        ({"cron": "0 0 30 2 *"}, "cron: has no occurrence"),
        ({"at": "2027-01-01", "zone": BERLIN}, "at: '2027-01-01' has no time of day: write 2027-01-01T09:00"),
        ({"zone": BERLIN}, "zone: needs a local 'at', 'rrule' or 'cron'"),
        ({"at": "+5s", "zone": BERLIN}, "zone: an instant or a duration needs no time zone"),
        (
            {"at": "2027-01-01T00:00:00Z", "zone": BERLIN},
            "at: '2027-01-01T00:00:00Z' has an offset, and a zone is given",
        ),
        ({"at": "2027-01-01T00:00", "gap": "skip"}, "gap: says what clock changes do to a local time"),
        ({"at": "+5s", "count": 3}, "count: needs 'rrule', 'cron' or 'every'"),
        ({"at": "+5s", "start": "2027-01-01"}, "start: needs 'rrule', 'cron' or 'every'"),
        ({"at": "2027-01-01 09:00", "zone": BERLIN, "calendar": "off"}, "calendar: needs 'rrule' or 'cron':"),
        ({"every": "P1D", "start": "2026-13-20"}, "start: '2026-13-20' is not a valid date"),
        ({"every": "PT1H", "gap": "skip"}, "gap: needs 'rrule' or 'cron'"),
        ({"every": "R/2026-11-20T09:00:00Z/PT1H", "start": "2026-11-20T09:00:00Z"}, "start: the interval has a start"),
        ({"every": "R3/PT1H", "count": 3}, "count: the interval has a count of its own"),
        ({"every": "PT1H", "zone": BERLIN}, "zone: says how to read a local 'start' or 'until'"),
    ],
)
def test_an_invalid_field_is_refused_by_name(fields: dict[str, object], expected: str) -> None:
    assert refusal(**fields).startswith(expected)  # type: ignore[arg-type]


def test_a_local_time_without_a_zone_says_what_is_missing() -> None:
    with pytest.raises(Invalid, match="give the 'zone' whose clocks show it"):
        Admission(Limits()).admit("default", Request("t", at="2027-01-01T00:00"), NOW)


def test_the_shortest_period_applies_to_rules() -> None:
    limits = Limits(period_min_s=60)
    assert refusal(rrule="FREQ=SECONDLY", limits=limits).startswith("rrule: occurs more often than every 60 s")
    assert refusal(cron="*/30 * * * * *", limits=limits).startswith("cron: occurs more often than every 60 s")
    assert admitted(rrule="FREQ=MINUTELY", limits=limits).due == NOW


def test_the_number_of_overdue_occurrences_is_limited() -> None:
    assert admitted(rrule="FREQ=SECONDLY", start="2020-01-01").due < NOW
    refused = refusal(rrule="FREQ=SECONDLY", start="2020-01-01", late="fire_all")
    assert refused.startswith("late: fire_all would release 217,")
