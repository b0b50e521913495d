"""Changes of a calendar or of the rules of a zone move pending occurrences, on every store."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from tests.contract.conftest import open_store, store  # noqa: F401
from tests.contract.factories import ACME, DAY, HOUR, NOW, answer, drain, found, next_due, numbers, records
from tests.contract.test_rules import scheduled
from tidings.domain.errors import Invalid
from tidings.domain.facts import Fact, Revised
from tidings.domain.recurrence import compiler, timezone
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_local, read_rule
from tidings.domain.schedules.command import Pause, Resume
from tidings.domain.schedules.reschedule import Pending, Slice, by_calendar
from tidings.domain.schedules.schedule import Calendar, KeptZone
from tidings.domain.schedules.when import Rule, When, occurrence
from tidings.intake.rule_changes import Report, RuleChanges
from tidings.ports import Store
from tidings.testing import SimulatedClock

TODAY = NOW // DAY
CONTENT = timezone.content_of


class Facts:
    """A listener that collects the facts of a recomputation."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def __call__(self, fact: Fact) -> None:
        self.facts.append(fact)


def revision(store: Store, listener: Facts | None = None, now: int = NOW) -> RuleChanges:  # noqa: F811
    return RuleChanges(store, SimulatedClock(now), listener or Facts(), lambda: None)


def daily(**terms: object) -> When:
    return read_rule("FREQ=DAILY", NOW, Terms("2026-11-20T09:00", **terms))  # type: ignore[arg-type]


# Calendars


async def test_a_pending_occurrence_moves_off_a_newly_excluded_day(store: Store) -> None:  # noqa: F811
    listener = Facts()
    await revision(store).put_calendar(ACME, "off", ())
    await answer(store, scheduled(daily(calendar="off")))
    await drain(store, NOW)
    assert await revision(store, listener).put_calendar(ACME, "off", (TODAY + 1,)) == Report(1)
    schedule = await found(store, "one")
    assert (schedule.due, schedule.occurrence) == (NOW + 2 * DAY, 2)
    assert NOW < (next_due(store) or 0) <= NOW + 2 * DAY
    assert listener.facts == [Revised(NOW, "calendar off", 1)]
    [moved] = await store.moved(ACME, 10)
    assert (moved.id, moved.occurrence, moved.before, moved.after) == ("one", 2, NOW + DAY, NOW + 2 * DAY)
    assert [event.event for event in await store.history(ACME, "one", NOW)][-1] == "moved"


async def test_later_occurrences_follow_the_changed_calendar(store: Store) -> None:  # noqa: F811
    await revision(store).put_calendar(ACME, "off", (TODAY + 1,))
    await answer(store, scheduled(daily(calendar="off"), policy="fire_all"))
    await drain(store, NOW)
    assert await revision(store).put_calendar(ACME, "off", (TODAY + 2,)) == Report(1)
    await drain(store, NOW + 4 * DAY)
    assert [record.due for record in await records(store)] == [NOW, NOW + DAY, NOW + 3 * DAY, NOW + 4 * DAY]
    assert await numbers(store, "one") == [1, 2, 3, 4]


async def test_an_occurrence_in_the_past_is_not_added_again(store: Store) -> None:  # noqa: F811
    await revision(store).put_calendar(ACME, "off", (TODAY + 1, TODAY + 2))
    await answer(store, scheduled(daily(calendar="off"), policy="fire_all"))
    await drain(store, NOW)
    later = NOW + 2 * DAY + HOUR
    assert await revision(store, now=later).put_calendar(ACME, "off", ()) == Report(0)
    await drain(store, NOW + 4 * DAY)
    assert [record.due for record in await records(store)] == [NOW, NOW + 3 * DAY, NOW + 4 * DAY]
    assert await numbers(store, "one") == [1, 2, 3]


