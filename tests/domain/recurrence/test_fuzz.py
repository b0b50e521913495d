"""For any input, the parsers return a value or raise `Invalid`, in a bounded number of steps."""

from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.cache import STEPS, STEPS_MAX
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.ics_calendar import parse_calendar
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_local, read_rule
from tidings.domain.recurrence.rule import Cron, Rule

Answer = TypeVar("Answer")
NOW = 1_795_000_000_000_000
NAMES = ["FREQ", "INTERVAL", "COUNT", "UNTIL", "BYSECOND", "BYMINUTE", "BYHOUR", "BYDAY", "BYMONTHDAY", "BYYEARDAY"]
NAMES += ["BYWEEKNO", "BYMONTH", "BYSETPOS", "WKST"]
NUMBERS = some.integers(-400, 400).map(str) | some.integers(0, 10**12).map(str)
WORDS = some.sampled_from(["MO", "-1FR", "53SU", "YEARLY", "SECONDLY", "HOURLY", "20270328", "20270328T023000Z", ""])
LISTS = some.lists(NUMBERS | WORDS, min_size=1, max_size=40).map(",".join)
FREQUENCIES = some.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"])


@some.composite
def likely_rules(draw: some.DrawFn) -> str:
    """Rules that mostly parse: unique names, numbers in range."""
    ranges = {"BYSECOND": (0, 60), "BYMINUTE": (0, 59), "BYHOUR": (0, 23), "BYMONTHDAY": (1, 31), "BYMONTH": (1, 12)}
    ranges |= {"BYYEARDAY": (-366, -1), "BYWEEKNO": (1, 53), "BYSETPOS": (-366, -1), "INTERVAL": (1, 10**6)}
    parts = [f"FREQ={draw(FREQUENCIES)}"]
    for name in draw(some.lists(some.sampled_from(sorted(ranges)), unique=True, max_size=5)):
        size = 1 if name == "INTERVAL" else 8
        numbers = draw(some.lists(some.integers(*ranges[name]), min_size=1, max_size=size))
        parts.append(f"{name}={','.join(map(str, numbers))}")
    return ";".join(parts)


RULES = some.one_of(
    likely_rules(),
    some.lists(some.tuples(some.sampled_from(NAMES), LISTS).map("=".join), max_size=8).map(";".join),
    some.text(max_size=200),
)
CRONS = some.lists(some.text("0123456789*/,-?L#W@MONFRI", min_size=1, max_size=12), max_size=8).map(" ".join)
LINES = ["BEGIN:VCALENDAR", "BEGIN:VEVENT", "END:VEVENT", "DTSTART:20260101", "DTEND;VALUE=DATE:20260105", "x"]
LINES += ["RRULE:FREQ=YEARLY", "RRULE:FREQ=SECONDLY", "DTSTART:2026", "2026-12-25"]
LINES += ["EXDATE:20270101", "RDATE:20270102,20270103", "RECURRENCE-ID:20270101", "STATUS:CANCELLED", "UID:a", "UID:b"]
LINES += ["DURATION:P3D", "RRULE:FREQ=DAILY;COUNT=4000", "RRULE:FREQ=WEEKLY"]
EVENTS = some.lists(some.lists(some.sampled_from(LINES[3:]), max_size=6).map("\n".join), max_size=60).map(
    lambda events: "BEGIN:VCALENDAR\n" + "".join(f"BEGIN:VEVENT\n{event}\nEND:VEVENT\n" for event in events)
)
WITH_CALENDAR = some.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?", fullmatch=True)
DAYS = some.integers(0, 30_000)
ZONES = some.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"])


STARTS = some.none() | some.sampled_from(
    [
        "1970-01-01T00:00:00Z",
        "1970-01-01",
        "1999-12-31T23:59:59",
        "2026-10-25T02:30:00",
        "2999-12-31T23:59:59",
        "9998-01-01",
    ]
)
MOMENTS = some.sampled_from(["1970-01-01", "2011-12-30", "2027-03-28T02:30", "2027-10-31T01:30:00Z", "9998-12-31"])
OFF = some.one_of(
    some.lists(some.integers(0, 2_900_000), max_size=20),
    some.builds(lambda first, step: range(first, first + 5_000 * step, step), DAYS, some.integers(1, 9)),
)
TERMS = some.builds(
    Terms,
    start=STARTS,
    zone=ZONES,
    gap=some.sampled_from(["forward", "skip"]),
    overlap=some.sampled_from(["first", "second", "both"]),
    rdates=some.lists(MOMENTS, max_size=4) | some.just(["2027-03-28T02:30"] * 500),
    exdates=some.lists(MOMENTS, max_size=4),
    excluded=OFF,
    on_excluded=some.sampled_from(["skip", "next_day"]),
)


