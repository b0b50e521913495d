"""Cron expressions: occurrences, errors, and clock changes."""

from datetime import UTC, datetime

import pytest

from tests.domain.recurrence.text_api import cron, first, seconds, shown
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cron import NICKNAMES, parse_cron
from tidings.domain.recurrence.request_fields import Terms, read_cron
from tidings.domain.recurrence.rule import Cron, Gap, Overlap

SINCE = datetime(2026, 11, 16, 12, tzinfo=UTC)


def after(text: str, count: int = 3, since: datetime = SINCE) -> list[str]:
    return [shown(at) for at in first(cron(text, since), count)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("*/20 * * * *", ["20261116T120000", "20261116T122000", "20261116T124000"]),
        ("5/25 12 * * *", ["20261116T120500", "20261116T123000", "20261116T125500"]),
        ("*/5 9-17 * * MON-FRI", ["20261116T120000", "20261116T120500", "20261116T121000"]),
        ("15,45 0 12 1 * ?", ["20261201T120015", "20261201T120045", "20270101T120015"]),
        ("0 0 L * *", ["20261130T000000", "20261231T000000", "20270131T000000"]),
        ("0 0 LW * ?", ["20261130T000000", "20261231T000000", "20270129T000000"]),
        ("0 0 * * FRI#2", ["20261211T000000", "20270108T000000", "20270212T000000"]),
        ("0 0 * * 5L", ["20261127T000000", "20261225T000000", "20270129T000000"]),
        ("0 0 13 * FRI", ["20261120T000000", "20261127T000000", "20261204T000000"]),  # the 13th or a Friday
        ("0 0 */5 * FRI", ["20261211T000000", "20270101T000000", "20270226T000000"]),  # `*` first: both must hold
        ("0 0 1 jan,jul sun-sat", ["20270101T000000", "20270102T000000", "20270103T000000"]),
        ("0 0 29 2 *", ["20280229T000000", "20320229T000000", "20360229T000000"]),
        ("0 0 * * 7", ["20261122T000000", "20261129T000000", "20261206T000000"]),
        ("0 0 * * SAT-SUN", ["20261121T000000", "20261122T000000", "20261128T000000"]),
        ("0 0 * * FRI-MON", ["20261120T000000", "20261121T000000", "20261122T000000"]),
        ("0 0 * * 6-0", ["20261121T000000", "20261122T000000", "20261128T000000"]),
        ("0 0 * * 7-1", ["20261122T000000", "20261123T000000", "20261129T000000"]),
        ("0 0 * * FRI-MON/2", ["20261120T000000", "20261122T000000", "20261127T000000"]),
        ("@hourly", ["20261116T120000", "20261116T130000", "20261116T140000"]),
        ("@Weekly", ["20261122T000000", "20261129T000000", "20261206T000000"]),
        ("@yearly", ["20270101T000000", "20280101T000000", "20290101T000000"]),
    ],
)
def test_occurrences_of_expressions(text: str, wanted: list[str]) -> None:
    assert after(text) == wanted


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * *", "has 7 fields, and years are not supported: remove the last one, and use the field 'until'"),
        ("* * * * * * * *", "8 fields"),
        ("60 * * * *", "minute: '60' is not understood: use 0 to 59"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "L for the last day"),
        ("* * * FOO *", "JAN to DEC"),
        ("* * * * MON#6", "FRI#2"),
        ("0 0 15W * *", "BYDAY=MO,TU,WE,TH,FR;BYMONTHDAY=15,16,17;BYSETPOS=1 with BYHOUR"),
        ("0 0 L-2W * *", "L for the last day"),
        ("*/0 * * * *", "step of 0"),
        ("* 22-2 * * *", "write two ranges, such as 22-23,0-2"),
        ("? * * * *", "allowed only as the whole day"),
        (
            "*/90 * * * *",
            "minute: '*/90' starts again at 0 each time, so a step of 90 is never reached: write one",
        ),
        ("0 */25 * * *", "up to 24"),
        ("0 0 * * */8", "up to 7"),
        ("0 0 L-2 * *", "day: 'L-2' is not supported: use 'rrule', FREQ=MONTHLY;BYMONTHDAY=-3 with BYHOUR"),
        ("TZ=Europe/Berlin 0 9 * * *", "begins with 'TZ=Europe/Berlin': remove it, and give the time zone"),
        ("CRON_TZ=UTC 0 0 9 * * *", "begins with 'CRON_TZ=UTC'"),
        ("@reboot", "'@reboot' is not a time: send the message without 'cron' when your program starts"),
        ("@every 5m", "'@every 5m' is a period: write every=5m instead of 'cron'"),
        ("@fortnightly", "@hourly"),
        ("0 0 30 2 *", "has no occurrence"),
        ("*" * 2_000, "2000 characters"),
        ("\u0661 * * * *", "minute"),
    ],
)
def test_refused_expressions_say_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_cron(text, seconds(SINCE) * 1_000_000)
    assert advice in str(caught.value)
    assert caught.value.field == "cron"


