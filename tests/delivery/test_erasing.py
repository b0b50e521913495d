"""Erasing a user: nothing of theirs is left, and the data of others stays."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from tests.delivery.office import ACME, ADA, HOUR, Office
from tests.delivery.stalled import StalledStore
from tidings.delivery.filing import ALL, SHARED, by_user, encode
from tidings.delivery.lookup import Search
from tidings.delivery.profile import Profile
from tidings.delivery.suppressions import Place
from tidings.domain.errors import Invalid
from tidings.ports import Change, Key, Put, Store

TRACES = (
    b"ada@",
    b"ada-",
    b":ada",
    b"/ada",
    b'"ada',
    b"ada/",
)  # alone it may be part of a digest
HI = {"words": {"text": "Hi"}}


async def furnish(office: Office) -> None:
    await office.users.put(ACME, "bob", Profile(email="bob@example.com"))
    for user in ("ada", "bob"):
        for number in range(3):
            told = await office.notify(user=user, **HI, id=f"{user}-{number}", at="+1h", dedupe_key=f"k{number}")
            assert told.outcome == "scheduled"
        await office.notify(user=user, **HI, id=f"{user}-now")
        await office.release("notify.email")
        await office.deliver(f"{user}-now", user)
        line = Put(Key(ACME, "inbox", f"{user}/1"), encode({"text": "Hi"}), 0, ("all", f"user:{user}"))
        await office.documents.change([[line]], office.clock.now())
    await office.suppressions.add(ACME, "email", "ada@example.com", "bounced: ada@example.com is full")
    await office.suppressions.add(ACME, "sms", "+15559999", "stopped", user="ada")
    await office.suppressions.add(ACME, "email", "ada@example.com", "unsubscribed", category="news")


async def everything(office: Office) -> bytes:
    """All that is kept, whatever it is."""
    found = []
    for tenant, tag in ((ACME, ALL), (ACME, by_user("ada")), (SHARED, by_user("ada", ACME))):
        for kind in ("user", "notification", "delivery", "inbox", "dedupe", "sent", "suppressed"):
            found += await office.documents.find(tenant, kind, tag, office.clock.now(), limit=1_000)
    return b"\n".join(encode([document.key, document.tags]) + document.body for document in found)


async def test_erase_removes_everything_and_says_so(office: Office) -> None:
    await furnish(office)
    before = await everything(office)
    assert b"ada@example.com" in before
    erased = await office.erasing.erase(ACME, "ada")
    assert erased.removed == {"notification": 4, "delivery": 1, "inbox": 1, "dedupe": 3, "sent": 1, "user": 1}
    assert (erased.cancelled, erased.suppressions) == (3, 3)
    after = await everything(office)
    for trace in (*TRACES, b"+15559999", b"+15550100", b"Ada"):
        assert trace not in after
    found = await office.suppressions.of(
        ACME, [Place("email", "ada@example.com"), Place("sms", "+15559999"), Place("email", "ada@example.com", "news")]
    )
    assert all(found)  # and the addresses stay suppressed
    office.clock.advance(2 * HOUR)
    left = {record.id for record in await office.release("notify.email")}
    assert left == {"ada-now", "bob-0", "bob-1", "bob-2", "bob-now"}
    assert (await office.users.get(ACME, "bob")) is not None


class Down(Exception):
    """The process ends here."""


@pytest.mark.parametrize("after", range(1, 12))
async def test_cut_off_anywhere_it_can_be_run_again(office: Office, after: int) -> None:
    await furnish(office)
    change, calls = office.documents.change, 0

    async def failing(groups: Sequence[Sequence[Change]], now: int) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == after:
            raise Down
        return await change(groups, now)

    office.documents.change = failing  # type: ignore[method-assign]
    try:
        await office.erasing.erase(ACME, "ada")
    except Down:
        office.documents.change = change  # type: ignore[method-assign]
        await office.erasing.erase(ACME, "ada")
    remains = await everything(office)
    assert not [trace for trace in TRACES if trace in remains]
    assert b"bob@example.com" in remains


async def test_notifications_to_the_bare_addresses_of_a_user_are_erased(office: Office) -> None:
    for name, channel, to in (
        ("a", "email", "Ada@Example.com"),
        ("b", "sms", "+15550100"),
        ("c", "email", "bob@x.example"),
    ):
        await office.notify(id=name, to=to, channel=channel, **HI, at="+1h")
    await office.deliver("a", None, address="ada@example.com")
    await office.deliver("b", None, address=None, state="cancelled")
    await office.deliver("inline", None, address="ada@example.com")  # of a record that carried all of it
    await office.deliver("c", None, address="bob@x.example")
    erased = await office.erasing.erase(ACME, "ada")
    assert (erased.removed, erased.cancelled) == ({"notification": 2, "delivery": 3, "user": 1}, 2)
    page = await office.lookup.page(ACME, Search())
    assert [status.notification.to for status in page.notifications] == ["bob@x.example"]
    assert [one.name for one in (await office.lookup.deliveries(ACME, Search())).deliveries] == ["c/1"]


async def test_notifications_accepted_during_an_erasure_are_erased(office: Office) -> None:
    stalled = StalledStore(office.store, "notification")
    other = Office(cast(Store, stalled), office.clock, office.engine)
    asked = asyncio.create_task(other.notify(id="ada-late", user="ada", **HI, dedupe_key="k"))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    await office.erasing.erase(ACME, "ada")
    stalled.goes_on.set()
    with pytest.raises(Invalid, match="unknown user 'ada'"):
        await asked
    remains = await everything(office)
    assert not [trace for trace in TRACES if trace in remains]


async def test_who_changes_at_the_same_time_is_told_all_the_same(office: Office) -> None:
    stalled = StalledStore(office.store, "notification")
    other = Office(cast(Store, stalled), office.clock, office.engine)
    asked = asyncio.create_task(other.notify(id="n", user="ada", **HI))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    await office.users.patch(ACME, "ada", {"name": "Ada L."})
    stalled.goes_on.set()
    assert (await asked).outcome == "scheduled"


async def test_what_was_cancelled_before_is_not_counted_again(office: Office) -> None:
    for name in ("a", "b"):
        await office.notify(id=name, user="ada", **HI, at="+1h")
    await office.cancelling.cancel(ACME, "a")
    assert (await office.erasing.erase(ACME, "ada")).cancelled == 1


async def test_who_is_not_there_is_erased_too(office: Office) -> None:
    erased = await office.erasing.erase(ACME, "nobody")
    assert (erased.removed, erased.cancelled) == ({}, 0)


@pytest.mark.parametrize("text", ["Hi", "Ho"], ids=["the same", "something else"])
@pytest.mark.parametrize("state", ["released", "cancelled"])
async def test_an_id_of_hers_is_not_taken_for_what_it_was(office: Office, state: str, text: str) -> None:
    """Its schedule is remembered and will send nothing any more, so a new message under it would be lost."""
    when = {"at": "+1h"} if state == "cancelled" else {}
    asked = {"user": "ada", "id": "mine", "channel": "email", "dedupe_key": "k", **when}
    await office.notify(**asked, **HI)
    await office.release("notify.email")
    await office.erasing.erase(ACME, "ada")
    await office.users.put(ACME, "ada", ADA)
    for _ in range(2):
        told = await office.notify(**asked, words={"text": text})
        assert (told.outcome, told.due) == ("conflict", None)
        assert told.reason == f"the id belongs to a schedule that is {state} already: choose another id"
        assert await office.lookup.get(ACME, "mine") is None
    assert await office.documents.find(ACME, "dedupe", by_user("ada"), office.clock.now()) == []
    other = await office.notify(**(asked | {"id": "another"}), words={"text": text})
    assert other.outcome == "scheduled"
