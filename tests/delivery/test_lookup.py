"""What became of notifications: their states, searches, explanations; and taking them back."""

from typing import Any

import msgspec
import pytest

from tests.delivery.office import ACME, DAY, HOUR, SECOND, Office
from tidings.delivery.asking import Notify
from tidings.delivery.filing import delivery_put
from tidings.delivery.lookup import Search
from tidings.delivery.profile import Profile
from tidings.domain.errors import Invalid
from tidings.domain.fleet import Report
from tidings.domain.notifications.delivery import Attempt, Claim, Delivery, ProviderEvent, State
from tidings.domain.notifications.notification import InlineContent
from tidings.domain.schedules.command import Pause

HI = {"user": "ada", "words": {"text": "Hi", "title": "Hi"}}


async def state(office: Office, notification: str) -> tuple[State, str]:
    status = await office.lookup.get(ACME, notification)
    assert status is not None
    return status.state, status.reason


async def test_states_from_acceptance_to_the_end(office: Office) -> None:
    told = await office.notify(**HI, at="+1h")
    assert await state(office, told.id) == ("pending", "")
    await office.engine.submit([Pause(ACME, told.id)])
    assert await state(office, told.id) == ("pending", "paused")
    other = await office.notify(**HI)
    await office.release("notify.email")
    assert await state(office, other.id) == ("pending", "released")
    await office.deliver(other.id, state="processing", claim=Claim("w", office.clock.now() + SECOND))
    assert await state(office, other.id) == ("processing", "")
    await office.deliver(other.id)
    assert await state(office, other.id) == ("sent", "")
    status = await office.lookup.get(ACME, other.id)
    assert status is not None
    assert status.deliveries[0].attempts[0].provider_id == f"p-{other.id}"
    office.clock.advance(8 * DAY)
    await office.store.tend(office.clock.now())
    assert await office.engine.find(ACME, other.id) is None  # the schedule is forgotten
    assert await state(office, other.id) == ("sent", "")
    assert await office.lookup.get(ACME, "nothing") is None
    assert await office.lookup.get("other", other.id) is None


async def test_what_waits_for_a_worker_says_that_there_is_none(office: Office) -> None:
    told = await office.notify(**HI)
    await office.release("notify.email")
    api = Report("front", ("api", "dispatch"), at=office.clock.now())
    await office.store.acquire(office.clock.elapsed(), 60 * SECOND, api)
    status = await office.lookup.get(ACME, told.id)
    assert status is not None
    assert (status.state, status.reason) == ("pending", "no_worker")
    [listed] = (await office.lookup.page(ACME, Search())).notifications
    assert listed.reason == "no_worker"
    await office.store.acquire(office.clock.elapsed(), 60 * SECOND, msgspec.structs.replace(api, roles=("deliver",)))
    status = await office.lookup.get(ACME, told.id)
    assert status is not None
    assert status.reason == "released"


async def test_a_claim_is_nobody_elses_business(office: Office) -> None:
    told = await office.notify(**HI)
    await office.release("notify.email")
    await office.deliver(told.id, state="processing", claim=Claim("worker-7", office.clock.now() + SECOND))
    status = await office.lookup.get(ACME, told.id)
    page = await office.lookup.deliveries(ACME, Search())
    one = await office.lookup.delivery(ACME, f"{told.id}/1")
    assert b"worker-7" not in msgspec.json.encode([status, page, one])


async def test_of_all_channels_the_state_is_one(office: Office) -> None:
    told = await office.notify(**HI, channels="all")
    await office.release("notify.email")
    now = office.clock.now()
    ends: tuple[tuple[str, State], ...] = (("email", "failed"), ("sms", "sent"), ("in_app", "pending"))
    for channel, end in ends:
        name = f"{told.id}/1/{channel}"
        delivery = Delivery(name, told.id, now, end, channel=channel, user="ada", changed=now)  # type: ignore[arg-type]
        await office.documents.change([[delivery_put(ACME, delivery, 0)]], now)
    assert (await state(office, told.id))[0] == "pending"
    [listed] = (await office.lookup.page(ACME, Search())).notifications
    assert len(listed.deliveries) == 3
    assert listed.state == "pending"


