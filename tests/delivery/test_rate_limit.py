"""Under a rate limit, high priority goes first and no tenant waits behind another tenant's bulk."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from types import FrameType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bus.simulation import elapse, simulated, the_clock
from tests.delivery.limits import ask, tables
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, started_world, words
from tidings.delivery.limits import rate_limit
from tidings.delivery.limits.rate_limit import RateLimiter, RateLimits
from tidings.delivery.worker.worker import Settings
from tidings.domain.errors import StoreError
from tidings.domain.notifications.rate_limit import Rate
from tidings.ports.tables import Row, RowKey
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory.tables import MemoryTables

LIMITED = changed(QUICK, rates=RateLimits({"mail": Rate(50.0, burst=5)}))
BULK = 500
SLOW_BULK = 100
SLOWLY_LIMITED = changed(QUICK, rates=RateLimits({"mail": Rate(10.0, burst=5)}))  # a busy machine is faster than that


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada())
        yield world


async def worker_with_queued_bulk(world: World, worker: Settings = LIMITED, size: int = BULK) -> Recorder:
    """A worker whose rate limit is reserved for the next ten seconds."""
    provider = Recorder("email")
    world.start(world.worker({"mail": provider}, worker))
    await world.notify(*(words(f"bulk-{k}", priority="low") for k in range(size)))

    async def all_queued() -> bool:
        last = await world.delivery(f"bulk-{size - 1}/1")
        return last is not None and last.reason == "rate_limited"

    await eventually(all_queued, 20)
    return provider


async def test_high_priority_does_not_wait_behind_a_queued_bulk(world: World) -> None:
    provider = await worker_with_queued_bulk(world, SLOWLY_LIMITED, SLOW_BULK)
    before = len(provider.calls)
    await world.notify(*(words(f"high-{k}", priority="high") for k in range(3)))
    await world.settled(*(f"high-{k}/1" for k in range(3)))
    places = [k for k, message in enumerate(provider.calls) if message.id.startswith("high")]
    assert max(places) - before < 20, "hardly any of the bulk goes first"


@pytest.mark.slow
async def test_a_single_message_does_not_wait_behind_another_tenants_queued_bulk(world: World) -> None:
    provider = await worker_with_queued_bulk(world)
    before = len(provider.calls)
    single = msgspec.structs.replace(words("single", user=None, to="bob@example.com"), tenant="globex")
    await world.notify(single)
    await eventually(lambda: provider.took["single/1@globex"])
    place = next(k for k, message in enumerate(provider.calls) if message.id == "single/1@globex")
    assert place - before < 20


async def test_part_of_the_burst_is_reserved_for_high_priority_on_every_worker() -> None:
    clock, rows = SimulatedClock(), tables()
    rates = RateLimits({"phone": Rate(1.0, burst=8)})
    one, two = (RateLimiter(rows, clock, rates, patience_us=0) for _ in range(2))
    took = [await ask(one, "phone", TENANT, returning=True) for _ in range(10)]
    assert took.count(None) == 6
    assert [await ask(two, "phone", TENANT, high=True) for _ in range(2)] == [None, None]
    assert await ask(two, "phone", TENANT, high=True) is not None, "the limit is kept"
    clock.advance(SECOND + 1)
    assert await ask(one, "phone", TENANT, returning=True) is not None, "first the reserve is filled again"
    assert await ask(two, "phone", TENANT, high=True, returning=True) is None


async def test_a_worker_that_resumes_does_not_exceed_the_limit() -> None:
    clock, rows = SimulatedClock(), tables()
    one, two = (RateLimiter(rows, clock, RateLimits({"phone": Rate(100.0, burst=20)}), patience_us=0) for _ in range(2))
    went = 0
    for k in range(5_000):
        clock.advance(1_000)
        for limiter in (one, two):
            went += await ask(limiter, "phone", f"t{k % 3}", high=k % 7 == 0, returning=True) is None
    assert 450 <= went <= 500 + 20


async def test_a_tenant_at_its_own_limit_takes_no_shared_tokens() -> None:
    clock = SimulatedClock()
    rates = RateLimits({"phone": Rate(1.0, burst=8)}, tenants={"phone": Rate(1.0)})
    limiter = RateLimiter(tables(), clock, rates, patience_us=0)
    took = [await ask(limiter, "phone", "greedy", returning=True) for _ in range(50)]
    assert took.count(None) == 1
    assert [await ask(limiter, "phone", f"t{k}", returning=True) for k in range(5)] == [None] * 5


@simulated
async def test_tokens_are_shared_by_priority_and_tenant() -> None:
    limiter, order = RateLimiter(tables(), the_clock(), RateLimits({"mail": Rate(10.0)}), patience_us=9 * SECOND), ""
    waiting = [("a", True, 10), ("b", True, 1), ("c", False, 3), ("d", False, 1)]
    asked = {ask(limiter, "mail", tenant, high=high): tenant for tenant, high, count in waiting for _ in range(count)}
    while asked:
        served, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result() for each in served] == [None], "one token at a time"
        order += asked.pop(served.pop())
    assert Counter(order[:10]) == {"a": 7, "b": 1, "c": 1, "d": 1}, "four of high priority, then one of the others"
    assert order.index("b") == 1, "tenants take turns"


@simulated
async def test_a_short_queue_is_served_beside_a_long_one_and_no_token_is_unused() -> None:
    limiter = RateLimiter(tables(), the_clock(), RateLimits({"mail": Rate(10.0)}), patience_us=0)
    assert await ask(limiter, "mail", "first") is None

    async def places(count: int, tenant: str, *, high: bool = False) -> list[int]:
        """After how many seconds each may be sent."""
        asked = [ask(limiter, "mail", tenant, high=high) for _ in range(count)]
        return [((until or 0) - the_clock().now()) // SECOND for until in await asyncio.gather(*asked)]

    await places(50, "long")
    assert (await places(10, "short"))[-1] <= 2, "ten, and ten of the others between them"
    assert (await places(40, "long"))[-1] <= 10, "a hundred in ten seconds"
    assert (await places(10, "long", high=True))[-1] <= 1


@simulated
async def test_high_priority_gets_a_token_while_others_wait_for_theirs() -> None:
    """A quarter of the burst is for high priority: it does not wait until the others may go on."""
    clock = the_clock()
    limiter = RateLimiter(tables(), clock, RateLimits({"mail": Rate(1.0, burst=4)}), patience_us=5 * SECOND)
    assert [await ask(limiter, "mail", TENANT) for _ in range(3)] == [None] * 3
    low = ask(limiter, "mail", TENANT)
    await elapse(100_000)
    begun = clock.now()
    assert await ask(limiter, "mail", TENANT, high=True) is None
    assert clock.now() - begun < 10_000
    assert not low.done()
    assert await low is None


@simulated
async def test_while_the_store_is_away_every_message_is_answered_and_then_all_goes_on() -> None:
    clock, rows = the_clock(), Unreliable()
    limiter = RateLimiter(rows, clock, RateLimits({"mail": Rate(10.0, burst=2)}))
    rows.is_away = True
    answers = await asyncio.gather(*(ask(limiter, "mail", TENANT) for _ in range(10)))
    assert all(until is not None for until in answers)
    assert clock.elapsed() <= 2 * SECOND
    waiting = ask(limiter, "mail", TENANT, returning=True)
    await elapse(1_000)
    rows.is_away = False
    assert await waiting is None


@simulated
async def test_a_closed_limiter_starts_nothing() -> None:
    limiter = RateLimiter(tables(), the_clock(), RateLimits({"mail": Rate(1.0)}))
    waiting = [ask(limiter, "mail", TENANT, returning=True) for _ in range(2)]
    limiter.close()
    await elapse()
    waiting.append(ask(limiter, "mail", TENANT))
    await elapse(5 * SECOND)
    assert not any(each.done() for each in waiting)
    assert len(asyncio.all_tasks()) == 1, "this test"


@simulated
async def test_a_token_that_is_given_back_while_more_are_leased_is_not_lost() -> None:
    clock, rows = the_clock(), Unreliable()
    limiter = RateLimiter(rows, clock, RateLimits({"mail": Rate(0.1, burst=4)}), patience_us=0)
    assert [await ask(limiter, "mail", TENANT, returning=True) for _ in range(2)] == [None, None]
    rows.gate = asyncio.Event()
    third = ask(limiter, "mail", TENANT)
    await elapse()
    limiter.give_back("mail", TENANT, clock.elapsed())
    limiter.give_back("mail", TENANT, clock.elapsed())
    rows.gate.set()
    await elapse(10_000)
    answers = [await third, *[await ask(limiter, "mail", TENANT, high=True) for _ in range(4)]]
    assert answers.count(None) == 4, "four in all, of which two were given back"


@simulated
async def test_tokens_that_are_given_back_late_are_lost() -> None:
    """A circuit breaker opens: the claims of several seconds are given back together, and others take their tokens."""
    clock = the_clock()
    limiter, taken = RateLimiter(tables(), clock, RateLimits({"mail": Rate(10.0, burst=10)})), list[int]()
    while clock.elapsed() < 5 * SECOND:
        if await ask(limiter, "mail", "slow", returning=True) is None:
            taken.append(clock.elapsed())
    assert len(taken) > 50
    for moment in taken:
        limiter.give_back("mail", "slow", moment)
    others = [ask(limiter, "mail", f"t{number}") for number in range(100)]
    went = [each for each in others if each.done() and each.result() is None]
    assert 5 <= len(went) <= 10, "those of the last second"
    limiter.close()


@simulated
async def test_tokens_that_are_given_back_are_never_more_than_the_burst() -> None:
    clock = the_clock()
    limiter, taken = RateLimiter(tables(), clock, RateLimits({"mail": Rate(100.0, burst=5)})), 0
    while clock.elapsed() < SECOND // 2:
        taken += await ask(limiter, "mail", "slow", returning=True) is None
    assert taken > 40
    for _ in range(taken):
        limiter.give_back("mail", "slow", clock.elapsed() - SECOND // 2)
    others = [ask(limiter, "mail", f"t{number}") for number in range(100)]
    assert sum(each.done() for each in others) == 5
    limiter.close()


@simulated
async def test_a_burst_of_many_tenants_is_answered_in_many_turns_of_the_event_loop() -> None:
    answers, in_a_turn = list[int | None](), [0]
    limiter = RateLimiter(tables(), the_clock(), RateLimits({"mail": Rate(10.0, burst=10)}))

    def answer(until: int | None) -> None:
        if not in_a_turn[-1]:
            asyncio.get_running_loop().call_soon(in_a_turn.append, 0)
        in_a_turn[-1] += 1
        answers.append(until)

    for tenant in range(250):
        for _ in range(4):
            limiter.enter("mail", f"t{tenant}", answer, high=False, returning=False)
    await elapse(2 * SECOND)
    assert len(answers) == 1_000
    assert max(in_a_turn) <= 64 + 10, "and the tokens of the burst"
    places = sorted(until for until in answers if until is not None)
    assert places[-1] - places[0] > 90 * SECOND, "spread at the rate of the limit"


@simulated
async def test_messages_that_wait_cost_a_new_one_nothing() -> None:
    """A message that arrives wakes the limiter up, which looks at no other message again."""
    limiter = RateLimiter(tables(), the_clock(), RateLimits({"mail": Rate(0.1)}), patience_us=60 * SECOND)
    assert await ask(limiter, "mail", TENANT) is None

    async def steps() -> int:
        """How many functions are called for one more message."""
        calls = 0

        def count(_frame: FrameType, _event: str, _argument: object) -> None:
            nonlocal calls
            calls += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            ask(limiter, "mail", "single", returning=True)
            await elapse()
        finally:
            sys.setprofile(before)
        return calls

    ask(limiter, "mail", "t0", returning=True)
    await elapse()
    alone = await steps()
    for tenant in range(1_000):
        ask(limiter, "mail", f"t{tenant}", returning=True)
    await elapse()
    assert await steps() < 2 * alone
    limiter.close()


async def test_many_tenants_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "LEASES_MAX", 10)
    clock = SimulatedClock()
    limits = RateLimits({"mail": Rate(1_000.0, burst=1_000)}, tenants={"mail": Rate(1.0)})
    limiter = RateLimiter(tables(), clock, limits, patience_us=0)
    for number in range(100):
        assert await ask(limiter, "mail", f"t{number}") is None
        clock.advance(SECOND)
    assert len(limiter._leases) <= 10


class Unreliable(MemoryTables):
    """Tables that are away at times, or answer late."""

    is_away = False
    gate: asyncio.Event | None = None

    def __init__(self) -> None:
        super().__init__(lambda *_: pytest.fail("limits do not change the timeline"))

    async def get(self, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        if self.gate is not None:
            await self.gate.wait()
        await elapse(1_000)
        if self.is_away:
            raise StoreError("away")
        return await super().get(keys, now)


class Senders:
    """Two workers that send under limits, while clocks are set back and the store is away at times."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._clock, self._rows = chance, the_clock(), Unreliable()
        self.shared = Rate(chance.choice([2.0, 20.0, 200.0]), chance.randint(1, 20))
        self.own = Rate(10.0, chance.randint(1, 5)) if chance.random() < 0.5 else None
        limits = RateLimits({"mail": self.shared}, tenants={"mail": self.own} if self.own else {})
        self.workers = [RateLimiter(self._rows, self._clock, limits) for _ in range(2)]
        self.went: list[tuple[int, str]] = []

    async def send(self, tenant: str, *, high: bool) -> None:
        """One message, until it may go."""
        limiter, returning = self._chance.choice(self.workers), False
        for _ in range(500):
            begun = self._clock.elapsed()
            until = await ask(limiter, "mail", tenant, high=high, returning=returning)
            assert self._clock.elapsed() - begun <= 2 * rate_limit.PATIENCE_US + 600_000, "an answer comes soon"
            if until is None and self._chance.random() < 0.1:
                limiter.give_back("mail", tenant, self._clock.elapsed())
            elif until is None:
                self.went.append((self._clock.elapsed(), tenant))
                return
            else:
                await elapse(max(1, until - self._clock.now()))
                returning = True
        pytest.fail("a message never had its turn")

    async def disturb(self) -> None:
        for _ in range(self._chance.randint(0, 4)):
            await elapse(self._chance.randint(1, 3 * SECOND))
            if self._chance.random() < 0.5:
                self._clock.step(-self._chance.randint(0, 20 * SECOND))
            self._rows.is_away = self._chance.random() < 0.3
        self._rows.is_away = False

    def check(self, rate: Rate, tenants: str) -> None:
        """A lease may be spent a second after it was taken, and two workers have one each."""
        moments = [at for at, tenant in self.went if tenant in tenants]
        for first, start in enumerate(moments):
            for count, end in enumerate(moments[first:], 1):
                assert count <= rate.burst + rate.per_s * ((end - start) / SECOND + 1) + 2


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_message_is_answered_and_no_limit_is_exceeded(seed: int) -> None:
    @simulated
    async def simulate() -> None:
        chance = random.Random(seed)
        senders, sends = Senders(chance), []
        for _ in range(chance.randint(1, 120)):
            sends.append(asyncio.create_task(senders.send(chance.choice("abc"), high=chance.random() < 0.3)))
            if chance.random() < 0.2:
                await elapse(chance.randint(1, SECOND))
        await asyncio.gather(senders.disturb(), *sends)
        senders.check(senders.shared, "abc")
        for tenant in "abc" if senders.own else "":
            senders.check(senders.own or senders.shared, tenant)
        await elapse(SECOND)
        assert len(asyncio.all_tasks()) == 1, "no worker asks for tokens that nobody needs"

    simulate()


