"""A worker must not restore the data of an erased user, nor name them in a log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.stalled_store import StalledStore
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, started_world, words
from tests.providers.messages import APNS_TOKEN, FCM_TOKEN
from tidings.delivery.people.erasure import Erasure
from tidings.delivery.people.suppressions import Recipient, Suppression, Suppressions
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Permanent, Verdict
from tidings.domain.notifications.message import Rendered
from tidings.domain.notifications.tables import INBOX_BY_USER
from tidings.domain.notifications.user import User
from tidings.domain.schedules.schedule import unpack
from tidings.providers.files import FileProvider, Settings
from tidings.providers.in_app import InAppProvider
from tidings.providers.in_app import Settings as InAppSettings
from tidings.testing import eventually

PATIENT = changed(QUICK, send_s=20.0, policy=RetryPolicy(claim_us=30 * SECOND))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada(email="Ada.Lovelace@Example.com"))
        yield world


def erasing(world: World) -> Erasure:
    documents = world.store.tables
    return Erasure(documents, world.engine, Suppressions(documents, world.clock), world.clock)


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


async def test_a_dead_address_of_an_erased_user_is_kept_as_a_digest(world: World) -> None:
    mail = Recorder("email")
    mail.gate = asyncio.Event()
    mail.answer = lambda _: Permanent("address_refused", address_is_dead=True)
    worker = world.worker({"mail": mail}, PATIENT)
    world.start(worker)
    await world.notify(words("one"))
    await eventually(lambda: mail.calls)
    await erasing(world).erase(TENANT, "ada")
    mail.gate.set()
    suppressions = Suppressions(world.store.tables, world.clock)
    place = Recipient("email", "ada.lovelace@example.com")

    async def found() -> list[Suppression]:
        return [each for each in await suppressions.of(TENANT, [place]) if each is not None]

    [kept] = await eventually(found)
    assert (kept.address, kept.user, kept.reason) == (None, None, "address_refused")
    await world.stop(worker)
    assert await world.delivery("one/1") is None


async def test_messages_stored_by_providers_are_erased(world: World, tmp_path: Path) -> None:
    """One used another channel first, one went to several devices; those sent by other providers are named."""
    await world.put_user(ada(devices=(Device("fcm", FCM_TOKEN), Device("apns", APNS_TOKEN))))
    await world.put_user(User("bob", email="bob@example.com"))
    files, mail = FileProvider(Settings(terminal=False), world.clock, tmp_path), Recorder("webhook")
    mail.answer = lambda _: Permanent("address_refused")
    world.start(world.worker({"hook": mail, "files": files}))
    sent = [words("a"), words("b", "webhook", "sms"), words("c", "push"), words("d", user="bob")]
    await world.notify(*sent)
    await world.settled("a/1", "b/1", "c/1", "d/1")
    folder = tmp_path / "outbox"
    assert len(list(folder.iterdir())) == 5
    eraser = erasing(world)
    eraser.erasable["files"] = files
    erased = await eraser.erase(TENANT, "ada")
    assert (erased.removed["files"], erased.providers) == (4, ("hook",))
    [left] = folder.iterdir()
    assert left.name.startswith("email-d-1-")


async def test_concurrent_writes_do_not_outlive_an_erased_user(world: World, tmp_path: Path) -> None:
    """Both into a folder and into the inbox of the user."""

    class Late(FileProvider):
        async def send(self, message: Rendered) -> Verdict:
            begun.set()
            await goes_on.wait()
            return await super().send(message)

    begun, goes_on = asyncio.Event(), asyncio.Event()
    stalled = StalledStore(world.store, "inbox")
    inbox = InAppProvider(InAppSettings())
    files = Late(Settings(terminal=False), world.clock, tmp_path)
    worker = world.worker({"files": files, "in_app": inbox}, PATIENT, store=stalled)
    world.start(worker)
    await world.notify(words("one"), words("two", "in_app"))
    await asyncio.wait_for(asyncio.gather(begun.wait(), stalled.reached.wait()), 5)
    await erasing(world).erase(TENANT, "ada")
    goes_on.set()
    stalled.goes_on.set()
    await world.stop(worker)
    assert list((tmp_path / "outbox").iterdir()) == []
    assert await world.store.tables.find(INBOX_BY_USER, TENANT, ("ada",), world.clock.now()) == []
    assert [await world.delivery(name) for name in ("one/1", "two/1")] == [None, None]


async def test_an_inbox_entry_is_written_while_the_profile_changes(world: World) -> None:
    stalled = StalledStore(world.store, "inbox")
    world.start(world.worker({"in_app": InAppProvider(InAppSettings())}, PATIENT, store=stalled))
    await world.notify(words("one", "in_app"))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    await world.put_user(ada(email="ada@new.example"))
    stalled.goes_on.set()
    [delivery] = await world.settled("one/1")
    assert delivery.state == "sent"
    assert len(await world.store.tables.find(INBOX_BY_USER, TENANT, ("ada",), world.clock.now())) == 1


async def test_a_dead_letter_has_no_text_of_a_provider(world: World) -> None:
    mail, sms = Recorder("email"), Recorder("sms")
    mail.answer = lambda message: Permanent("address_refused", f"550 5.7.1 <{message.to}> refused")
    sms.answer = lambda message: Permanent("address_refused", f"{message.to} is not reachable")
    world.start(world.worker({"mail": mail, "sms": sms}))
    await world.notify(words("one"), words("two", "email", "sms"))
    kept = await world.settled("one/1", "two/1")
    assert "Ada.Lovelace@Example.com" in kept[0].attempts[0].detail
    dead_letters = await eventually(lambda: _two(world))
    dead_text = b"".join(unpack(record.message).value or b"" for record in dead_letters).lower()
    assert b"address_refused" in dead_text
    assert not [trace for trace in (b"lovelace", b"example.com", b"15550100") if trace in dead_text]


async def _two(world: World) -> list[Any]:
    found = await world.dead()
    return found if len(found) == 2 else []
