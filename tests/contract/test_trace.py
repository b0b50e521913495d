"""Everything about a notification, read at once: its row, its deliveries, its schedule and its history."""

import asyncio

import msgspec

from tests.contract.factories import ACME, DAY, NOW, add, drain, every
from tests.contract.test_tables import GLOBEX, key, put
from tidings.domain.notifications.tables import DELIVERIES_BY_NOTIFICATION
from tidings.domain.schedules.command import Cancel, Pause
from tidings.ports import NotificationTrace, Store
from tidings.ports.tables import ANY, ChangeGroup


async def check_trace(store: Store, name: str, now: int) -> None:
    """What is read at once is what single reads find; the message of a released one is left out."""
    found = await store.trace(ACME, name, now, 2)
    [row] = await store.tables.get([key(name)], now)
    deliveries = await store.tables.find(DELIVERIES_BY_NOTIFICATION, ACME, (name,), now, limit=2, newest=True)
    schedule = await store.find(ACME, name, now)
    if schedule is not None and found.schedule is not None and found.schedule.message is None:
        schedule = msgspec.structs.replace(schedule, message=None)
    assert found == NotificationTrace(row, deliveries, schedule, await store.history(ACME, name, now))


async def test_everything_about_a_notification_is_read_at_once(store: Store) -> None:
    commands = (add("later", NOW + DAY), add("soon", NOW + 1), add("late", NOW + DAY), every("often"), every("paused"))
    for command in commands:
        assert command.id is not None
        rows = [put(command.id)] + [
            put(f"{command.id}/{n}", table="delivery", notification=command.id, due=NOW + n) for n in (1, 2, 3)
        ]
        [result] = await store.tables.commit([ChangeGroup(tuple(rows), command)], NOW)
        assert result.version
    await store.apply([Cancel(ACME, "late"), Pause(ACME, "paused")], NOW)
    await drain(store, NOW + 2)
    for now in (NOW + 2, NOW + 40 * DAY):
        for name in ("later", "soon", "late", "often", "paused", "unknown"):
            await check_trace(store, name, now)
    found = await store.trace(ACME, "soon", NOW + 2, 2)
    assert [row.key.name for row in found.deliveries] == ["soon/3", "soon/2"]
    assert found.schedule is not None
    assert (found.schedule.state, [event.event for event in found.events]) == ("released", ["accepted", "released"])
    assert await store.trace(GLOBEX, "soon", NOW, 2) == NotificationTrace(None, [], None, [])


async def test_everything_about_a_notification_is_of_one_moment(store: Store) -> None:
    async def change(count: int) -> None:
        for number in range(count):
            body = b"%d" % number
            rows = (put("one", body, ANY), put("one/1", body, ANY, table="delivery", notification="one"))
            await store.tables.commit([ChangeGroup(rows)], NOW)

    async def read() -> None:
        for _ in range(150):
            found = await store.trace(ACME, "one", NOW, 10)
            assert found.notification is not None
            assert [row.body for row in found.deliveries] == [found.notification.body]

    await change(1)
    await asyncio.gather(change(150), read(), read())