@pytest.mark.parametrize(("text", "same"), [("*/60 * * * *", "0 * * * *"), ("0 */24 * * *", "0 0 * * *")])
def test_step_of_the_whole_range_occurs_once(text: str, same: str) -> None:
    assert parse_cron(text).minutes == parse_cron(same).minutes
    assert parse_cron(text).hours == parse_cron(same).hours


def test_nicknames_are_expressions() -> None:
    assert all(parse_cron(nickname) == parse_cron(text) for nickname, text in NICKNAMES.items())


def berlin(text: str, start: str, count: int, gap: Gap = "forward", overlap: Overlap = "first") -> list[str]:
    since = datetime.fromisoformat(start)
    asked = Cron(expression=text, since=seconds(since) * 1_000_000, zone="Europe/Berlin", gap=gap, overlap=overlap)
    return [shown(at)[4:] for at in first(asked, count)]


def test_a_fixed_time_in_a_gap() -> None:
    before = "2027-03-27T12:00:00+00:00"
    assert berlin("30 2 * * *", before, 2) == ["0328T013000", "0329T003000"]
    assert berlin("30 2 * * *", before, 2, "skip") == ["0329T003000", "0330T003000"]
    assert berlin("30 2,3 * * *", before, 3) == ["0328T013000", "0329T003000", "0329T013000"]  # once, not twice


def test_a_fixed_time_in_an_overlap() -> None:
    before = "2027-10-30T12:00:00+00:00"
    assert berlin("30 2 * * *", before, 2) == ["1031T003000", "1101T013000"]
    assert berlin("30 2 * * *", before, 2, overlap="second") == ["1031T013000", "1101T013000"]
    assert berlin("30 2 * * *", before, 3, overlap="both") == ["1031T003000", "1031T013000", "1101T013000"]


def test_expression_with_every_hour_steps_in_exact_time() -> None:
    assert berlin("0 * * * *", "2027-10-30T23:00:00+00:00", 4) == [
        "1030T230000",
        "1031T000000",
        "1031T010000",
        "1031T020000",
    ]
    assert berlin("0 * * * *", "2027-03-28T00:00:00+00:00", 3) == ["0328T000000", "0328T010000", "0328T020000"]


def test_start_until_and_count() -> None:
    now = seconds(SINCE) * 1_000_000
    counted = read_cron("0 9 * * *", now, Terms(zone="Europe/Berlin", count=2))
    assert len(first(counted, 9)) == 2
    until = read_cron("0 9 * * *", now, Terms(zone="Europe/Berlin", until="2026-11-19"))
    assert [shown(at) for at in first(until, 9)] == ["20261117T080000", "20261118T080000", "20261119T080000"]
    begun = read_cron("0 9 * * *", now, Terms(zone="Europe/Berlin", start="2026-12-01T09:00"))
    assert shown(first(begun, 1)[0]) == "20261201T080000"
