"""The states of notifications, searches, explanations and cancellation."""

from typing import Any

import msgspec
import pytest

from tests.delivery.services import ACME, DAY, HOUR, SECOND, Services
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.notifications.reader import Search
from tidings.delivery.people.profile import Profile
from tidings.delivery.rows import change, delivery_put
from tidings.domain.errors import Invalid
from tidings.domain.fleet import Report
from tidings.domain.notifications.delivery import Attempt, Claim, Delivery, ProviderEvent, State
from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.domain.notifications.notification import InlineContent
from tidings.domain.schedules.command import Pause

HI = {"user": "ada", "words": {"text": "Hi", "title": "Hi"}}


async def state(services: Services, notification: str) -> tuple[State, str]:
    status = await services.reader.get(ACME, notification)
    assert status is not None
    return status.state, status.reason


async def test_states_from_acceptance_to_the_end(services: Services) -> None:
    accepted = await services.notify(**HI, at="+1h")
    assert await state(services, accepted.id) == ("pending", "")
    await services.engine.submit([Pause(ACME, accepted.id)])
    assert await state(services, accepted.id) == ("pending", "paused")
    other = await services.notify(**HI)
    await services.release("notify.email")
    assert await state(services, other.id) == ("pending", "released")
    await services.deliver(other.id, state="processing", claim=Claim("w", services.clock.now() + SECOND))
    assert await state(services, other.id) == ("processing", "")
    await services.deliver(other.id)
    assert await state(services, other.id) == ("sent", "")
    status = await services.reader.get(ACME, other.id)
    assert status is not None
    assert status.deliveries[0].attempts[0].provider_id == f"p-{other.id}"
    services.clock.advance(8 * DAY)
    await services.store.tend(services.clock.now())
    assert await services.engine.find(ACME, other.id) is None  # the schedule is forgotten
    assert await state(services, other.id) == ("sent", "")
    assert await services.reader.get(ACME, "nothing") is None
    assert await services.reader.get("other", other.id) is None


async def test_a_notification_that_waits_for_a_worker_says_that_there_is_none(services: Services) -> None:
    accepted = await services.notify(**HI)
    await services.release("notify.email")
    api = Report("front", ("api", "dispatch"), at=services.clock.now())
    await services.store.acquire(services.clock.elapsed(), 60 * SECOND, api)
    status = await services.reader.get(ACME, accepted.id)
    assert status is not None
    assert (status.state, status.reason) == ("pending", "no_worker")
    [listed] = (await services.reader.page(ACME, Search())).notifications
    assert listed.reason == "no_worker"
    await services.store.acquire(
        services.clock.elapsed(), 60 * SECOND, msgspec.structs.replace(api, roles=("deliver",))
    )
    status = await services.reader.get(ACME, accepted.id)
    assert status is not None
    assert status.reason == "released"


async def test_a_notification_says_that_no_live_node_delivers_to_its_channel(services: Services) -> None:
    mailed = await services.notify(**HI)
    inboxed = await services.notify(**HI, channels=("in_app", "email"))
    await services.release("notify.email")
    await services.release("notify.in_app")
    report = Report("mail", ("deliver", "dispatch"), at=services.clock.now(), channels=("email", "sms"))
    await services.store.acquire(services.clock.elapsed(), 60 * SECOND, report)
    assert await state(services, mailed.id) == ("pending", "released")
    assert await state(services, inboxed.id) == ("pending", "no_worker")
    listed = (await services.reader.page(ACME, Search())).notifications
    assert {each.notification.id: each.reason for each in listed} == {mailed.id: "released", inboxed.id: "no_worker"}
    everywhere = msgspec.structs.replace(report, channels=CHANNEL_NAMES)
    await services.store.acquire(services.clock.elapsed(), 60 * SECOND, everywhere)
    assert await state(services, inboxed.id) == ("pending", "released")


async def test_the_holder_of_a_claim_is_not_shown(services: Services) -> None:
    accepted = await services.notify(**HI)
    await services.release("notify.email")
    await services.deliver(accepted.id, state="processing", claim=Claim("worker-7", services.clock.now() + SECOND))
    status = await services.reader.get(ACME, accepted.id)
    page = await services.reader.deliveries(ACME, Search())
    one = await services.reader.delivery(ACME, f"{accepted.id}/1")
    assert b"worker-7" not in msgspec.json.encode([status, page, one])


