"""From a request to a provider and back: the services, an engine and a worker around one store."""

from typing import Any, cast

import pytest

from tests.delivery.office import ADA, Office, reminder
from tests.delivery.world import TENANT, Recorder, World
from tidings.delivery.lookup import Search
from tidings.domain.notifications.delivery import DeliveryReceipt, Permanent
from tidings.domain.notifications.message import Email, Sms
from tidings.domain.recurrence.timezone import zone_named
from tidings.testing import SimulatedClock, eventually

NINE: dict[str, Any] = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}}


@pytest.fixture
async def office(world: World) -> Office:
    office = Office(world.store, cast(SimulatedClock, world.clock), world.engine, TENANT)
    await office.users.put(TENANT, "ada", ADA)
    await office.templates.put(TENANT, "reminder", reminder())
    return office


async def test_accepted_sent_delivered_explained_erased(world: World, office: Office) -> None:
    provider = Recorder("email")
    world.start(world.worker({"mail": provider}))
    told = await office.notify(**NINE)
    await world.settled(f"{told.id}/1")
    [message] = provider.calls
    assert isinstance(message, Email)
    assert (message.to, message.subject, message.text) == ("ada@example.com", "Hi Ada", "It is nine.")
    status = await office.lookup.get(TENANT, told.id)
    assert status is not None
    assert status.state == "sent"
    receipt = DeliveryReceipt("delivered", f"p-{message.id}", "event-1")
    assert (await office.receiving.apply("mail", receipt)).state == "delivered"
    [listed] = (await office.lookup.page(TENANT, Search(user="ada", state="delivered"))).notifications
    assert listed.notification.id == told.id
    lines = await office.explaining.explain(TENANT, told.id)
    assert lines is not None
    assert [line.event for line in lines] == ["accepted", "released", "attempt", "accepted", "delivered"]
    erased = await office.erasing.erase(TENANT, "ada")
    assert erased.removed == {"notification": 1, "delivery": 1, "sent": 1, "user": 1}


async def test_the_next_channel_is_told_too(world: World, office: Office) -> None:
    mail, text = Recorder("email"), Recorder("sms")
    mail.answer = lambda _: Permanent("address_refused", "no such user")
    world.start(world.worker({"mail": mail, "text": text}))
    told = await office.notify(**NINE)
    [delivery] = await world.settled(f"{told.id}/1")
    assert (delivery.state, delivery.channel) == ("sent", "sms")
    assert isinstance(text.calls[0], Sms)
    lines = await office.explaining.explain(TENANT, told.id)
    assert lines is not None
    assert [line.event for line in lines if line.attempt] == ["attempt", "address_refused", "attempt", "accepted"]


async def test_all_channels(world: World, office: Office) -> None:
    mail, text = Recorder("email"), Recorder("sms")
    world.start(world.worker({"mail": mail, "text": text}))
    told = await office.notify(**NINE, channels="all")
    await world.settled(f"{told.id}/1/email", f"{told.id}/1/sms")
    assert (len(mail.calls), len(text.calls)) == (1, 1)
    status = await office.lookup.get(TENANT, told.id)
    assert status is not None
    assert status.state == "sent"
    assert {each.channel for each in status.deliveries} == {"email", "sms"}


async def test_what_waits_for_the_morning_can_be_taken_back(world: World, office: Office) -> None:
    provider = Recorder("email")
    world.start(world.worker({"mail": provider}))
    await office.users.patch(TENANT, "ada", {"quiet": {"hours": _around(office)}})
    told = await office.notify(**NINE)

    async def waits() -> bool:
        found = await office.lookup.delivery(TENANT, f"{told.id}/1")
        return found is not None and found.reason == "quiet_hours"

    assert await eventually(waits)
    status = await office.lookup.get(TENANT, told.id)
    assert status is not None
    assert (status.state, status.reason) == ("pending", "quiet_hours")
    assert (await office.cancelling.cancel(TENANT, told.id)).outcome == "cancelled"
    erased = await office.erasing.erase(TENANT, "ada")
    assert erased.removed["delivery"] == 1
    assert provider.calls == []


async def test_erasing_takes_the_next_try_off_the_timeline(world: World, office: Office) -> None:
    world.start(world.worker({"mail": Recorder("email")}))
    await office.users.patch(TENANT, "ada", {"quiet": {"hours": _around(office)}})
    told = await office.notify(**NINE)

    async def waiting() -> str | None:
        found = await office.lookup.delivery(TENANT, f"{told.id}/1")
        return None if found is None or found.next_try is None else f"{found.name}~{found.turn}"

    name = await eventually(waiting)
    assert name is not None
    assert (await office.engine.find(TENANT, name)) is not None
    assert (await office.erasing.erase(TENANT, "ada")).cancelled == 1
    after = await office.engine.find(TENANT, name)
    assert after is None or after.state == "cancelled"


def _around(office: Office) -> str:
    """Hours that hold now in New York and for some time yet."""
    second = office.clock.now() // 1_000_000
    hour = (second + zone_named("America/New_York").offset_at(second)) // 3_600 % 24
    return f"{(hour - 2) % 24:02}:00-{(hour + 3) % 24:02}:00"
