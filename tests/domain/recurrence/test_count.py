"""Numbers and instants are inverse, ends are exact, and the work for each call is bounded."""

import gc
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.domain.recurrence.text_api import first, rule, seconds, wall
from tidings.domain.recurrence.cache import STEPS
from tidings.domain.recurrence.compiler import compiled, forget, least_distance_us, wall_times_of
from tidings.domain.recurrence.days import END_SECOND, month_of
from tidings.domain.recurrence.lattice import Lattice
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.rule import Cron, Local, Moment, Rule
from tidings.domain.recurrence.timezone import zone_named
from tidings.domain.schedules.lateness import Lateness, MissedRange, decide
from tidings.domain.schedules.when import (
    SECOND_US,
    When,
    first_index_at_or_after,
    is_final,
    last_index_at_or_before,
    occurrence,
    occurrences,
)

YEAR_S = 31_536_000
NOW = seconds(datetime(2026, 11, 16, 12, tzinfo=UTC))

WHENS: list[When] = [
    rule("FREQ=SECONDLY", "20060101T000000", "Europe/Berlin"),
    rule("FREQ=SECONDLY;INTERVAL=7;BYHOUR=9,17;BYDAY=MO", "20060101T000000", "Europe/Berlin"),
    rule("FREQ=MINUTELY;INTERVAL=11", "20060101T000003", "Australia/Lord_Howe"),
    rule("FREQ=HOURLY;INTERVAL=5;BYMINUTE=0,15", "20060101T000000", "Australia/Lord_Howe"),
    rule("FREQ=DAILY;BYHOUR=2;BYMINUTE=30", "20060101T000000", "Europe/Berlin"),
    rule("FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=30", "20060101T000000", "America/New_York", "skip", "both"),
    rule("FREQ=WEEKLY;INTERVAL=3;BYDAY=MO,SU;WKST=SU", "20060101T000000", "Europe/Berlin"),
    rule("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1,1", "20060101T000000", "Europe/Berlin"),
    rule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", "20040229T120000"),
    Cron(expression="*/5 9-17 * * MON-FRI", since=wall("20060101T000000") * SECOND_US, zone="Europe/Berlin"),
    Cron(expression="30 2 * * *", since=wall("20060101T000000") * SECOND_US, zone="Europe/Berlin", gap="skip"),
    Local(wall("20261025T023000"), "Europe/Berlin", "forward", "both"),
    msgspec.structs.replace(
        rule("FREQ=DAILY", "20060101T090000", "Europe/Berlin"),
        excluded=tuple(range(13_200, 13_260)),
        added=(Moment(wall("20060301T120000"), "local"),),
        on_excluded="next_day",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("when", WHENS, ids=str)
@given(some.integers(1, 10**6))
def test_number_and_instant_are_inverse(when: When, number: int) -> None:
    at = occurrence(when, number)
    if at is None:
        assert last_index_at_or_before(when, 64_000_000_000 * SECOND_US) < number
        return
    assert last_index_at_or_before(when, at) == first_index_at_or_after(when, at) == number
    assert last_index_at_or_before(when, at - 1) == number - 1
    assert first_index_at_or_after(when, at + 1) == (None if is_final(when, number) else number + 1)
    following = occurrence(when, number + 1)
    assert following is None or following > at


@pytest.mark.parametrize("when", WHENS, ids=str)
def test_round_trip_through_msgpack(when: When) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(when), type=When) == when


@pytest.mark.parametrize("when", WHENS[:3], ids=str)
def test_a_year_of_downtime_is_decided_in_one_step(when: When) -> None:
    number = last_index_at_or_before(when, (NOW - YEAR_S) * SECOND_US)
    decide(when, number, NOW * SECOND_US, Lateness())
    before = STEPS.taken
    decision = decide(when, number, NOW * SECOND_US, Lateness("fire_latest"))
    assert STEPS.taken - before <= 1
    last = last_index_at_or_before(when, NOW * SECOND_US)
    assert decision.release == last
    assert decision.missed == (MissedRange(number, last - 1, "superseded"),)
    assert decision.next == last + 1


@pytest.mark.parametrize("count", [1, 2, 1_000, 1_000_000, 999_999_999])
def test_count_is_exact(count: int) -> None:
    when = rule(f"FREQ=SECONDLY;COUNT={count}", "20000101T000000", "Europe/Berlin")
    assert occurrence(when, count) is not None
    assert is_final(when, count)
    assert occurrence(when, count + 1) is None
    assert last_index_at_or_before(when, 64_000_000_000 * SECOND_US) == count


def test_a_large_count_on_an_old_anchor_is_cheap() -> None:
    when = rule("FREQ=DAILY;BYHOUR=9;COUNT=300000", "19700105T000000", "America/New_York")
    before = STEPS.taken
    assert is_final(when, 300_000)
    assert STEPS.taken - before < 4_000


def test_count_includes_exdates_but_not_times_skipped_in_a_gap() -> None:
    skipping = rule("FREQ=DAILY;COUNT=3", "20270327T023000", "Europe/Berlin", "skip")
    assert [at % 86_400 // 3_600 for at in first(skipping, 9)] == [1, 0, 0]  # 27th, 29th, 30th
    excepted = msgspec.structs.replace(
        rule("FREQ=DAILY;COUNT=3", "20270327T023000"), excepted=(Moment(wall("20270328T000000"), "date"),)
    )
    assert len(first(excepted, 9)) == 2


def test_rule_in_exact_time_may_match_only_in_summer() -> None:
    when = rule("FREQ=HOURLY;INTERVAL=24;BYHOUR=3", "20260101T020000", "Europe/Berlin")
    assert first(when, 2) == [wall("20260329T010000"), wall("20260330T010000")]
    assert occurrence(rule("FREQ=HOURLY;INTERVAL=24;BYHOUR=4", "20260101T020000", "Europe/Berlin"), 1) is None


def test_sparse_rule_skips_empty_segments() -> None:
    zone_named("Europe/Berlin").segment(END_SECOND)  # extend its table, so that its steps do not count
    before = STEPS.taken
    when = rule("FREQ=YEARLY;INTERVAL=400;BYMONTH=5;BYDAY=1MO", "20260101T020000", "Europe/Berlin")
    assert first(when, 1) == [wall("20260504T000000")]
    assert occurrence(when, 3) is not None
    assert STEPS.taken - before < 1_500


def test_nothing_occurs_before_since() -> None:
    start = wall("20261116T090000")
    asked = Rule(rrule="FREQ=MINUTELY", start=start, since=start * SECOND_US + 1)
    assert occurrence(asked, 1) == (start + 60) * SECOND_US


def test_occurrences_between() -> None:
    when = rule("FREQ=HOURLY", "20260101T000000")
    begin = wall("20260102T000000") * SECOND_US
    assert occurrences(when, begin, begin + 10 * 3_600 * SECOND_US, 3) == [
        (25 + more, begin + more * 3_600 * SECOND_US) for more in range(3)
    ]
    assert len(occurrences(when, begin, begin + 10 * 3_600 * SECOND_US, 100)) == 11
    assert occurrences(when, 0, 5, 9) == []


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("FREQ=SECONDLY;INTERVAL=7", 7),
        ("FREQ=MINUTELY;BYSECOND=0,50", 10),
        ("FREQ=HOURLY;BYMINUTE=1,59", 120),
        ("FREQ=DAILY;BYHOUR=0,23", 3_600),
        ("FREQ=WEEKLY", 86_400),
    ],
)
def test_least_distance(text: str, least: int) -> None:
    assert least_distance_us(rule(text, "20260101T000000")) == least * SECOND_US


