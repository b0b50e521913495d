"""Decisions about overdue occurrences, compared with a model that decides on each one by one."""

from itertools import count, takewhile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidings.domain.schedules.lateness import Decision, Lateness, MissedRange, MissedReason, Policy, deadline, decide
from tidings.domain.schedules.when import DAY_US, SECOND_US, Every, Once, Period, When, occurrence

POLICIES: tuple[Policy, ...] = ("fire_all", "fire_latest", "skip")
START = 1_795_165_200_000_000
EVERY_SECOND = Every(START, Period(0, SECOND_US))


def seconds(number: float) -> int:
    return START + round(number * SECOND_US)


# --- the model ---


def verdict(due: int, now: int, lateness: Lateness) -> MissedReason | None:
    """The reason for which an occurrence is missed: the bound that it passed first; None if it is on time."""
    bounds: list[tuple[int | None, MissedReason]] = [
        (lateness.expires_after_us, "expired"),
        (lateness.grace_us if lateness.policy == "skip" else None, "late_skipped"),
        (lateness.max_us, "late_max"),
    ]
    passed = [(due + bound, reason) for bound, reason in bounds if bound is not None and now > due + bound]
    return min(passed, key=lambda each: each[0])[1] if passed else None


def model(when: When, n: int, now: int, lateness: Lateness) -> tuple[int | None, dict[int, str], int | None]:
    """What is released, what is missed and why, and what is next, decided one by one."""
    overdue = list(takewhile(lambda index: is_due(when, index, now), count(n)))
    missed: dict[int, str] = {}
    release = None
    for index in overdue:
        due = occurrence(when, index)
        assert due is not None
        if reason := verdict(due, now, lateness):
            missed[index] = reason
        elif lateness.policy == "fire_latest" and index != overdue[-1]:
            missed[index] = "superseded"
        else:
            release = index
            break
    following = n + len(missed) + (release is not None)
    return release, missed, following if occurrence(when, following) is not None else None


def is_due(when: When, n: int, now: int) -> bool:
    due = occurrence(when, n)
    return due is not None and due <= now


def spelled_out(decision: Decision) -> tuple[int | None, dict[int, str], int | None]:
    missed: dict[int, str] = {}
    for each in decision.missed:
        for index in range(each.first, each.last + 1):
            assert index not in missed
            missed[index] = each.reason
    return decision.release, missed, decision.next


# --- what to try ---

