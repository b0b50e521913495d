"""The history of a delivery has every step, also failures, in order and bounded."""

from typing import Any, cast

import msgspec
import pytest

from tests.delivery.services import ADA, Services, reminder
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, changed
from tidings.delivery.limits.rate_limit import RateLimits
from tidings.delivery.notifications.history import HistoryLine
from tidings.delivery.notifications.resend import Resend
from tidings.domain.notifications.delivery import STEPS_MAX, Broken, Delivery, Permanent, Step, remembered
from tidings.domain.notifications.rate_limit import Rate
from tidings.testing import SimulatedClock, eventually

NINE: dict[str, Any] = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}}


@pytest.fixture
async def services(world: World) -> Services:
    services = Services(world.store, cast(SimulatedClock, world.clock), world.engine, TENANT)
    await services.users.put(TENANT, "ada", ADA)
    await services.templates.put(TENANT, "reminder", reminder())
    return services


async def history_of(services: Services, notification: str) -> list[HistoryLine]:
    lines = await services.history.explain(TENANT, notification)
    assert lines is not None
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    return lines


async def test_history_has_the_reason_why_a_channel_was_skipped(world: World, services: Services) -> None:
    world.start(world.worker({"mail": Recorder("email"), "text": Recorder("sms")}))
    await services.suppressions.add(TENANT, "email", "ada@example.com", "bounced")
    accepted = await services.notify(**NINE, channels=["email", "sms"])
    await world.settled(f"{accepted.id}/1")
    lines = await history_of(services, accepted.id)
    assert [line.event for line in lines[2:]] == ["passed_over", "attempt", "accepted", "sent"]
    assert (lines[2].channel, lines[2].reason) == ("email", "suppressed")


async def test_history_has_refused_credentials_although_they_are_no_attempt(world: World, services: Services) -> None:
    first, second = Recorder(), Recorder()
    first.answer = lambda _: Broken("credentials_refused", "535 no")
    patient = msgspec.structs.replace(QUICK.breaker, first_us=60 * SECOND, longest_us=60 * SECOND)
    world.start(world.worker({"first": first, "second": second}, changed(QUICK, breaker=patient)))
    accepted = await services.notify(**NINE, channel="email")
    [delivery] = await world.settled(f"{accepted.id}/1")
    assert len(delivery.attempts) == 1
    refused, pending, attempt, *_ = (await history_of(services, accepted.id))[2:]
    assert (refused.event, refused.provider, refused.reason) == ("credentials_refused", "first", "535 no")
    assert (pending.event, pending.reason, pending.due is not None) == ("pending", "credentials_refused", True)
    assert (attempt.event, attempt.provider) == ("attempt", "second")


async def test_history_has_the_reason_of_an_open_breaker_and_where_to_look(world: World, services: Services) -> None:
    provider = Recorder()
    provider.answer = lambda _: Broken("credentials_refused")
    patient = msgspec.structs.replace(QUICK.breaker, first_us=60 * SECOND, longest_us=60 * SECOND)
    world.start(world.worker({"mail": provider}, changed(QUICK, breaker=patient)))
    accepted = await services.notify(**NINE, channel="email")

    async def waits() -> HistoryLine | None:
        last = (await history_of(services, accepted.id))[-1]
        return last if last.reason.startswith("breaker_open") else None

    last = await eventually(waits)
    assert last is not None
    assert last.reason == "breaker_open: mail credentials_refused; see `tidings channels`"
    assert last.due is not None
    delivery = await world.delivery(f"{accepted.id}/1")
    assert delivery is not None
    assert delivery.reason == "breaker_open"


@pytest.mark.slow
async def test_history_has_the_wait_for_a_rate_limit(world: World, services: Services) -> None:
    settings = changed(QUICK, rates=RateLimits({"mail": Rate(1, 1)}))
    world.start(world.worker({"mail": Recorder()}, settings))
    ids = [(await services.notify(**NINE, channel="email")).id for _ in range(3)]
    await world.settled(*(f"{each}/1" for each in ids))
    waited = [line for each in ids for line in await history_of(services, each) if line.event == "pending"]
    assert len(waited) >= 2, "each that waited has a line"
    assert all(line.reason.startswith("rate_limited") and line.due for line in waited)


@pytest.mark.slow
async def test_history_keeps_the_failure_when_a_delivery_is_sent_again(world: World, services: Services) -> None:
    provider = Recorder()
    provider.answer = lambda _: Permanent("content_refused", "no")
    world.start(world.worker({"mail": provider}))
    accepted = await services.notify(**NINE, channel="email")
    [failed] = await world.settled(f"{accepted.id}/1")
    provider.answer = lambda _: None
    retrying = Resend(world.store.tables, world.engine, world.clock)
    assert (await retrying.retry(TENANT, failed.name)).outcome == "retried"
    await eventually(lambda: len(provider.calls) == 2)
    await world.settled(failed.name)
    lines = await history_of(services, accepted.id)
    assert [line.event for line in lines[2:]] == [
        "attempt", "content_refused", "failed", "retried", "attempt", "accepted", "sent",
    ]  # fmt: skip
    late = [line.late_us for line in lines if line.event == "attempt" and line.late_us is not None]
    assert late[1] > late[0], "lateness counts from the due time, not from the retry"


def test_history_is_bounded_and_counts_repeated_steps() -> None:
    delivery = Delivery("n/1", "n", 0)
    for k in range(3):
        delivery = remembered(delivery, Step(k, "pending", "email", reason="rate_limited", until=k + 10))
    assert delivery.history == (Step(0, "pending", "email", reason="rate_limited", until=12, times=3),)
    for k in range(2 * STEPS_MAX):
        delivery = remembered(delivery, Step(k, "pending", "email", reason=f"{k % 2}"))
    assert len(delivery.history) == STEPS_MAX
