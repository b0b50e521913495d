"""Occurrences and their numbers, compared with a model that steps through them one by one."""

from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as some

from tidings.domain.schedules.when import (
    DAY_US,
    LAST_INSTANT,
    SECOND_US,
    Every,
    Once,
    Period,
    When,
    advance,
    first_index_at_or_after,
    is_final,
    last_index_at_or_before,
    occurrence,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_2500 = 16_725_225_600_000_000
WALK_MAX = 60


def instant(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def day(at: int | None) -> str | None:
    return None if at is None else (EPOCH + timedelta(microseconds=at)).date().isoformat()


# --- the model: one step after another, with the standard library's own calendar ---


def month_later(at: datetime, months: int) -> datetime:
    year, month = divmod(at.year * 12 + at.month - 1 + months, 12)
    return at.replace(year=year, month=month + 1, day=min(at.day, monthrange(year, month + 1)[1]))


def walk(when: When) -> Iterator[int]:
    """Every occurrence in turn."""
    if isinstance(when, Once):
        yield when.at
        return
    assert isinstance(when, Every)
    for step in range(when.count if when.count is not None else 10**9):
        times = when.offset + step
        at = month_later(EPOCH + timedelta(microseconds=when.start), when.period.months * times)
        moment = (at - EPOCH) // timedelta(microseconds=1) + when.period.us * times
        if when.end is not None and moment > when.end:
            return
        yield moment


# --- what to try ---

INSTANTS = some.integers(0, YEAR_2500)
COUNTS = some.none() | some.integers(1, 40)
PERIODS = some.one_of(
    some.builds(Period, some.just(0), some.integers(1, 40 * DAY_US)),
    some.builds(Period, some.integers(1, 30), some.just(0)),
    some.builds(Period, some.integers(1, 30), some.integers(0, 3 * DAY_US)),
)


@some.composite
def recurrences(draw: some.DrawFn) -> Every:
    start, period, count = draw(INSTANTS), draw(PERIODS), draw(COUNTS)
    length = draw(some.none() | some.integers(0, 60 * period.min_us()))
    end = None if length is None else start + length
    offset = 0 if end is not None else draw(some.integers(0, 2))
    return Every(start, period, end, count, offset)


WHENS = some.one_of(some.builds(Once, INSTANTS), recurrences())


@given(WHENS)
def test_occurrences_equal_those_of_stepping(when: When) -> None:
    walked = list(islice(walk(when), WALK_MAX))
    assert [occurrence(when, n) for n in range(1, len(walked) + 1)] == walked
    if len(walked) < WALK_MAX:
        assert occurrence(when, len(walked) + 1) is None
        assert [is_final(when, n) for n in range(1, len(walked) + 1)] == [False] * (len(walked) - 1) + [True]


@given(WHENS)
def test_occurrences_are_increasing(when: When) -> None:
    assert all(earlier < later for earlier, later in pairwise(islice(walk(when), WALK_MAX)))


@given(recurrences())
def test_no_two_occurrences_are_closer_than_the_shortest_period(every: Every) -> None:
    gaps = [later - earlier for earlier, later in pairwise(islice(walk(every), WALK_MAX))]
    assert all(gap >= every.period_min_us() for gap in gaps)


@given(WHENS, some.data())
def test_indexes_equal_those_of_counting(when: When, data: some.DataObject) -> None:
    walked = list(islice(walk(when), WALK_MAX))
    at = data.draw(some.sampled_from(walked)) + data.draw(some.sampled_from([-DAY_US, -1, 0, 1, DAY_US]))
    assume(at <= walked[-1])
    before = sum(moment <= at for moment in walked)
    assert last_index_at_or_before(when, at) == before
    assert first_index_at_or_after(when, at) == sum(moment < at for moment in walked) + 1


@pytest.mark.slow
@given(WHENS, some.integers(1, 10**7))
def test_index_and_occurrence_are_inverse(when: When, n: int) -> None:
    at = occurrence(when, n)
    assume(at is not None)
    assert at is not None
    assert last_index_at_or_before(when, at) == first_index_at_or_after(when, at) == n
    assert last_index_at_or_before(when, at - 1) == n - 1
    assert first_index_at_or_after(when, at + 1) == (None if is_final(when, n) else n + 1)


@given(WHENS)
def test_indexes_before_the_first_and_after_the_last_occurrence(when: When) -> None:
    first = occurrence(when, 1)
    assert first is not None
    assert last_index_at_or_before(when, first - 1) == 0
    assert first_index_at_or_after(when, 0) == 1
    last = last_index_at_or_before(when, 2 * LAST_INSTANT)
    assert is_final(when, last)
    assert occurrence(when, last) is not None
    assert first_index_at_or_after(when, LAST_INSTANT + 1) is None


@given(WHENS)
@example(Every(1, Period(1, 2), 3, 4, -5))
def test_round_trip_through_msgpack(when: When) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(when), type=When) == when


def test_msgpack_tags() -> None:
    assert msgspec.to_builtins(Once(5)) == ["once", 5]
    assert msgspec.to_builtins(Every(5, Period(1, 2))) == ["every", 5, [1, 2], None, None, 0]
    assert msgspec.convert(["every", 5, [1, 2]], When) == Every(5, Period(1, 2))


# --- the calendar ---


@pytest.mark.parametrize(
    ("start", "months", "expected"),
    [
        ("2026-01-31", 1, ["2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30", "2026-05-31"]),
        ("2027-12-31", 1, ["2027-12-31", "2028-01-31", "2028-02-29", "2028-03-31", "2028-04-30"]),
        ("2024-02-29", 12, ["2024-02-29", "2025-02-28", "2026-02-28", "2027-02-28", "2028-02-29"]),
        ("2096-02-29", 48, ["2096-02-29", "2100-02-28", "2104-02-29", "2108-02-29", "2112-02-29"]),
        ("2026-08-31", 3, ["2026-08-31", "2026-11-30", "2027-02-28", "2027-05-31", "2027-08-31"]),
        ("2026-11-15", 1, ["2026-11-15", "2026-12-15", "2027-01-15", "2027-02-15", "2027-03-15"]),
    ],
)
def test_month_ends_are_clamped_in_short_months_only(start: str, months: int, expected: list[str]) -> None:
    every = Every(instant(start), Period(months, 0))
    assert [day(occurrence(every, n)) for n in range(1, 6)] == expected


def test_months_are_added_before_days() -> None:
    assert day(advance(instant("2026-01-31"), Period(1, DAY_US))) == "2026-03-01"
    assert day(advance(instant("2026-01-31"), Period(1, DAY_US), 2)) == "2026-04-02"
    assert day(advance(instant("2026-05-31"), Period(1, DAY_US), -1)) == "2026-04-29"


def test_an_offset_keeps_the_day_of_the_anchor() -> None:
    after = Every(instant("2026-01-31"), Period(1, 0), offset=1)
    assert [day(occurrence(after, n)) for n in (1, 2, 3)] == ["2026-02-28", "2026-03-31", "2026-04-30"]
    end = instant("2026-05-31")
    back = Every(end, Period(1, 0), end, 4, offset=-3)
    expected = ["2026-02-28", "2026-03-31", "2026-04-30", "2026-05-31", None]
    assert [day(occurrence(back, n)) for n in range(1, 6)] == expected
    assert last_index_at_or_before(back, instant("2026-03-30")) == 1
    assert is_final(back, 4)


@given(INSTANTS, some.integers(-5_000, 5_000))
def test_month_arithmetic_agrees_with_the_standard_library(at: int, months: int) -> None:
    year = (EPOCH + timedelta(microseconds=at)).year + months // 12
    assume(1 < year < 9998)
    expected = month_later(EPOCH + timedelta(microseconds=at), months)
    assert EPOCH + timedelta(microseconds=advance(at, Period(months, 0))) == expected


# --- no drift, and no cost ---


def test_many_periods_do_not_drift() -> None:
    start = instant("2026-01-31T09:00:00.123456")
    assert occurrence(Every(start, Period(0, SECOND_US)), 10**9 + 1) == start + 10**9 * SECOND_US
    monthly = occurrence(Every(start, Period(1, 0)), 12 * 1_000 + 1)
    assert monthly == instant("3026-01-31T09:00:00.123456")


def test_huge_count_is_cheap() -> None:
    every = Every(0, Period(0, 1), None, 999_999_999_999_999)
    assert occurrence(every, 10**14) == 10**14 - 1
    assert last_index_at_or_before(every, 5 * 10**13) == 5 * 10**13 + 1
    assert first_index_at_or_after(every, 5 * 10**13) == 5 * 10**13 + 1
    assert last_index_at_or_before(Every(0, Period(1, 0), None, 10**15), LAST_INSTANT) == 8_030 * 12


def test_occurrences_end_with_the_year_9999() -> None:
    yearly = Every(instant("2026-01-01"), Period(12, 0))
    assert day(occurrence(yearly, 7_974)) == "9999-01-01"
    assert is_final(yearly, 7_974)
    assert occurrence(yearly, 10**15) is None
    assert occurrence(Every(0, Period(0, 1)), 10**30) is None


def test_occurrences_are_numbered_from_one() -> None:
    with pytest.raises(AssertionError):
        occurrence(Once(0), 0)
