"""A changed calendar, and changed rules of a zone, move what is pending by them, on every store."""

from collections.abc import Iterator

import pytest

from tests.contract.conftest import open_store, store  # noqa: F401
from tests.contract.making import ACME, DAY, HOUR, NOW, answer, drain, found, next_due, numbers, records
from tests.contract.test_rules import scheduled
from tidings.domain.command import Pause, Resume
from tidings.domain.facts import Fact, Revised
from tidings.domain.recurrence import compiling, zones
from tidings.domain.recurrence.reading import Terms, read_cron, read_local, read_rule
from tidings.domain.when import When
from tidings.intake.revision import Report, Revision
from tidings.ports import Store
from tidings.testing import SimulatedClock

TODAY = NOW // DAY


class Told:
    """What a revision told."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def __call__(self, fact: Fact) -> None:
        self.facts.append(fact)


def revision(store: Store, told: Told | None = None, now: int = NOW) -> Revision:  # noqa: F811
    return Revision(store, SimulatedClock(now), told or Told(), lambda: None)


def daily(**terms: object) -> When:
    return read_rule("FREQ=DAILY", NOW, Terms("2026-11-20T09:00", **terms))  # type: ignore[arg-type]


# Calendars


async def test_what_is_pending_moves_off_a_new_day(store: Store) -> None:  # noqa: F811
    told = Told()
    await revision(store).put_calendar(ACME, "off", ())
    await answer(store, scheduled(daily(calendar="off")))
    await drain(store, NOW)
    assert await revision(store, told).put_calendar(ACME, "off", (TODAY + 1,)) == Report(1)
    schedule = await found(store, "one")
    assert (schedule.due, schedule.occurrence) == (NOW + 2 * DAY, 2)
    assert NOW < (next_due(store) or 0) <= NOW + 2 * DAY
    assert told.facts == [Revised(NOW, "calendar off", 1)]
    [moved] = await store.moved(ACME, 10)
    assert (moved.id, moved.occurrence, moved.before, moved.after) == ("one", 2, NOW + DAY, NOW + 2 * DAY)
    assert [event.event for event in await store.history(ACME, "one", NOW)][-1] == "moved"


async def test_what_follows_keeps_to_the_new_days(store: Store) -> None:  # noqa: F811
    await revision(store).put_calendar(ACME, "off", (TODAY + 1,))
    await answer(store, scheduled(daily(calendar="off"), policy="fire_all"))
    await drain(store, NOW)
    assert await revision(store).put_calendar(ACME, "off", (TODAY + 2,)) == Report(1)
    await drain(store, NOW + 4 * DAY)
    assert [record.due for record in await records(store)] == [NOW, NOW + DAY, NOW + 3 * DAY, NOW + 4 * DAY]
    assert await numbers(store, "one") == [1, 2, 3, 4]


async def test_a_day_that_has_passed_does_not_come_back(store: Store) -> None:  # noqa: F811
    await revision(store).put_calendar(ACME, "off", (TODAY + 1, TODAY + 2))
    await answer(store, scheduled(daily(calendar="off"), policy="fire_all"))
    await drain(store, NOW)
    later = NOW + 2 * DAY + HOUR
    assert await revision(store, now=later).put_calendar(ACME, "off", ()) == Report(0)
    await drain(store, NOW + 4 * DAY)
    assert [record.due for record in await records(store)] == [NOW, NOW + 3 * DAY, NOW + 4 * DAY]
    assert await numbers(store, "one") == [1, 2, 3]


async def test_count_stays_the_rules_own(store: Store) -> None:  # noqa: F811
    """What a calendar drops was given by the rule, whenever it was dropped."""
    await revision(store).put_calendar(ACME, "off", (TODAY + 1,))
    rule = read_rule("FREQ=DAILY;COUNT=4", NOW, Terms("2026-11-20T09:00", calendar="off"))
    await answer(store, scheduled(rule, policy="fire_all"))
    await drain(store, NOW)
    await revision(store, now=NOW + DAY + HOUR).put_calendar(ACME, "off", ())
    await drain(store, NOW + 9 * DAY)
    assert [record.due for record in await records(store)] == [NOW, NOW + 2 * DAY, NOW + 3 * DAY]


async def test_nothing_left_ends_the_schedule(store: Store) -> None:  # noqa: F811
    await revision(store).put_calendar(ACME, "off", ())
    rule = read_rule("FREQ=DAILY;COUNT=2", NOW, Terms("2026-11-20T09:00", calendar="off"))
    await answer(store, scheduled(rule))
    await drain(store, NOW)
    assert await revision(store).put_calendar(ACME, "off", (TODAY + 1,)) == Report(1)
    assert (await found(store, "one")).state == "ended"
    assert (await drain(store, NOW + 9 * DAY)).lateness_us == []
    assert (await store.moved(ACME, 1))[0].after is None


async def test_other_tenants_other_calendars_and_the_paused(store: Store) -> None:  # noqa: F811
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


async def test_a_dropped_calendar_excludes_nothing(store: Store) -> None:  # noqa: F811
    await revision(store).put_calendar(ACME, "off", (TODAY + 1,))
    await answer(store, scheduled(daily(calendar="off")))
    await drain(store, NOW)
    assert await revision(store).drop_calendar(ACME, "off") == Report(1)
    assert (await found(store, "one")).due == NOW + DAY
    assert await revision(store).drop_calendar(ACME, "off") is None


async def test_many_are_walked_over_in_slices(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("tidings.intake.revision.SLICE_ROWS", 3)
    await revision(store).put_calendar(ACME, "off", ())
    for number in range(10):
        await answer(store, scheduled(daily(calendar="off"), f"s{number}"))
    assert await revision(store, now=NOW - 1).put_calendar(ACME, "off", (TODAY,)) == Report(10)
    assert len(await store.moved(ACME, 100)) == 10


# Zones


@pytest.fixture
def zones_of_old(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Berlin has the clocks of London, until the test undoes it: what an older tzdata could have said."""
    content = zones.content_of
    with monkeypatch.context() as old:
        old.setattr(zones, "VERSION", "2000a")
        old.setattr(zones, "content_of", lambda name: content("Europe/London" if name == "Europe/Berlin" else name))
        forget()
        yield old
    forget()


