"""Sending again what was given up, also when it is cut off in the middle."""

from collections.abc import AsyncIterator, Sequence
from typing import cast

import msgspec
import pytest

from tests.channels.making import FCM_TOKEN
from tests.delivery.office import ACME, Office
from tests.delivery.world import QUICK, TENANT, Recorder, World, ada, changed, living, words
from tidings.delivery import errands
from tidings.delivery import retrying as retrying_module
from tidings.delivery.retrying import AHEAD_US, Retrying
from tidings.delivery.schedules import Schedules
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Delivery, DeliveryReceipt, Permanent, Temporary
from tidings.domain.notifications.message import Push
from tidings.domain.notifications.notification import DeliveryJob
from tidings.domain.schedules.command import Command, Outcome

TOPIC = "notify.email"


@pytest.fixture
async def failed(office: Office) -> Delivery:
    told = await office.notify(user="ada", template="reminder", variables={"what": "nine"}, channel="email")
    await office.release(TOPIC)
    return await office.deliver(told.id, state="failed", reason="timeout", provider_id=None, sent=None)


def retrying(office: Office) -> Retrying:
    return Retrying(office.documents, office.engine, office.clock)


async def test_it_waits_for_the_turn_that_was_put_there(office: Office, failed: Delivery) -> None:
    done = await retrying(office).retry(ACME, failed.name)
    assert (done.outcome, done.state) == ("retried", "pending")
    waiting = await office.lookup.delivery(ACME, failed.name)
    assert waiting is not None
    assert (waiting.state, waiting.turn, waiting.attempts) == ("pending", 2, failed.attempts)
    assert len(await office.release(TOPIC)) == 1, "it is not due before the delivery is written"
    office.clock.advance(AHEAD_US)
    released = [errands.read(record, ACME) for record in await office.release(TOPIC)]
    again = DeliveryJob(failed.notification, delivery=failed.name, attempt=2)
    assert sorted(released, key=lambda errand: errand.attempt) == [DeliveryJob(failed.notification), again]


async def test_cut_off_it_stays_what_it_was_and_can_be_done_again(office: Office, failed: Delivery) -> None:
    """A turn without its delivery is one that nobody needs; the next try takes another."""
    notification = await office.lookup.get(ACME, failed.notification)
    assert notification is not None
    errand = DeliveryJob(failed.notification, delivery=failed.name, attempt=2)
    await office.engine.submit([errands.turn(ACME, notification.notification, errand, office.clock.now())])
    await office.release(TOPIC)
    assert (await retrying(office).retry(ACME, failed.name)).outcome == "retried"
    waiting = await office.lookup.delivery(ACME, failed.name)
    assert waiting is not None
    assert waiting.turn == 3


class Slow:
    """The engine, after which more time has passed than there was."""

    def __init__(self, office: Office, times: int) -> None:
        self._office = office
        self._times = times

    async def submit(self, commands: Sequence[Command]) -> list[Outcome]:
        outcomes = await self._office.engine.submit(commands)
        if self._times:
            self._times -= 1
            self._office.clock.advance(2 * AHEAD_US)
        return outcomes


async def test_a_store_that_is_slower_than_the_turn(office: Office, failed: Delivery) -> None:
    slow = cast(Schedules, Slow(office, times=1))
    done = await Retrying(office.documents, slow, office.clock).retry(ACME, failed.name)
    waiting = await office.lookup.delivery(ACME, failed.name)
    assert waiting is not None
    assert (done.outcome, waiting.turn) == ("retried", 3)
    assert done.due is not None
    assert done.due > office.clock.now(), "of the turn that is still to come"


async def test_what_cannot_be_sent_again(office: Office, failed: Delivery) -> None:
    await office.deliver(failed.notification)
    sent = await retrying(office).retry(ACME, failed.name)
    assert (sent.outcome, sent.state) == ("rejected", "sent")
    assert (await retrying(office).retry(ACME, "nothing/1")).outcome == "unknown"
    await office.deliver("unknown", state="failed")
    assert "no longer stored" in (await retrying(office).retry(ACME, "unknown/1")).reason
    assert (await retrying(office).retry("bolt", failed.name)).outcome == "unknown"


