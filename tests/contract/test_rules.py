"""Rules, cron expressions and local times on every store: releases, ends, pauses and changes."""

import msgspec

from tests.contract.factories import (
    ACME,
    DAY,
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    TOPIC,
    answer,
    digest,
    drain,
    found,
    numbers,
    records,
)
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_local, read_rule
from tidings.domain.schedules.command import Add, Fire, Outcome, Pause, Replace, Resume
from tidings.domain.schedules.lateness import Lateness, Policy
from tidings.domain.schedules.schedule import Calendar, Message, pack
from tidings.domain.schedules.when import Every, Local, Period, When, occurrence
from tidings.ports import Store

YEAR = 365 * DAY
BERLIN = "Europe/Berlin"


def scheduled(when: When, schedule_id: str = "one", policy: Policy = "fire_latest", jitter_us: int = 0) -> Add:
    due = occurrence(when, 1)
    assert due is not None
    message = pack(Message(None, b"hello"))
    lateness = Lateness(policy)
    return Add(
        ACME,
        schedule_id,
        TOPIC,
        when,
        message,
        digest(f"{when}"),
        due + jitter_us,
        lateness=lateness,
        jitter_us=jitter_us,
    )


def hourly(more: str = "", start: str = "2026-11-20T09:00:00", **terms: object) -> When:
    return read_rule(f"FREQ=HOURLY{more}", NOW, Terms(start, **terms))  # type: ignore[arg-type]


async def test_a_rule_is_released_at_each_of_its_times_and_the_last_record_is_final(store: Store) -> None:
    rule = read_rule("FREQ=DAILY;BYHOUR=9;COUNT=3", NOW, Terms("2026-11-20T09:00", BERLIN))
    assert (await answer(store, scheduled(rule))).due == NOW - HOUR
    for day in range(3):
        assert len((await drain(store, NOW - HOUR + day * DAY)).lateness_us) == 1
    assert (await drain(store, NOW + YEAR)).lateness_us == []
    kept = await records(store)
    assert [record.due for record in kept] == [NOW - HOUR + day * DAY for day in range(3)]
    assert [record.final for record in kept] == [False, False, True]
    ended = await found(store, "one", NOW + 3 * DAY)
    assert (ended.state, ended.occurrence) == ("ended", 3)


async def test_a_rule_is_shown_as_it_was_asked_for(store: Store) -> None:
    rule = read_rule("FREQ=DAILY;BYHOUR=9", NOW, Terms("2026-11-20T09:00", BERLIN, "skip", "both"))
    await answer(store, scheduled(rule))
    schedule = await found(store, "one")
    assert schedule.when == rule
    assert schedule.tzdata is not None
    await drain(store, NOW)
    assert (await found(store, "one")).when == rule


async def test_cron_runs_until_its_end(store: Store) -> None:
    cron = read_cron("*/20 9 * * *", NOW - 1, Terms(zone="UTC", until="2026-11-20T09:40:00"))
    await answer(store, scheduled(cron, policy="fire_all"))
    await drain(store, NOW + DAY)
    assert [record.due for record in await records(store)] == [NOW, NOW + 20 * MINUTE, NOW + 40 * MINUTE]
    assert (await found(store, "one", NOW + DAY)).state == "ended"


async def test_a_local_time_is_a_one_shot(store: Store) -> None:
    local = read_local("2026-11-20 11:00", BERLIN)
    assert (await answer(store, scheduled(local))).due == NOW + HOUR
    assert (await found(store, "one")).when == local
    assert (await drain(store, NOW + HOUR - 1)).lateness_us == []
    assert (await drain(store, NOW + HOUR)).lateness_us == [0]
    schedule = await found(store, "one", NOW + HOUR)
    assert (schedule.state, schedule.offset) == ("released", 0)
    assert (await answer(store, Fire(ACME, "one"), now=NOW + HOUR)).outcome == "already_released"


async def test_a_local_time_that_is_fired_is_released_only_once(store: Store) -> None:
    await answer(store, scheduled(read_local("2026-11-21 11:00", BERLIN)))
    assert (await answer(store, Fire(ACME, "one"))).outcome == "fired"
    assert (await drain(store, NOW + 3 * DAY)).lateness_us == [3 * DAY]
    assert await numbers(store, "one") == [1]