async def test_occurrences_dropped_by_a_calendar_still_count(store: Store) -> None:  # noqa: F811
    """An occurrence that a calendar drops counts as given by the rule."""
    await revision(store).put_calendar(ACME, "off", (TODAY + 1,))
    rule = read_rule("FREQ=DAILY;COUNT=4", NOW, Terms("2026-11-20T09:00", calendar="off"))
    await answer(store, scheduled(rule, policy="fire_all"))
    await drain(store, NOW)
    await revision(store, now=NOW + DAY + HOUR).put_calendar(ACME, "off", ())
    await drain(store, NOW + 9 * DAY)
    assert [record.due for record in await records(store)] == [NOW, NOW + 2 * DAY, NOW + 3 * DAY]


async def test_a_schedule_without_remaining_occurrences_ends(store: Store) -> None:  # noqa: F811
    await revision(store).put_calendar(ACME, "off", ())
    rule = read_rule("FREQ=DAILY;COUNT=2", NOW, Terms("2026-11-20T09:00", calendar="off"))
    await answer(store, scheduled(rule))
    await drain(store, NOW)
    assert await revision(store).put_calendar(ACME, "off", (TODAY + 1,)) == Report(1)
    assert (await found(store, "one")).state == "ended"
    assert (await drain(store, NOW + 9 * DAY)).lateness_us == []
    assert (await store.moved(ACME, 1))[0].after is None


async def test_only_schedules_of_the_calendar_move_also_paused_ones(store: Store) -> None:  # noqa: F811
    for tenant in (ACME, "other"):
        await revision(store).put_calendar(tenant, "off", ())
    await revision(store).put_calendar(ACME, "spare", ())
    await answer(store, scheduled(daily(calendar="off"), "a"))
    await answer(store, scheduled(daily(calendar="spare"), "b"))
    await answer(store, scheduled(daily(), "c"))
    await answer(store, Pause(ACME, "a"))
    assert await revision(store, now=NOW - 1).put_calendar("other", "off", (TODAY,)) == Report(0)
    assert await revision(store, now=NOW - 1).put_calendar(ACME, "off", (TODAY,)) == Report(1)
    assert [(await found(store, one)).due for one in "abc"] == [NOW + DAY, NOW, NOW]
    assert (await drain(store, NOW)).lateness_us == [0, 0]
    await answer(store, Resume(ACME, "a"))
    assert (await drain(store, NOW + DAY)).lateness_us == [0, 0, 0]


async def test_a_deleted_calendar_excludes_nothing(store: Store) -> None:  # noqa: F811
    await revision(store).put_calendar(ACME, "off", (TODAY + 1,))
    await answer(store, scheduled(daily(calendar="off")))
    await drain(store, NOW)
    assert await revision(store).drop_calendar(ACME, "off") == Report(1)
    assert (await found(store, "one")).due == NOW + DAY
    assert await revision(store).drop_calendar(ACME, "off") is None