def answer(question: Callable[[], Answer]) -> Answer | str:
    """The value, or the field of the error, whose text must be short."""
    try:
        return question()
    except Invalid as invalid:
        return invalid.field if len(str(invalid)) < 400 else f"too long: {invalid}"


def bounded(asked: Rule | Cron) -> None:
    """Call every operation, also far in the future, and check the steps of each."""
    moments = compiled(asked)
    for number, instant in ((1, 0), (10**9, 0), (1, 10**11)):
        before = STEPS.taken
        moments.at(number)
        moments.through(instant)
        assert STEPS.taken - before <= STEPS_MAX


@pytest.mark.slow
@settings(max_examples=400)
@given(RULES, ZONES)
@example("FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29", "UTC")
@example("FREQ=SECONDLY;INTERVAL=86399;BYSECOND=1;BYMINUTE=1;BYHOUR=1;BYMONTH=2;BYMONTHDAY=29", "Europe/Berlin")
@example("FREQ=HOURLY;INTERVAL=168;BYDAY=MO", "UTC")
@example("FREQ=YEARLY;BYDAY=" + ",".join(["53MO"] * 700), "UTC")
@example("FREQ=DAILY;" * 900, "UTC")
def test_rules(text: str, zone: str) -> None:
    before = STEPS.taken
    asked = answer(lambda: read_rule(text, NOW, Terms(zone=zone)))
    assert STEPS.taken - before <= 2 * STEPS_MAX  # to compile it, and to get its first occurrence
    if isinstance(asked, Rule):
        bounded(asked)


@pytest.mark.slow
@settings(max_examples=300)
@given(CRONS | some.text(max_size=80), ZONES)
@example("0 0 30 2 *", "UTC")
@example("* * * * * *", "Europe/Berlin")
def test_crons(text: str, zone: str) -> None:
    asked = answer(lambda: read_cron(text, NOW, Terms(zone=zone)))
    if isinstance(asked, Cron):
        bounded(asked)


@pytest.mark.slow
@settings(max_examples=80)
@given(likely_rules(), TERMS)
@example("FREQ=HOURLY;INTERVAL=12", Terms(start="1970-01-01", excluded=range(0, 10_000, 2), on_excluded="next_day"))
@example("FREQ=SECONDLY;INTERVAL=50000", Terms(zone="Europe/Berlin", excluded=range(21_000, 26_000)))
def test_rules_with_random_fields(text: str, terms: Terms) -> None:
    before = STEPS.taken
    asked = answer(lambda: read_rule(text, NOW, terms))
    assert STEPS.taken - before <= 2 * STEPS_MAX
    if isinstance(asked, Rule):
        bounded(asked)


@pytest.mark.slow
@settings(max_examples=80)
@given(some.sampled_from(["0 9 * * *", "*/15 * * * *", "0 0 29 2 *", "*/30 9-17 * * MON#2"]), TERMS)
def test_crons_with_random_fields(text: str, terms: Terms) -> None:
    asked = answer(lambda: read_cron(text, NOW, terms))
    if isinstance(asked, Cron):
        bounded(asked)


@pytest.mark.slow
@settings(max_examples=200)
@given(some.text(max_size=80) | WITH_CALENDAR)
def test_local_times(text: str) -> None:
    local = answer(lambda: read_local(text, "Europe/Berlin"))
    assert local == "at" if isinstance(local, str) else compiled(local).at(1) is not None


@pytest.mark.slow
@settings(max_examples=200)
@given(some.text(max_size=300) | some.lists(some.sampled_from(LINES), max_size=12).map("\n".join) | EVENTS)
def test_calendars(text: str) -> None:
    before = STEPS.taken
    days = answer(lambda: parse_calendar(text))
    assert STEPS.taken - before <= STEPS_MAX
    assert isinstance(days, str) or list(days) == sorted(set(days))


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29",
        "FREQ=DAILY;BYSETPOS=2;BYHOUR=9",
        "FREQ=HOURLY;INTERVAL=24;BYHOUR=3",
        "FREQ=MINUTELY;INTERVAL=1440;BYMINUTE=59",
        "FREQ=SECONDLY;BYSETPOS=2;BYHOUR=1",
        "FREQ=DAILY;INTERVAL=7;BYDAY=MO",
        "FREQ=YEARLY;BYYEARDAY=366;BYMONTH=1",
        "FREQ=DAILY;UNTIL=20261110T000000Z",
    ],
)
def test_rules_without_an_occurrence_are_refused(text: str) -> None:
    before = STEPS.taken
    with pytest.raises(Invalid, match=r"has no occurrence|is before the first"):
        read_rule(text, NOW, Terms(start="2026-11-18T10:00:00Z" if "2026" not in text else "2026-11-25T10:00:00Z"))
    assert STEPS.taken - before <= STEPS_MAX