def test_equal_rules_share_their_counts() -> None:
    compiled(rule("FREQ=DAILY;BYHOUR=4;BYMINUTE=44", "20200101T000000", "Asia/Tehran")).through(NOW)
    before = STEPS.taken
    compiled(rule("FREQ=DAILY;BYHOUR=4;BYMINUTE=44", "20210707T030000", "Asia/Tehran")).through(NOW)
    assert STEPS.taken == before


@pytest.mark.slow
def test_concurrent_calls_from_threads() -> None:
    """Stores call from threads of their own, and shared tables grow during these calls."""
    asked = [
        rule(f"FREQ=DAILY;BYHOUR={hour};BYMINUTE=0,10,20;INTERVAL={interval}", "20260101T000000", "Europe/Berlin")
        for hour in range(8)
        for interval in (1, 2)
    ]
    numbers = range(1, 4_000, 397)

    def answers(_: int) -> list[int | None]:
        return [compiled(one).at(number) for one in asked for number in numbers]

    alone = answers(0)
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(10):
                forget()
                assert all(one == alone for one in pool.map(answers, range(4)))
    finally:
        sys.setswitchinterval(switching)


@pytest.mark.parametrize(
    ("interval", "hours", "months"),
    [(306_972_213, range(12), {4, 9}), (999_999, range(3), {2}), (86_399, range(1), {5}), (172_801, range(1), {1})],
)
def test_sparse_rule_skips_empty_years(interval: int, hours: range, months: set[int]) -> None:
    """The years with an occurrence are known from the few units that are hit, or from the few remainders."""
    first_unit = wall("20260101T000000")
    text = f"FREQ=SECONDLY;INTERVAL={interval};BYMONTH={','.join(map(str, months))};BYMINUTE=0;BYSECOND=0,1"
    parts = parse_rrule(f"{text};BYHOUR={','.join(map(str, hours))}")
    walls = wall_times_of(parts, first_unit, 2025)(0)
    assert isinstance(walls, Lattice)
    before = STEPS.taken
    found = [walls.at(number) for number in range(walls.before(END_SECOND) + 1)]
    assert STEPS.taken - before < 500, "of 975 years, only those with an occurrence and some around them"
    met = range(first_unit, END_SECOND, interval)
    wanted = [at for at in met if at % 3_600 <= 1 and at // 3_600 % 24 in hours and month_of(at // 86_400) in months]
    assert found == [*wanted, None]
    assert [walls.before(at) for at in wanted] == list(range(len(wanted)))


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=SECONDLY;INTERVAL=999999937;BYMONTH=1,8;BYDAY=MO;BYHOUR=2,4,5,6",
        "FREQ=SECONDLY;INTERVAL=86399;BYMONTH=2;BYMONTHDAY=29;BYHOUR=3;BYMINUTE=7;BYSECOND=5",
        "FREQ=MINUTELY;INTERVAL=9973;BYMONTH=9;BYMONTHDAY=31",
    ],
)
def test_sparse_rule_without_an_occurrence_is_refused_in_few_steps(text: str) -> None:
    before = STEPS.taken
    assert compiled(rule(text, "19710301T000001", "Australia/Lord_Howe")).at(1) is None
    assert STEPS.taken - before < 1_000


@pytest.mark.slow
def test_equal_calendars_share_memory() -> None:
    """Ten schedules with the same 5,000 days share one table of days."""
    days = range(20_600, 30_600, 2)
    asked = [
        Rule(rrule="FREQ=DAILY", start=(20_600 * 86_400) + minute * 60, excluded=tuple(days)) for minute in range(10)
    ]
    encoded = [msgspec.msgpack.encode(one) for one in asked]
    compiled(asked[0]).at(400)
    del asked
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for one in encoded:
            compiled(msgspec.msgpack.decode(one, type=Rule)).at(400)
        gc.collect()
        assert (tracemalloc.get_traced_memory()[0] - before) / len(encoded) < 60_000
    finally:
        tracemalloc.stop()