async def test_a_local_time_in_a_dst_overlap_can_be_released_twice(store: Store) -> None:
    local = Local(read_local("2027-10-31 02:30", BERLIN).wall, BERLIN, overlap="both")
    await answer(store, scheduled(local))
    at = occurrence(local, 1) or 0
    assert (await drain(store, at)).lateness_us == [0]
    assert (await drain(store, at + HOUR)).lateness_us == [0]
    assert (await found(store, "one", at + HOUR)).state == "ended"


async def test_a_rule_that_is_fired_continues(store: Store) -> None:
    await answer(store, scheduled(hourly()))
    assert (await answer(store, Fire(ACME, "one"))).outcome == "fired"
    await drain(store, NOW)
    assert sorted(await numbers(store, "one")) == [-1, 1]
    assert (await found(store, "one")).occurrence == 2


async def test_a_year_of_downtime_of_a_rule_of_seconds_is_one_release(store: Store) -> None:
    await answer(store, scheduled(read_rule("FREQ=SECONDLY", NOW, Terms("2026-11-20T09:00:00"))))
    drained = await drain(store, NOW + YEAR)
    seconds = YEAR // SECOND
    assert (drained.lateness_us, drained.missed) == ([0], {"superseded": seconds})
    assert await numbers(store, "one") == [seconds + 1]
    schedule = await found(store, "one", NOW + YEAR)
    assert (schedule.occurrence, schedule.due) == (seconds + 2, NOW + YEAR + SECOND)


async def test_fire_all_after_a_year_releases_the_latest_ten_thousand(store: Store) -> None:
    await answer(store, scheduled(read_rule("FREQ=SECONDLY", NOW, Terms("2026-11-20T09:00:00")), policy="fire_all"))
    for lane in store.lanes():
        await lane.release(NOW + YEAR, 1)
    released = await numbers(store, "one")
    assert released[0] == YEAR // SECOND + 1 - 10_000 + 1


