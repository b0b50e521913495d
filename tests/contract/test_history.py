"""The due times and rules in a history: accepted, moved, missed, ended."""

from tests.contract.factories import ACME, DAY, HOUR, NOW, answer, drain, every, found
from tests.contract.test_rules import BERLIN, hourly, scheduled
from tests.intake.test_rule_changes import TODAY, daily, revision
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_rule
from tidings.domain.schedules.command import Replace
from tidings.domain.schedules.schedule import Event
from tidings.ports import Store


async def history(store: Store, now: int, schedule_id: str = "one") -> list[Event]:
    return await store.history(ACME, schedule_id, now)


async def test_the_accepted_line_has_the_first_due_time(store: Store) -> None:
    for add in (scheduled(hourly(), jitter_us=7), every("every", period=HOUR)):
        first = add.due
        await answer(store, add, now=NOW - HOUR)
        for hour in range(3):
            assert (await history(store, NOW, add.id or ""))[0] == Event(NOW - HOUR, "accepted", due=first)
            await drain(store, NOW + hour * HOUR + 7)
        released = (await history(store, NOW, add.id or ""))[1]
        assert (released.event, released.occurrence, released.due) == ("released", 1, first)


async def test_the_moved_line_has_the_old_and_the_new_due_time(store: Store) -> None:
    await revision(store).put_calendar(ACME, "off", ())
    await answer(store, scheduled(daily(calendar="off")), now=NOW - DAY)
    await revision(store, now=NOW - HOUR).put_calendar(ACME, "off", (TODAY,))
    accepted, moved = await history(store, NOW)
    assert (accepted.event, moved.event, moved.occurrence) == ("accepted", "moved", 1)
    assert accepted.due in {NOW, None}  # never the moment to which it was moved
    assert (moved.due, moved.reason) == (NOW + DAY, "calendar off, from 2026-11-20T09:00:00.000000Z")


async def test_the_missed_line_has_the_first_due_time(store: Store) -> None:
    await answer(store, scheduled(hourly(), policy="skip"))
    await drain(store, NOW + 5 * HOUR + HOUR // 2)
    missed = (await history(store, NOW + 6 * HOUR))[-1]
    assert (missed.event, missed.occurrence, missed.due, missed.count) == ("missed", 1, NOW, 6)


async def test_the_ended_line_has_the_rule(store: Store) -> None:
    rule = read_rule("FREQ=DAILY;COUNT=2", NOW, Terms("2026-11-20T10:00", BERLIN))
    cron = read_cron("0 9 * * *", NOW, Terms(count=2))
    for name, when in (("rule", rule), ("cron", cron)):
        await answer(store, scheduled(when, name, "fire_all"))
    await drain(store, NOW + 2 * DAY)
    assert {(await found(store, name, NOW + 2 * DAY)).state for name in ("rule", "cron")} == {"ended"}
    ends = [(await history(store, NOW + 2 * DAY, name))[-1] for name in ("rule", "cron")]
    assert [(end.event, end.reason) for end in ends] == [
        ("ended", "rrule FREQ=DAILY;COUNT=2 in Europe/Berlin"),
        ("ended", "cron 0 9 * * *"),
    ]
    assert (await history(store, NOW + 2 * DAY, "rule"))[0].due in {NOW, None}  # never that of the last one


async def test_the_accepted_line_of_a_replaced_schedule_has_its_first_due_time(store: Store) -> None:
    for name, add in (("rule", scheduled(hourly(), "rule", jitter_us=7)), ("every", every("every", period=HOUR))):
        await answer(store, add, now=NOW - HOUR)
        for hour in range(3):
            await drain(store, NOW + hour * HOUR + 7)
        await answer(store, Replace(scheduled(daily(), name)), now=NOW + 3 * HOUR - 1)
        assert (await history(store, NOW + 3 * HOUR, name))[0] == Event(NOW - HOUR, "accepted", due=add.due)


async def test_a_moved_and_replaced_schedule_has_no_wrong_due_time_in_its_history(store: Store) -> None:
    await revision(store).put_calendar(ACME, "off", ())
    await answer(store, scheduled(daily(calendar="off")), now=NOW - DAY)
    await revision(store, now=NOW - HOUR).put_calendar(ACME, "off", (TODAY,))
    await answer(store, Replace(scheduled(hourly())), now=NOW - HOUR)
    accepted = (await history(store, NOW))[0]
    assert (accepted.event, accepted.at) == ("accepted", NOW - DAY)
    assert accepted.due in {NOW, None}  # never the moment to which it was moved


async def test_an_ended_and_reused_id_has_no_wrong_due_time_in_its_history(store: Store) -> None:
    await answer(store, scheduled(hourly(";COUNT=3"), policy="fire_all"), now=NOW - HOUR)
    await drain(store, NOW + 2 * HOUR)
    await answer(store, Replace(scheduled(daily()), reuse=True), now=NOW + 3 * HOUR)
    accepted = (await history(store, NOW + 3 * HOUR))[0]
    assert (accepted.event, accepted.at) == ("accepted", NOW - HOUR)
    assert accepted.due in {NOW, None}  # never that of the last one
