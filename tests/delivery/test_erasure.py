"""Erasing a user: nothing of theirs is left, and the data of others stays."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from tests.delivery.services import ACME, ADA, HOUR, Services
from tests.delivery.stalled_store import StalledStore
from tidings.delivery.notifications.reader import Search
from tidings.delivery.people.profile import Profile
from tidings.delivery.people.suppressions import Recipient
from tidings.delivery.rows import change, inbox_put, user_tag
from tidings.domain.errors import Invalid
from tidings.domain.notifications.tables import (
    DEDUPE_KEYS_BY_USER,
    PROVIDER_MESSAGES_BY_USER,
    SHARED,
    TABLES,
    USERS,
    Index,
)
from tidings.domain.notifications.user import InboxEntry
from tidings.ports import Store
from tidings.ports.tables import ChangeGroup, GroupResult

TRACES = (
    b"ada@",
    b"ada-",
    b":ada",
    b"/ada",
    b'"ada',
    b"ada/",
)  # alone, it may be part of a digest
HI = {"words": {"text": "Hi"}}


async def create_data(services: Services) -> None:
    await services.users.put(ACME, "bob", Profile(email="bob@example.com"))
    for user in ("ada", "bob"):
        for number in range(3):
            accepted = await services.notify(user=user, **HI, id=f"{user}-{number}", at="+1h", dedupe_key=f"k{number}")
            assert accepted.outcome == "scheduled"
        await services.notify(user=user, **HI, id=f"{user}-now")
        await services.release("notify.email")
        await services.deliver(f"{user}-now", user)
        line = inbox_put(ACME, InboxEntry("1", user, "Hi", "Hi", services.clock.now()), 0, None)
        await change(services.tables, [[line]], services.clock.now())
    await services.suppressions.add(ACME, "email", "ada@example.com", "bounced: ada@example.com is full")
    await services.suppressions.add(ACME, "sms", "+15559999", "stopped", user="ada")
    await services.suppressions.add(ACME, "email", "ada@example.com", "unsubscribed", category="news")


async def everything(services: Services) -> bytes:
    """The keys and bodies of all rows of the tenant, and what tables of all tenants store about Ada."""
    found = []
    for table in TABLES.values():
        index = USERS if table.name == "app_user" else Index(table.name, f"{table.name}_all")
        found += await services.tables.find(index, ACME, (), services.clock.now(), limit=1_000)
    shared = user_tag(ACME, "ada")
    found += await services.tables.find(PROVIDER_MESSAGES_BY_USER, SHARED, (shared,), services.clock.now())
    return b"\n".join(row.key.name.encode() + b" " + row.body for row in found)


async def test_erase_removes_everything_and_says_so(services: Services) -> None:
    await create_data(services)
    before = await everything(services)
    assert b"ada@example.com" in before
    erased = await services.erasure.erase(ACME, "ada")
    assert erased.removed == {"notification": 4, "delivery": 1, "inbox": 1, "dedupe": 3, "sent": 1, "user": 1}
    assert (erased.cancelled, erased.suppressions) == (3, 3)
    after = await everything(services)
    for trace in (*TRACES, b"+15559999", b"+15550100", b"Ada"):
        assert trace not in after
    found = await services.suppressions.of(
        ACME,
        [
            Recipient("email", "ada@example.com"),
            Recipient("sms", "+15559999"),
            Recipient("email", "ada@example.com", "news"),
        ],
    )
    assert all(found)  # and the addresses stay suppressed
    services.clock.advance(2 * HOUR)
    left = {record.id for record in await services.release("notify.email")}
    assert left == {"ada-now", "bob-0", "bob-1", "bob-2", "bob-now"}
    assert (await services.users.get(ACME, "bob")) is not None


class Crashed(Exception):
    """The process crashes here."""


@pytest.mark.parametrize("after", range(1, 12))
async def test_an_interrupted_erasure_can_be_repeated(services: Services, after: int) -> None:
    await create_data(services)
    commit, calls = services.tables.commit, 0

    async def failing(groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        nonlocal calls
        calls += 1
        if calls == after:
            raise Crashed
        return await commit(groups, now, urgent=urgent)

    services.tables.commit = failing  # type: ignore[method-assign]
    try:
        await services.erasure.erase(ACME, "ada")
    except Crashed:
        services.tables.commit = commit  # type: ignore[method-assign]
        await services.erasure.erase(ACME, "ada")
    remains = await everything(services)
    assert not [trace for trace in TRACES if trace in remains]
    assert b"bob@example.com" in remains


async def test_notifications_to_the_bare_addresses_of_a_user_are_erased(services: Services) -> None:
    for name, channel, to in (
        ("a", "email", "Ada@Example.com"),
        ("b", "sms", "+15550100"),
        ("c", "email", "bob@x.example"),
    ):
        await services.notify(id=name, to=to, channel=channel, **HI, at="+1h")
    await services.deliver("a", None, address="ada@example.com")
    await services.deliver("b", None, address=None, state="cancelled")
    await services.deliver("inline", None, address="ada@example.com")  # of a record that carried all of it
    await services.deliver("c", None, address="bob@x.example")
    erased = await services.erasure.erase(ACME, "ada")
    assert (erased.removed, erased.cancelled) == ({"notification": 2, "delivery": 3, "user": 1}, 2)
    page = await services.reader.page(ACME, Search())
    assert [status.notification.to for status in page.notifications] == ["bob@x.example"]
    assert [one.name for one in (await services.reader.deliveries(ACME, Search())).deliveries] == ["c/1"]


async def test_notifications_accepted_during_an_erasure_are_erased(services: Services) -> None:
    stalled = StalledStore(services.store, "notification")
    other = Services(cast(Store, stalled), services.clock)
    asked = asyncio.create_task(other.notify(id="ada-late", user="ada", **HI, dedupe_key="k"))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    await services.erasure.erase(ACME, "ada")
    stalled.goes_on.set()
    with pytest.raises(Invalid, match="unknown user 'ada'"):
        await asked
    remains = await everything(services)
    assert not [trace for trace in TRACES if trace in remains]


async def test_a_notification_accepted_while_its_user_changes_is_scheduled(services: Services) -> None:
    stalled = StalledStore(services.store, "notification")
    other = Services(cast(Store, stalled), services.clock)
    asked = asyncio.create_task(other.notify(id="n", user="ada", **HI))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    await services.users.patch(ACME, "ada", {"name": "Ada L."})
    stalled.goes_on.set()
    assert (await asked).outcome == "scheduled"


async def test_notifications_cancelled_before_are_not_counted_again(services: Services) -> None:
    for name in ("a", "b"):
        await services.notify(id=name, user="ada", **HI, at="+1h")
    await services.cancellation.cancel(ACME, "a")
    assert (await services.erasure.erase(ACME, "ada")).cancelled == 1


async def test_an_unknown_user_can_be_erased(services: Services) -> None:
    erased = await services.erasure.erase(ACME, "nobody")
    assert (erased.removed, erased.cancelled) == ({}, 0)


@pytest.mark.parametrize("text", ["Hi", "Ho"], ids=["the same", "something else"])
@pytest.mark.parametrize("state", ["released", "cancelled"])
async def test_the_id_of_an_erased_notification_is_not_reused(services: Services, state: str, text: str) -> None:
    """Its schedule is remembered and sends nothing any more, so a new message with this id would be lost."""
    when = {"at": "+1h"} if state == "cancelled" else {}
    asked = {"user": "ada", "id": "mine", "channel": "email", "dedupe_key": "k", **when}
    await services.notify(**asked, **HI)
    await services.release("notify.email")
    await services.erasure.erase(ACME, "ada")
    await services.users.put(ACME, "ada", ADA)
    for _ in range(2):
        accepted = await services.notify(**asked, words={"text": text})
        assert (accepted.outcome, accepted.due) == ("conflict", None)
        assert accepted.reason == f"the id belongs to a schedule that is {state} already: choose another id"
        assert await services.reader.get(ACME, "mine") is None
    assert await services.tables.find(DEDUPE_KEYS_BY_USER, ACME, ("ada",), services.clock.now()) == []
    other = await services.notify(**(asked | {"id": "another"}), words={"text": text})
    assert other.outcome == "scheduled"