async def test_deliveries_to_all_channels_have_one_state(services: Services) -> None:
    accepted = await services.notify(**HI, channels="all")
    await services.release("notify.email")
    now = services.clock.now()
    ends: tuple[tuple[str, State], ...] = (("email", "failed"), ("sms", "sent"), ("in_app", "pending"))
    for channel, end in ends:
        name = f"{accepted.id}/1/{channel}"
        delivery = Delivery(name, accepted.id, now, end, channel=channel, user="ada", changed=now)  # type: ignore[arg-type]
        await change(services.tables, [[delivery_put(ACME, delivery, 0)]], now)
    assert (await state(services, accepted.id))[0] == "pending"
    [listed] = (await services.reader.page(ACME, Search())).notifications
    assert len(listed.deliveries) == 3
    assert listed.state == "pending"


async def test_a_recurring_notification_is_pending_while_occurrences_remain(services: Services) -> None:
    accepted = await services.notify(**HI, every="R2/PT1H", late="fire_all")
    services.clock.advance(HOUR)
    await services.release("notify.email")
    await services.deliver(accepted.id)
    assert (await state(services, accepted.id))[0] == "pending"
    services.clock.advance(HOUR)
    await services.release("notify.email")
    await services.deliver(accepted.id, name=f"{accepted.id}/2", state="failed", reason="too_many_attempts")
    assert await state(services, accepted.id) == ("failed", "too_many_attempts")
    [listed] = (await services.reader.page(ACME, Search())).notifications
    assert listed.state == "failed"


async def test_a_list_has_the_same_state_after_the_schedule_is_forgotten(services: Services) -> None:
    """A finished schedule is forgotten long before its deliveries: only they show which occurrence was the last."""
    accepted = await services.notify(**HI, every="R3/PT1H", late="fire_all")
    for number, ended in ((1, "delivered"), (2, "sent"), (3, "failed")):
        services.clock.advance(HOUR)
        await services.release("notify.email")
        await services.deliver(accepted.id, name=f"{accepted.id}/{number}", state=ended)
    services.clock.advance(8 * DAY)
    for _ in range(20):
        await services.store.tend(services.clock.now())
        services.clock.advance(2_000_000)
    assert await services.engine.find(ACME, accepted.id) is None
    assert (await state(services, accepted.id))[0] == "failed"
    [listed] = (await services.reader.page(ACME, Search())).notifications
    assert listed.state == "failed"
    assert [each.name for each in listed.deliveries][-1] == f"{accepted.id}/3"


async def test_searches(services: Services) -> None:
    await services.users.put(ACME, "bob", Profile(email="b@example.com", name="Bob"))
    begin = services.clock.now()
    made = []
    for number in range(6):
        user = "ada" if number % 2 else "bob"
        asked: dict[str, Any] = {"words": {"text": "Hi"}} if number < 3 else {}
        if number >= 3:
            asked = {"template": "reminder", "variables": {"what": "x"}}
        channel = "sms" if number == 5 else "email"
        made.append(await services.notify(user=user, id=f"n{number}", at="+1h", channel=channel, **asked))
        services.clock.advance(SECOND)
    batch = await services.acceptance.accept(
        ACME, NotificationRequest(id="b", users=("ada", "bob"), words=InlineContent("Hi"))
    )
    await services.cancellation.cancel(ACME, "n1")

    async def found(**conditions: Any) -> list[str]:
        page = await services.reader.page(ACME, Search(**conditions))
        return [one.notification.id for one in page.notifications]

    assert await found(user="ada") == ["b:ada", "n5", "n3", "n1"]
    assert await found(user="ada", template="reminder") == ["n5", "n3"]
    assert await found(channel="sms") == ["b:ada", "n5"]
    assert await found(batch="b") == [one.id for one in reversed(batch)]
    assert await found(state="cancelled") == ["n1"]
    assert await found(since=begin + 2 * SECOND, until=begin + 4 * SECOND) == ["n3", "n2"]
    walked: list[str] = []
    cursor = None
    while True:
        page = await services.reader.page(ACME, Search(limit=3, cursor=cursor))
        walked += [one.notification.id for one in page.notifications]
        cursor = page.cursor
        if cursor is None:
            break
    assert walked == ["b:bob", "b:ada", "n5", "n4", "n3", "n2", "n1", "n0"]
    with pytest.raises(Invalid):
        await services.reader.page(ACME, Search(limit=0))
    with pytest.raises(Invalid):
        await services.reader.page(ACME, Search(cursor="x"))


@pytest.mark.slow
async def test_a_sparse_search_continues_after_its_cursor(services: Services) -> None:
    now = services.clock.now()
    await services.notify(**HI, id="oldest", at="+1h")
    await services.cancellation.cancel(ACME, "oldest")
    for number in range(2_100):
        delivery = Delivery(f"x{number:05}/1", f"x{number:05}", now + number + 1, "sent", user="ada", changed=now)
        await change(services.tables, [[delivery_put(ACME, delivery, 0)]], now)
    lost = Delivery("lost/1", "lost", now, "skipped", "opted_out", user="ada", changed=now)
    await change(services.tables, [[delivery_put(ACME, lost, 0)]], now)
    page = await services.reader.deliveries(ACME, Search(user="ada", state="skipped"))
    assert page.deliveries == ()
    assert page.cursor is not None
    rest = await services.reader.deliveries(ACME, Search(user="ada", state="skipped", cursor=page.cursor))
    assert ([one.name for one in rest.deliveries], rest.cursor) == (["lost/1"], None)