async def test_late_news_of_what_was_given_up_do_not_end_what_goes_again(office: Office) -> None:
    told = await office.notify(user="ada", template="reminder", variables={"what": "nine"}, channel="email")
    first = await office.deliver(told.id)
    bounced = DeliveryReceipt("bounced", f"p-{told.id}", "e1", reason="full")
    assert (await office.receiving.apply("smtp", bounced)).state == "bounced"
    assert (await retrying(office).retry(ACME, first.name)).outcome == "retried"
    late = msgspec.structs.replace(bounced, event="e2")
    assert (await office.receiving.apply("smtp", late)).state == "pending"
    waiting = await office.lookup.delivery(ACME, first.name)
    assert waiting is not None
    assert [news.event for news in waiting.news] == ["e1", "e2"], "they are kept"
    assert (waiting.given_up, waiting.next_try) == (1, office.clock.now() + AHEAD_US)

    second = msgspec.structs.replace(first.attempts[0], number=2, provider_id="p-second")
    await office.deliver(told.id, provider_id="p-second", attempts=(*first.attempts, second), given_up=1)
    assert (await office.receiving.apply("smtp", msgspec.structs.replace(bounced, event="e3"))).state == "sent"
    assert (await office.receiving.apply("smtp", DeliveryReceipt("bounced", "p-second", "e4"))).state == "bounced"


async def test_that_the_first_arrived_after_all_ends_what_goes_again(office: Office) -> None:
    told = await office.notify(user="ada", template="reminder", variables={"what": "nine"}, channel="email")
    first = await office.deliver(told.id, state="failed", reason="timeout")
    await retrying(office).retry(ACME, first.name)
    arrived = DeliveryReceipt("delivered", f"p-{told.id}", "e1")
    assert (await office.receiving.apply("smtp", arrived)).state == "delivered"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(retrying_module, "AHEAD_US", 50_000)
    async with living() as world:
        await world.put_user(ada())
        yield world


async def again(world: World, name: str) -> Delivery:
    """Have it sent again, and see what comes of it."""
    done = await Retrying(world.store.documents, world.engine, world.clock).retry(TENANT, name)
    assert done.outcome == "retried"
    [delivery] = await world.settled(name)
    return delivery


async def test_a_push_goes_to_the_devices_that_are_there_now(world: World) -> None:
    old, new = Device("fcm", FCM_TOKEN), Device("fcm", "new" + FCM_TOKEN)
    provider = Recorder("push")
    provider.answer = lambda message: Permanent("address_gone") if message.to == old else None
    world.start(world.worker({"push": provider}))
    await world.put_user(ada(devices=(old,)))
    await world.notify(words("n-1", "push"))
    [delivery] = await world.settled("n-1/1")
    assert delivery.state == "failed"
    await world.put_user(ada(devices=(old, new)))
    delivery = await again(world, "n-1/1")
    assert delivery.state == "sent"
    assert [(part.number, part.outcome) for part in delivery.parts] == [(1, "refused"), (2, "accepted")]
    sent = [(message.id, message.to) for message in provider.calls if isinstance(message, Push)]
    assert sent == [("n-1/1/1", old), ("n-1/1/1", old), ("n-1/1/2", new)], "a number is that of one device"


async def test_it_gets_all_its_attempts_again(world: World) -> None:
    provider = Recorder()
    provider.answer = lambda _: Temporary("unreachable")
    settings = changed(QUICK, breaker=msgspec.structs.replace(QUICK.breaker, failures_max=100))
    world.start(world.worker({"mail": provider}, settings))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, len(provider.calls)) == ("failed", 4)
    delivery = await again(world, "n-1/1")
    assert (delivery.state, delivery.given_up, len(provider.calls)) == ("failed", 4, 8)
    assert [attempt.number for attempt in delivery.attempts] == list(range(1, 9))
