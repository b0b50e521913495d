"""What belongs to a notification as it was before a change goes to nobody else; an id that is used again is sent."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.delivery.services import ACME, ADA, DAY, HOUR, SECOND, Services
from tests.delivery.world import TENANT, Recorder, World, ada
from tidings.delivery.accept.acceptance import Acceptance
from tidings.delivery.accept.change import NotificationChanges
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.notifications.resend import Resend
from tidings.delivery.notifications.status import all_deliveries
from tidings.delivery.people.profile import Profile
from tidings.delivery.services import NotificationServices
from tidings.delivery.worker import job as jobs
from tidings.delivery.worker.context import ContextLoader, DeliveryContext
from tidings.delivery.worker.policy import AlreadyDone, Finish, Send, decide
from tidings.domain.notifications.delivery import Claim, Delivery, Temporary, Verdict
from tidings.domain.notifications.message import Email, Rendered
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.notifications.user import User
from tidings.domain.schedules.command import Fire, Outcome
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import Record
from tidings.testing import eventually

TOPIC = "notify.email"
HI: dict[str, Any] = {"user": "ada", "channel": "email", "content": {"text": "Hi"}}
HO: dict[str, Any] = {"user": "bob", "channel": "email", "content": {"text": "Ho"}}
HOURLY = HI | {"id": "n", "every": "PT1H"}


def changes_of(services: Services) -> NotificationChanges:
    return NotificationChanges(services.tables, services.engine, services.acceptance, services.clock)


async def put(services: Services, name: str, asked: dict[str, Any], *, reuse: bool = True) -> Outcome:
    return await changes_of(services).replace(ACME, name, msgspec.convert(asked, NotificationRequest), reuse=reuse)


async def contexts(services: Services, records: Sequence[Record]) -> list[DeliveryContext]:
    """What a worker would decide on."""
    wanted = [(ACME, record, jobs.read_job(record, ACME)) for record in records]
    found = await ContextLoader(services.tables, services.clock).load(wanted)
    return [each for each in found if isinstance(each, DeliveryContext)]


# An id whose schedule is forgotten, and whose deliveries are not


@pytest.mark.parametrize("uses", [1, 2])
async def test_an_id_whose_schedule_is_forgotten_is_sent_again(services: Services, uses: int) -> None:
    await services.users.put(ACME, "bob", Profile(email="bob@example.com"))
    await services.notify(id="n", **HI)
    await services.release(TOPIC)
    await services.deliver("n")
    for use in range(2, uses + 1):
        assert (await put(services, "n", HI | {"content": {"text": f"{use}"}})).outcome == "scheduled"
        await services.release(TOPIC)
        await services.deliver("n", name=f"n/{use}.1")
    services.clock.advance(8 * DAY)
    assert await services.engine.find(ACME, "n") is None
    posted = await services.notify(id="n", **HO)
    assert posted.outcome == "conflict"
    assert posted.reason is not None
    assert posted.reason.startswith("the id belongs to a notification with other content (its state is sent): PUT it")
    assert (await put(services, "n", HO, reuse=False)).outcome == "already_released"
    assert (await put(services, "n", HO)).outcome == "scheduled"
    released = await services.release(TOPIC)
    decisions = {
        each.delivery.name: decide(each, Backoff(), services.clock.now())
        for each in await contexts(services, [record for record in released if record.id == "n"])
    }
    assert decisions == {f"n/{uses + 1}.1": Send("email", ("bob@example.com",))}


# Another recipient


def failing_once() -> Recorder:
    """A provider that may have got the first message, and says to try again soon."""
    mail = Recorder("email")

    def answer(message: Rendered) -> Verdict | None:
        first = len(mail.calls) == 1
        return Temporary("provider_error", "timeout", retry_after_us=SECOND, may_have_arrived=True) if first else None

    mail.answer = answer
    return mail


@pytest.mark.parametrize("asked", [{"user": "bob"}, {"to": "bob@example.com", "channel": "email"}])
async def test_an_earlier_occurrence_is_not_sent_to_another_recipient(world: World, asked: dict[str, Any]) -> None:
    await world.put_user(ada())
    await world.put_user(User("bob", "Bob", email="bob@example.com"))
    acceptance = Acceptance(world.store.tables, world.engine, world.templates, world.clock)
    changes = NotificationChanges(world.store.tables, world.engine, acceptance, world.clock)
    mail = failing_once()
    world.start(world.worker({"mail": mail}))
    await acceptance.accept(TENANT, msgspec.convert(HOURLY, NotificationRequest))
    await world.engine.submit([Fire(TENANT, "n")])

    async def waits() -> bool:
        found = await world.delivery("n/-1")
        return found is not None and found.next_try is not None

    await eventually(waits)
    assert (await changes.patch(TENANT, "n", asked)).outcome == "replaced"
    [gone] = await world.settled("n/-1")
    assert (gone.state, gone.reason, gone.user) == ("cancelled", "replaced", "ada")
    retry = await world.engine.find(TENANT, "n/-1~2")
    assert retry is None or retry.state == "cancelled"
    await world.engine.submit([Fire(TENANT, "n")])
    await world.settled("n/2.-1")
    assert [(each.id, each.to) for each in mail.calls if isinstance(each, Email)] == [
        ("n/-1", "ada@example.com"),
        ("n/2.-1", "bob@example.com"),
    ]
    assert (await changes.patch(TENANT, "n", {"user": "ada"})).outcome == "replaced"
    services = NotificationServices(world.store.tables, world.engine, world.clock)
    await services.erasure.erase(TENANT, "bob")
    left = await all_deliveries(world.store.tables, TENANT, "n", world.clock.now())
    assert [each.name for each in left if b"bob" in msgspec.json.encode(each)] == []


async def waiting(services: Services, **about: Any) -> None:
    """A recurring notification for Ada, of which a fired occurrence was tried and waits."""
    await services.users.put(ACME, "bob", Profile(email="bob@example.com"))
    await services.notify(**HOURLY)
    await services.engine.submit([Fire(ACME, "n")])
    await services.release(TOPIC)
    later = services.clock.now() + HOUR
    given: dict[str, Any] = {
        "state": "pending",
        "reason": "timeout",
        "next_try": later,
        "sent": None,
        "provider_id": None,
        "turn": 2,
    }
    await services.deliver("n", name="n/-1", **(given | about))


async def test_what_a_worker_is_sending_is_named_and_not_tried_for_another(services: Services) -> None:
    until = services.clock.now() + 60 * SECOND
    await waiting(services, state="processing", claim=Claim("w", until), next_try=None, turn=1)
    changed = await changes_of(services).patch(ACME, "n", {"user": "bob"})
    assert (changed.outcome, changed.in_flight) == ("replaced", -1)
    services.clock.advance(61 * SECOND)  # that worker is gone
    [context] = await contexts(services, [each for each in await services.release(TOPIC) if each.number == -1])
    assert decide(context, Backoff(), services.clock.now()) == Finish("cancelled", "replaced")


async def test_the_same_recipient_still_gets_an_earlier_occurrence(services: Services) -> None:
    await waiting(services)
    assert (await changes_of(services).patch(ACME, "n", {"content": {"text": "Ho"}})).outcome == "replaced"
    [known] = await all_deliveries(services.tables, ACME, "n", services.clock.now())
    assert (known.name, known.state, known.user) == ("n/-1", "pending", "ada")


async def test_another_address_does_not_get_what_was_tried_for_the_former_one(services: Services) -> None:
    about = {"user": None, "to": "Ada@example.com"}
    await services.notify(**(HOURLY | about))
    await services.engine.submit([Fire(ACME, "n")])
    [fired] = await services.release(TOPIC)
    until = services.clock.now()
    tried = {"state": "processing", "claim": Claim("w", until), "sent": None, "provider_id": None}
    await services.deliver("n", None, name="n/-1", address="ada@example.com", **tried)
    [context] = await contexts(services, [fired])
    assert decide(context, Backoff(), until) == Send("email", ("Ada@example.com",))
    await changes_of(services).patch(ACME, "n", {"to": "bob@example.com", "channel": "email"})
    [context] = await contexts(services, [fired])
    assert decide(context, Backoff(), until) == Finish("cancelled", "replaced")


async def test_an_erased_user_leaves_nothing_in_a_notification_that_was_theirs_meanwhile(services: Services) -> None:
    await waiting(services, turn=1, next_try=None)  # its claim ended, and its record is read again
    await services.users.put(ACME, "carol", Profile(email="carol@example.com"))
    for user in ("bob", "carol"):
        assert (await changes_of(services).patch(ACME, "n", {"user": user})).outcome == "replaced"
        await services.engine.submit([Fire(ACME, "n")])
        for each in await contexts(services, await services.release(TOPIC)):
            decision = decide(each, Backoff(), services.clock.now())
            assert isinstance(decision, AlreadyDone) or each.delivery.user == each.notification.user
    await services.erasure.erase(ACME, "ada")
    known = await all_deliveries(services.tables, ACME, "n", services.clock.now())
    assert [each for each in known if b"ada" in msgspec.json.encode(each)] == []


# Sent again by hand


async def failed(services: Services, name: str) -> Delivery:
    await services.users.put(ACME, "bob", Profile(email="bob@example.com"))
    return await services.deliver("n", name=name, state="failed", reason="timeout", provider_id=None, sent=None)


async def test_a_delivery_of_a_former_use_of_an_id_is_not_sent_again(services: Services) -> None:
    await services.notify(id="n", **HI)
    await services.release(TOPIC)
    await failed(services, "n/1")
    assert (await put(services, "n", HI | {"content": {"text": "Ho"}})).outcome == "scheduled"
    refused = await Resend(services.tables, services.engine, services.clock).retry(ACME, "n/1")
    reason = "it belongs to a former use of its notification's id: create a new one"
    assert (refused.outcome, refused.reason) == ("rejected", reason)


async def test_a_delivery_of_a_former_recipient_is_not_sent_again(services: Services) -> None:
    await services.notify(**HOURLY)
    await failed(services, "n/-1")
    await changes_of(services).patch(ACME, "n", {"user": "bob"})
    refused = await Resend(services.tables, services.engine, services.clock).retry(ACME, "n/-1")
    reason = "its notification has another recipient now: create a new one"
    assert (refused.outcome, refused.reason) == ("rejected", reason)


# What was released, and is taken back


async def test_a_released_local_time_does_not_move_once_it_is_taken_back(services: Services) -> None:
    accepted = await services.notify(id="n", **HI, at="tomorrow 09:00")
    assert accepted.due is not None
    services.clock.advance(accepted.due + 60 * SECOND - services.clock.now())
    await services.release(TOPIC)
    assert (await changes_of(services).patch(ACME, "n", {})).outcome == "unchanged"
    paused = await changes_of(services).pause(ACME, "n")
    assert (paused.outcome, paused.due) == ("paused", accepted.due)
    await services.users.patch(ACME, "ada", {"zone": "America/Los_Angeles"})
    schedule = await services.engine.find(ACME, "n")
    assert schedule is not None
    assert (schedule.state, schedule.due) == ("paused", accepted.due)
    await changes_of(services).resume(ACME, "n")
    again = [each for each in await services.release(TOPIC) if each.generation == 2]
    assert [decide(each, Backoff(), services.clock.now()) for each in await contexts(services, again)] == [
        Send("email", ("ada@example.com",))
    ]


async def test_a_released_one_can_be_paused_whatever_became_of_its_user(services: Services) -> None:
    await services.notify(id="n", **HI, expires_after="PT1H", priority="high")
    topic = f"{TOPIC}.high"
    await services.release(topic)
    before = await services.engine.find(ACME, "n")
    await services.users.patch(ACME, "ada", {"email": None})
    assert (await changes_of(services).pause(ACME, "n")).outcome == "paused"
    held = await services.engine.find(ACME, "n")
    assert before is not None
    assert held is not None
    for name in ("due", "topic", "priority", "labels"):
        assert getattr(held, name) == getattr(before, name)
    assert (held.state, held.lateness) == ("paused", Lateness(expires_after_us=HOUR))
    await services.users.put(ACME, "ada", ADA)
    await changes_of(services).resume(ACME, "n")
    again = [each for each in await services.release(topic) if each.generation == 2]
    assert [each.delivery.name for each in await contexts(services, again)] == ["n/2.1"]


async def test_a_change_names_the_channel_that_is_still_pending(services: Services) -> None:
    await services.notify(id="n", user="ada", channels=["email", "sms"], spread="all", content={"text": "Hi"})
    await services.release(TOPIC)
    about = {"state": "pending", "reason": "rate_limited", "sent": None, "provider_id": None}
    await services.deliver("n", name="n/1/email", **about)
    await services.deliver("n", name="n/1/sms", channel="sms")
    refused = await changes_of(services).patch(ACME, "n", {"content": {"text": "Ho"}})
    reason = "n/1/email is pending on email (rate_limited); sms is sent: it can only be cancelled"
    assert (refused.outcome, refused.reason) == ("in_flight", reason)
