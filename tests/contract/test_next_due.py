"""Answers contain the due time of the next occurrence that can be released, as far as is known."""

from tests.contract.factories import (
    ACME,
    DAY,
    HOUR,
    MINUTE,
    NOW,
    add,
    answer,
    applied,
    drain,
    found,
    listed,
    records,
    release,
)
from tests.contract.test_rules import changed, hourly, scheduled
from tidings.domain.recurrence.request_fields import Terms, read_rule
from tidings.domain.schedules.command import Pause, Replace, Resume
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import Calendar, Query
from tidings.domain.schedules.when import Every, Period
from tidings.ports import Store

LATER = NOW + 5 * HOUR + 30 * MINUTE  # five of an hourly rule have passed, and the sixth half an hour ago
NEXT = NOW + 6 * HOUR


async def test_next_due_of_a_past_start_with_skip(store: Store) -> None:
    outcome = await answer(store, scheduled(hourly(), policy="skip"), now=LATER)
    assert (outcome.outcome, outcome.due, outcome.note) == ("scheduled", NEXT, None)
    schedule = await found(store, "one", LATER)
    assert (schedule.due, schedule.occurrence) == (NEXT, 7)
    again = await answer(store, scheduled(hourly(), policy="skip"), now=LATER)
    assert (again.outcome, again.due) == ("unchanged", NEXT)
    assert dict((await drain(store, LATER)).missed) == {"late_skipped": 6}
    assert await listed(store, Query(), LATER) == [schedule]  # until then in the order of what is pending
    assert (await drain(store, NEXT)).lateness_us == [0]
    assert [record.due for record in await records(store)] == [outcome.due]


async def test_next_due_of_a_past_start_with_fire_latest(store: Store) -> None:
    outcome = await answer(store, scheduled(hourly(), policy="fire_latest"), now=LATER)
    assert outcome.due == NEXT - HOUR
    await drain(store, LATER)
    assert [record.due for record in await records(store)] == [outcome.due]


async def test_next_due_of_a_past_start_with_fire_all(store: Store) -> None:
    assert (await answer(store, scheduled(hourly(), policy="fire_all"), now=LATER)).due == NOW


async def test_next_due_of_a_past_start_within_its_grace(store: Store) -> None:
    outcome = await answer(store, scheduled(hourly(), policy="skip"), now=NEXT + MINUTE)
    assert outcome.due == NEXT


async def test_next_due_of_a_replacement_with_skip(store: Store) -> None:
    every = Every(NOW, Period(0, HOUR))
    await answer(store, scheduled(every, policy="skip"), now=NOW - DAY)
    outcome = await answer(store, Replace(changed(scheduled(every, policy="skip"))), now=LATER)
    assert (outcome.outcome, outcome.due) == ("replaced", NEXT)
    await drain(store, NEXT)
    assert [record.due for record in await records(store)] == [NEXT]


async def test_next_due_after_a_pause_with_skip(store: Store) -> None:
    await answer(store, scheduled(hourly(), jitter_us=7))
    await answer(store, Pause(ACME, "one"))
    resumed = await answer(store, Resume(ACME, "one", "skip"), now=LATER)
    assert (resumed.outcome, resumed.due) == ("resumed", NEXT + 7)
    schedule = await found(store, "one", LATER)
    assert (schedule.due, schedule.occurrence) == (NEXT + 7, 7)
    assert (await answer(store, Resume(ACME, "one"), now=LATER)).due == NEXT + 7
    assert dict((await drain(store, LATER)).missed) == {"paused": 6}
    assert (await drain(store, NEXT + 7)).lateness_us == [0]


async def test_next_due_after_a_pause_with_more_overdue_than_catch_up_max(store: Store) -> None:
    await answer(store, scheduled(read_rule("FREQ=SECONDLY", NOW)))
    await answer(store, Pause(ACME, "one"))
    resumed = await answer(store, Resume(ACME, "one", "fire_all"), now=NOW + 6 * HOUR)
    note = "11,601 of what is overdue will be counted as missed (catch_up_max): at most the latest 10,000 leave at once"
    assert (resumed.outcome, resumed.note) == ("resumed", note)
    assert dict((await release(store, NOW + 6 * HOUR, 1)).missed) == {"catch_up_max": 11_601}


async def test_next_due_of_a_one_shot_that_expired_during_a_pause(store: Store) -> None:
    await applied(store, add("one", lateness=Lateness("skip")), Pause(ACME, "one"))
    resumed = await answer(store, Resume(ACME, "one"), now=LATER)
    assert (resumed.due, resumed.note) == (NOW, "it is overdue and will not be released: missed (late_skipped)")
    assert dict((await drain(store, LATER)).missed) == {"late_skipped": 1}


async def test_next_due_of_a_rule_that_is_entirely_in_the_past(store: Store) -> None:
    outcome = await answer(store, scheduled(hourly(";COUNT=3"), policy="skip"), now=LATER)
    assert (outcome.outcome, outcome.due) == ("scheduled", NOW + 2 * HOUR)
    assert outcome.note == "it is overdue and will not be released: missed (late_skipped)"
    assert dict((await drain(store, LATER)).missed) == {"late_skipped": 3}


async def test_next_due_when_a_calendar_excludes_the_first_days(store: Store) -> None:
    today = NOW // DAY
    await store.put_calendar(ACME, Calendar("off", (today, today + 1), NOW))
    for policy in ("skip", "fire_latest"):
        rule = read_rule("FREQ=DAILY", NOW, Terms("2026-11-18T09:00", calendar="off"))
        outcome = await answer(store, scheduled(rule, policy, policy), now=NOW + HOUR)
        assert outcome.due == (NOW + 2 * DAY if policy == "skip" else NOW - DAY)
    await drain(store, NOW + 2 * DAY)
    due = [record.due for record in await records(store) if record.id == "skip"]
    assert due == [NOW + 2 * DAY]
