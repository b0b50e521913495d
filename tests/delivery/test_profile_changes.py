"""What waits for a user follows a change of their preferences, quiet hours or time zone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.delivery.services import ACME, HOUR, Services
from tests.delivery.world import SECOND, TENANT, Recorder, World, words
from tidings.delivery.accept.change import NotificationChanges
from tidings.delivery.people.users import Users
from tidings.delivery.rows import change, delivery_key, delivery_put
from tidings.delivery.worker.context import DeliveryContext
from tidings.delivery.worker.writer import DeliveryWriter
from tidings.domain.errors import StoreError
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.schedules.command import Pause
from tidings.domain.schedules.schedule import Schedule
from tidings.ports.tables import ChangeGroup, GroupResult
from tidings.testing import eventually

NEW_YORK, BERLIN, TOKYO, LOS_ANGELES = "America/New_York", "Europe/Berlin", "Asia/Tokyo", "America/Los_Angeles"


# --- deliveries that wait for the end of quiet hours ---


def hours_around(now: int, before: int = 2, after: int = 3) -> str:
    """Hours in UTC that have begun and do not end soon."""
    hour = datetime.fromtimestamp(now / SECOND, UTC).hour
    return f"{(hour - before) % 24:02}:00-{(hour + after) % 24:02}:00"


class Held:
    """A world whose user Ada has quiet hours now."""

    def __init__(self, world: World) -> None:
        self.world, self.mail = world, Recorder("email")
        self.users = Users(world.store.tables, world.engine, world.clock)

    async def start(self) -> None:
        quiet = hours_around(self.world.clock.now())
        await self.users.put(TENANT, "ada", {"email": "ada@example.com", "quiet": quiet})
        self.world.start(self.world.worker({"mail": self.mail}))

    async def held(self, name: str, **more: Any) -> Delivery:
        await self.world.notify(words(name, category="news", **more))

        async def is_held() -> Delivery | None:
            found = await self.world.delivery(f"{name}/1")
            return found if found is not None and found.is_held else None

        found = await eventually(is_held)
        assert found is not None
        return found

    async def patch(self, **changes: Any) -> None:
        assert await self.users.patch(TENANT, "ada", changes) is not None


@pytest.fixture
async def held(world_on_each_store: World) -> Held:
    made = Held(world_on_each_store)
    await made.start()
    return made


async def test_it_leaves_when_the_quiet_hours_are_removed(held: Held) -> None:
    waiting = await held.held("n-1")
    await held.patch(quiet=None)
    [delivery] = await held.world.settled("n-1/1")
    assert (delivery.state, len(held.mail.calls)) == ("sent", 1)
    assert [step.reason for step in delivery.history] == ["quiet_hours", "profile_changed"]

    async def is_cancelled() -> bool:
        schedule = await held.world.engine.find(TENANT, f"n-1/1~{waiting.turn}")
        return schedule is not None and schedule.state == "cancelled"

    assert await eventually(is_cancelled), "nothing is left on the timeline"


async def test_it_is_dropped_when_the_user_opts_out(held: Held) -> None:
    await held.held("n-1")
    await held.patch(preferences={"news": False})
    [delivery] = await held.world.settled("n-1/1")
    assert (delivery.state, delivery.reason, held.mail.calls) == ("skipped", "opted_out", [])


async def test_it_leaves_when_it_is_not_quiet_in_the_new_zone(held: Held) -> None:
    await held.held("n-1")
    await held.patch(zone="Etc/GMT+8")  # eight hours behind UTC
    [delivery] = await held.world.settled("n-1/1")
    assert delivery.state == "sent"


async def test_it_waits_for_the_end_of_longer_quiet_hours(held: Held) -> None:
    before = await held.held("n-1")
    await held.patch(quiet=hours_around(held.world.clock.now(), 2, 5))

    async def is_moved() -> Delivery | None:
        found = await held.world.delivery("n-1/1")
        return found if found is not None and found.is_held and found.next_try != before.next_try else None

    after = await eventually(is_moved)
    assert after is not None
    assert before.next_try is not None
    assert after.next_try == before.next_try + 2 * HOUR
    assert held.mail.calls == []


async def test_a_change_that_does_not_concern_it_leaves_it_alone(held: Held) -> None:
    before = await held.held("n-1")
    await held.patch(name="Ada L.", locale="de")
    await held.patch(preferences={"offers": False, "sms": False})
    assert await held.world.delivery("n-1/1") == before


async def test_a_delivery_that_waits_for_another_reason_is_left_alone(services: Services) -> None:
    now = services.clock.now()
    throttled = Delivery(
        "a/1", "a", now, reason="rate_limited", channel="email", user="ada", next_try=now + HOUR, changed=now
    )
    await change(services.tables, [[delivery_put(ACME, throttled, 0)]], now)
    await services.users.patch(ACME, "ada", {"quiet": "22:00-07:00", "zone": TOKYO})
    [row] = await services.tables.get([delivery_key(ACME, "a/1")], now)
    assert row is not None
    assert row.body == delivery_put(ACME, throttled, 0).body


async def test_none_is_left_behind_and_none_is_sent_twice_when_all_happens_at_once(held: Held) -> None:
    """Deliveries are deferred while the quiet hours are switched off and on; in the end they are off."""
    names = [f"n-{number}" for number in range(60)]
    quiet = hours_around(held.world.clock.now())

    async def switch() -> None:
        for _ in range(6):
            await held.patch(quiet=None)
            await held.patch(quiet=quiet)

    async def accept() -> None:
        for name in names:
            await held.world.notify(words(name, category="news"))

    await asyncio.gather(accept(), switch(), switch())
    await held.patch(quiet=None)
    found = await held.world.settled(*(f"{name}/1" for name in names), timeout_s=30)
    assert {each.state for each in found} == {"sent"}
    assert len(held.mail.calls) == len(names)
    assert set(held.mail.took.values()) == {1}


async def test_what_is_not_claimed_is_not_sent_after_the_user_opted_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The opt-out is answered after the delivery was loaded and decided on, and before it is claimed."""
    users, mail, claim = Users(world.store.tables, world.engine, world.clock), Recorder("email"), DeliveryWriter.claim
    await users.put(TENANT, "ada", {"email": "ada@example.com"})

    async def opt_out_first(self: DeliveryWriter, claims: Sequence[tuple[DeliveryContext, Delivery]]) -> list[int]:
        await users.patch(TENANT, "ada", {"preferences": {"news": False}})
        return await claim(self, claims)

    monkeypatch.setattr(DeliveryWriter, "claim", opt_out_first)
    world.start(world.worker({"mail": mail}))
    await world.notify(words("n-1", category="news"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.reason, mail.calls) == ("skipped", "opted_out", [])


# --- notifications in the user's local time ---


def wall(schedule: Schedule, zone: str) -> str:
    return datetime.fromtimestamp(schedule.due / SECOND, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M")


async def scheduled(services: Services, name: str) -> Schedule:
    found = await services.engine.find(ACME, name)
    assert found is not None
    return found


def day(services: Services, zone: str, later: int = 0) -> str:
    moment = datetime.fromtimestamp(services.clock.now() / SECOND + later * 86_400, ZoneInfo(zone))
    return moment.strftime("%Y-%m-%d")


DAILY = {"rrule": "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0"}
REMINDER: dict[str, Any] = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}}


