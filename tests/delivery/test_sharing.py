"""Several workers on one store: limits and breakers are the fleet's, and nobody waits behind a bulk."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import msgspec
import pytest

from tests.delivery.world import MS, QUICK, SECOND, TENANT, Recorder, World, ada, changed, living, schedule, words
from tidings.delivery.breakers import Breakers, breaker_key
from tidings.delivery.filing import notification_put
from tidings.delivery.sending import Concurrency
from tidings.delivery.throttle import Rates, Throttle
from tidings.domain.facts import Closed, DeliveryFact, Opened
from tidings.domain.notifications.circuit_breaker import Terms
from tidings.domain.notifications.delivery import Accepted, Broken, Temporary
from tidings.domain.notifications.message import Rendered, Sms, Webhook
from tidings.domain.notifications.rate_limit import Rate
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory.documents import MemoryDocuments

SMS = Sms("n/1", "+15550100", "Tea")
DOWN = Temporary("unreachable")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with living() as world:
        await world.put_user(ada())
        yield world


# --- limits ---


async def spend(throttle: Throttle, clock: SimulatedClock, seconds: int, tenant: str = TENANT) -> int:
    """How many may go in so many seconds, asked for a thousand times a second."""
    went = 0
    for _ in range(seconds * 1_000):
        clock.advance(1_000)
        went += await throttle.take("phone", tenant, returning=True) is None
    return went


async def test_two_workers_keep_one_limit_together() -> None:
    clock, cabinet = SimulatedClock(), MemoryDocuments()
    rates = Rates({"phone": Rate(100.0, burst=20)})
    one, two = (Throttle(cabinet, clock, rates, patience_us=0) for _ in range(2))
    went = 0
    for _ in range(5):
        went += await spend(one, clock, 1)
        went += await spend(two, clock, 1)
    assert 900 <= went <= 1_000 + 20, "100 a second in ten seconds, and one burst"


async def test_a_limit_of_each_tenant_leaves_the_others_alone() -> None:
    clock, cabinet = SimulatedClock(), MemoryDocuments()
    rates = Rates(tenants={"phone": Rate(10.0)}, particular={("phone", "big"): Rate(100.0, burst=10)})
    throttle = Throttle(cabinet, clock, rates, patience_us=0)
    assert 8 <= await spend(throttle, clock, 1) <= 11
    assert 80 <= await spend(throttle, clock, 1, "big") <= 110
    assert await throttle.take("mail", TENANT) is None, "another provider has no limit"


async def test_a_limit_asks_the_store_rarely() -> None:
    clock, cabinet = SimulatedClock(), Counting()
    throttle = Throttle(cabinet, clock, Rates({"phone": Rate(1_000.0, burst=1_000)}), patience_us=0)
    went = await spend(throttle, clock, 2)
    assert went > 1_500
    assert cabinet.calls <= went / 20


async def test_those_who_wait_get_places_one_after_the_other() -> None:
    clock = SimulatedClock()
    throttle = Throttle(MemoryDocuments(), clock, Rates({"phone": Rate(10.0)}), patience_us=0)
    assert await throttle.take("phone", TENANT) is None
    places = [await throttle.take("phone", TENANT) for _ in range(5)]
    moments = [place - clock.now() for place in places if place is not None]
    assert len(moments) == 5
    assert all(90 * MS <= later - earlier <= 110 * MS for earlier, later in pairwise(moments))


class Counting(MemoryDocuments):
    calls = 0

    async def get(self, keys, now):  # type: ignore[no-untyped-def]
        self.calls += 1
        return await super().get(keys, now)


# --- breakers ---


def pair(clock: SimulatedClock) -> tuple[Breakers, Breakers, list[DeliveryFact]]:
    cabinet, told, terms = MemoryDocuments(), list[DeliveryFact](), Terms(failures_max=3, first_us=10 * SECOND)
    one, two = (Breakers(cabinet, clock, name, terms, told.append) for name in ("one", "two"))
    return one, two, told


async def test_failures_in_a_row_open_it_for_everybody_and_one_trial_closes_it() -> None:
    clock = SimulatedClock()
    one, two, told = pair(clock)
    key = breaker_key("phone", SMS)
    assert (await two.standing(key))[0] == "closed"
    for verdict in (DOWN, DOWN, Accepted("x"), DOWN, DOWN):
        await one.heard(key, verdict, trial=False)
    assert (await one.standing(key))[0] == "closed", "not in a row"
    await one.heard(key, DOWN, trial=False)
    assert (await one.standing(key)) == ("open", clock.now() + 10 * SECOND)
    clock.advance(SECOND)
    assert (await two.standing(key))[0] == "open", "the other knows it within its look"
    await two.heard(key, Accepted("late"), trial=False)
    assert (await one.standing(key))[0] == "open", "an answer that was under way since before closes nothing"
    clock.advance(10 * SECOND)
    assert (await one.standing(key))[0] == (await two.standing(key))[0] == "due"
    assert [await two.try_one(key), await one.try_one(key)] == [True, False], "one at a time"
    assert (await one.standing(key))[0] == "open"
    await two.heard(key, DOWN, trial=True)
    clock.advance(15 * SECOND)
    assert (await one.standing(key))[0] == "open", "for twice as long"
    clock.advance(6 * SECOND)
    assert await one.try_one(key)
    await one.heard(key, Accepted("x"), trial=True)
    clock.advance(SECOND)
    assert (await two.standing(key))[0] == "closed"
    assert [type(fact) for fact in told] == [Opened, Opened, Closed, Closed], "who told the one tells the other"


async def test_a_mistake_of_ours_opens_it_at_once_and_is_told_once() -> None:
    clock = SimulatedClock()
    one, two, told = pair(clock)
    key = breaker_key("phone", SMS)
    for _ in range(5):
        await one.heard(key, Broken("credentials_refused"), trial=False)
        await two.heard(key, Broken("credentials_refused"), trial=False)
    assert [type(fact) for fact in told] == [Opened]
    clock.advance(11 * SECOND)
    assert await two.try_one(key)
    await two.heard(key, Accepted("x"), trial=True)
    clock.advance(SECOND)
    assert (await one.standing(key))[0] == "closed"


async def test_one_recipients_trouble_is_not_the_providers() -> None:
    clock = SimulatedClock()
    one, _, told = pair(clock)
    key = breaker_key("phone", SMS)
    for _ in range(20):
        await one.heard(key, Temporary("address_deferred"), trial=False)
    assert (await one.standing(key))[0] == "closed"
    await one.heard(key, Broken("misconfigured"), trial=False)
    clock.advance(11 * SECOND)
    assert await one.try_one(key)
    await one.heard(key, Temporary("address_deferred"), trial=True)
    assert (await one.standing(key))[0] == "closed", "it has answered"
    assert [type(fact) for fact in told] == [Opened, Closed]


async def test_a_trial_that_died_is_taken_over() -> None:
    clock = SimulatedClock()
    one, two, _ = pair(clock)
    key = breaker_key("phone", SMS)
    await one.heard(key, Broken("misconfigured"), trial=False)
    clock.advance(11 * SECOND)
    assert await one.try_one(key)
    clock.advance(41 * SECOND)
    assert await two.try_one(key)


def test_a_receiver_of_webhooks_has_a_breaker_of_its_own() -> None:
    keys = [
        breaker_key("hooks", Webhook("i", url, tenant, b"{}"))
        for url in ("https://a.example/1", "https://a.example/2", "https://b.example/1")
        for tenant in ("acme", "globex")
    ]
    assert len(set(keys)) == 4


async def test_an_open_breaker_leaves_messages_on_the_timeline(world: World) -> None:
    provider = Recorder()
    provider.answer = lambda _: DOWN
    terms = msgspec.structs.replace(QUICK.breaker, first_us=60 * SECOND, longest_us=60 * SECOND)
    backoff = msgspec.structs.replace(QUICK.terms.backoff, attempts_max=100)  # until the other worker has looked
    patient = msgspec.structs.replace(QUICK.terms, backoff=backoff)
    for _ in range(2):
        world.start(world.worker({"mail": provider}, changed(QUICK, breaker=terms, terms=patient)))
    await world.notify(*(words(f"n-{k}") for k in range(50)))

    async def all_wait() -> bool:
        found = [await world.delivery(f"n-{k}/1") for k in range(50)]
        return all(each is not None and each.reason == "breaker_open" for each in found)

    await eventually(all_wait, 15)
    calls = len(provider.calls)
    pending = await world.store.count(world.clock.now())
    assert pending.pending == 50
    assert calls <= 2 * (56 + QUICK.breaker.failures_max), "those under way, and no more"
    turn = await world.engine.find(TENANT, "n-0/1~2")
    assert turn is not None


# --- priority and fairness ---


async def test_high_overtakes_a_bulk_of_low_ones(world: World) -> None:
    provider = Recorder()
    order: list[str] = []

    def answer(message: Rendered) -> None:
        order.append(message.id)

    provider.answer = answer
    provider.gate = asyncio.Event()
    lows = [words(f"low-{k}", priority="low") for k in range(2_000)]
    await world.notify(*lows)
    settings = changed(QUICK, concurrency={"email": Concurrency(12, 4)}, send_s=30.0)
    settings = changed(settings, terms=msgspec.structs.replace(QUICK.terms, claim_us=40 * SECOND))
    world.start(world.worker({"mail": provider}, settings))
    await eventually(lambda: len(provider.calls) == 7)
    await world.notify(*(words(f"high-{k}", priority="high") for k in range(10)))
    highs = await eventually(lambda: [each for each in provider.calls if each.id.startswith("high")])
    assert len(provider.calls) <= 12, (
        "the low ones hold their seven, and one is for another tenant; the high ones have four of their own"
    )
    assert highs
    provider.gate.set()
    await world.settled(*(f"high-{k}/1" for k in range(10)))
    places = [order.index(f"high-{k}/1") for k in range(10)]
    assert max(places) < 150, "hardly any of the 2,000 goes first"


async def test_a_single_message_does_not_wait_behind_anothers_bulk(world: World) -> None:
    provider = Recorder()
    order: list[str] = []
    provider.answer = lambda message: order.append(message.id)
    bulk = [words(f"bulk-{k}") for k in range(1_500)]
    await world.notify(*bulk)
    other = msgspec.structs.replace(words("single", user=None, to="bob@example.com"), tenant="globex")
    await world.store.documents.change([[notification_put(other, -1)]], world.clock.now())
    await world.engine.submit([schedule(other, world.clock.now())])
    settings = changed(QUICK, concurrency={"email": Concurrency(8, 2)})
    settings = changed(settings, terms=msgspec.structs.replace(QUICK.terms, claim_us=40 * SECOND))
    world.start(world.worker({"mail": provider}, settings))
    place = await eventually(lambda: order.index("single/1@globex") + 1 if "single/1@globex" in order else 0)
    assert place < 200


async def test_a_tenant_whose_receivers_hang_leaves_room_for_others(world: World) -> None:
    provider = Recorder()
    hanging = asyncio.Event()
    plain = provider.send

    async def send(message: Rendered):  # type: ignore[no-untyped-def]
        if message.id.startswith("hang"):
            await hanging.wait()
        return await plain(message)

    provider.send = send  # type: ignore[method-assign]
    await world.notify(*(words(f"hang-{k}") for k in range(100)))
    settings = changed(QUICK, concurrency={"email": Concurrency(8, 2)}, send_s=30.0)
    settings = changed(settings, terms=msgspec.structs.replace(QUICK.terms, claim_us=40 * SECOND))
    world.start(world.worker({"mail": provider}, settings))
    other = msgspec.structs.replace(words("single", user=None, to="bob@example.com"), tenant="globex")
    await world.store.documents.change([[notification_put(other, -1)]], world.clock.now())
    await world.engine.submit([schedule(other, world.clock.now())])
    await eventually(lambda: provider.took["single/1@globex"])
    hanging.set()