async def test_a_clock_set_back_does_not_stop_a_limit() -> None:
    clock, rows, rates = SimulatedClock(), tables(), RateLimits({"mail": Rate(10.0, burst=2)})
    limiter, other = (RateLimiter(rows, clock, rates, patience_us=0) for _ in range(2))
    places = [await ask(limiter, "mail", TENANT) for _ in range(50)]
    assert places.count(None) < 3
    clock.step(-3_600 * SECOND)
    place = await ask(other, "mail", TENANT)
    assert place is not None
    assert place < clock.now() + SECOND, "the limit is kept"
    again = await ask(limiter, "mail", TENANT)
    assert again is not None
    assert again < clock.now() + SECOND, "no reservation from before counts"
    clock.advance(SECOND)
    assert await ask(limiter, "mail", TENANT) is None


@simulated
async def test_a_waiter_continues_after_the_clock_was_set_back() -> None:
    clock = the_clock()
    limiter = RateLimiter(tables(), clock, RateLimits({"mail": Rate(10.0)}), patience_us=2 * SECOND)
    assert await ask(limiter, "mail", TENANT) is None
    waiting = [ask(limiter, "mail", TENANT) for _ in range(2)]
    await elapse(1_000)
    clock.step(-3_600 * SECOND)
    assert await asyncio.gather(*waiting) == [None, None]
    assert clock.elapsed() < 3 * SECOND


@simulated
async def test_a_clock_set_back_while_the_store_is_asked_does_not_stop_a_limit() -> None:
    clock, rows = the_clock(), Unreliable()
    limiter = RateLimiter(rows, clock, RateLimits({"mail": Rate(10.0)}), patience_us=SECOND)
    assert await ask(limiter, "mail", TENANT) is None
    rows.gate = asyncio.Event()
    first = ask(limiter, "mail", TENANT)
    await elapse(1_000)
    clock.step(-3_600 * SECOND)
    second = ask(limiter, "mail", TENANT)
    rows.gate.set()
    assert [await first, await second] == [None, None]