async def test_a_recurring_one_is_pending_while_something_is_to_come(office: Office) -> None:
    told = await office.notify(**HI, every="R2/PT1H", late="fire_all")
    office.clock.advance(HOUR)
    await office.release("notify.email")
    await office.deliver(told.id)
    assert (await state(office, told.id))[0] == "pending"
    office.clock.advance(HOUR)
    await office.release("notify.email")
    await office.deliver(told.id, name=f"{told.id}/2", state="failed", reason="too_many_attempts")
    assert await state(office, told.id) == ("failed", "too_many_attempts")
    [listed] = (await office.lookup.page(ACME, Search())).notifications
    assert listed.state == "failed"


async def test_a_list_says_the_same_of_what_is_forgotten(office: Office) -> None:
    """A finished schedule is forgotten long before its deliveries: only they know which occurrence was the last."""
    told = await office.notify(**HI, every="R3/PT1H", late="fire_all")
    for number, ended in ((1, "delivered"), (2, "sent"), (3, "failed")):
        office.clock.advance(HOUR)
        await office.release("notify.email")
        await office.deliver(told.id, name=f"{told.id}/{number}", state=ended)
    office.clock.advance(8 * DAY)
    for _ in range(20):
        await office.store.tend(office.clock.now())
        office.clock.advance(2_000_000)
    assert await office.engine.find(ACME, told.id) is None
    assert (await state(office, told.id))[0] == "failed"
    [listed] = (await office.lookup.page(ACME, Search())).notifications
    assert listed.state == "failed"
    assert [each.name for each in listed.deliveries][-1] == f"{told.id}/3"


async def test_searches(office: Office) -> None:
    await office.users.put(ACME, "bob", Profile(email="b@example.com", name="Bob"))
    begin = office.clock.now()
    made = []
    for number in range(6):
        user = "ada" if number % 2 else "bob"
        asked: dict[str, Any] = {"words": {"text": "Hi"}} if number < 3 else {}
        if number >= 3:
            asked = {"template": "reminder", "variables": {"what": "x"}}
        channel = "sms" if number == 5 else "email"
        made.append(await office.notify(user=user, id=f"n{number}", at="+1h", channel=channel, **asked))
        office.clock.advance(SECOND)
    batch = await office.notifying.accept(ACME, Notify(id="b", users=("ada", "bob"), words=InlineContent("Hi")))
    await office.cancelling.cancel(ACME, "n1")

    async def found(**conditions: Any) -> list[str]:
        page = await office.lookup.page(ACME, Search(**conditions))
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
        page = await office.lookup.page(ACME, Search(limit=3, cursor=cursor))
        walked += [one.notification.id for one in page.notifications]
        cursor = page.cursor
        if cursor is None:
            break
    assert walked == ["b:bob", "b:ada", "n5", "n4", "n3", "n2", "n1", "n0"]
    with pytest.raises(Invalid):
        await office.lookup.page(ACME, Search(limit=0))
    with pytest.raises(Invalid):
        await office.lookup.page(ACME, Search(cursor="x"))


@pytest.mark.slow
async def test_a_search_that_finds_little_goes_on_behind_its_cursor(office: Office) -> None:
    now = office.clock.now()
    await office.notify(**HI, id="oldest", at="+1h")
    await office.cancelling.cancel(ACME, "oldest")
    for number in range(2_100):
        delivery = Delivery(f"x{number:05}/1", f"x{number:05}", now + number + 1, "sent", user="ada", changed=now)
        await office.documents.change([[delivery_put(ACME, delivery, 0)]], now)
    lost = Delivery("lost/1", "lost", now, "skipped", "opted_out", user="ada", changed=now)
    await office.documents.change([[delivery_put(ACME, lost, 0)]], now)
    page = await office.lookup.deliveries(ACME, Search(user="ada", state="skipped"))
    assert page.deliveries == ()
    assert page.cursor is not None
    rest = await office.lookup.deliveries(ACME, Search(user="ada", state="skipped", cursor=page.cursor))
    assert ([one.name for one in rest.deliveries], rest.cursor) == (["lost/1"], None)