@pytest.mark.parametrize("when", [DAILY, {"cron": "0 9 * * *"}])
async def test_a_recurring_notification_follows_the_user(services: Services, when: dict[str, str]) -> None:
    await services.notify(**REMINDER, id="daily", **when)
    first = await scheduled(services, "daily")
    assert wall(first, NEW_YORK).endswith("09:00")
    await services.users.patch(ACME, "ada", {"zone": BERLIN})
    moved = await scheduled(services, "daily")
    assert wall(moved, BERLIN).endswith("09:00")
    assert services.clock.now() < moved.due <= services.clock.now() + 24 * HOUR
    services.clock.advance(moved.due - services.clock.now())
    assert len(await services.release("notify.email")) == 1
    second = await scheduled(services, "daily")
    assert (second.due - moved.due, second.occurrence) == (24 * HOUR, 2)


async def test_what_was_released_today_is_not_released_again_today(services: Services) -> None:
    await services.notify(**REMINDER, id="daily", **DAILY)
    first = await scheduled(services, "daily")
    services.clock.advance(first.due - services.clock.now())
    assert len(await services.release("notify.email")) == 1
    today = wall(first, NEW_YORK)[:10]
    await services.users.patch(ACME, "ada", {"zone": LOS_ANGELES})
    moved = await scheduled(services, "daily")
    assert wall(moved, LOS_ANGELES).endswith("09:00")
    assert wall(moved, LOS_ANGELES)[:10] > today
    assert moved.occurrence == 2


