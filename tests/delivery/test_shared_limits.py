"""Several workers on one store share rate limits and circuit breakers, and no tenant waits behind a bulk."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import msgspec
import pytest

from tests.delivery.limits import ask, state, tables
from tests.delivery.world import (
    MS,
    QUICK,
    SECOND,
    TENANT,
    Recorder,
    World,
    ada,
    changed,
    schedule,
    started_world,
    words,
)
from tidings.delivery.limits.circuit_breaker import CircuitBreakers, breaker_key
from tidings.delivery.limits.rate_limit import RateLimiter, RateLimits
from tidings.delivery.limits.router import Concurrency
from tidings.delivery.rows import change, notification_put
from tidings.domain.facts import Closed, DeliveryFact, Opened
from tidings.domain.notifications.circuit_breaker import Terms
from tidings.domain.notifications.delivery import Accepted, Broken, Temporary
from tidings.domain.notifications.message import Rendered, Sms
from tidings.domain.notifications.rate_limit import Rate
from tidings.ports.tables import Row, RowKey
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory.tables import MemoryTables

SMS = Sms("n/1", "+15550100", "Tea")
DOWN = Temporary("unreachable")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada())
        yield world


# --- limits ---


async def spend(limiter: RateLimiter, clock: SimulatedClock, seconds: int, tenant: str = TENANT) -> int:
    """How many tokens are taken in this many seconds, with a thousand requests a second."""
    went = 0
    for _ in range(seconds * 1_000):
        clock.advance(1_000)
        went += await ask(limiter, "phone", tenant, returning=True) is None
    return went


@pytest.mark.slow
async def test_two_workers_share_one_rate_limit() -> None:
    clock, rows = SimulatedClock(), tables()
    rates = RateLimits({"phone": Rate(100.0, burst=20)})
    one, two = (RateLimiter(rows, clock, rates, patience_us=0) for _ in range(2))
    went = 0
    for _ in range(5):
        went += await spend(one, clock, 1)
        went += await spend(two, clock, 1)
    assert 900 <= went <= 1_000 + 20, "100 a second in ten seconds, and one burst"


async def test_a_tenant_limit_does_not_affect_other_tenants() -> None:
    clock, rows = SimulatedClock(), tables()
    rates = RateLimits(tenants={"phone": Rate(10.0)}, particular={("phone", "big"): Rate(100.0, burst=10)})
    limiter = RateLimiter(rows, clock, rates, patience_us=0)
    assert 8 <= await spend(limiter, clock, 1) <= 11
    assert 80 <= await spend(limiter, clock, 1, "big") <= 110
    assert await ask(limiter, "mail", TENANT) is None, "another provider has no limit"


async def test_a_rate_limit_rarely_calls_the_store() -> None:
    clock, rows = SimulatedClock(), Counting()
    limiter = RateLimiter(rows, clock, RateLimits({"phone": Rate(1_000.0, burst=1_000)}), patience_us=0)
    went = await spend(limiter, clock, 2)
    assert went > 1_500
    assert rows.calls <= went / 20


async def test_waiting_messages_get_consecutive_times() -> None:
    clock = SimulatedClock()
    limiter = RateLimiter(tables(), clock, RateLimits({"phone": Rate(10.0)}), patience_us=0)
    assert await ask(limiter, "phone", TENANT) is None
    places = [await ask(limiter, "phone", TENANT) for _ in range(5)]
    moments = [place - clock.now() for place in places if place is not None]
    assert len(moments) == 5
    assert all(90 * MS <= later - earlier <= 110 * MS for earlier, later in pairwise(moments))


class Counting(MemoryTables):
    calls = 0

    def __init__(self) -> None:
        super().__init__(lambda *_: pytest.fail("limits do not change the timeline"))

    async def get(self, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        self.calls += 1
        return await super().get(keys, now)


# --- breakers ---


def pair(clock: SimulatedClock) -> tuple[CircuitBreakers, CircuitBreakers, list[DeliveryFact]]:
    rows, facts, terms = tables(), list[DeliveryFact](), Terms(failures_max=3, first_us=10 * SECOND)

    def note(fact: DeliveryFact) -> None:
        if isinstance(fact, Opened | Closed):
            facts.append(fact)

    one, two = (CircuitBreakers(rows, clock, name, terms, note) for name in ("one", "two"))
    return one, two, facts


async def test_consecutive_failures_open_a_breaker_for_all_workers_and_one_trial_closes_it() -> None:
    clock = SimulatedClock()
    one, two, facts = pair(clock)
    key = breaker_key("phone", SMS.tenant, "sms", SMS.to)
    assert (await state(two, key))[0] == "closed"
    for verdict in (DOWN, DOWN, Accepted("x"), DOWN, DOWN):
        await one.record(key, verdict, trial=False)
    assert (await state(one, key))[0] == "closed", "not in a row"
    await one.record(key, DOWN, trial=False)
    assert (await state(one, key)) == ("open", clock.now() + 10 * SECOND)
    clock.advance(SECOND)
    assert (await state(two, key))[0] == "open", "the other worker sees it at its next read"
    await two.record(key, Accepted("late"), trial=False)
    assert (await state(one, key))[0] == "open", "the answer of an earlier call does not close it"
    clock.advance(10 * SECOND)
    assert (await state(one, key))[0] == (await state(two, key))[0] == "due"
    assert [await two.try_one(key), await one.try_one(key)] == [True, False], "one at a time"
    assert (await state(one, key))[0] == "open"
    await two.record(key, DOWN, trial=True)
    clock.advance(15 * SECOND)
    assert (await state(one, key))[0] == "open", "for twice as long"
    clock.advance(6 * SECOND)
    assert await one.try_one(key)
    await one.record(key, Accepted("x"), trial=True)
    clock.advance(SECOND)
    assert (await state(two, key))[0] == "closed"
    assert [type(fact) for fact in facts] == [Opened, Opened, Closed, Closed], (
        "the worker that publishes the opening publishes the closing"
    )


async def test_a_configuration_error_opens_the_breaker_at_once_and_is_published_once() -> None:
    clock = SimulatedClock()
    one, two, facts = pair(clock)
    key = breaker_key("phone", SMS.tenant, "sms", SMS.to)
    for _ in range(5):
        await one.record(key, Broken("credentials_refused"), trial=False)
        await two.record(key, Broken("credentials_refused"), trial=False)
    assert [type(fact) for fact in facts] == [Opened]
    clock.advance(11 * SECOND)
    assert await two.try_one(key)
    await two.record(key, Accepted("x"), trial=True)
    clock.advance(SECOND)
    assert (await state(one, key))[0] == "closed"


async def test_a_failure_of_one_recipient_does_not_count_for_the_provider() -> None:
    clock = SimulatedClock()
    one, _, facts = pair(clock)
    key = breaker_key("phone", SMS.tenant, "sms", SMS.to)
    for _ in range(20):
        await one.record(key, Temporary("address_deferred"), trial=False)
    assert (await state(one, key))[0] == "closed"
    await one.record(key, Broken("misconfigured"), trial=False)
    clock.advance(11 * SECOND)
    assert await one.try_one(key)
    await one.record(key, Temporary("address_deferred"), trial=True)
    assert (await state(one, key))[0] == "closed", "it has answered"
    assert [type(fact) for fact in facts] == [Opened, Closed]


async def test_a_trial_of_a_crashed_worker_is_taken_over() -> None:
    clock = SimulatedClock()
    one, two, _ = pair(clock)
    key = breaker_key("phone", SMS.tenant, "sms", SMS.to)
    await one.record(key, Broken("misconfigured"), trial=False)
    clock.advance(11 * SECOND)
    assert await one.try_one(key)
    clock.advance(41 * SECOND)
    assert await two.try_one(key)


def test_a_receiver_of_webhooks_has_a_breaker_of_its_own() -> None:
    keys = [
        breaker_key("hooks", tenant, "webhook", url)
        for url in ("https://a.example/1", "https://a.example/2", "https://b.example/1")
        for tenant in ("acme", "globex")
    ]
    assert len(set(keys)) == 4


@pytest.mark.slow
async def test_an_open_breaker_leaves_messages_on_the_timeline(world: World) -> None:
    provider = Recorder()
    provider.answer = lambda _: DOWN
    terms = msgspec.structs.replace(QUICK.breaker, first_us=60 * SECOND, longest_us=60 * SECOND)
    backoff = msgspec.structs.replace(QUICK.policy.backoff, attempts_max=100)  # until the other worker has read it
    patient = msgspec.structs.replace(QUICK.policy, backoff=backoff)
    for _ in range(2):
        world.start(world.worker({"mail": provider}, changed(QUICK, breaker=terms, policy=patient)))
    await world.notify(*(words(f"n-{k}") for k in range(50)))

    async def all_wait() -> bool:
        found = [await world.delivery(f"n-{k}/1") for k in range(50)]
        return all(each is not None and each.reason == "breaker_open" for each in found)

    await eventually(all_wait, 15)
    calls = len(provider.calls)
    pending = await world.store.count(world.clock.now())
    assert pending.pending == 50
    assert calls <= 2 * (56 + QUICK.breaker.failures_max), "those in progress, and no more"
    turn = await world.engine.find(TENANT, "n-0/1~2")
    assert turn is not None


# --- priority and fairness ---


async def test_high_priority_overtakes_a_bulk_of_low_priority(world: World) -> None:
    provider = Recorder()
    order: list[str] = []

    def answer(message: Rendered) -> None:
        order.append(message.id)

    provider.answer = answer
    provider.gate = asyncio.Event()
    lows = [words(f"low-{k}", priority="low") for k in range(2_000)]
    await world.notify(*lows)
    settings = changed(QUICK, concurrency={"email": Concurrency(12, 4)}, send_s=30.0)
    settings = changed(settings, policy=msgspec.structs.replace(QUICK.policy, claim_us=40 * SECOND))
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
    assert max(places) < 150, "hardly any of the 2,000 is sent first"


async def test_a_single_message_does_not_wait_behind_another_tenants_bulk(world: World) -> None:
    provider = Recorder()
    order: list[str] = []
    provider.answer = lambda message: order.append(message.id)
    bulk = [words(f"bulk-{k}") for k in range(1_500)]
    await world.notify(*bulk)
    other = msgspec.structs.replace(words("single", user=None, to="bob@example.com"), tenant="globex")
    await change(world.store.tables, [[notification_put(other, -1)]], world.clock.now())
    await world.engine.submit([schedule(other, world.clock.now())])
    settings = changed(QUICK, concurrency={"email": Concurrency(8, 2)})
    settings = changed(settings, policy=msgspec.structs.replace(QUICK.policy, claim_us=40 * SECOND))
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
    settings = changed(settings, policy=msgspec.structs.replace(QUICK.policy, claim_us=40 * SECOND))
    world.start(world.worker({"mail": provider}, settings))
    other = msgspec.structs.replace(words("single", user=None, to="bob@example.com"), tenant="globex")
    await change(world.store.tables, [[notification_put(other, -1)]], world.clock.now())
    await world.engine.submit([schedule(other, world.clock.now())])
    await eventually(lambda: provider.took["single/1@globex"])
    hanging.set()