async def test_skip_after_a_year_counts_what_it_skips(store: Store) -> None:
    await answer(store, scheduled(read_rule("FREQ=SECONDLY", NOW, Terms("2026-11-20T09:00:00")), policy="skip"))
    drained = await drain(store, NOW + YEAR)
    assert drained.missed == {"late_skipped": YEAR // SECOND - 60}
    assert len(drained.lateness_us) == 61


async def paused_for_five_hours(store: Store, policy: Policy = "fire_latest") -> int:
    await answer(store, scheduled(hourly(), policy=policy))
    await drain(store, NOW)
    assert (await answer(store, Pause(ACME, "one"))).outcome == "paused"
    later = NOW + 5 * HOUR + MINUTE
    assert (await drain(store, later)).lateness_us == []
    return later


async def test_resume_follows_the_policy_of_the_schedule(store: Store) -> None:
    later = await paused_for_five_hours(store)
    assert (await answer(store, Resume(ACME, "one"), now=later)).outcome == "resumed"
    drained = await drain(store, later)
    assert (len(drained.lateness_us), drained.missed) == (1, {"superseded": 4})
    assert await numbers(store, "one") == [1, 6]


async def test_resume_can_release_all_that_was_missed(store: Store) -> None:
    later = await paused_for_five_hours(store, "skip")
    await answer(store, Resume(ACME, "one", "fire_all"), now=later)
    drained = await drain(store, later)
    assert (len(drained.lateness_us), drained.missed) == (5, {})
    assert await numbers(store, "one") == [1, 2, 3, 4, 5, 6]
    drained = await drain(store, later + 3 * HOUR + MINUTE)  # from here on its own policy holds again
    assert (len(drained.lateness_us), drained.missed) == (0, {"late_skipped": 3})


async def test_resume_can_release_only_the_latest(store: Store) -> None:
    later = await paused_for_five_hours(store, "fire_all")
    await answer(store, Resume(ACME, "one", "fire_latest"), now=later)
    drained = await drain(store, later)
    assert (len(drained.lateness_us), drained.missed) == (1, {"superseded": 4})


async def test_resume_can_skip_what_was_missed(store: Store) -> None:
    later = await paused_for_five_hours(store, "fire_all")
    await answer(store, Resume(ACME, "one", "skip"), now=later)
    drained = await drain(store, later)
    assert (drained.lateness_us, drained.missed) == ([], {"paused": 5})
    schedule = await found(store, "one", later)
    assert (schedule.occurrence, schedule.due) == (7, NOW + 6 * HOUR)


async def test_a_choice_at_resume_holds_however_late_the_release_is(store: Store) -> None:
    later = await paused_for_five_hours(store, "fire_all")
    await answer(store, Resume(ACME, "one", "skip"), now=later)
    drained = await drain(store, later + 2 * HOUR)
    assert (len(drained.lateness_us), drained.missed) == (2, {"paused": 5})


async def test_a_one_shot_that_was_missed_in_a_pause_can_be_skipped(store: Store) -> None:
    await answer(store, scheduled(read_local("2026-11-20 11:00", BERLIN)))
    await answer(store, Pause(ACME, "one"))
    await answer(store, Resume(ACME, "one", "skip"), now=NOW + DAY)
    assert (await drain(store, NOW + DAY)).missed == {"paused": 1}
    assert (await found(store, "one", NOW + DAY)).state == "missed"


async def replaced(store: Store, when: When, *, keep_count: bool) -> Outcome:
    await answer(store, scheduled(hourly(";COUNT=5")))
    await drain(store, NOW)
    await drain(store, NOW + HOUR)
    return await answer(store, Replace(scheduled(when), keep_count=keep_count), now=NOW + HOUR)


async def test_replace_restarts_the_count(store: Store) -> None:
    assert (await replaced(store, hourly(";COUNT=5", "2026-11-20T11:30:00"), keep_count=False)).outcome == "replaced"
    for hour in range(10):
        await drain(store, NOW + hour * HOUR + 30 * MINUTE)
    assert await numbers(store, "one") == [1, 2, 1, 2, 3, 4, 5]


async def test_replace_can_keep_the_count(store: Store) -> None:
    assert (await replaced(store, hourly(";COUNT=5", "2026-11-20T11:30:00"), keep_count=True)).outcome == "replaced"
    schedule = await found(store, "one", NOW + HOUR)
    assert (schedule.occurrence, schedule.due) == (3, NOW + 2 * HOUR + 30 * MINUTE)
    for hour in range(10):
        await drain(store, NOW + hour * HOUR + 30 * MINUTE)
    kept = await records(store)
    assert [record.occurrence for record in kept] == ["one/1/1", "one/1/2", "one/2/3", "one/2/4", "one/2/5"]
    assert [record.final for record in kept] == [False] * 4 + [True]
    assert (await found(store, "one", NOW + DAY)).state == "ended"


async def test_replace_says_when_the_kept_count_is_used_up(store: Store) -> None:
    outcome = await replaced(store, hourly(";COUNT=2", "2026-11-20T11:30:00"), keep_count=True)
    assert outcome.outcome == "rejected"
    assert "2 were released already" in (outcome.reason or "")
    assert (await found(store, "one", NOW + HOUR)).occurrence == 3


async def test_a_calendar_skips_its_days(store: Store) -> None:
    tomorrow = NOW // DAY + 1
    await store.put_calendar(ACME, Calendar("off", (tomorrow,), NOW))
    assert await store.calendars(ACME) == [Calendar("off", (tomorrow,), NOW)]
    assert await store.calendars("other") == []
    assert await store.calendar(ACME, "off") == Calendar("off", (tomorrow,), NOW)
    assert await store.calendar("other", "off") is None
    rule = read_rule("FREQ=DAILY;COUNT=3", NOW, Terms("2026-11-20T09:00", calendar="off"))
    await answer(store, scheduled(rule, policy="fire_all"))
    await drain(store, NOW + 9 * DAY)
    assert [record.due for record in await records(store)] == [NOW, NOW + 2 * DAY]


async def test_a_calendar_that_does_not_exist_is_rejected(store: Store) -> None:
    rule = read_rule("FREQ=DAILY", NOW, Terms("2026-11-20T09:00", calendar="off"))
    for command in (scheduled(rule), Replace(scheduled(rule))):
        outcome = await answer(store, command)
        assert outcome.outcome == "rejected"
        assert "there is no calendar 'off'" in (outcome.reason or "")
    assert await store.find(ACME, "one", NOW) is None


async def test_only_the_schedule_that_a_calendar_makes_impossible_is_rejected(store: Store) -> None:
    days = range(NOW // DAY, NOW // DAY + 5_000)
    await store.put_calendar(ACME, Calendar("off", tuple(days), NOW))
    terms = Terms("2026-11-20T09:00", calendar="off", on_excluded="next_day")
    often = read_rule("FREQ=HOURLY", NOW, terms)
    commands = [scheduled(hourly(), "before"), scheduled(often), scheduled(hourly(), "behind")]
    outcomes = await store.apply(commands, NOW)
    assert [outcome.outcome for outcome in outcomes] == ["scheduled", "rejected", "scheduled"]
    assert (outcomes[1].reason or "").startswith("on_excluded: 5,000 excluded days of up to 24 occurrences")
    assert (await answer(store, Replace(scheduled(often, "before")))).outcome == "rejected"
    assert (await found(store, "before")).when == hourly()


async def test_a_calendar_can_be_dropped(store: Store) -> None:
    await store.put_calendar(ACME, Calendar("off", (1, 2), NOW))
    assert not await store.drop_calendar("other", "off")
    assert await store.drop_calendar(ACME, "off")
    assert not await store.drop_calendar(ACME, "off")
    assert await store.calendars(ACME) == []


async def test_jitter_moves_due_times_and_not_the_anchor(store: Store) -> None:
    await answer(store, scheduled(hourly(), jitter_us=7 * SECOND))
    assert (await drain(store, NOW + 7 * SECOND - 1)).lateness_us == []
    assert (await drain(store, NOW + 7 * SECOND)).lateness_us == [0]
    assert (await found(store, "one", NOW + MINUTE)).due == NOW + HOUR + 7 * SECOND


async def test_a_kept_count_continues_behind_what_was_handled(store: Store) -> None:
    """Though the new one begins where the old one began, nothing of the past is released again."""
    daily = read_rule("FREQ=DAILY;COUNT=10", NOW, Terms("2026-11-20T09:00"))
    every = Every(NOW, Period(0, DAY), count=10)
    for when, name in ((daily, "rule"), (every, "every")):
        old, new = scheduled(when, name, "fire_all"), scheduled(when, name, "fire_all")
        await answer(store, old)
        await drain(store, NOW + 4 * DAY)
        outcome = await answer(store, Replace(changed(new), keep_count=True), now=NOW + 4 * DAY)
        assert (outcome.outcome, outcome.due) == ("replaced", NOW + 5 * DAY)
        assert (await drain(store, NOW + 4 * DAY)).lateness_us == []
        await drain(store, NOW + 99 * DAY)
        kept = [record for record in await records(store) if record.id == name]
        assert [record.due for record in kept] == [NOW + day * DAY for day in range(10)]
        assert [record.occurrence for record in kept][4:6] == [f"{name}/1/5", f"{name}/2/6"]
        assert kept[-1].final


async def test_a_kept_count_loses_no_overdue_occurrence(store: Store) -> None:
    daily = read_rule("FREQ=DAILY;COUNT=4", NOW, Terms("2026-11-20T09:00"))
    await answer(store, scheduled(daily, policy="fire_all"))
    await drain(store, NOW)
    later = NOW + 2 * DAY + HOUR
    await answer(store, Replace(changed(scheduled(daily, policy="fire_all")), keep_count=True), now=later)
    await drain(store, NOW + 9 * DAY)
    assert [record.due for record in await records(store)] == [NOW + day * DAY for day in range(4)]


def changed(add: Add) -> Add:
    """The same times with another value."""
    return msgspec.structs.replace(add, content=digest("changed"), message=pack(Message(None, b"changed")))
