"""Inboxes, from the notification to the entry that is read."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.delivery.stalled_store import StalledStore
from tests.delivery.world import QUICK, SECOND, TENANT, World, ada, changed, started_world, words
from tidings.delivery.limits.rate_limit import RateLimits
from tidings.delivery.people.inbox import Inbox, ReadEntries, Unread
from tidings.delivery.rows import change, inbox_put, notification_key, notification_put, read
from tidings.delivery.worker.context import DeliveryContext
from tidings.delivery.worker.transition import Answer, after_answers, claimed, delivered
from tidings.domain.errors import Invalid, StoreError
from tidings.domain.facts import Called, Ended
from tidings.domain.notifications.delivery import Accepted, Attempt, Claim, Delivery
from tidings.domain.notifications.message import InApp
from tidings.domain.notifications.notification import DeliveryJob, InlineContent, Notification
from tidings.domain.notifications.rate_limit import Rate
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.notifications.user import InboxEntry, User
from tidings.ports import ProviderContext
from tidings.ports.tables import ChangeGroup, GroupResult
from tidings.providers.in_app import PROVIDER, InAppProvider, Settings
from tidings.testing import START, eventually


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada())
        yield world


def inbox_provider() -> dict[str, InAppProvider]:
    return {"in_app": InAppProvider(Settings())}


def line(number: int, user: str = "ada") -> InboxEntry:
    return InboxEntry(f"n-{number}/1", user, f"Line {number}", "Tea at nine.", SECOND + number)


async def put(world: World, *entries: InboxEntry) -> None:
    await change(world.store.tables, [[inbox_put(TENANT, each, 0, None)] for each in entries], world.clock.now())


async def test_a_notification_becomes_an_inbox_entry(world: World) -> None:
    inbox = Inbox(world.store.tables, world.clock)
    world.start(world.worker(inbox_provider()))
    await world.notify(words("n-1", "in_app"))
    await world.settled("n-1/1")
    page = await inbox.page(TENANT, "ada")
    assert [(each.id, each.title, each.body, each.read) for each in page.entries] == [
        ("n-1/1", "Tea", "Tea at nine.", None)
    ]
    assert await inbox.unread(TENANT, "ada") == Unread(1)
    assert await inbox.read_some(TENANT, "ada", ["n-1/1", "n-1/1", "other"]) == ReadEntries(1, ("other",))
    [marked] = (await inbox.page(TENANT, "ada")).entries
    assert marked.read is not None
    assert await inbox.read_some(TENANT, "ada", ["n-1/1"]) == ReadEntries(0, ())
    assert (await inbox.page(TENANT, "ada")).entries == (marked,), "again it is the same"
    assert await inbox.read_some(TENANT, "bob", ["n-1/1"]) == ReadEntries(0, ("n-1/1",))
    assert await inbox.unread(TENANT, "ada") == Unread(0)
    assert (await inbox.page(TENANT, "ada", unread=True)).entries == ()
    assert len((await inbox.page(TENANT, "ada")).entries) == 1


async def test_what_is_sent_again_is_one_entry_and_stays_read(world: World) -> None:
    """So does the entry of a worker of an earlier version, which was killed before it settled the delivery."""
    inbox = Inbox(world.store.tables, world.clock)
    await put(world, line(1))
    await inbox.read_some(TENANT, "ada", ["n-1/1"])
    world.start(world.worker(inbox_provider()))
    await world.notify(words("n-1", "in_app"))
    [delivery] = await world.settled("n-1/1")
    assert delivery.state == "sent"
    [entry] = (await inbox.page(TENANT, "ada")).entries
    assert entry.title == "Line 1"
    assert entry.read is not None


async def test_pages_and_mark_all_as_read(world: World) -> None:
    inbox = Inbox(world.store.tables, world.clock)
    await world.put_user(User("bob"))
    await put(world, *(line(number) for number in range(450)), line(1, "bob"))
    seen, cursor = [], None
    while True:
        page = await inbox.page(TENANT, "ada", cursor=cursor, limit=100)
        seen += [each.id for each in page.entries]
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


async def test_a_waiting_reader_is_woken_and_continues_from_its_position(world: World) -> None:
    inbox = Inbox(world.store.tables, world.clock)
    worker = world.worker(inbox_provider())
    world.start(worker)
    world.listeners.append(inbox)
    start = (await inbox.news(TENANT, "ada", None, 10, 0)).cursor
    waiting = asyncio.create_task(inbox.news(TENANT, "ada", start, 10, 5 * SECOND))
    begun = world.clock.elapsed()
    await world.notify(words("n-1", "in_app"))
    page = await waiting
    assert [each.id for each in page.entries] == ["n-1/1"]
    assert world.clock.elapsed() - begun < SECOND, "it was rung, not looked for"
    nothing = await inbox.news(TENANT, "ada", page.cursor, 10, 0)
    assert (nothing.entries, nothing.cursor) == ((), page.cursor)
    await eventually(lambda: not inbox._waiting)


class Counted:
    """Commits to a store, and keeps the groups with inbox entries; `fails` says how many times the store is away."""

    def __init__(self, world: World, fails: int = 0) -> None:
        self._world = world
        self.fails = fails
        self.groups: list[ChangeGroup] = []
        self.commits = 0

    async def __call__(self, groups: Sequence[ChangeGroup]) -> list[GroupResult]:
        self.commits += 1
        self.groups += [group for group in groups if any(each.key.table == "inbox" for each in group.changes)]
        if self.fails:
            self.fails -= 1
            raise StoreError("away")
        return await self._world.engine.commit(groups)


async def test_an_entry_and_the_state_of_its_delivery_are_one_commit(world: World) -> None:
    commit = Counted(world)
    world.start(world.worker(inbox_provider(), commit=commit))
    await world.notify(words("n-1", "in_app"))
    [delivery] = await world.settled("n-1/1")
    assert commit.commits == 1
    [group] = commit.groups
    assert {each.key.table for each in group.changes} == {"notification", "app_user", "inbox", "delivery"}
    [attempt] = delivery.attempts
    assert (attempt.outcome, attempt.provider, attempt.provider_id) == ("accepted", "in_app", "n-1/1")
    await eventually(lambda: any(isinstance(fact, Ended) for fact in world.facts))
    called = [fact for fact in world.facts if isinstance(fact, Called)]
    assert [(fact.channel, fact.provider, fact.outcome, fact.is_retry) for fact in called] == [
        ("in_app", "in_app", "accepted", False)
    ]


async def test_a_store_that_was_away_gets_the_entry_once(world: World) -> None:
    commit = Counted(world, fails=2)
    world.start(world.worker(inbox_provider(), commit=commit))
    await world.notify(words("n-1", "in_app"))
    [delivery] = await world.settled("n-1/1")
    assert (commit.commits, delivery.state, len(delivery.attempts)) == (3, "sent", 1)
    assert await Inbox(world.store.tables, world.clock).unread(TENANT, "ada") == Unread(1)


async def test_a_cancelled_notification_never_appears(world: World) -> None:
    """It is cancelled while the entry is about to be written."""
    stalled = StalledStore(world.store, "inbox")
    world.start(world.worker(inbox_provider(), store=stalled))
    await world.notify(words("n-1", "in_app"))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    [row] = await world.store.tables.get([notification_key(TENANT, "n-1")], world.clock.now())
    assert row is not None
    cancelled = msgspec.structs.replace(read(row, Notification), cancelled=world.clock.now())
    assert await change(world.store.tables, [[notification_put(cancelled, row.version)]], world.clock.now()) != [0]
    stalled.goes_on.set()
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.attempts) == ("cancelled", ())
    assert await Inbox(world.store.tables, world.clock).unread(TENANT, "ada") == Unread(0)


async def test_a_killed_worker_leaves_nothing_half_done(world: World) -> None:
    stalled = StalledStore(world.store, "inbox")
    killed = world.worker(inbox_provider(), store=stalled)
    world.start(killed)
    await world.notify(words("n-1", "in_app"))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    await world.kill(killed)
    assert await world.delivery("n-1/1") is None, "there is no claim that others would have to wait for"
    world.start(world.worker(inbox_provider()))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, len(delivery.attempts)) == ("sent", 1)
    assert await Inbox(world.store.tables, world.clock).unread(TENANT, "ada") == Unread(1)


async def test_rate_limits_hold_for_inboxes(world: World) -> None:
    limits = RateLimits(providers={"in_app": Rate(0.001, 3)})
    world.start(world.worker(inbox_provider(), changed(QUICK, rates=limits)))
    await world.notify(*(words(f"n-{number}", "in_app") for number in range(5)))

    async def deferred() -> list[Delivery]:
        found = [await world.delivery(f"n-{number}/1") for number in range(5)]
        return [each for each in found if each is not None and each.reason == "rate_limited"]

    later = await eventually(deferred)
    assert all(each.state == "pending" and not each.attempts for each in later)
    entries = await Inbox(world.store.tables, world.clock).unread(TENANT, "ada")
    assert 1 <= entries.count <= 3


async def test_a_message_that_is_not_fit_for_an_inbox_fails_alone(world: World) -> None:
    world.start(world.worker(inbox_provider()))
    two_lines = InlineContent("Tea at nine.", "Tea\nat nine")
    await world.notify(words("n-1", "in_app", words=two_lines), words("n-2", "in_app"))
    bad, good = await world.settled("n-1/1", "n-2/1")
    assert (bad.state, bad.attempts, good.state) == ("failed", (), "sent")
    assert bad.reason.startswith("content_refused: title")
    assert await Inbox(world.store.tables, world.clock).unread(TENANT, "ada") == Unread(1)


def _context(**more: Any) -> DeliveryContext:
    notification = words("n-1", "in_app", **more)
    before = Delivery("n-1/1", "n-1", START, channel="in_app", user="ada", reason="rate_limited", next_try=START)
    return DeliveryContext(
        tenant=TENANT,
        job=DeliveryJob("n-1", attempt=2),
        notification=notification,
        channel="in_app",
        delivery=before,
        version=3,
        user=ada(),
        user_version=4,
    )


@pytest.mark.parametrize("attempts", [(), (Attempt(1, "email", "mail", START, START, "address_refused"),)])
def test_a_delivery_to_an_inbox_ends_like_any_other(attempts: tuple[Attempt, ...]) -> None:
    """As if it had been claimed, called and answered, all at one moment."""
    context = _context()
    context = msgspec.structs.replace(
        context, delivery=msgspec.structs.replace(context.delivery, attempts=attempts, trying_us=5)
    )
    now = START + SECOND
    during = claimed(context, ["in_app"], ["ada"], Claim("worker", now + SECOND), now)
    answer = Answer(0, "ada", "in_app", Accepted("n-1/1"), message="n-1/1")
    called = after_answers(context, during, [answer], None, Backoff(), 0.5, now)
    entry = inbox_put(TENANT, line(1), 0, None)
    assert delivered(context, "in_app", "n-1/1", entry, now) == msgspec.structs.replace(called, entry=entry)


async def test_a_provider_gives_messages_the_form_of_entries(world: World, tmp_path: Path) -> None:
    context = ProviderContext(clock=world.clock, folder=tmp_path)
    provider = PROVIDER.open(Settings(keep_days=2), context)
    assert isinstance(provider, InAppProvider)
    assert provider.accepts("in_app", "ada")
    message = InApp("n-1/1", "ada", TENANT, "Tea", "Tea at nine.")
    until = START + 2 * 86_400 * SECOND
    assert provider.entry(message, START) == (InboxEntry("n-1/1", "ada", "Tea", "Tea at nine.", START), until)
    with pytest.raises(NotImplementedError):
        await provider.send(message)
    with pytest.raises(Invalid, match="keep_days"):
        PROVIDER.open(Settings(keep_days=0), context)