@pytest.mark.parametrize("when", [DAILY, {"cron": "0 9 * * *"}])
async def test_several_changes_in_a_row_lose_nothing_that_was_not_released(
    services: Services, when: dict[str, str]
) -> None:
    await services.notify(**REMINDER, id="daily", **when)
    for zone in (TOKYO, LOS_ANGELES, BERLIN, TOKYO, NEW_YORK, LOS_ANGELES):
        await services.users.patch(ACME, "ada", {"zone": zone})
        moved = await scheduled(services, "daily")
        assert wall(moved, zone).endswith("09:00")
        assert services.clock.now() < moved.due <= services.clock.now() + 24 * HOUR
        assert moved.occurrence == 1


@pytest.mark.parametrize("when", [DAILY, {"cron": "0 9 * * *"}])
async def test_several_changes_in_a_row_repeat_nothing_that_was_released(
    services: Services, when: dict[str, str]
) -> None:
    """9:00 in New York was released: every zone continues on the next day, however often the user moves."""
    await services.notify(**REMINDER, id="daily", **when)
    first = await scheduled(services, "daily")
    services.clock.advance(first.due - services.clock.now())
    assert len(await services.release("notify.email")) == 1
    next_day = wall(await scheduled(services, "daily"), NEW_YORK)
    for zone in (LOS_ANGELES, BERLIN, LOS_ANGELES, TOKYO, "UTC", LOS_ANGELES, NEW_YORK):
        await services.users.patch(ACME, "ada", {"zone": zone})
        moved = await scheduled(services, "daily")
        assert (wall(moved, zone), moved.occurrence) == (next_day, 2)


async def released(services: Services) -> list[int]:
    """The due times of what was released so far."""
    found = await services.release("notify.email")
    return [each.due for each in found]


async def overdue(services: Services, days: int, when: dict[str, Any], handled: int = 1, late: int = HOUR) -> Schedule:
    """A daily notification of which some occurrences were released, and `days` more are overdue."""
    await services.notify(**REMINDER, id="daily", **when)
    for _ in range(handled):
        services.clock.advance((await scheduled(services, "daily")).due - services.clock.now())
        await services.release("notify.email")
    pending = await scheduled(services, "daily")
    services.clock.advance(pending.due - services.clock.now() + (days - 1) * 24 * HOUR + late)
    return pending


@pytest.mark.parametrize("when", [DAILY, {"cron": "0 9 * * *"}])
@pytest.mark.parametrize("handled", [0, 1])
@pytest.mark.parametrize("zone", [BERLIN, TOKYO, LOS_ANGELES])
async def test_an_overdue_occurrence_keeps_its_instant(
    services: Services, when: dict[str, str], handled: int, zone: str
) -> None:
    """9:00 in New York was not released yet when the user moves: it is released, and not once more that day."""
    pending = await overdue(services, 1, when, handled)
    await services.users.patch(ACME, "ada", {"zone": zone})
    assert (await scheduled(services, "daily")).due == pending.due
    assert (await released(services))[handled:] == [pending.due]
    after = await scheduled(services, "daily")
    assert after.occurrence == handled + 2
    assert wall(after, zone)[-5:] == "09:00"
    assert wall(after, zone)[:10] > wall(pending, NEW_YORK)[:10]
    assert services.clock.now() < after.due <= pending.due + 48 * HOUR


async def test_every_overdue_occurrence_is_released_or_counted(services: Services) -> None:
    pending = await overdue(services, 3, {**DAILY, "late": "fire_all"})
    for zone in (TOKYO, BERLIN, LOS_ANGELES, BERLIN):
        await services.users.patch(ACME, "ada", {"zone": zone})
    await released(services)
    await released(services)
    assert (await released(services))[1:] == [pending.due + number * 24 * HOUR for number in range(3)]
    assert (await scheduled(services, "daily")).occurrence == 5


