"""Recurring schedules: each occurrence from the anchor, once, in order, and what was missed."""

import msgspec
import pytest

from tests.contract.factories import (
    ACME,
    DAY,
    FIRE_ALL,
    HOUR,
    MILLISECOND,
    MINUTE,
    NOW,
    SECOND,
    add,
    answer,
    applied,
    drain,
    every,
    found,
    next_due,
    numbers,
    records,
    release,
    state,
)
from tidings.domain.schedules.command import Cancel, Fire, Pause, Resume
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.when import Period
from tidings.ports import Store

JANUARY_31 = 1_801_353_600_000_000  # 2027-01-31T00:00:00Z
LATEST = Lateness("fire_latest")


async def test_every_occurrence_is_released_once_at_its_due_time(store: Store) -> None:
    await applied(store, every("often", NOW, count=3))
    for step in range(3):
        assert (await drain(store, NOW + step * SECOND - 1)).lateness_us == []
        assert (await drain(store, NOW + step * SECOND)).lateness_us == [0]
    assert (await drain(store, NOW + HOUR)).lateness_us == []
    kept = await records(store)
    assert [record.occurrence for record in kept] == ["often/1/1", "often/1/2", "often/1/3"]
    assert [record.due for record in kept] == [NOW, NOW + SECOND, NOW + 2 * SECOND]
    assert [record.final for record in kept] == [False, False, True]
    assert {record.message for record in kept} == {every("often").message}


async def test_the_pending_occurrence_is_returned(store: Store) -> None:
    await applied(store, every("often", NOW, period=MINUTE))
    await drain(store, NOW + MINUTE)
    schedule = await found(store, "often", NOW + MINUTE)
    assert (schedule.state, schedule.occurrence, schedule.due) == ("pending", 3, NOW + 2 * MINUTE)
    assert (schedule.accepted, schedule.generation, schedule.finished) == (NOW, 1, None)
    assert next_due(store) == NOW + 2 * MINUTE


async def test_a_rule_without_an_end_continues(store: Store) -> None:
    await applied(store, every("often", NOW, period=DAY))
    for day in range(50):
        assert (await drain(store, NOW + day * DAY)).lateness_us == [0]
    assert await state(store, "often", NOW + 50 * DAY) == "pending"
    assert await numbers(store, "often") == list(range(1, 51))


async def test_the_end_is_included(store: Store) -> None:
    await applied(store, every("to", NOW, end=NOW + 2 * SECOND), every("below", NOW, end=NOW + 2 * SECOND - 1))
    await drain(store, NOW + HOUR)
    assert await numbers(store, "to") == [1, 2, 3]
    assert await numbers(store, "below") == [1, 2]


async def test_a_schedule_ends_after_its_last_occurrence(store: Store) -> None:
    await applied(store, every("often", NOW, count=2))
    await drain(store, NOW + 5 * SECOND)
    schedule = await found(store, "often", NOW + 5 * SECOND)
    assert (schedule.state, schedule.finished) == ("ended", NOW + 5 * SECOND)
    assert (schedule.occurrence, schedule.due) == (2, NOW + SECOND)
    assert (await answer(store, Cancel(ACME, "often"), NOW + MINUTE)).outcome == "already_released"


# --- drift-free ---


async def test_lateness_does_not_move_later_occurrences(store: Store) -> None:
    await applied(store, every("often", NOW, period=10 * SECOND))
    for step, late in enumerate((0, 3 * SECOND, 9_999_999, 1, 0)):
        await drain(store, NOW + step * 10 * SECOND + late)
    assert [record.due for record in await records(store)] == [NOW + n * 10 * SECOND for n in range(5)]