async def test_deliveries_of_one_and_in_trouble(office: Office) -> None:
    await office.deliver("a")
    await office.deliver("b", state="failed", reason="address_refused")
    page = await office.lookup.deliveries(ACME, Search(state="failed"))
    assert [(one.name, one.reason) for one in page.deliveries] == [("b/1", "address_refused")]
    assert [one.name for one in (await office.lookup.deliveries(ACME, Search(), "a")).deliveries] == ["a/1"]
    with pytest.raises(Invalid, match="notifications"):
        await office.lookup.deliveries(ACME, Search(batch="x"))


# Taking back


async def test_cancel_before_it_leaves(office: Office) -> None:
    told = await office.notify(**HI, at="+1h")
    outcome = await office.cancelling.cancel(ACME, told.id)
    assert outcome.outcome == "cancelled"
    assert await state(office, told.id) == ("cancelled", "cancelled")
    office.clock.advance(2 * HOUR)
    assert await office.release("notify.email") == []
    assert (await office.cancelling.cancel(ACME, told.id)).outcome == "cancelled"
    office.clock.advance(8 * DAY)
    await office.store.tend(office.clock.now())
    assert await state(office, told.id) == ("cancelled", "cancelled")  # also when the schedule is forgotten
    assert (await office.cancelling.cancel(ACME, "nothing")).outcome == "unknown"


async def test_cancel_after_release_before_a_worker_looked(office: Office) -> None:
    told = await office.notify(**HI)
    await office.release("notify.email")
    assert (await office.cancelling.cancel(ACME, told.id)).outcome == "cancelled"
    delivery = await office.lookup.delivery(ACME, f"{told.id}/1")
    assert delivery is not None
    assert delivery.state == "cancelled"  # a worker finds it settled
    assert await state(office, told.id) == ("cancelled", "cancelled")


async def test_cancel_while_it_waits_is_sent_or_done(office: Office) -> None:
    ends: tuple[tuple[State, str], ...] = (
        ("pending", "cancelled"),
        ("processing", "in_flight"),
        ("sent", "already_released"),
    )
    for number, (before, answer) in enumerate(ends):
        told = await office.notify(**HI, id=f"n{number}")
        await office.release("notify.email")
        await office.deliver(told.id, state=before, next_try=office.clock.now() + HOUR)
        assert (await office.cancelling.cancel(ACME, told.id)).outcome == answer
        after = await office.lookup.delivery(ACME, f"{told.id}/1")
        assert after is not None
        assert after.state == ("cancelled" if before == "pending" else before)


async def test_cancel_what_recurs(office: Office) -> None:
    told = await office.notify(**HI, every="R/PT1H")
    office.clock.advance(HOUR)
    await office.release("notify.email")
    await office.deliver(told.id)
    assert (await office.cancelling.cancel(ACME, told.id)).outcome == "cancelled"
    assert await state(office, told.id) == ("cancelled", "cancelled")
    status = await office.lookup.get(ACME, told.id)
    assert status is not None
    assert [one.state for one in status.deliveries] == ["sent"]  # what was sent stays sent


# Explaining


async def test_explain_from_acceptance_to_the_receipt(office: Office) -> None:
    told = await office.notify(**HI, at="+1h")
    office.clock.advance(HOUR)
    await office.release("notify.email")
    now = office.clock.now()
    attempts = (
        Attempt(1, "email", "smtp", now + 5, now + 9, "timeout", "no answer"),
        Attempt(2, "email", "smtp", now + SECOND, now + SECOND + 4, "accepted", provider_id="p1"),
    )
    news = (ProviderEvent(now + 2 * SECOND, "delivered", "e1"),)
    await office.deliver(
        told.id, attempts=attempts, state="delivered", due=now, changed=now + 2 * SECOND, news=news,
        claim=Claim("worker-7", now),
    )  # fmt: skip
    lines = await office.explaining.explain(ACME, told.id)
    assert lines is not None
    assert [line.event for line in lines] == [
        "accepted", "released", "attempt", "timeout", "attempt", "accepted", "delivered",
    ]  # fmt: skip
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert (lines[2].late_us, lines[5].provider_id) == (5, "p1")
    assert b"worker-7" not in msgspec.json.encode(lines)
    assert await office.explaining.explain(ACME, "nothing") is None
