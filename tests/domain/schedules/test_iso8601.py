"""Parsing and formatting of instants, durations and intervals, and their errors."""

import re
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from tidings.domain.errors import Invalid
from tidings.domain.schedules.iso8601 import (
    format_duration,
    format_instant,
    parse_duration,
    parse_exact_duration,
    parse_instant,
    parse_interval,
)
from tidings.domain.schedules.when import DAY_US, LAST_INSTANT, SECOND_US, Every, Period, occurrence

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = 1_795_176_000_000_000  # 2026-11-20T12:00:00Z
HOUR_US = 3_600 * SECOND_US
HOSTILE = [
    "",
    " ",
    "\x00",
    "\ud800",
    "9" * 5_000,
    "P" + "9" * 5_000 + "D",
    "PT" + "1H" * 5_000,
    "R" + "9" * 5_000 + "/PT1S",
    "R/" * 5_000,
    "/" * 100,
    "2026-11-20T12:00:00Z\x00",
    "2026-11-20T12:00:00Z\n",
    " 2026-11-20T12:00:00Z",
    "2026-11-20\ud80012:00:00Z",
    "\uff12026-11-20T12:00:00Z",
    "2026-11-20T12:00:0\u0660Z",
    "PT\u0665S",
    "\u0665s",
    "R\u0665/PT5S",
    "P1D\x00",
    "PT5S\n",
    "5 s",
    "nan",
    "inf",
    "1e3s",
    "0x10s",
    "1_000s",
]
PARSERS = [
    parse_instant,
    lambda text: parse_duration(text, "at"),
    lambda text: parse_interval(text, NOON),
]


def refusal(text: str) -> str:
    with pytest.raises(Invalid) as caught:
        parse_duration(text, "late_grace")
    assert caught.value.field == "late_grace"
    return caught.value.detail


# --- hostile input ---


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_input_is_refused_with_a_short_printable_reason(parser: object, text: str) -> None:
    assert callable(parser)
    with pytest.raises(Invalid) as caught:
        parser(text)
    assert len(caught.value.detail.encode("utf-8")) < 400


@pytest.mark.parametrize("parser", PARSERS)
@given(text=some.text(max_size=80) | some.text("RP0123456789-+:.,TZYMWDHS/ smhdw", max_size=80))
def test_any_text_is_parsed_or_refused(parser: object, text: str) -> None:
    assert callable(parser)
    detail = "read"
    try:
        parser(text)
    except Invalid as error:
        detail = error.detail
    assert detail.encode("utf-8")


# --- instants ---


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2026-11-20T12:00:00Z", 0),
        ("2026-11-20T12:00:00.5Z", 500_000),
        ("2026-11-20T12:00:00,5Z", 500_000),
        ("2026-11-20T12:00:00.123456Z", 123_456),
        ("2026-11-20T12:00:00.123456000Z", 123_456),
        ("2026-11-20T12:00:00.123456001Z", 123_457),
        ("2026-11-20T12:00:00.9999999Z", SECOND_US),
        ("2026-11-20T12:00:00.000000001+00:00", 1),
        ("2026-11-20 12:00:00Z", 0),
        ("2026-11-20t12:00:00z", 0),
        ("2026-11-20T12:00Z", 0),
        ("2026-11-20T12:00:00-00:00", 0),
        ("2026-11-20T13:00:00+01:00", 0),
        ("2026-11-20T13:00:00+0100", 0),
        ("2026-11-20 13:00:00+01", 0),
        ("2026-11-20T06:15:00.25-05:45", 250_000),
        ("2026-11-21T11:59:00+23:59", 0),
    ],
)
def test_instants(text: str, us: int) -> None:
    assert parse_instant(text) == NOON + us


def test_first_and_last_instant() -> None:
    assert parse_instant("1970-01-01T00:00:00Z") == 0
    assert parse_instant("1969-12-31T23:00:00-01:00") == 0
    assert parse_instant("9999-12-31T23:59:59.999999Z") == LAST_INSTANT
    for text in (
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00+00:01",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59.9999991Z",
        "9999-12-31T23:59:59-23:59",
    ):
        with pytest.raises(Invalid, match="between the years 1970 and 9999"):
            parse_instant(text)