BOUNDS = some.none() | some.integers(0, 30 * SECOND_US)
LATENESSES = some.builds(
    Lateness,
    policy=some.sampled_from(POLICIES),
    grace_us=some.integers(0, 30 * SECOND_US),
    max_us=BOUNDS,
    expires_after_us=BOUNDS,
)
WHENS = some.one_of(
    some.builds(Once, some.integers(START, START + 10 * SECOND_US)),
    some.builds(
        Every,
        start=some.integers(START, START + 10 * SECOND_US),
        period=some.builds(Period, some.just(0), some.integers(SECOND_US // 2, 5 * SECOND_US)),
        end=some.none() | some.integers(START + 10 * SECOND_US, START + 60 * SECOND_US),
        count=some.none() | some.integers(1, 30),
    ),
)
MOMENTS = some.integers(START, START + 60 * SECOND_US)


@given(WHENS, some.integers(1, 20), MOMENTS, LATENESSES)
def test_decisions_equal_the_one_by_one_model(when: When, n: int, now: int, lateness: Lateness) -> None:
    assert spelled_out(decide(when, n, now, lateness)) == model(when, n, now, lateness)


@given(some.integers(1, 20), some.integers(0, 900), LATENESSES)
def test_decisions_on_months_equal_the_one_by_one_model(n: int, days: int, lateness: Lateness) -> None:
    monthly = Every(START, Period(1, 0), None, 40)
    wide = msgspec.structs.replace(
        lateness,
        grace_us=lateness.grace_us * 86_400,
        max_us=None if lateness.max_us is None else lateness.max_us * 86_400,
    )
    now = START + days * DAY_US
    assert spelled_out(decide(monthly, n, now, wide)) == model(monthly, n, now, wide)


@given(WHENS, MOMENTS, LATENESSES)
def test_every_occurrence_is_released_or_missed_exactly_once(when: When, now: int, lateness: Lateness) -> None:
    """P2: following the decisions from the first occurrence on, due = released + missed, in order."""
    accounted: list[int] = []
    pending: int | None = 1
    while pending is not None and is_due(when, pending, now):
        release, missed, following = spelled_out(decide(when, pending, now, lateness))
        accounted += [*missed, *([] if release is None else [release])]
        assert following is None or following > pending
        pending = following
    due = list(takewhile(lambda index: is_due(when, index, now), count(1)))
    assert accounted == due
    assert pending == (len(due) + 1 if occurrence(when, len(due) + 1) is not None else None)


@given(some.integers(START, START + 10 * SECOND_US), MOMENTS, LATENESSES)
def test_one_shot_is_released_until_its_deadline(due: int, now: int, lateness: Lateness) -> None:
    limit = deadline(due, lateness)
    decision = decide(Once(due), 1, now, lateness)
    if now < due:
        assert decision == Decision(None, (), 1)
    elif limit is None or now <= limit[0]:
        assert decision == Decision(1, (), None)
    else:
        assert decision == Decision(None, (MissedRange(1, 1, limit[1]),), None)


# --- by example ---


@pytest.mark.parametrize(
    ("lateness", "expected"),
    [
        (Lateness("fire_all"), Decision(1, (), 2)),
        (Lateness("fire_latest"), Decision(11, (MissedRange(1, 10, "superseded"),), 12)),
        (Lateness("skip", grace_us=2 * SECOND_US), Decision(9, (MissedRange(1, 8, "late_skipped"),), 10)),
        (Lateness("fire_all", max_us=3 * SECOND_US), Decision(8, (MissedRange(1, 7, "late_max"),), 9)),
        (
            Lateness("fire_latest", expires_after_us=4 * SECOND_US),
            Decision(11, (MissedRange(1, 6, "expired"), MissedRange(7, 10, "superseded")), 12),
        ),
        (
            Lateness("skip", grace_us=SECOND_US, max_us=2 * SECOND_US, expires_after_us=3 * SECOND_US),
            Decision(10, (MissedRange(1, 9, "late_skipped"),), 11),
        ),
        (
            Lateness("fire_all", max_us=SECOND_US, expires_after_us=SECOND_US),
            Decision(10, (MissedRange(1, 9, "expired"),), 11),
        ),
    ],
)
def test_ten_seconds_of_downtime(lateness: Lateness, expected: Decision) -> None:
    assert decide(EVERY_SECOND, 1, seconds(10), lateness) == expected


def test_released_occurrences_are_not_released_again() -> None:
    within = Lateness("fire_all", max_us=60 * SECOND_US)
    assert decide(EVERY_SECOND, 5, seconds(10), within) == Decision(5, (), 6)
    latest = Lateness("fire_latest", max_us=60 * SECOND_US)
    assert decide(EVERY_SECOND, 5, seconds(10), latest) == Decision(11, (MissedRange(5, 10, "superseded"),), 12)


def test_next_occurrence_is_due_exactly_at_its_due_time() -> None:
    assert decide(EVERY_SECOND, 1, seconds(1) - 1, Lateness()) == Decision(1, (), 2)
    assert decide(EVERY_SECOND, 1, seconds(1), Lateness()) == Decision(2, (MissedRange(1, 1, "superseded"),), 3)


def test_all_overdue_occurrences_are_missed() -> None:
    lateness = Lateness("fire_latest", max_us=100)
    expected = Decision(None, (MissedRange(1, 11, "late_max"),), 12)
    assert decide(EVERY_SECOND, 1, seconds(10.5), lateness) == expected


def test_occurrence_that_is_not_due_stays_pending() -> None:
    assert decide(EVERY_SECOND, 12, seconds(10), Lateness()) == Decision(None, (), 12)


def test_ended_schedule_has_no_next_occurrence() -> None:
    ended = Every(START, Period(0, SECOND_US), None, 3)
    expected = Decision(3, (MissedRange(1, 2, "superseded"),), None)
    assert decide(ended, 1, seconds(100), Lateness()) == expected
    assert decide(ended, 4, seconds(100), Lateness()) == Decision(None, (), None)


def test_every_policy_releases_what_is_on_time() -> None:
    for policy in POLICIES:
        strict = Lateness(policy, grace_us=0, max_us=0, expires_after_us=0)
        assert decide(EVERY_SECOND, 5, seconds(4), strict) == Decision(5, (), 6)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_century_of_overdue_seconds_is_decided_without_a_loop(policy: Policy) -> None:
    century = 100 * 366 * 86_400
    decision = decide(EVERY_SECOND, 1, seconds(century), Lateness(policy, max_us=0))
    assert decision == Decision(century + 1, (MissedRange(1, century, "late_max"),), century + 2)


@pytest.mark.parametrize(
    ("lateness", "expected"),
    [
        (Lateness(), None),
        (Lateness("fire_all"), None),
        (Lateness("skip", grace_us=5), (105, "late_skipped")),
        (Lateness("fire_latest", grace_us=5), None),
        (Lateness(expires_after_us=7, max_us=6), (106, "late_max")),
        (Lateness(expires_after_us=6, max_us=7), (106, "expired")),
        (Lateness("skip", grace_us=6, expires_after_us=6, max_us=6), (106, "expired")),
        (Lateness("skip", grace_us=9, max_us=8), (108, "late_max")),
    ],
)
def test_the_earliest_deadline_wins(lateness: Lateness, expected: tuple[int, str] | None) -> None:
    assert deadline(100, lateness) == expected


@given(LATENESSES)
def test_round_trip_through_msgpack(lateness: Lateness) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(lateness), type=Lateness) == lateness