async def test_many_schedules_are_recomputed_in_slices(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("tidings.intake.rule_changes.SLICE_ROWS", 3)
    await revision(store).put_calendar(ACME, "off", ())
    for number in range(10):
        await answer(store, scheduled(daily(calendar="off"), f"s{number}"))
    assert await revision(store, now=NOW - 1).put_calendar(ACME, "off", (TODAY,)) == Report(10)
    assert len(await store.moved(ACME, 100)) == 10


class Crashing:
    """A store whose process crashes in the second slice."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._slices = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def revise(self, *arguments: Any) -> Slice:
        self._slices += 1
        if self._slices == 2:
            raise asyncio.CancelledError
        return await self._inner.revise(*arguments)


async def half_done(store: Store, days: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> RuleChanges:  # noqa: F811
    """Six schedules, and a recomputation that changes two of them before the process crashes."""
    monkeypatch.setattr("tidings.intake.rule_changes.SLICE_ROWS", 2)
    await revision(store).put_calendar(ACME, "off", days)
    for number in range(6):
        await answer(store, scheduled(daily(calendar="off"), f"s{number}"))
    await drain(store, NOW)
    return RuleChanges(cast(Store, Crashing(store)), SimulatedClock(NOW), Facts(), lambda: None)


async def dues(store: Store) -> list[int]:  # noqa: F811
    return [((await found(store, f"s{number}")).due - NOW) // DAY for number in range(6)]


async def test_an_interrupted_change_is_finished_at_the_next_start(
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dying = await half_done(store, (), monkeypatch)
    with pytest.raises(asyncio.CancelledError):
        await dying.put_calendar(ACME, "off", (TODAY + 1,))
    assert await dues(store) == [2, 2, 1, 1, 1, 1]
    assert [change.name for change in await store.unsettled()] == ["off"]
    await revision(store).catch_up()
    assert await dues(store) == [2] * 6
    assert await store.unsettled() == []


async def test_repeating_an_interrupted_change_finishes_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    dying = await half_done(store, (), monkeypatch)
    with pytest.raises(asyncio.CancelledError):
        await dying.put_calendar(ACME, "off", (TODAY + 1,))
    assert await revision(store).put_calendar(ACME, "off", (TODAY + 1,)) == Report(4)
    assert await store.unsettled() == []


async def test_an_interrupted_deletion_is_finished_at_the_next_start(
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dying = await half_done(store, (TODAY + 1,), monkeypatch)
    with pytest.raises(asyncio.CancelledError):
        await dying.drop_calendar(ACME, "off")
    assert await store.calendars(ACME) == []
    assert await store.calendar(ACME, "off") is None
    assert (await answer(store, scheduled(daily(calendar="off"), "late"))).outcome == "rejected"
    await revision(store).catch_up()
    assert await dues(store) == [1] * 6
    assert await store.unsettled() == []


async def test_the_later_of_two_concurrent_changes_wins(store: Store) -> None:  # noqa: F811
    """The first change is still being applied when the second one is stored, and does not undo it."""
    await revision(store).put_calendar(ACME, "off", ())
    await answer(store, scheduled(daily(calendar="off")))
    await drain(store, NOW)
    asked, go = asyncio.Event(), asyncio.Event()

    class Slow(Crashing):
        async def revise(self, *arguments: Any) -> Slice:
            asked.set()
            await go.wait()
            return await store.revise(*arguments)

    slow = RuleChanges(cast(Store, Slow(store)), SimulatedClock(NOW), Facts(), lambda: None)
    first = asyncio.create_task(slow.put_calendar(ACME, "off", (TODAY + 1,)))
    await asked.wait()
    change = await store.put_calendar(ACME, Calendar("off", (TODAY + 2,), NOW))
    go.set()
    await first
    assert await store.unsettled() == [change]
    await revision(store).catch_up()
    schedule = await found(store, "one")
    assert isinstance(schedule.when, Rule)
    assert (schedule.due, schedule.when.excluded) == (NOW + DAY, (TODAY + 2,))


async def test_a_schedule_that_cannot_be_recomputed_does_not_stop_others(
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await revision(store).put_calendar(ACME, "off", ())
    bad = read_rule("FREQ=DAILY;COUNT=9", NOW, Terms("2026-11-20T09:00", calendar="off"))
    for name in "abc":
        await answer(store, scheduled(bad if name == "b" else daily(calendar="off"), name))
    await drain(store, NOW)

    def failing(pending: Pending, days: tuple[int, ...], now: int) -> Pending:
        if isinstance(pending.when, Rule) and "COUNT" in pending.when.rrule:
            raise Invalid("calendar", "too much")
        return by_calendar(pending, days, now)

    monkeypatch.setattr("tidings.intake.rule_changes.by_calendar", failing)
    assert await revision(store).put_calendar(ACME, "off", (TODAY + 1,)) == Report(2)
    assert [((await found(store, name)).due - NOW) // DAY for name in "abc"] == [2, 1, 2]


async def test_the_number_of_calendars_of_a_tenant_is_limited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("tidings.timeline.store_rules.CALENDARS_MAX", 2)
    put = [revision(store).put_calendar(ACME, f"c{number}", ()) for number in range(5)]
    done = await asyncio.gather(*put, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["Invalid"] * 3 + ["Report"] * 2
    kept = await store.calendars(ACME)
    assert len(kept) == 2
    await revision(store).put_calendar(ACME, kept[0].name, (TODAY,))
    await revision(store).put_calendar("other", "c0", ())
    await revision(store).drop_calendar(ACME, kept[0].name)
    await revision(store).put_calendar(ACME, "new", ())


async def test_each_tenant_sees_only_its_own_moved_occurrences(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("tidings.timeline.store_rules.MOVED_MAX", 2)
    for tenant in (ACME, "other"):
        await revision(store).put_calendar(tenant, "off", ())
        for name in "abc":
            await answer(store, msgspec.structs.replace(scheduled(daily(calendar="off"), name), tenant=tenant))
    for tenant in (ACME, "other"):
        assert (await revision(store, now=NOW - 1).put_calendar(tenant, "off", (TODAY,))).moved == 3
    for tenant in (ACME, "other"):
        assert {moved.tenant for moved in await store.moved(tenant, 10)} == {tenant}
        assert len(await store.moved(tenant, 10)) == 2


# Zones


@pytest.fixture
def zones_of_old(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Berlin has the rules of London, as in an older tzdata, until the test ends."""
    with monkeypatch.context() as old:
        old.setattr(timezone, "VERSION", "2000a")
        say(old, "Europe/London")
        yield old
    forget()


def say(old: pytest.MonkeyPatch, other: str) -> None:
    """Give Berlin the rules of another zone."""
    old.setattr(timezone, "content_of", lambda name: CONTENT(other if name == "Europe/Berlin" else name))
    forget()


def forget() -> None:
    timezone.zone_named.cache_clear()
    timezone.rules_of.cache_clear()
    compiler.forget()


def renew(old: pytest.MonkeyPatch) -> None:
    old.undo()
    forget()


BERLIN = {"zone": "Europe/Berlin"}


async def test_a_change_of_tzdata_moves_pending_occurrences(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
) -> None:
    await answer(store, scheduled(daily(**BERLIN), "rule"))
    await answer(store, scheduled(daily(), "utc"))
    await answer(store, scheduled(read_cron("0 9 * * *", NOW + 1, Terms(zone="Europe/Berlin")), "cron"))
    await answer(store, scheduled(read_local("2026-12-01 09:00", "Europe/Berlin"), "local"))
    await answer(store, scheduled(daily(zone="Europe/Paris"), "elsewhere"))
    await drain(store, NOW)
    renew(zones_of_old)
    report = await revision(store).zones()
    assert report == Report(3, ("Europe/Berlin",))
    assert (await found(store, "rule")).due == NOW + DAY - HOUR
    assert (await found(store, "rule")).occurrence == 2
    assert (await found(store, "rule")).tzdata == timezone.VERSION
    assert (await found(store, "cron")).due == NOW + DAY - HOUR
    assert (await found(store, "local")).due == 1_796_112_000_000_000
    assert (await found(store, "utc")).due == NOW + DAY
    assert {moved.id for moved in await store.moved(ACME, 10)} == {"rule", "cron", "local"}
    assert "tzdata 2000a to" in (await store.moved(ACME, 10))[0].cause
    assert await revision(store).zones() == Report(0)
    await drain(store, NOW + DAY)
    assert [record.due for record in await records(store) if record.id == "rule"] == [NOW, NOW + DAY - HOUR]


async def test_no_fact_is_published_if_nothing_changed(store: Store) -> None:  # noqa: F811
    listener = Facts()
    await answer(store, scheduled(daily(**BERLIN)))
    await revision(store, listener).catch_up()
    assert [zone.name for zone in await store.zones()] == ["Europe/Berlin"]
    assert listener.facts == []


async def test_rules_in_elapsed_time_do_not_move(store: Store, zones_of_old: pytest.MonkeyPatch) -> None:  # noqa: F811
    hourly = read_rule("FREQ=HOURLY", NOW, Terms(zone="Europe/Berlin"))
    await answer(store, scheduled(hourly))
    await drain(store, NOW + 3 * HOUR)
    renew(zones_of_old)
    await revision(store, now=NOW + 3 * HOUR).zones()
    schedule = await found(store, "one", NOW + 3 * HOUR)
    assert (schedule.due, schedule.occurrence) == (NOW + 4 * HOUR, 5)


async def test_nothing_is_released_early_before_a_change_is_applied(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
) -> None:
    """Nine in Berlin was five in the morning, and is eight: at half past six it is not yet due."""
    say(zones_of_old, "Asia/Dubai")
    before = NOW - 12 * HOUR
    await answer(store, scheduled(daily(**BERLIN)), now=before)
    assert (await found(store, "one", before)).due == NOW - 4 * HOUR
    renew(zones_of_old)
    now = NOW - 2 * HOUR - HOUR // 2
    await drain(store, now)
    assert await records(store) == []
    await revision(store, now=now).zones()
    schedule = await found(store, "one", now)
    assert (schedule.due, schedule.occurrence) == (NOW - HOUR, 1)
    await drain(store, NOW)
    assert [record.due for record in await records(store)] == [NOW - HOUR]


@pytest.mark.parametrize("policy", ["fire_all", "fire_latest"])
async def test_no_instant_is_released_twice_if_clocks_now_run_ahead(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
    policy: Any,
) -> None:
    """Every minute of the day: the instants of the last hour have other local times now, but were released."""
    cron = read_cron("* 0-23 * * *", NOW, Terms(zone="Europe/Berlin"))
    await answer(store, scheduled(cron, policy=policy))
    minute = HOUR // 60
    for passed in range(3):
        await drain(store, NOW + passed * minute)
    renew(zones_of_old)
    later = NOW + 4 * minute
    await revision(store, now=later).zones()
    await drain(store, later)
    due = [record.due for record in await records(store)]
    expected = [0, 1, 2, 3, 4] if policy == "fire_all" else [0, 1, 2, 4]
    assert due == [NOW + n * minute for n in expected]
    assert (await found(store, "one", later)).due == NOW + 5 * minute


async def test_the_second_time_in_an_overlap_is_not_released_at_the_instant_of_the_first(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
) -> None:
    """By the new rules clocks show half past one an hour earlier, and again after the first was released."""
    say(zones_of_old, "America/Chicago")
    local = read_local("2026-11-01 01:30", "Europe/Berlin", "forward", "both")
    first = occurrence(local, 1) or 0
    assert occurrence(local, 2) == first + HOUR
    await answer(store, scheduled(local), now=first - HOUR)
    await drain(store, first)
    say(zones_of_old, "America/New_York")
    assert occurrence(local, 2) == first
    await revision(store, now=first).zones()
    await drain(store, first + DAY)
    assert [record.due for record in await records(store)] == [first]


async def test_handled_occurrences_are_not_repeated_despite_the_count(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
) -> None:
    """By the new rules more occurrences are in the past than the count allows: none is released again."""
    say(zones_of_old, "UTC")
    yearly = "FREQ=YEARLY;BYMONTH=10;BYDAY=-1SU;COUNT=4"
    rule = read_rule(yearly, NOW, Terms("2024-10-27T02:30", zone="Europe/Berlin", overlap="both"))
    await answer(store, scheduled(rule, policy="fire_all"))
    await drain(store, NOW)
    assert await numbers(store, "one") == [1, 2, 3]
    renew(zones_of_old)
    await revision(store).zones()
    schedule = await found(store, "one")
    assert (schedule.occurrence, schedule.due) == (4, 1_824_942_600_000_000)  # 2027-10-31T00:30:00Z


async def test_occurrences_in_a_new_dst_gap_change_no_number(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
) -> None:
    """Half past two on the last Sunday of March existed each year, and is in a DST gap by the new rules."""
    say(zones_of_old, "UTC")
    monthly = "FREQ=MONTHLY;BYDAY=-1SU;COUNT=9"
    rule = read_rule(monthly, NOW, Terms("2026-02-22T02:30", zone="Europe/Berlin", gap="skip"))
    await answer(store, scheduled(rule, policy="fire_all"))
    await drain(store, NOW - 200 * DAY)  # 2026-05-04
    assert await numbers(store, "one") == [1, 2, 3]
    renew(zones_of_old)
    await revision(store, now=NOW - 200 * DAY).zones()
    await drain(store, NOW + 99 * DAY)
    assert await numbers(store, "one") == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    kept = await records(store)
    assert (kept[3].due, kept[-1].final) == (1_780_187_400_000_000, True)  # 2026-05-31T00:30:00Z


async def test_the_second_time_in_an_overlap_is_not_lost(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
) -> None:
    """The first of two half past twos was released; the rules change, but clocks still show it twice."""
    say(zones_of_old, "Europe/Paris")
    rule = read_rule("FREQ=DAILY;COUNT=9", NOW, Terms("2026-10-25T02:30", zone="Europe/Berlin", overlap="both"))
    first = occurrence(rule, 1) or 0
    await answer(store, scheduled(rule, policy="fire_all"), now=first)
    await drain(store, first)
    renew(zones_of_old)
    await revision(store, now=first).zones()
    schedule = await found(store, "one", first)
    assert (schedule.occurrence, schedule.due) == (2, first + HOUR)


async def test_excluded_occurrences_stay_excluded_while_another_is_overdue(store: Store) -> None:  # noqa: F811
    await revision(store).put_calendar(ACME, "off", (TODAY + 1, TODAY + 2, TODAY + 3))
    await answer(store, scheduled(daily(calendar="off"), policy="fire_all"))
    await drain(store, NOW)
    await answer(store, Pause(ACME, "one"))
    later = NOW + 4 * DAY + HOUR
    await revision(store, now=later).put_calendar(ACME, "off", ())
    await answer(store, Resume(ACME, "one"), now=later)
    await drain(store, later)
    assert [record.due for record in await records(store)] == [NOW, NOW + 4 * DAY]


async def test_schedules_accepted_by_a_node_with_older_rules_are_recomputed(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
) -> None:
    """A fleet in which one node has the new rules already, and another does not."""
    with pytest.MonkeyPatch.context() as new:
        new.setattr(timezone, "content_of", CONTENT)
        new.setattr(timezone, "VERSION", "2001a")
        forget()
        await answer(store, scheduled(daily(**BERLIN), "a"))
        await revision(store).zones()
    forget()
    await answer(store, scheduled(daily(**BERLIN), "b"))
    assert (await found(store, "b")).due == NOW
    renew(zones_of_old)
    assert await revision(store).zones() == Report(1, ("Europe/Berlin",))
    assert [(await found(store, name)).due for name in "ab"] == [NOW - HOUR, NOW - HOUR]


async def test_changed_rules_under_the_same_version_are_detected(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
) -> None:
    await answer(store, scheduled(daily(**BERLIN)))
    zones_of_old.setattr(timezone, "content_of", CONTENT)
    forget()
    await revision(store).catch_up()
    assert (await found(store, "one")).due == NOW - HOUR


async def test_schedules_whose_former_rules_are_unknown_are_recomputed(
    store: Store,  # noqa: F811
    zones_of_old: pytest.MonkeyPatch,
) -> None:
    say(zones_of_old, "Asia/Dubai")
    before = NOW - 12 * HOUR
    await answer(store, scheduled(daily(**BERLIN)), now=before)
    timezone._past.clear()
    zones_of_old.setattr(store, "zones", _no_zones)
    say(zones_of_old, "Europe/Berlin")
    await revision(store, now=before).zones()
    schedule = await found(store, "one", before)
    assert (schedule.due, schedule.occurrence) == (NOW - HOUR, 1)


async def _no_zones() -> list[KeptZone]:
    return []