@pytest.mark.parametrize("text", ["2026-11-20T12:00:00", "2026-11-20 12:00", "2026-11-20T12:00:00.5"])
def test_time_without_an_offset_is_refused_with_advice(text: str) -> None:
    with pytest.raises(Invalid, match=r"^scheduled_at: '.*' has no offset: add Z for UTC, or"):
        parse_instant(text, "scheduled_at")


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-29T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-11-20T24:00:00Z",
        "2026-11-20T12:60:00Z",
        "2026-12-31T23:59:60Z",
        "0000-01-01T00:00:00Z",
        "2026-11-20T12:00:00+24:00",
        "2026-11-20T12:00:00+01:60",
        "2026-11-20T12:00:00+01:00:30",
        "2026-11-20T12:00:00.Z",
        "2026-11-20T12:00:00.1234567890Z",
        "2026-11-20T12:00:00ZZ",
        "2026-11-20T12Z",
        "2026-11-20",
        "2026-W47-5T12:00:00Z",
        "2026-324T12:00:00Z",
        "20261120T120000Z",
        "2026-11-20_12:00:00Z",
        "1795176000",
        "+5s",
        "PT5S",
    ],
)
def test_invalid_instants_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid, match=r"2026-11-20T09:00:00Z"):
        parse_instant(text)


@given(
    some.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1)),  # noqa: DTZ001
    some.integers(-1439, 1439),
    some.integers(0, 999_999_999),
    some.sampled_from("T "),
)
def test_instants_agree_with_the_standard_library(
    wall: datetime, offset: int, nanoseconds: int, separator: str
) -> None:
    aware = wall.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=offset)))
    text = aware.isoformat(separator)
    text = f"{text[:19]}.{nanoseconds:09}{text[19:]}"
    expected = (aware - EPOCH) // timedelta(microseconds=1) + -(-nanoseconds // 1_000)
    assert parse_instant(text) == expected


STRICT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.,][0-9]{1,6})?Z")
NEARLY_USUAL = r"\A2026[-W](11|W4)[-7].[0-9]T12[:.,]00[:.,+]0[0-9][:.,+\-]?[0-9:.,+\-Z]{0,6}Z\Z"


@given(some.from_regex(NEARLY_USUAL))
@example("2026-11-20T12:00:00.Z")
@example("2026-11-20T12:00:00:3Z")
@example("2026-11-20T12:00,47Z")
@example("2026-W47-5T12:00:00.5Z")
@example("2026-11-20T12:00:0.47Z")
@example("2026W47-20T12:00:00Z")
@example("2026-11-20T12:00+00:00Z")
@example("2026-11-20T12:00:00+1Z")
def test_fast_path_accepts_only_its_form(text: str) -> None:
    """`datetime.fromisoformat` reads each of the first four examples."""
    try:
        parse_instant(text)
    except Invalid:
        return
    assert STRICT.fullmatch(text)


@given(some.integers(0, LAST_INSTANT))
@example(0)
@example(LAST_INSTANT)
def test_formatted_instants_parse_to_the_same(at: int) -> None:
    text = format_instant(at)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert parse_instant(text) == at
    assert datetime.fromisoformat(text) == EPOCH + timedelta(microseconds=at)


# --- durations ---


