"""Sending again what was given up, also when it is cut off in the middle."""

from collections.abc import Sequence
from typing import cast

import pytest

from tests.delivery.office import ACME, Office
from tidings.delivery import errands
from tidings.delivery.retrying import AHEAD_US, Retrying
from tidings.delivery.schedules import Schedules
from tidings.domain.command import Command, Outcome
from tidings.domain.delivery import Delivery
from tidings.domain.notification import Errand

TOPIC = "notify.email"


@pytest.fixture
async def failed(office: Office) -> Delivery:
    told = await office.notify(user="ada", template="reminder", variables={"what": "nine"}, channel="email")
    await office.release(TOPIC)
    return await office.deliver(told.id, state="failed", reason="timeout", provider_id=None, sent=None)


def retrying(office: Office) -> Retrying:
    return Retrying(office.cabinet, office.engine, office.clock)


async def test_it_waits_for_the_turn_that_was_put_there(office: Office, failed: Delivery) -> None:
    done = await retrying(office).retry(ACME, failed.name)
    assert (done.outcome, done.state) == ("retried", "pending")
    waiting = await office.lookup.delivery(ACME, failed.name)
    assert waiting is not None
    assert (waiting.state, waiting.turn, waiting.attempts) == ("pending", 2, failed.attempts)
    assert len(await office.release(TOPIC)) == 1, "it is not due before the delivery is written"
    office.clock.advance(AHEAD_US)
    released = [errands.read(record, ACME) for record in await office.release(TOPIC)]
    again = Errand(failed.notification, delivery=failed.name, attempt=2)
    assert sorted(released, key=lambda errand: errand.attempt) == [Errand(failed.notification), again]


async def test_cut_off_it_stays_what_it_was_and_can_be_done_again(office: Office, failed: Delivery) -> None:
    """A turn without its delivery is one that nobody needs; the next try takes another."""
    notification = await office.lookup.get(ACME, failed.notification)
    assert notification is not None
    errand = Errand(failed.notification, delivery=failed.name, attempt=2)
    await office.engine.submit([errands.turn(ACME, notification.notification, errand, office.clock.now())])
    await office.release(TOPIC)
    assert (await retrying(office).retry(ACME, failed.name)).outcome == "retried"
    waiting = await office.lookup.delivery(ACME, failed.name)
    assert waiting is not None
    assert waiting.turn == 3


class Slow:
    """The engine, after which more time has passed than there was."""

    def __init__(self, office: Office, times: int) -> None:
        self._office = office
        self._times = times

    async def submit(self, commands: Sequence[Command]) -> list[Outcome]:
        outcomes = await self._office.engine.submit(commands)
        if self._times:
            self._times -= 1
            self._office.clock.advance(2 * AHEAD_US)
        return outcomes


async def test_a_store_that_is_slower_than_the_turn(office: Office, failed: Delivery) -> None:
    slow = cast(Schedules, Slow(office, times=1))
    done = await Retrying(office.cabinet, slow, office.clock).retry(ACME, failed.name)
    waiting = await office.lookup.delivery(ACME, failed.name)
    assert waiting is not None
    assert (done.outcome, waiting.turn) == ("retried", 3)
    assert done.due is not None
    assert done.due > office.clock.now(), "of the turn that is still to come"


async def test_what_cannot_be_sent_again(office: Office, failed: Delivery) -> None:
    await office.deliver(failed.notification)
    sent = await retrying(office).retry(ACME, failed.name)
    assert (sent.outcome, sent.state) == ("rejected", "sent")
    assert (await retrying(office).retry(ACME, "nothing/1")).outcome == "unknown"
    await office.deliver("unknown", state="failed")
    assert "not kept" in (await retrying(office).retry(ACME, "unknown/1")).reason
    assert (await retrying(office).retry("bolt", failed.name)).outcome == "unknown"
