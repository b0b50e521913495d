"""A worker must not restore the data of an erased user, nor name them in a log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.channels.making import APNS_TOKEN, FCM_TOKEN
from tests.delivery.stalled import StalledStore
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, living, words
from tidings.channels.in_app import InAppChannel
from tidings.channels.in_app import Settings as InAppSettings
from tidings.channels.outbox import Outbox, Settings
from tidings.delivery.erasing import Erasing
from tidings.delivery.handling import Terms
from tidings.delivery.suppressions import Place, Suppression, Suppressions
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Permanent, Verdict
from tidings.domain.notifications.message import Rendered
from tidings.domain.notifications.user import User
from tidings.domain.schedules.schedule import unpack
from tidings.ports import DocumentStore
from tidings.testing import eventually

PATIENT = changed(QUICK, send_s=20.0, terms=Terms(claim_us=30 * SECOND))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with living() as world:
        await world.put_user(ada(email="Ada.Lovelace@Example.com"))
        yield world


def erasing(world: World) -> Erasing:
    cabinet = world.store.documents
    return Erasing(cabinet, world.engine, Suppressions(cabinet, world.clock), world.clock)


@pytest.mark.parametrize("user", ["ada", "eve"], ids=["to be sent", "to be given up"])
async def test_writes_of_a_worker_do_not_outlive_an_erased_user(world: World, user: str) -> None:
    mail, stalled = Recorder("email"), StalledStore(world.store)
    worker = world.worker({"mail": mail}, store=stalled)
    world.start(worker)
    await world.notify(words("one", user=user))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    await erasing(world).erase(TENANT, user)
    stalled.goes_on.set()
    await world.notify(words("two", user="bob"))
    await world.settled("two/1")
    await world.stop(worker)
    assert (mail.calls, await world.delivery("one/1")) == ([], None)


async def test_a_dead_address_of_an_erased_person_is_kept_as_a_digest(world: World) -> None:
    mail = Recorder("email")
    mail.gate = asyncio.Event()
    mail.answer = lambda _: Permanent("address_refused", address_is_dead=True)
    worker = world.worker({"mail": mail}, PATIENT)
    world.start(worker)
    await world.notify(words("one"))
    await eventually(lambda: mail.calls)
    await erasing(world).erase(TENANT, "ada")
    mail.gate.set()
    suppressions = Suppressions(world.store.documents, world.clock)
    place = Place("email", "ada.lovelace@example.com")

    async def found() -> list[Suppression]:
        return [each for each in await suppressions.of(TENANT, [place]) if each is not None]

    [kept] = await eventually(found)
    assert (kept.address, kept.user, kept.reason) == (None, None, "address_refused")
    await world.stop(worker)
    assert await world.delivery("one/1") is None


async def test_messages_kept_by_channels_are_erased(world: World, tmp_path: Path) -> None:
    """One went by another channel first, one to several devices; one that others sent stays, and is told."""
    await world.put_user(ada(devices=(Device("fcm", FCM_TOKEN), Device("apns", APNS_TOKEN))))
    await world.put_user(User("bob", email="bob@example.com"))
    outbox, mail = Outbox(Settings(terminal=False), world.clock, tmp_path), Recorder("webhook")
    mail.answer = lambda _: Permanent("address_refused")
    world.start(world.worker({"hook": mail, "files": outbox}))
    sent = [words("a"), words("b", "webhook", "sms"), words("c", "push"), words("d", user="bob")]
    await world.notify(*sent)
    await world.settled("a/1", "b/1", "c/1", "d/1")
    folder = tmp_path / "outbox"
    assert len(list(folder.iterdir())) == 5
    eraser = erasing(world)
    eraser.keepers["files"] = outbox
    erased = await eraser.erase(TENANT, "ada")
    assert (erased.removed["files"], erased.providers) == (4, ("hook",))
    [left] = folder.iterdir()
    assert left.name.startswith("email-d-1-")


async def test_concurrent_writes_do_not_outlive_an_erased_user(world: World, tmp_path: Path) -> None:
    """Into a folder, and into the user's inbox."""

    class Late(Outbox):
        async def send(self, message: Rendered) -> Verdict:
            begun.set()
            await goes_on.wait()
            return await super().send(message)

    begun, goes_on = asyncio.Event(), asyncio.Event()
    stalled = StalledStore(world.store, "inbox")
    inbox = InAppChannel(InAppSettings(), world.clock, cast(DocumentStore, stalled.documents))
    worker = world.worker({"files": Late(Settings(terminal=False), world.clock, tmp_path), "in_app": inbox}, PATIENT)
    world.start(worker)
    await world.notify(words("one"), words("two", "in_app"))
    await asyncio.wait_for(asyncio.gather(begun.wait(), stalled.reached.wait()), 5)
    await erasing(world).erase(TENANT, "ada")
    goes_on.set()
    stalled.goes_on.set()
    await world.stop(worker)
    assert list((tmp_path / "outbox").iterdir()) == []
    assert await world.store.documents.find(TENANT, "inbox", "user:ada", world.clock.now()) == []
    assert [await world.delivery(name) for name in ("one/1", "two/1")] == [None, None]


async def test_an_inbox_entry_is_written_while_the_profile_changes(world: World) -> None:
    stalled = StalledStore(world.store, "inbox")
    inbox = InAppChannel(InAppSettings(), world.clock, cast(DocumentStore, stalled.documents))
    world.start(world.worker({"in_app": inbox}, PATIENT))
    await world.notify(words("one", "in_app"))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    await world.put_user(ada(email="ada@new.example"))
    stalled.goes_on.set()
    [delivery] = await world.settled("one/1")
    assert delivery.state == "sent"
    assert len(await world.store.documents.find(TENANT, "inbox", "user:ada", world.clock.now())) == 1


async def test_a_dead_letter_says_nothing_that_a_provider_said(world: World) -> None:
    mail, sms = Recorder("email"), Recorder("sms")
    mail.answer = lambda message: Permanent("address_refused", f"550 5.7.1 <{message.to}> refused")
    sms.answer = lambda message: Permanent("address_refused", f"{message.to} is not reachable")
    world.start(world.worker({"mail": mail, "sms": sms}))
    await world.notify(words("one"), words("two", "email", "sms"))
    kept = await world.settled("one/1", "two/1")
    assert "Ada.Lovelace@Example.com" in kept[0].attempts[0].detail
    letters = await eventually(lambda: _two(world))
    said = b"".join(unpack(record.message).value or b"" for record in letters).lower()
    assert b"address_refused" in said
    assert not [trace for trace in (b"lovelace", b"example.com", b"15550100") if trace in said]


async def _two(world: World) -> list[Any]:
    found = await world.dead()
    return found if len(found) == 2 else []