@pytest.mark.parametrize(
    ("text", "months", "us"),
    [
        ("PT5S", 0, 5 * SECOND_US),
        ("PT0.25S", 0, 250_000),
        ("PT0,25S", 0, 250_000),
        ("PT0.0000001S", 0, 1),
        ("PT1M", 0, 60 * SECOND_US),
        ("P1M", 1, 0),
        ("P1Y", 12, 0),
        ("P0.5Y", 6, 0),
        ("P1Y2M10DT2H30M", 14, 10 * DAY_US + 2 * HOUR_US + HOUR_US // 2),
        ("P2W", 0, 14 * DAY_US),
        ("P1W2D", 0, 9 * DAY_US),
        ("P1.5D", 0, 36 * HOUR_US),
        ("P0DT1S", 0, SECOND_US),
        ("PT36H", 0, 36 * HOUR_US),
        ("+PT5S", 0, 5 * SECOND_US),
        ("P10000Y", 120_000, 0),
        ("5s", 0, 5 * SECOND_US),
        ("+5s", 0, 5 * SECOND_US),
        ("+250ms", 0, 250_000),
        ("1.5ms", 0, 1_500),
        ("+1h30m", 0, HOUR_US + HOUR_US // 2),
        ("1m", 0, 60 * SECOND_US),
        ("1m5ms", 0, 60 * SECOND_US + 5_000),
        ("2d", 0, 2 * DAY_US),
        ("1w", 0, 7 * DAY_US),
        ("1w2d3h4m5s6ms", 0, 9 * DAY_US + 3 * HOUR_US + 245 * SECOND_US + 6_000),
        ("0.1s", 0, 100_000),
    ],
)
def test_durations(text: str, months: int, us: int) -> None:
    assert parse_duration(text, "at") == Period(months, us)


@pytest.mark.parametrize("text", ["PT0S", "P0D", "0s", "+0ms", "P0Y0M", "PT0.0S"])
def test_zero_duration_is_refused(text: str) -> None:
    assert "is zero: write a duration such as PT5S" in refusal(text)


@pytest.mark.parametrize("text", ["-PT5S", "PT-5S", "-5s", "P-1M", "-P1D"])
def test_negative_durations_are_refused(text: str) -> None:
    assert "is negative: write a duration such as PT5S" in refusal(text)


@pytest.mark.parametrize(
    "text",
    ["P", "PT", "P1DT", "P1H", "PT1D", "P1S", "pt5s", "5", "5S", "5x", "s", "+", "30m1h", "1h1h", "P1D1Y"],
)
def test_invalid_durations_are_refused_with_an_example(text: str) -> None:
    assert re.search(r"(is not a duration|is zero): write a duration such as PT5S", refusal(text))


def test_only_the_last_part_can_have_a_fraction() -> None:
    assert "fraction before its last part" in refusal("PT1.5H30M")
    assert "fraction before its last part" in refusal("1.5h30m")
    assert "fraction of a month" in refusal("P0.5M")
    assert "fraction of a month" in refusal("P0.1Y")


def test_too_long_durations_are_refused() -> None:
    assert "more than 15 digits" in refusal("PT" + "0" * 15 + "1S")
    assert "more than 15 digits" in refusal("PT1." + "0" * 16 + "S")
    assert "longer than 64 characters" in refusal("PT" + "1" * 62 + "S")
    for text in ("P10001Y", "P999999999999999Y", "P3652426D", "999999999999999w", "P9999Y9999999D"):
        assert "longer than 10,000 years" in refusal(text)


def test_exact_durations_have_no_months() -> None:
    assert parse_exact_duration("PT1H", "late_max") == HOUR_US
    with pytest.raises(Invalid, match="P30D"):
        parse_exact_duration("P1M", "late_max")


@given(some.integers(0, 10**6), some.integers(0, 999_999_999), some.sampled_from(["h", "m", "s", "ms"]))
def test_fractions_round_up_exactly(whole: int, fraction: int, unit: str) -> None:
    size = {"h": HOUR_US, "m": HOUR_US // 60, "s": SECOND_US, "ms": 1_000}[unit]
    exact = Fraction(whole * 10**9 + fraction, 10**9) * size
    if exact:
        assert parse_duration(f"{whole}.{fraction:09}{unit}", "at") == Period(0, -(-exact // 1))


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 us"),
        (850, "850 us"),
        (4_200, "4.2 ms"),
        (4_000, "4 ms"),
        (999_949, "999.9 ms"),
        (999_950, "1 s"),
        (12_500_000, "12.5 s"),
        (59_950_000, "1 min"),
        (90 * SECOND_US, "1 min 30 s"),
        (HOUR_US + 5 * 60 * SECOND_US, "1 h 5 min"),
        (HOUR_US + 30 * SECOND_US, "1 h"),
        (3 * DAY_US + 4 * HOUR_US + 5, "3 d 4 h"),
        (400 * DAY_US, "400 d"),
        (-4_200, "-4.2 ms"),
    ],
)
def test_durations_for_people(us: int, text: str) -> None:
    assert format_duration(us) == text


# --- intervals ---

START = "2026-11-20T12:00:00Z"
LATER = "2026-11-20T15:00:00Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"R/{START}/PT1H/{LATER}", Every(NOON, Period(0, HOUR_US), NOON + 3 * HOUR_US, None)),
        (f"R2/{START}/PT1H/{LATER}", Every(NOON, Period(0, HOUR_US), NOON + 3 * HOUR_US, 2)),
        (f"R/{START}/PT1H", Every(NOON, Period(0, HOUR_US))),
        (f"R/{START}/1h", Every(NOON, Period(0, HOUR_US))),
        (f"R5/{START}/P1M", Every(NOON, Period(1, 0), None, 5)),
        (f"R3/{START}/{LATER}", Every(NOON, Period(0, 3 * HOUR_US), None, 3)),
        (f"R/{START}/{LATER}", Every(NOON, Period(0, 3 * HOUR_US))),
        (f"R3/PT1H/{LATER}", Every(NOON + HOUR_US, Period(0, HOUR_US), NOON + 3 * HOUR_US, 3)),
        (f"R3/P1M/{START}", Every(NOON, Period(1, 0), NOON, 3, offset=-2)),
        ("PT10M", Every(NOON + HOUR_US // 6, Period(0, HOUR_US // 6))),
        ("10m", Every(NOON + HOUR_US // 6, Period(0, HOUR_US // 6))),
        ("R/PT10M", Every(NOON + HOUR_US // 6, Period(0, HOUR_US // 6))),
        ("R4/PT1H", Every(NOON + HOUR_US, Period(0, HOUR_US), None, 4)),
        ("P1M", Every(NOON, Period(1, 0), offset=1)),
        (f"R999999999999999/{START}/PT1S", Every(NOON, Period(0, SECOND_US), None, 999_999_999_999_999)),
        (f"R1/{START}/PT1H/{START}", Every(NOON, Period(0, HOUR_US), NOON, 1)),
    ],
)
def test_intervals(text: str, expected: Every) -> None:
    assert parse_interval(text, NOON) == expected


def moments(text: str, anchor: str = START) -> list[str]:
    every = parse_interval(text, parse_instant(anchor))
    found = [occurrence(every, n) for n in range(1, 6)]
    return [format_instant(at).removesuffix(":00.000000Z") for at in found if at is not None]


def test_example_of_the_intervals_page() -> None:
    every = parse_interval("R/2026-07-16T19:20:30.45Z/PT7H/2026-07-17T20:20:30.45Z", NOON)
    found = [occurrence(every, n) for n in range(1, 6)]
    hours = [None if at is None else format_instant(at)[8:22] for at in found]
    assert hours == ["16T19:20:30.45", "17T02:20:30.45", "17T09:20:30.45", "17T16:20:30.45", None]


def test_start_and_end_are_inclusive() -> None:
    hours = ["2026-11-20T12:00", "2026-11-20T13:00", "2026-11-20T14:00", "2026-11-20T15:00"]
    assert moments(f"R/{START}/PT1H/{LATER}") == hours
    assert moments(f"R4/PT1H/{LATER}") == hours
    assert moments(f"R2/{START}/{LATER}") == [hours[0], hours[3]]


def test_months_are_counted_from_the_given_anchor() -> None:
    after = ["2026-02-28T00:00", "2026-03-31T00:00", "2026-04-30T00:00"]
    assert moments("R3/P1M", "2026-01-31T00:00:00Z") == after
    back = ["2026-03-31T00:00", "2026-04-30T00:00", "2026-05-31T00:00"]
    assert moments("R3/P1M/2026-05-31T00:00:00Z") == back
    assert moments("R3/2026-03-31T00:00:00Z/P1M") == back


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"R/PT1H/{LATER}", "has no first occurrence"),
        (f"R0/{START}/PT1H", "write R1 for one"),
        (f"R-1/{START}/PT1H", "is not R or Rn"),
        (f"R1000000000000000/{START}/PT1H", "more than 15 digits"),
        (f"R/{LATER}/PT1H/{START}", "swap them"),
        (f"R2/{LATER}/{START}", "swap them"),
        (f"R2/{START}/{START}", "the period is the time between them"),
        (f"R/{START}/PT0S", "is zero: write a period such as PT10M"),
        (f"R/{START}/PT1H/{LATER}/", "is not a repeating interval"),
        (f"R/{START}", "is not a repeating interval"),
        ("R/PT1H/PT1H", "is not a repeating interval"),
        ("R", "is not a repeating interval"),
        (f"{START}/PT1H", "is not R or Rn"),
        ("R/2026-11-20T12:00:00/PT1H", "add Z"),
        (f"R999999999999999/PT1S/{LATER}", "lower the number"),
        ("R2/PT1S/1970-01-01T00:00:00.999999Z", "lower the number"),
        (f"R999999999999999/P10000Y/{LATER}", "lower the number"),
        ("P9000Y", "write a shorter period"),
        (START, "is not a duration"),
    ],
)
def test_refused_intervals_say_what_to_change(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason) as caught:
        parse_interval(text, NOON)
    assert caught.value.field == "every"
