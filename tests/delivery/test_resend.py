"""Sending a failed delivery again."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.delivery.services import ACME, Services
from tests.delivery.world import QUICK, TENANT, Recorder, World, ada, changed, started_world, words
from tests.providers.messages import FCM_TOKEN
from tidings.delivery.notifications.resend import Resend
from tidings.delivery.worker import job as jobs
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Delivery, DeliveryReceipt, Permanent, Temporary
from tidings.domain.notifications.message import Push
from tidings.domain.notifications.notification import DeliveryJob

TOPIC = "notify.email"


@pytest.fixture
async def failed(services: Services) -> Delivery:
    accepted = await services.notify(user="ada", template="reminder", variables={"what": "nine"}, channel="email")
    await services.release(TOPIC)
    return await services.deliver(accepted.id, state="failed", reason="timeout", provider_id=None, sent=None)


def retrying(services: Services) -> Resend:
    return Resend(services.tables, services.engine, services.clock)


async def test_a_retry_is_committed_with_its_scheduled_job(services: Services, failed: Delivery) -> None:
    done = await retrying(services).retry(ACME, failed.name)
    assert (done.outcome, done.state) == ("retried", "pending")
    waiting = await services.reader.delivery(ACME, failed.name)
    assert waiting is not None
    assert (waiting.state, waiting.turn, waiting.attempts) == ("pending", 2, failed.attempts)
    released = [jobs.read_job(record, ACME) for record in await services.release(TOPIC)]
    again = DeliveryJob(failed.notification, delivery=failed.name, attempt=2)
    assert sorted(released, key=lambda job: job.attempt) == [DeliveryJob(failed.notification), again]


async def test_a_retry_whose_id_is_taken_uses_the_next_turn(services: Services, failed: Delivery) -> None:
    """The id of the next turn may belong to another schedule: then the retry uses that of the turn after it."""
    notification = await services.reader.get(ACME, failed.notification)
    assert notification is not None
    job = DeliveryJob(failed.notification, delivery=failed.name, attempt=2)
    await services.engine.submit([jobs.retry_schedule(ACME, notification.notification, job, services.clock.now())])
    await services.release(TOPIC)
    assert (await retrying(services).retry(ACME, failed.name)).outcome == "retried"
    waiting = await services.reader.delivery(ACME, failed.name)
    assert waiting is not None
    assert waiting.turn == 3


async def test_deliveries_that_cannot_be_sent_again(services: Services, failed: Delivery) -> None:
    await services.deliver(failed.notification)
    sent = await retrying(services).retry(ACME, failed.name)
    assert (sent.outcome, sent.state) == ("rejected", "sent")
    assert (await retrying(services).retry(ACME, "nothing/1")).outcome == "unknown"
    await services.deliver("unknown", state="failed")
    assert "no longer stored" in (await retrying(services).retry(ACME, "unknown/1")).reason
    assert (await retrying(services).retry("bolt", failed.name)).outcome == "unknown"


async def test_late_receipts_of_a_failed_attempt_do_not_end_its_retry(services: Services) -> None:
    accepted = await services.notify(user="ada", template="reminder", variables={"what": "nine"}, channel="email")
    first = await services.deliver(accepted.id)
    bounced = DeliveryReceipt("bounced", f"p-{accepted.id}", "e1", reason="full")
    assert (await services.receipts.apply("smtp", bounced)).state == "bounced"
    assert (await retrying(services).retry(ACME, first.name)).outcome == "retried"
    late = msgspec.structs.replace(bounced, event="e2")
    assert (await services.receipts.apply("smtp", late)).state == "pending"
    waiting = await services.reader.delivery(ACME, first.name)
    assert waiting is not None
    assert [news.event for news in waiting.news] == ["e1", "e2"], "they are kept"
    assert (waiting.given_up, waiting.next_try) == (1, services.clock.now())

    second = msgspec.structs.replace(first.attempts[0], number=2, provider_id="p-second")
    await services.deliver(accepted.id, provider_id="p-second", attempts=(*first.attempts, second), given_up=1)
    assert (await services.receipts.apply("smtp", msgspec.structs.replace(bounced, event="e3"))).state == "sent"
    assert (await services.receipts.apply("smtp", DeliveryReceipt("bounced", "p-second", "e4"))).state == "bounced"


async def test_a_receipt_that_the_first_attempt_was_delivered_ends_the_retry(services: Services) -> None:
    accepted = await services.notify(user="ada", template="reminder", variables={"what": "nine"}, channel="email")
    first = await services.deliver(accepted.id, state="failed", reason="timeout")
    await retrying(services).retry(ACME, first.name)
    arrived = DeliveryReceipt("delivered", f"p-{accepted.id}", "e1")
    assert (await services.receipts.apply("smtp", arrived)).state == "delivered"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada())
        yield world


async def again(world: World, name: str) -> Delivery:
    """Send it again; returns the settled delivery."""
    done = await Resend(world.store.tables, world.engine, world.clock).retry(TENANT, name)
    assert done.outcome == "retried"
    [delivery] = await world.settled(name)
    return delivery


async def test_a_retried_push_is_sent_to_the_present_devices(world: World) -> None:
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


async def test_a_retry_has_all_attempts_again(world: World) -> None:
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
