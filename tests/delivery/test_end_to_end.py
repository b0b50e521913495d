"""From a request to a provider and its receipt: the services, an engine and a worker on one store."""

from typing import Any, cast

import pytest

from tests.delivery.services import ADA, Services, reminder
from tests.delivery.world import TENANT, Recorder, World
from tidings.delivery.notifications.reader import Search
from tidings.domain.notifications.delivery import DeliveryReceipt, Permanent
from tidings.domain.notifications.message import Email, Sms
from tidings.domain.recurrence.timezone import zone_named
from tidings.testing import SimulatedClock, eventually

NINE: dict[str, Any] = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}}


@pytest.fixture
async def services(world: World) -> Services:
    services = Services(world.store, cast(SimulatedClock, world.clock), world.engine, TENANT)
    await services.users.put(TENANT, "ada", ADA)
    await services.templates.put(TENANT, "reminder", reminder())
    return services


async def test_a_notification_is_accepted_sent_delivered_explained_and_erased(world: World, services: Services) -> None:
    provider = Recorder("email")
    world.start(world.worker({"mail": provider}))
    accepted = await services.notify(**NINE)
    await world.settled(f"{accepted.id}/1")
    [message] = provider.calls
    assert isinstance(message, Email)
    assert (message.to, message.subject, message.text) == ("ada@example.com", "Hi Ada", "It is nine.")
    status = await services.reader.get(TENANT, accepted.id)
    assert status is not None
    assert status.state == "sent"
    receipt = DeliveryReceipt("delivered", f"p-{message.id}", "event-1")
    assert (await services.receipts.apply("mail", receipt)).state == "delivered"
    [listed] = (await services.reader.page(TENANT, Search(user="ada", state="delivered"))).notifications
    assert listed.notification.id == accepted.id
    lines = await services.history.explain(TENANT, accepted.id)
    assert lines is not None
    assert [line.event for line in lines] == ["accepted", "released", "attempt", "accepted", "delivered"]
    erased = await services.erasure.erase(TENANT, "ada")
    assert erased.removed == {"notification": 1, "delivery": 1, "sent": 1, "user": 1}


async def test_the_fallback_channel_is_used(world: World, services: Services) -> None:
    mail, text = Recorder("email"), Recorder("sms")
    mail.answer = lambda _: Permanent("address_refused", "no such user")
    world.start(world.worker({"mail": mail, "text": text}))
    accepted = await services.notify(**NINE)
    [delivery] = await world.settled(f"{accepted.id}/1")
    assert (delivery.state, delivery.channel) == ("sent", "sms")
    assert isinstance(text.calls[0], Sms)
    lines = await services.history.explain(TENANT, accepted.id)
    assert lines is not None
    assert [line.event for line in lines if line.attempt] == ["attempt", "address_refused", "attempt", "accepted"]


async def test_a_notification_to_all_channels(world: World, services: Services) -> None:
    mail, text = Recorder("email"), Recorder("sms")
    world.start(world.worker({"mail": mail, "text": text}))
    accepted = await services.notify(**NINE, channels="all")
    await world.settled(f"{accepted.id}/1/email", f"{accepted.id}/1/sms")
    assert (len(mail.calls), len(text.calls)) == (1, 1)
    status = await services.reader.get(TENANT, accepted.id)
    assert status is not None
    assert status.state == "sent"
    assert {each.channel for each in status.deliveries} == {"email", "sms"}


async def test_a_notification_deferred_by_quiet_hours_can_be_cancelled(world: World, services: Services) -> None:
    provider = Recorder("email")
    world.start(world.worker({"mail": provider}))
    await services.users.patch(TENANT, "ada", {"quiet": {"hours": _around(services)}})
    accepted = await services.notify(**NINE)

    async def waits() -> bool:
        found = await services.reader.delivery(TENANT, f"{accepted.id}/1")
        return found is not None and found.reason == "quiet_hours"

    assert await eventually(waits)
    status = await services.reader.get(TENANT, accepted.id)
    assert status is not None
    assert (status.state, status.reason) == ("pending", "quiet_hours")
    assert (await services.cancellation.cancel(TENANT, accepted.id)).outcome == "cancelled"
    erased = await services.erasure.erase(TENANT, "ada")
    assert erased.removed["delivery"] == 1
    assert provider.calls == []


async def test_erasure_cancels_the_pending_retry(world: World, services: Services) -> None:
    world.start(world.worker({"mail": Recorder("email")}))
    await services.users.patch(TENANT, "ada", {"quiet": {"hours": _around(services)}})
    accepted = await services.notify(**NINE)

    async def waiting() -> str | None:
        found = await services.reader.delivery(TENANT, f"{accepted.id}/1")
        return None if found is None or found.next_try is None else f"{found.name}~{found.turn}"

    name = await eventually(waiting)
    assert name is not None
    assert (await services.engine.find(TENANT, name)) is not None
    assert (await services.erasure.erase(TENANT, "ada")).cancelled == 1
    after = await services.engine.find(TENANT, name)
    assert after is None or after.state == "cancelled"


def _around(services: Services) -> str:
    """Quiet hours in New York that contain the present time and some hours after it."""
    second = services.clock.now() // 1_000_000
    hour = (second + zone_named("America/New_York").offset_at(second)) // 3_600 % 24
    return f"{(hour - 2) % 24:02}:00-{(hour + 3) % 24:02}:00"
