"""A one-shot whose local time is in a DST gap, with `gap: skip`: it stays pending, and is counted as missed."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.contract.factories import ACME, DAY, HOUR, answer, drain, found, listed, records, state
from tests.contract.test_rules import BERLIN, changed, scheduled
from tests.intake.test_rule_changes import renew, revision, say, zones_of_old  # noqa: F401
from tidings.domain.recurrence.request_fields import read_local
from tidings.domain.recurrence.rule import Overlap
from tidings.domain.schedules.command import Cancel, Fire, Pause, Replace, Resume
from tidings.domain.schedules.schedule import Query
from tidings.domain.schedules.when import Local
from tidings.ports import Store

JUMP = 1_806_195_600_000_000  # 2027-03-28T01:00:00Z
GONE = JUMP + HOUR // 2  # where `forward` would move half past two
BEFORE = JUMP - 30 * DAY
NOTE = "02:30 does not exist on 2027-03-28 in Europe/Berlin (clocks go from 02:00 to 03:00)"


def gone(overlap: Overlap = "first") -> Local:
    return read_local("2027-03-28 02:30", BERLIN, "skip", overlap)


async def test_a_time_in_a_gap_is_accepted_with_a_note_that_it_will_be_skipped(store: Store) -> None:
    outcome = await answer(store, scheduled(gone()), now=BEFORE)
    assert (outcome.outcome, outcome.due) == ("scheduled", GONE)
    assert outcome.note == f"{NOTE}: it will be skipped and counted as missed (gap)"
    again = await answer(store, scheduled(gone()), now=BEFORE)
    assert (again.outcome, again.due, again.note) == ("unchanged", GONE, outcome.note)
    schedule = await found(store, "one", BEFORE)
    assert (schedule.state, schedule.due, schedule.when) == ("pending", GONE, gone())


@pytest.mark.parametrize("overlap", ["first", "second", "both"])
async def test_a_time_in_a_gap_is_missed_and_never_released(store: Store, overlap: Overlap) -> None:
    await answer(store, scheduled(gone(overlap)), now=BEFORE)
    assert not (await drain(store, GONE - 1)).missed
    done = await drain(store, GONE)
    assert (done.lateness_us, dict(done.missed)) == ([], {"gap": 1})
    assert not (await drain(store, GONE + DAY)).missed
    schedule = await found(store, "one", GONE + DAY)
    assert (schedule.state, schedule.reason, schedule.due, schedule.finished) == ("missed", "gap", GONE, GONE)
    assert await listed(store, Query(state="missed"), GONE) == [schedule]
    last = (await store.history(ACME, "one", GONE + DAY))[-1]
    assert (last.event, last.occurrence, last.reason, last.at) == ("missed", 1, "gap", GONE)
    assert await records(store) == []


async def test_a_past_time_in_a_gap_is_missed_at_once(store: Store) -> None:
    outcome = await answer(store, scheduled(gone(), policy="fire_all"), now=GONE + 9 * DAY)
    assert (outcome.outcome, outcome.due) == ("scheduled", GONE)
    assert NOTE in (outcome.note or "")
    assert dict((await drain(store, GONE + 9 * DAY)).missed) == {"gap": 1}
    assert await state(store, "one", GONE + 9 * DAY) == "missed"


async def test_a_pause_does_not_change_the_reason(store: Store) -> None:
    await answer(store, scheduled(gone()), now=BEFORE)
    await answer(store, Pause(ACME, "one"), now=BEFORE)
    assert not (await drain(store, GONE)).missed
    resumed = await answer(store, Resume(ACME, "one", "fire_all"), now=GONE + HOUR)
    assert (resumed.outcome, resumed.due) == ("resumed", GONE)
    assert NOTE in (resumed.note or "")
    assert dict((await drain(store, GONE + HOUR)).missed) == {"gap": 1}


async def test_pause_and_cancel_return_the_note_too(store: Store) -> None:
    await answer(store, scheduled(gone()), now=BEFORE)
    for command in (Pause(ACME, "one"), Cancel(ACME, "one")):
        outcome = await answer(store, command, now=BEFORE)
        assert outcome.due == GONE
        assert NOTE in (outcome.note or "")


async def test_a_time_moved_forward_has_a_note_with_the_new_time(store: Store) -> None:
    forward = read_local("2027-03-28 02:30", BERLIN)
    outcome = await answer(store, scheduled(forward), now=BEFORE)
    note = f"{NOTE}: it is moved forward, to 03:30"
    assert (outcome.outcome, outcome.due, outcome.note) == ("scheduled", GONE, note)
    assert (await drain(store, GONE)).lateness_us == [0]


async def test_a_time_in_a_gap_can_be_fired_and_replaced(store: Store) -> None:
    for name in "ab":
        await answer(store, scheduled(gone(), name), now=BEFORE)
    assert (await answer(store, Fire(ACME, "a"), now=BEFORE)).outcome == "fired"
    there = read_local("2027-03-28 03:30", BERLIN, "skip")
    outcome = await answer(store, Replace(changed(scheduled(there, "b"))), now=BEFORE)
    assert (outcome.outcome, outcome.due, outcome.note) == ("replaced", GONE, None)
    done = await drain(store, GONE)
    assert not done.missed
    assert sorted(record.id for record in await records(store)) == ["a", "b"]


@contextlib.asynccontextmanager
async def by_new_rules(store: Store, zones_of_old: pytest.MonkeyPatch, zone: str) -> AsyncIterator[None]:  # noqa: F811
    """It was taken by the rules that Berlin has; from now on they are those of another zone."""
    say(zones_of_old, BERLIN)
    await answer(store, scheduled(gone()), now=BEFORE)
    with pytest.MonkeyPatch.context() as new:
        say(new, zone)
        yield


async def test_it_is_released_when_new_zone_rules_have_no_gap(
    store: Store,
    zones_of_old: pytest.MonkeyPatch,  # noqa: F811
) -> None:
    """By the old rules Berlin has the gap that it has; the new ones never change the clocks, as in Lagos."""
    async with by_new_rules(store, zones_of_old, "Africa/Lagos"):
        assert (await revision(store, now=BEFORE).zones()).moved == 0  # the same instant, and now it exists
        outcome = await answer(store, scheduled(gone()), now=BEFORE)
        assert (outcome.due, outcome.note) == (GONE, None)
        done = await drain(store, GONE)
        assert (done.lateness_us, dict(done.missed)) == ([0], {})
    renew(zones_of_old)
    assert await state(store, "one", GONE) == "released"


async def test_it_moves_to_its_instant_by_new_zone_rules(
    store: Store,
    zones_of_old: pytest.MonkeyPatch,  # noqa: F811
) -> None:
    """In Athens clocks jump an hour of the clock later, and half past two is there at the instant of half past one."""
    async with by_new_rules(store, zones_of_old, "Europe/Athens"):
        assert (await revision(store, now=BEFORE).zones()).moved == 1
        assert (await found(store, "one", BEFORE)).due == GONE - HOUR
        assert (await drain(store, GONE - HOUR)).lateness_us == [0]
    renew(zones_of_old)


async def test_a_time_in_a_gap_of_new_zone_rules_is_missed(
    store: Store,
    zones_of_old: pytest.MonkeyPatch,  # noqa: F811
) -> None:
    say(zones_of_old, "Africa/Lagos")
    await answer(store, scheduled(gone()), now=BEFORE)
    forward = read_local("2027-03-28 02:30", BERLIN)
    await answer(store, scheduled(forward, "forward"), now=BEFORE)
    renew(zones_of_old)
    await revision(store, now=BEFORE).zones()
    done = await drain(store, GONE)
    assert (done.lateness_us, dict(done.missed)) == ([0], {"gap": 1})
    assert [record.id for record in await records(store)] == ["forward"]