async def test_deliveries_by_notification_and_by_failure(services: Services) -> None:
    await services.deliver("a")
    await services.deliver("b", state="failed", reason="address_refused")
    page = await services.reader.deliveries(ACME, Search(state="failed"))
    assert [(one.name, one.reason) for one in page.deliveries] == [("b/1", "address_refused")]
    assert [one.name for one in (await services.reader.deliveries(ACME, Search(), "a")).deliveries] == ["a/1"]
    with pytest.raises(Invalid, match="notifications"):
        await services.reader.deliveries(ACME, Search(batch="x"))


# Cancellation


async def test_cancel_before_release(services: Services) -> None:
    accepted = await services.notify(**HI, at="+1h")
    outcome = await services.cancellation.cancel(ACME, accepted.id)
    assert outcome.outcome == "cancelled"
    assert await state(services, accepted.id) == ("cancelled", "cancelled")
    services.clock.advance(2 * HOUR)
    assert await services.release("notify.email") == []
    assert (await services.cancellation.cancel(ACME, accepted.id)).outcome == "cancelled"
    services.clock.advance(8 * DAY)
    await services.store.tend(services.clock.now())
    assert await state(services, accepted.id) == ("cancelled", "cancelled")  # also when the schedule is forgotten
    assert (await services.cancellation.cancel(ACME, "nothing")).outcome == "unknown"


async def test_cancel_after_release_before_a_worker_read_it(services: Services) -> None:
    accepted = await services.notify(**HI)
    await services.release("notify.email")
    assert (await services.cancellation.cancel(ACME, accepted.id)).outcome == "cancelled"
    delivery = await services.reader.delivery(ACME, f"{accepted.id}/1")
    assert delivery is not None
    assert delivery.state == "cancelled"  # a worker finds it settled
    assert await state(services, accepted.id) == ("cancelled", "cancelled")


async def test_cancel_while_it_waits_or_is_sent_or_is_finished(services: Services) -> None:
    ends: tuple[tuple[State, str], ...] = (
        ("pending", "cancelled"),
        ("processing", "in_flight"),
        ("sent", "already_released"),
    )
    for number, (before, answer) in enumerate(ends):
        accepted = await services.notify(**HI, id=f"n{number}")
        await services.release("notify.email")
        await services.deliver(accepted.id, state=before, next_try=services.clock.now() + HOUR)
        assert (await services.cancellation.cancel(ACME, accepted.id)).outcome == answer
        after = await services.reader.delivery(ACME, f"{accepted.id}/1")
        assert after is not None
        assert after.state == ("cancelled" if before == "pending" else before)


async def test_cancel_of_a_recurring_notification(services: Services) -> None:
    accepted = await services.notify(**HI, every="R/PT1H")
    services.clock.advance(HOUR)
    await services.release("notify.email")
    await services.deliver(accepted.id)
    assert (await services.cancellation.cancel(ACME, accepted.id)).outcome == "cancelled"
    assert await state(services, accepted.id) == ("cancelled", "cancelled")
    status = await services.reader.get(ACME, accepted.id)
    assert status is not None
    assert [one.state for one in status.deliveries] == ["sent"]  # what was sent stays sent


# Explanations


async def test_explain_from_acceptance_to_the_receipt(services: Services) -> None:
    accepted = await services.notify(**HI, at="+1h")
    services.clock.advance(HOUR)
    await services.release("notify.email")
    now = services.clock.now()
    attempts = (
        Attempt(1, "email", "smtp", now + 5, now + 9, "timeout", "no answer"),
        Attempt(2, "email", "smtp", now + SECOND, now + SECOND + 4, "accepted", provider_id="p1"),
    )
    news = (ProviderEvent(now + 2 * SECOND, "delivered", "e1"),)
    await services.deliver(
        accepted.id, attempts=attempts, state="delivered", due=now, changed=now + 2 * SECOND, news=news,
        claim=Claim("worker-7", now),
    )  # fmt: skip
    lines = await services.history.explain(ACME, accepted.id)
    assert lines is not None
    assert [line.event for line in lines] == [
        "accepted", "released", "attempt", "timeout", "attempt", "accepted", "delivered",
    ]  # fmt: skip
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert (lines[2].late_us, lines[5].provider_id) == (5, "p1")
    assert b"worker-7" not in msgspec.json.encode(lines)
    assert await services.history.explain(ACME, "nothing") is None