async def test_months_are_counted_from_the_anchor(store: Store) -> None:
    """Jan 31, Feb 28, Mar 31: the short month does not shorten those after it."""
    await applied(store, every("monthly", JANUARY_31, period=Period(1, 0), count=3))
    for moment in (JANUARY_31, JANUARY_31 + 28 * DAY, JANUARY_31 + 59 * DAY):
        assert (await drain(store, moment - 1)).lateness_us == []
        assert (await drain(store, moment)).lateness_us == [0]
    assert await state(store, "monthly", JANUARY_31 + 59 * DAY) == "ended"


async def test_jitter_moves_every_occurrence_by_the_same_and_never_the_anchor(store: Store) -> None:
    await applied(store, every("often", NOW, period=10 * SECOND, count=3, jitter_us=4 * SECOND))
    for step in range(3):
        moment = NOW + step * 10 * SECOND + 4 * SECOND
        assert (await drain(store, moment - 1)).lateness_us == []
        assert (await drain(store, moment)).lateness_us == [0]
    assert [record.due for record in await records(store)] == [NOW + (10 * n + 4) * SECOND for n in range(3)]
    assert await state(store, "often", NOW + MINUTE) == "ended"


async def test_jitter_does_not_make_anything_late(store: Store) -> None:
    skip = Lateness("skip", grace_us=SECOND)
    await applied(store, every("often", NOW, period=10 * SECOND, jitter_us=8 * SECOND, lateness=skip))
    assert (await drain(store, NOW + 9 * SECOND)).lateness_us == [SECOND]
    assert (await drain(store, NOW + 19 * SECOND + 1)).missed == {"late_skipped": 1}


# --- after an outage ---


async def test_fire_all_releases_each_in_turn(store: Store) -> None:
    await applied(store, every("often", NOW))
    now = NOW + 99 * SECOND + MILLISECOND
    drained = await drain(store, now)
    assert drained.missed == {}
    assert sorted(drained.lateness_us) == [n * SECOND + MILLISECOND for n in range(100)]
    assert await numbers(store, "often") == list(range(1, 101))
    assert (await found(store, "often", now)).occurrence == 101


async def test_there_is_more_while_the_next_occurrence_is_due_too(store: Store) -> None:
    await applied(store, every("often", NOW + 1, period=HOUR, count=3))
    await release(store, NOW, 1000)
    releases = [await release(store, NOW + 2 * DAY, 1000) for _ in range(3)]
    assert [release.more for release in releases] == [True, True, False]


async def test_fire_latest_releases_one_and_counts_the_rest(store: Store) -> None:
    await applied(store, every("often", NOW, lateness=LATEST))
    now = NOW + 10**6 * SECOND  # a million occurrences cost nothing
    drained = await drain(store, now)
    assert (drained.lateness_us, drained.missed) == ([0], {"superseded": 10**6})
    assert await numbers(store, "often") == [10**6 + 1]
    assert (await found(store, "often", now)).due == now + SECOND


async def test_skip_releases_what_is_within_its_grace(store: Store) -> None:
    await applied(store, every("often", NOW, lateness=Lateness("skip", grace_us=2 * SECOND)))
    drained = await drain(store, NOW + 60 * SECOND)
    assert drained.missed == {"late_skipped": 58}
    assert await numbers(store, "often") == [59, 60, 61]


async def test_a_bound_holds_under_every_policy(store: Store) -> None:
    bound = Lateness("fire_all", max_us=5 * SECOND)
    await applied(store, every("often", NOW, lateness=bound, count=20))
    drained = await drain(store, NOW + 10 * SECOND)
    assert drained.missed == {"late_max": 5}
    assert await numbers(store, "often") == [6, 7, 8, 9, 10, 11]


async def test_the_last_one_released_late_is_final(store: Store) -> None:
    await applied(store, every("all", NOW, count=5), every("latest", NOW, count=5, lateness=LATEST))
    await drain(store, NOW + HOUR)
    finals = {(record.id, record.number) for record in await records(store) if record.final}
    assert finals == {("all", 5), ("latest", 5)}
    assert [await state(store, name, NOW + HOUR) for name in ("all", "latest")] == ["ended", "ended"]