@pytest.mark.parametrize(
    ("late", "counted", "last"), [("fire_latest", {"superseded": 2}, True), ("skip", {"late_skipped": 3}, False)]
)
async def test_overdue_occurrences_that_are_not_released_are_counted(
    services: Services, late: str, counted: dict[str, int], last: bool
) -> None:
    pending = await overdue(services, 3, {**DAILY, "late": late})
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    missed = [(await lane.release(services.clock.now(), 1_000)).missed for lane in services.store.lanes()]
    assert [each for each in missed if each] == [counted]
    assert (await released(services))[1:] == [pending.due + 48 * HOUR] * last
    assert (await scheduled(services, "daily")).occurrence == 5


async def test_overdue_occurrences_outside_of_the_hours_of_the_new_zone_are_kept(services: Services) -> None:
    """16:00 and 17:00 in New York are 22:00 and 23:00 in Berlin, at which the rule never occurs."""
    hours = {"rrule": "FREQ=DAILY;BYHOUR=9,16,17;BYMINUTE=0;BYSECOND=0", "late": "fire_all"}
    await services.notify(**REMINDER, id="daily", **hours)
    while wall(await scheduled(services, "daily"), NEW_YORK)[-5:] != "16:00":
        services.clock.advance((await scheduled(services, "daily")).due - services.clock.now())
        await services.release("notify.email")
    before, pending = len(await released(services)), await scheduled(services, "daily")
    services.clock.advance(pending.due - services.clock.now() + HOUR)
    await services.users.patch(ACME, "ada", {"zone": BERLIN})
    await released(services)
    assert (await released(services))[before:] == [pending.due, pending.due + HOUR]
    assert wall(await scheduled(services, "daily"), BERLIN)[-5:] == "09:00"


async def test_overdue_occurrences_count(services: Services) -> None:
    await overdue(services, 2, {"rrule": DAILY["rrule"] + ";COUNT=4", "late": "fire_all"})
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    await released(services)
    await released(services)
    services.clock.advance(5 * 24 * HOUR)
    assert len(await released(services)) == 4
    assert (await scheduled(services, "daily")).state == "ended"


async def test_what_was_kept_and_released_is_not_released_again(services: Services) -> None:
    """A later change of the content continues the numbers, and of the zone too."""
    pending = await overdue(services, 1, DAILY)
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    assert len(await released(services)) == 2
    changes = NotificationChanges(services.tables, services.engine, services.acceptance, services.clock)
    await changes.patch(ACME, "daily", {"variables": {"what": "ten"}})
    due = (await scheduled(services, "daily")).due
    assert due > pending.due
    await services.users.patch(ACME, "ada", {"zone": BERLIN})
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    assert (await scheduled(services, "daily")).due == due
    assert len(await released(services)) == 2


