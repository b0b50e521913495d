"""Explaining tells all that happened to a delivery, also what went wrong, in order and within bounds."""

from typing import Any, cast

import msgspec
import pytest

from tests.delivery.office import ADA, Office, reminder
from tests.delivery.world import MS, QUICK, SECOND, TENANT, Recorder, World, changed
from tidings.delivery.explaining import Line
from tidings.delivery.retrying import Retrying
from tidings.delivery.throttle import Rates
from tidings.domain.notifications.delivery import STEPS_MAX, Broken, Delivery, Permanent, Step, remembered
from tidings.domain.notifications.rate_limit import Rate
from tidings.testing import SimulatedClock, eventually

NINE: dict[str, Any] = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}}


@pytest.fixture
async def office(world: World) -> Office:
    office = Office(world.store, cast(SimulatedClock, world.clock), world.engine, TENANT)
    await office.users.put(TENANT, "ada", ADA)
    await office.templates.put(TENANT, "reminder", reminder())
    return office


async def story(office: Office, notification: str) -> list[Line]:
    lines = await office.explaining.explain(TENANT, notification)
    assert lines is not None
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    return lines


async def test_a_channel_that_is_passed_over_and_why(world: World, office: Office) -> None:
    world.start(world.worker({"mail": Recorder("email"), "text": Recorder("sms")}))
    await office.suppressions.add(TENANT, "email", "ada@example.com", "bounced")
    told = await office.notify(**NINE, channels=["email", "sms"])
    await world.settled(f"{told.id}/1")
    lines = await story(office, told.id)
    assert [line.event for line in lines[2:]] == ["passed_over", "attempt", "accepted", "sent"]
    assert (lines[2].channel, lines[2].reason) == ("email", "suppressed")


async def test_a_provider_that_refused_us_is_told_though_it_does_not_count(world: World, office: Office) -> None:
    first, second = Recorder(), Recorder()
    first.answer = lambda _: Broken("credentials_refused", "535 no")
    patient = msgspec.structs.replace(QUICK.breaker, first_us=60 * SECOND, longest_us=60 * SECOND)
    world.start(world.worker({"first": first, "second": second}, changed(QUICK, breaker=patient)))
    told = await office.notify(**NINE, channel="email")
    [delivery] = await world.settled(f"{told.id}/1")
    assert len(delivery.attempts) == 1
    refused, pending, attempt, *_ = (await story(office, told.id))[2:]
    assert (refused.event, refused.provider, refused.reason) == ("credentials_refused", "first", "535 no")
    assert (pending.event, pending.reason, pending.due is not None) == ("pending", "credentials_refused", True)
    assert (attempt.event, attempt.provider) == ("attempt", "second")


async def test_why_a_breaker_is_open_and_where_to_look(world: World, office: Office) -> None:
    provider = Recorder()
    provider.answer = lambda _: Broken("credentials_refused")
    patient = msgspec.structs.replace(QUICK.breaker, first_us=60 * SECOND, longest_us=60 * SECOND)
    world.start(world.worker({"mail": provider}, changed(QUICK, breaker=patient)))
    told = await office.notify(**NINE, channel="email")

    async def waits() -> Line | None:
        last = (await story(office, told.id))[-1]
        return last if last.reason.startswith("breaker_open") else None

    last = await eventually(waits)
    assert last is not None
    assert last.reason == "breaker_open: mail credentials_refused; see `tidings channels`"
    assert last.due is not None
    delivery = await world.delivery(f"{told.id}/1")
    assert delivery is not None
    assert delivery.reason == "breaker_open"


@pytest.mark.slow
async def test_how_long_it_waited_for_a_limit(world: World, office: Office) -> None:
    settings = changed(QUICK, rates=Rates({"mail": Rate(1, 1)}))
    world.start(world.worker({"mail": Recorder()}, settings))
    ids = [(await office.notify(**NINE, channel="email")).id for _ in range(3)]
    await world.settled(*(f"{each}/1" for each in ids))
    waited = [line for each in ids for line in await story(office, each) if line.event == "pending"]
    assert len(waited) >= 2, "each of those who waited has a line of it"
    assert all(line.reason.startswith("rate_limited") and line.due for line in waited)


@pytest.mark.slow
async def test_what_was_given_up_stays_in_the_story_when_it_is_sent_again(world: World, office: Office) -> None:
    provider = Recorder()
    provider.answer = lambda _: Permanent("content_refused", "no")
    world.start(world.worker({"mail": provider}))
    told = await office.notify(**NINE, channel="email")
    [failed] = await world.settled(f"{told.id}/1")
    provider.answer = lambda _: None
    retrying = Retrying(world.store.documents, world.engine, world.clock)
    assert (await retrying.retry(TENANT, failed.name)).outcome == "retried"
    await eventually(lambda: len(provider.calls) == 2)
    await world.settled(failed.name)
    lines = await story(office, told.id)
    assert [line.event for line in lines[2:]] == [
        "attempt", "content_refused", "failed", "retried", "attempt", "accepted", "sent",
    ]  # fmt: skip
    late = [line.late_us for line in lines if line.event == "attempt" and line.late_us is not None]
    assert late[1] - late[0] >= 400 * MS, "lateness counts from the due time, not from the retry"


def test_the_history_is_bounded_and_counts_what_repeats() -> None:
    delivery = Delivery("n/1", "n", 0)
    for k in range(3):
        delivery = remembered(delivery, Step(k, "pending", "email", reason="rate_limited", until=k + 10))
    assert delivery.history == (Step(0, "pending", "email", reason="rate_limited", until=12, times=3),)
    for k in range(2 * STEPS_MAX):
        delivery = remembered(delivery, Step(k, "pending", "email", reason=f"{k % 2}"))
    assert len(delivery.history) == STEPS_MAX