def forget() -> None:
    compiling.forget()


def renew(old: pytest.MonkeyPatch) -> None:
    old.undo()
    forget()


BERLIN = {"zone": "Europe/Berlin"}


async def test_a_change_of_tzdata_moves_what_is_pending(
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
    assert (await found(store, "rule")).tzdata == zones.VERSION
    assert (await found(store, "cron")).due == NOW + DAY - HOUR
    assert (await found(store, "local")).due == 1_796_112_000_000_000
    assert (await found(store, "utc")).due == NOW + DAY
    assert {moved.id for moved in await store.moved(ACME, 10)} == {"rule", "cron", "local"}
    assert "tzdata 2000a to" in (await store.moved(ACME, 10))[0].cause
    assert await revision(store).zones() == Report(0)
    await drain(store, NOW + DAY)
    assert [record.due for record in await records(store) if record.id == "rule"] == [NOW, NOW + DAY - HOUR]


async def test_nothing_is_told_where_nothing_changed(store: Store) -> None:  # noqa: F811
    told = Told()
    await answer(store, scheduled(daily(**BERLIN)))
    assert await revision(store, told).zones() == Report(0)
    assert [zone.name for zone in await store.zones()] == ["Europe/Berlin"]
    assert told.facts == []


async def test_exact_rules_do_not_move(store: Store, zones_of_old: pytest.MonkeyPatch) -> None:  # noqa: F811
    hourly = read_rule("FREQ=HOURLY", NOW, Terms(zone="Europe/Berlin"))
    await answer(store, scheduled(hourly))
    await drain(store, NOW + 3 * HOUR)
    renew(zones_of_old)
    await revision(store, now=NOW + 3 * HOUR).zones()
    schedule = await found(store, "one", NOW + 3 * HOUR)
    assert (schedule.due, schedule.occurrence) == (NOW + 4 * HOUR, 5)
