"""After `cancelled` nothing is sent, even if a worker has read it already; deliveries in progress are named."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.delivery.stalled_store import StalledStore
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, schedule, started_world, words
from tidings.delivery.notifications.cancellation import Cancellation
from tidings.delivery.rows import change, notification_put
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.domain.schedules.when import Every, Period
from tidings.testing import eventually

HOUR = 3_600 * SECOND
PATIENT = changed(QUICK, send_s=20.0, policy=RetryPolicy(claim_us=30 * SECOND))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada())
        yield world


def cancelling(world: World) -> Cancellation:
    return Cancellation(world.store.tables, world.engine, world.clock)


async def recur(world: World, name: str) -> None:
    """Every hour, from now on."""
    now, one = world.clock.now(), words(name)
    await change(world.store.tables, [[notification_put(one, 0)]], now)
    add = msgspec.structs.replace(schedule(one, now), when=Every(now, Period(0, HOUR)))
    [outcome_of_add] = await world.engine.submit([add])
    assert outcome_of_add.outcome == "scheduled"


async def test_an_occurrence_loaded_before_the_cancellation_is_not_sent(world: World) -> None:
    mail, stalled = Recorder("email"), StalledStore(world.store)
    world.start(world.worker({"mail": mail}, store=stalled))
    await recur(world, "tea")
    await asyncio.wait_for(stalled.reached.wait(), 5)
    outcome = await cancelling(world).cancel(TENANT, "tea")
    assert (outcome.outcome, outcome.in_flight) == ("cancelled", None)
    stalled.goes_on.set()
    [delivery] = await world.settled("tea/1")
    assert (delivery.state, mail.calls) == ("cancelled", [])


async def test_cancel_of_a_recurring_notification_names_the_occurrence_being_sent(world: World) -> None:
    mail = Recorder("email")
    mail.gate = asyncio.Event()
    world.start(world.worker({"mail": mail}, PATIENT))
    await recur(world, "tea")
    await eventually(lambda: mail.calls)
    for _ in range(2):
        outcome = await cancelling(world).cancel(TENANT, "tea")
        assert (outcome.outcome, outcome.in_flight) == ("cancelled", 1)
    mail.gate.set()
    [delivery] = await world.settled("tea/1")
    assert delivery.state == "sent"
    outcome = await cancelling(world).cancel(TENANT, "tea")
    assert (outcome.outcome, outcome.in_flight) == ("cancelled", None)
    schedule = await world.engine.find(TENANT, "tea")
    assert schedule is not None
    assert schedule.state == "cancelled"


async def test_cancel_of_a_one_shot_being_sent_answers_in_flight(world: World) -> None:
    mail = Recorder("email")
    mail.gate = asyncio.Event()
    world.start(world.worker({"mail": mail}, PATIENT))
    await world.notify(words("one"))
    await eventually(lambda: mail.calls)
    assert (await cancelling(world).cancel(TENANT, "one")).outcome == "in_flight"
    mail.gate.set()
    await world.settled("one/1")
    assert (await cancelling(world).cancel(TENANT, "one")).outcome == "already_released"


async def test_a_notification_about_to_be_claimed_is_not_sent_after_cancel(world: World) -> None:
    mail, stalled = Recorder("email"), StalledStore(world.store)
    world.start(world.worker({"mail": mail}, store=stalled))
    await world.notify(words("one"))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    assert (await cancelling(world).cancel(TENANT, "one")).outcome == "cancelled"
    stalled.goes_on.set()
    [delivery] = await world.settled("one/1")
    assert (delivery.state, mail.calls) == ("cancelled", [])
