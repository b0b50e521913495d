"""Inboxes, from the notification to the line that is read."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.delivery.world import SECOND, TENANT, World, ada, living, words
from tidings.channels.in_app import PLUGIN, InAppChannel, Settings
from tidings.delivery.inbox import Inbox, Unread
from tidings.domain.errors import Invalid, StoreError
from tidings.domain.notifications.delivery import Accepted, Permanent, Temporary
from tidings.domain.notifications.message import InApp
from tidings.domain.notifications.user import User
from tidings.ports import ProviderContext
from tidings.testing import eventually


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with living() as world:
        await world.put_user(ada())
        yield world


def channel(world: World) -> InAppChannel:
    return InAppChannel(Settings(), world.clock, world.store.documents)


def line(number: int, user: str = "ada") -> InApp:
    return InApp(f"n-{number}/1", user, TENANT, f"Line {number}", "Tea at nine.")


async def test_a_notification_becomes_a_line_that_can_be_read(world: World) -> None:
    inbox = Inbox(world.store.documents, world.clock)
    world.start(world.worker({"in_app": channel(world)}))
    await world.notify(words("n-1", "in_app"))
    await world.settled("n-1/1")
    page = await inbox.page(TENANT, "ada")
    assert [(each.id, each.title, each.body, each.read) for each in page.lines] == [
        ("n-1/1", "Tea", "Tea at nine.", None)
    ]
    assert await inbox.unread(TENANT, "ada") == Unread(1)
    marked = await inbox.read_one(TENANT, "ada", "n-1/1")
    assert marked is not None
    assert marked.read is not None
    assert await inbox.read_one(TENANT, "ada", "n-1/1") == marked, "again it is the same"
    assert await inbox.read_one(TENANT, "ada", "other") is None
    assert await inbox.read_one(TENANT, "bob", "n-1/1") is None
    assert await inbox.unread(TENANT, "ada") == Unread(0)
    assert (await inbox.page(TENANT, "ada", unread=True)).lines == ()
    assert len((await inbox.page(TENANT, "ada")).lines) == 1


async def test_the_same_message_is_one_line_and_stays_read(world: World) -> None:
    inbox, into = Inbox(world.store.documents, world.clock), channel(world)
    assert await into.send(line(1)) == Accepted("n-1/1")
    await inbox.read_one(TENANT, "ada", "n-1/1")
    assert await into.send(line(1)) == Accepted("n-1/1")
    assert await inbox.unread(TENANT, "ada") == Unread(0)


async def test_pages_and_reading_all(world: World) -> None:
    inbox, into = Inbox(world.store.documents, world.clock), channel(world)
    await world.put_user(User("bob"))
    for number in range(450):
        await into.send(line(number))
    await into.send(line(1, "bob"))
    assert isinstance(await into.send(line(1, "nobody")), Permanent)
    seen, cursor = [], None
    while True:
        page = await inbox.page(TENANT, "ada", cursor=cursor, limit=100)
        seen += [each.id for each in page.lines]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(seen) == sorted(f"n-{number}/1" for number in range(450))
    assert await inbox.read_all(TENANT, "ada") == 450
    assert await inbox.read_all(TENANT, "ada") == 0
    assert await inbox.unread(TENANT, "ada") == Unread(0)
    assert await inbox.unread(TENANT, "bob") == Unread(1)
    assert await inbox.unread("globex", "bob") == Unread(0)
    with pytest.raises(Invalid, match="limit"):
        await inbox.page(TENANT, "ada", limit=0)


async def test_who_waits_is_told_at_once_and_goes_on_from_there(world: World) -> None:
    inbox = Inbox(world.store.documents, world.clock)
    worker = world.worker({"in_app": channel(world)})
    world.start(worker)
    world.told_to.append(inbox)
    start = (await inbox.news(TENANT, "ada", None, 10, 0)).cursor
    waiting = asyncio.create_task(inbox.news(TENANT, "ada", start, 10, 5 * SECOND))
    begun = world.clock.elapsed()
    await world.notify(words("n-1", "in_app"))
    page = await waiting
    assert [each.id for each in page.lines] == ["n-1/1"]
    assert world.clock.elapsed() - begun < SECOND, "it was rung, not looked for"
    nothing = await inbox.news(TENANT, "ada", page.cursor, 10, 0)
    assert (nothing.lines, nothing.cursor) == ((), page.cursor)
    await eventually(lambda: not inbox._bells)


async def test_a_store_that_does_not_answer_is_a_temporary_failure(world: World) -> None:
    class Away:
        async def get(self, *_: object) -> list[None]:
            raise StoreError("away")

    verdict = await InAppChannel(Settings(), world.clock, Away()).send(line(1))  # type: ignore[arg-type]
    assert isinstance(verdict, Temporary)


def test_it_is_opened_with_the_cabinet_of_its_node(world: World, tmp_path: Path) -> None:
    assert PLUGIN.open(Settings(), ProviderContext(world.clock, tmp_path, world.store.documents)).takes(line(1))
    with pytest.raises(Invalid, match="store"):
        PLUGIN.open(Settings(), ProviderContext(world.clock, tmp_path))
    with pytest.raises(Invalid, match="keep_days"):
        PLUGIN.open(Settings(keep_days=0), ProviderContext(world.clock, tmp_path, world.store.documents))