async def test_a_schedule_that_released_nothing_is_missed(store: Store) -> None:
    skip = Lateness("skip", grace_us=SECOND)
    await applied(store, every("never", NOW, count=3, lateness=skip))
    drained = await drain(store, NOW + HOUR)
    assert (drained.lateness_us, drained.missed) == ([], {"late_skipped": 3})
    schedule = await found(store, "never", NOW + HOUR)
    assert (schedule.state, schedule.reason, schedule.occurrence) == ("missed", "late_skipped", 3)
    assert (await answer(store, Cancel(ACME, "never"), NOW + HOUR)).outcome == "rejected"


async def test_a_fire_is_in_addition_and_not_one_of_its_occurrences(store: Store) -> None:
    skip = Lateness("skip", grace_us=SECOND)
    await applied(store, every("never", NOW + SECOND, count=2, lateness=skip), Fire(ACME, "never"))
    await drain(store, NOW + HOUR)
    assert await numbers(store, "never") == [-1]
    assert await state(store, "never", NOW + HOUR) == "missed"


async def test_a_schedule_whose_last_occurrences_were_missed_has_ended(store: Store) -> None:
    skip = Lateness("skip", grace_us=SECOND)
    await applied(store, every("once", NOW, count=3, lateness=skip))
    await drain(store, NOW)
    assert (await drain(store, NOW + HOUR)).missed == {"late_skipped": 2}
    assert await state(store, "once", NOW + HOUR) == "ended"
    assert not any(record.final for record in await records(store))


@pytest.mark.parametrize("lateness", [FIRE_ALL, LATEST, Lateness("skip", 3 * SECOND), Lateness(max_us=2 * SECOND)])
@pytest.mark.parametrize("rows_max", [1, 3, 1000])
async def test_every_occurrence_is_released_or_missed(store: Store, lateness: Lateness, rows_max: int) -> None:
    """Over irregular releases due = released + missed, and each number is released at most once, in order."""
    names = [f"r{number}" for number in range(5)]
    await applied(store, *(every(name, NOW, count=40, lateness=lateness, jitter_us=7) for name in names))
    released = missed = 0
    for moment in (0, 1, 7, 8, 9, 20, 27, 28, 100):
        drained = await drain(store, NOW + moment * SECOND + 7, rows_max)
        released, missed = released + len(drained.lateness_us), missed + drained.missed.total()
        assert released + missed == len(names) * min(40, moment + 1)
    assert released == len(await records(store))
    for name in names:
        left = await numbers(store, name)
        assert left == sorted(set(left))


async def test_order_holds_between_a_schedules_occurrences(store: Store) -> None:
    await applied(store, every("often", NOW, count=30), *(add(None, NOW + n * SECOND) for n in range(30)))
    await drain(store, NOW + HOUR, rows_max=5)
    assert await numbers(store, "often") == list(range(1, 31))


async def test_a_fire_does_not_end_or_number_anything(store: Store) -> None:
    await applied(store, every("often", NOW + SECOND, count=1), Fire(ACME, "often"))
    await drain(store, NOW)
    assert await state(store, "often") == "pending"
    await drain(store, NOW + SECOND)
    assert await numbers(store, "often") == [-1, 1]
    assert await state(store, "often", NOW + SECOND) == "ended"


async def test_the_jitter_is_shown_as_it_was_configured(store: Store) -> None:
    spread = msgspec.structs.replace(every("one", NOW + HOUR), jitter_us=5 * SECOND, jitter_window_us=MINUTE)
    await applied(store, msgspec.structs.replace(spread, due=spread.due + 5 * SECOND))
    shown = await found(store, "one")
    assert (shown.due, shown.jitter_window_us) == (NOW + HOUR + 5 * SECOND, MINUTE)
    await applied(store, Pause(ACME, "one"), Resume(ACME, "one"))
    assert (await found(store, "one")).jitter_window_us == MINUTE