async def test_a_schedule_that_is_released_during_the_move_is_not_released_again(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The occurrence is overdue when it is looked up, and released before the move is committed."""
    await overdue(services, 1, DAILY)
    find = services.engine.find

    async def release_next(tenant: str, schedule_id: str) -> Schedule | None:
        found = await find(tenant, schedule_id)
        await services.release("notify.email")
        return found

    monkeypatch.setattr(services.engine, "find", release_next)
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    monkeypatch.undo()
    assert len(await released(services)) == 2
    assert wall(await scheduled(services, "daily"), TOKYO)[-5:] == "09:00"


async def test_what_falls_due_during_the_move_is_released(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """The occurrence is due a moment after it is looked up, and before the move is committed."""
    pending = await overdue(services, 1, DAILY, late=-SECOND)
    find = services.engine.find

    async def wait_next(tenant: str, schedule_id: str) -> Schedule | None:
        found = await find(tenant, schedule_id)
        services.clock.advance(2 * SECOND)
        return found

    monkeypatch.setattr(services.engine, "find", wait_next)
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    monkeypatch.undo()
    assert (await released(services))[1:] == [pending.due]


async def test_a_count_continues_in_the_new_zone(services: Services) -> None:
    await services.notify(**REMINDER, id="twice", rrule=DAILY["rrule"] + ";COUNT=2")
    services.clock.advance((await scheduled(services, "twice")).due - services.clock.now())
    await services.release("notify.email")
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    services.clock.advance((await scheduled(services, "twice")).due - services.clock.now())
    assert len(await services.release("notify.email")) == 2
    assert (await scheduled(services, "twice")).state == "ended"


async def test_a_single_local_time_follows_the_user_while_it_is_to_come(services: Services) -> None:
    at = f"{day(services, NEW_YORK, 3)}T09:00:00"
    await services.notify(**REMINDER, id="once", at=at)
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    assert wall(await scheduled(services, "once"), TOKYO) == at[:16].replace("T", " ")
    await services.users.patch(ACME, "ada", {"zone": NEW_YORK})
    services.clock.advance(((await scheduled(services, "once")).due - services.clock.now()) - HOUR)
    before = await scheduled(services, "once")
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    assert (await scheduled(services, "once")).due == before.due, "9:00 has passed in Tokyo: it keeps its moment"


@pytest.mark.parametrize("zone", [NEW_YORK, "UTC"])
async def test_jitter_stays(services: Services, zone: str) -> None:
    """Each keeps the distance from 9:00 that it had, to the microsecond."""
    await services.users.put(ACME, "bob", {"name": "Bob", "email": "bob@example.com", "zone": zone})
    services.clock.advance(HOUR)
    for name, when in {"once": {"at": f"{day(services, zone, 3)}T09:00:00"}, "daily": DAILY}.items():
        await services.notify(**{**REMINDER, "user": "bob"}, id=name, jitter="PT1H", **when)
    before = {name: past_nine(await scheduled(services, name), zone) for name in ("once", "daily")}
    assert all(0 < each < 3_600 for each in before.values()), "it has some jitter"
    for there in (TOKYO, LOS_ANGELES):
        await services.users.patch(ACME, "bob", {"zone": there})
        assert {name: past_nine(await scheduled(services, name), there) for name in before} == before


def past_nine(schedule: Schedule, zone: str) -> float:
    shown = datetime.fromtimestamp(schedule.due // SECOND, ZoneInfo(zone))
    return (shown - shown.replace(hour=9, minute=0, second=0)).total_seconds() + schedule.due % SECOND / SECOND


async def test_it_follows_a_user_who_had_no_zone(services: Services) -> None:
    services.clock.advance(HOUR)  # 9:00 is past
    await services.users.put(ACME, "bob", {"name": "Bob", "email": "bob@example.com"})
    at = f"{day(services, 'UTC', 3)}T09:00:00"
    for name, when in {"once": {"at": at}, "daily": DAILY}.items():
        await services.notify(**{**REMINDER, "user": "bob"}, id=name, **when)
    await services.users.patch(ACME, "bob", {"zone": BERLIN})
    assert wall(await scheduled(services, "once"), BERLIN) == at[:16].replace("T", " ")
    assert wall(await scheduled(services, "daily"), BERLIN).endswith("09:00")


async def test_a_zone_or_an_instant_in_the_request_stays(services: Services) -> None:
    at = f"{day(services, 'UTC', 3)}T09:00:00"
    asked = {
        "zoned": {"at": at, "zone": BERLIN},
        "instant": {"at": f"{at}Z"},
        "rule": {**DAILY, "zone": BERLIN},
        "period": {"every": "PT1H"},
    }
    for name, when in asked.items():
        await services.notify(**REMINDER, id=name, **when)
    before = [await scheduled(services, name) for name in asked]
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    assert [await scheduled(services, name) for name in asked] == before


async def test_a_paused_one_stays_paused(services: Services) -> None:
    await services.notify(**REMINDER, id="daily", **DAILY)
    await services.engine.submit([Pause(ACME, "daily")])
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    moved = await scheduled(services, "daily")
    assert (moved.state, wall(moved, TOKYO)[-5:]) == ("paused", "09:00")


async def test_an_import_moves_them_too(services: Services) -> None:
    await services.notify(**REMINDER, id="daily", **DAILY)

    async def lines() -> AsyncIterator[str]:
        yield "id,email,zone\n"
        yield f"ada,ada@example.com,{TOKYO}\n"
        yield f"new,new@example.com,{TOKYO}\n"

    [result] = [each async for each in services.user_import.run(ACME, "csv", lines())]
    assert (result.created, result.replaced) == (1, 1)
    assert wall(await scheduled(services, "daily"), TOKYO).endswith("09:00")


async def test_no_notification_stays_in_the_former_zone_whenever_it_is_accepted(services: Services) -> None:
    async def accept() -> None:
        for number in range(20):
            await services.notify(**REMINDER, id=f"n-{number}", **DAILY)

    async def move() -> None:
        for zone in (TOKYO, LOS_ANGELES, BERLIN):
            await services.users.patch(ACME, "ada", {"zone": zone})

    await asyncio.gather(accept(), move())
    for number in range(20):
        assert wall(await scheduled(services, f"n-{number}"), BERLIN).endswith("09:00")


async def test_it_follows_a_user_who_is_deleted_and_created_again(services: Services) -> None:
    await services.notify(**REMINDER, id="daily", **DAILY)
    await services.users.delete(ACME, "ada")
    await services.users.put(ACME, "ada", {"email": "ada@example.com", "zone": TOKYO})
    assert wall(await scheduled(services, "daily"), TOKYO).endswith("09:00")


async def test_it_follows_a_user_who_is_deleted_and_imported_again(services: Services) -> None:
    await services.notify(**REMINDER, id="daily", **DAILY)
    await services.users.delete(ACME, "ada")

    async def lines() -> AsyncIterator[str]:
        yield "id,email,zone\n"
        for name in ("ada", "new"):
            yield f"{name},{name}@example.com,{TOKYO}\n"

    [result] = [each async for each in services.user_import.run(ACME, "csv", lines())]
    assert (result.created, result.replaced) == (2, 0)
    assert wall(await scheduled(services, "daily"), TOKYO).endswith("09:00")


# --- many consequences ---


class Commits:
    """Records how many groups each commit has. The one that has this number fails, as if the process had ended."""

    def __init__(self, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.fails_at: int | None = None
        self._commit = services.engine.commit
        monkeypatch.setattr(services.engine, "commit", self._counted)

    async def _counted(self, groups: Sequence[ChangeGroup]) -> list[GroupResult]:
        self.sizes.append(len(groups))
        if len(self.sizes) == self.fails_at:
            raise StoreError("the process ends")
        return await self._commit(groups)


async def in_many(services: Services, count: int) -> list[str]:
    names = [f"n-{number}" for number in range(count)]
    for name in names:
        await services.notify(**REMINDER, id=name, **DAILY)
    return names


async def zones(services: Services, names: Sequence[str]) -> set[object]:
    return {getattr((await scheduled(services, name)).when, "zone", None) for name in names}


async def test_consequences_are_committed_in_slices(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request must not hold the only writer of SQLite for seconds."""
    monkeypatch.setattr("tidings.delivery.people.users.SLICE", 3)
    names, commits = await in_many(services, 8), Commits(services, monkeypatch)
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    assert commits.sizes == [1, 3, 3, 2]
    assert await zones(services, names) == {TOKYO}


async def test_a_request_that_is_repeated_completes_what_was_interrupted(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.delivery.people.users.SLICE", 3)
    names, commits = await in_many(services, 8), Commits(services, monkeypatch)
    commits.fails_at = 3
    with pytest.raises(StoreError):
        await services.users.patch(ACME, "ada", {"zone": TOKYO})
    assert await zones(services, names) == {NEW_YORK, TOKYO}
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    assert await zones(services, names) == {TOKYO}


async def test_a_change_gives_way_to_the_next_one(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two slices the user moves on: the rest of the first change is not done."""
    monkeypatch.setattr("tidings.delivery.people.users.SLICE", 3)
    names, find, moves = await in_many(services, 8), services.engine.find, [BERLIN]

    async def move_first(tenant: str, schedule_id: str) -> Schedule | None:
        if moves:
            await services.users.patch(ACME, "ada", {"zone": moves.pop()})
        return await find(tenant, schedule_id)

    monkeypatch.setattr(services.engine, "find", move_first)
    await services.users.patch(ACME, "ada", {"zone": TOKYO})
    assert await zones(services, names) == {BERLIN}
