"""After `cancelled` nothing leaves, whoever had looked it up before; and what is being sent is told."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.delivery.stalled import StalledStore
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, living, schedule, words
from tidings.delivery.cancelling import Cancelling
from tidings.delivery.filing import notification_put
from tidings.delivery.handling import Terms
from tidings.domain.schedules.when import Every, Period
from tidings.testing import eventually

HOUR = 3_600 * SECOND
PATIENT = changed(QUICK, send_s=20.0, terms=Terms(claim_us=30 * SECOND))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with living() as world:
        await world.put_user(ada())
        yield world


def cancelling(world: World) -> Cancelling:
    return Cancelling(world.store.documents, world.engine, world.clock)


async def recur(world: World, name: str) -> None:
    """Every hour, from now on."""
    now, one = world.clock.now(), words(name)
    await world.store.documents.change([[notification_put(one, 0)]], now)
    add = msgspec.structs.replace(schedule(one, now), when=Every(now, Period(0, HOUR)))
    [told] = await world.engine.submit([add])
    assert told.outcome == "scheduled"


async def test_an_occurrence_that_was_looked_up_before_does_not_leave(world: World) -> None:
    mail, stalled = Recorder("email"), StalledStore(world.store)
    world.start(world.worker({"mail": mail}, store=stalled))
    await recur(world, "tea")
    await asyncio.wait_for(stalled.reached.wait(), 5)
    outcome = await cancelling(world).cancel(TENANT, "tea")
    assert (outcome.outcome, outcome.in_flight) == ("cancelled", None)
    stalled.goes_on.set()
    [delivery] = await world.settled("tea/1")
    assert (delivery.state, mail.calls) == ("cancelled", [])


async def test_a_series_is_cancelled_while_an_occurrence_is_being_sent(world: World) -> None:
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


async def test_what_does_not_recur_is_in_flight_while_it_is_sent(world: World) -> None:
    mail = Recorder("email")
    mail.gate = asyncio.Event()
    world.start(world.worker({"mail": mail}, PATIENT))
    await world.notify(words("one"))
    await eventually(lambda: mail.calls)
    assert (await cancelling(world).cancel(TENANT, "one")).outcome == "in_flight"
    mail.gate.set()
    await world.settled("one/1")
    assert (await cancelling(world).cancel(TENANT, "one")).outcome == "already_released"


async def test_one_that_a_worker_is_about_to_claim_does_not_leave(world: World) -> None:
    mail, stalled = Recorder("email"), StalledStore(world.store)
    world.start(world.worker({"mail": mail}, store=stalled))
    await world.notify(words("one"))
    await asyncio.wait_for(stalled.reached.wait(), 5)
    assert (await cancelling(world).cancel(TENANT, "one")).outcome == "cancelled"
    stalled.goes_on.set()
    [delivery] = await world.settled("one/1")
    assert (delivery.state, mail.calls) == ("cancelled", [])
