"""Under a rate limit too: high priority goes first, and nobody stands behind another tenant's bulk."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, ada, changed, living, words
from tidings.delivery.purse import Purse
from tidings.delivery.throttle import WAITERS_MAX, Rates, Throttle
from tidings.domain.notifications.rate_limit import Rate
from tidings.ports import Key
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory.documents import MemoryDocuments

LIMITED = changed(QUICK, rates=Rates({"mail": Rate(50.0, burst=5)}))
BULK = 500


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with living() as world:
        await world.put_user(ada())
        yield world


async def behind_a_bulk(world: World) -> Recorder:
    """A worker that has promised places for ten seconds."""
    provider = Recorder("email")
    world.start(world.worker({"mail": provider}, LIMITED))
    await world.notify(*(words(f"bulk-{k}", priority="low") for k in range(BULK)))

    async def all_wait() -> bool:
        last = await world.delivery(f"bulk-{BULK - 1}/1")
        return last is not None and last.reason == "rate_limited"

    await eventually(all_wait)
    return provider


async def test_high_does_not_wait_behind_a_bulk_that_was_promised_places(world: World) -> None:
    provider = await behind_a_bulk(world)
    before = len(provider.calls)
    await world.notify(*(words(f"high-{k}", priority="high") for k in range(3)))
    await world.settled(*(f"high-{k}/1" for k in range(3)))
    places = [k for k, message in enumerate(provider.calls) if message.id.startswith("high")]
    assert max(places) - before < 20, "hardly any of the bulk goes first"


@pytest.mark.slow
async def test_a_single_message_does_not_wait_behind_anothers_places(world: World) -> None:
    provider = await behind_a_bulk(world)
    before = len(provider.calls)
    single = msgspec.structs.replace(words("single", user=None, to="bob@example.com"), tenant="globex")
    await world.notify(single)
    await eventually(lambda: provider.took["single/1@globex"])
    place = next(k for k, message in enumerate(provider.calls) if message.id == "single/1@globex")
    assert place - before < 20


async def test_some_of_what_may_go_at_once_is_for_high_priority_at_whichever_worker() -> None:
    clock, cabinet = SimulatedClock(), MemoryDocuments()
    rates = Rates({"phone": Rate(1.0, burst=8)})
    one, two = (Throttle(cabinet, clock, rates, patience_us=0) for _ in range(2))
    took = [await one.take("phone", TENANT, returning=True) for _ in range(10)]
    assert took.count(None) == 6
    assert [await two.take("phone", TENANT, high=True) for _ in range(2)] == [None, None]
    assert await two.take("phone", TENANT, high=True) is not None, "the limit is kept"
    clock.advance(SECOND + 1)
    assert await one.take("phone", TENANT, returning=True) is not None, "first the reserve is filled again"
    assert await two.take("phone", TENANT, high=True, returning=True) is None


async def test_a_worker_that_wakes_takes_no_more_than_the_limit() -> None:
    clock, cabinet = SimulatedClock(), MemoryDocuments()
    one, two = (Throttle(cabinet, clock, Rates({"phone": Rate(100.0, burst=20)}), patience_us=0) for _ in range(2))
    went = 0
    for k in range(5_000):
        clock.advance(1_000)
        for throttle in (one, two):
            went += await throttle.take("phone", f"t{k % 3}", high=k % 7 == 0, returning=True) is None
    assert 450 <= went <= 500 + 20


async def test_whom_his_own_limit_stops_takes_nothing_of_what_is_for_all() -> None:
    clock = SimulatedClock()
    rates = Rates({"phone": Rate(1.0, burst=8)}, tenants={"phone": Rate(1.0)})
    throttle = Throttle(MemoryDocuments(), clock, rates, patience_us=0)
    took = [await throttle.take("phone", "greedy", returning=True) for _ in range(50)]
    assert took.count(None) == 1
    assert [await throttle.take("phone", f"t{k}", returning=True) for k in range(5)] == [None] * 5


async def test_tokens_are_dealt_by_priority_and_tenant() -> None:
    purse, order = Purse(Key("", "throttle", "mail"), Rate(1.0, burst=8)), list[str]()
    waiting = [("a", True, 10), ("b", True, 1), ("c", False, 3), ("d", False, 1)]
    entered = [(tenant, purse.line(tenant, high=high).enter()) for tenant, high, count in waiting for _ in range(count)]
    while entered:
        purse.give_back()
        [served] = [each for each in entered if each[1].done()]
        entered.remove(served)
        order.append(served[0])
    assert Counter(order[:10]) == {"a": 7, "b": 1, "c": 1, "d": 1}, "four of high priority, then one of the others"
    assert order.index("b") == 1, "tenants take turns"


async def test_who_gives_up_waiting_takes_no_token_along() -> None:
    clock = SimulatedClock()
    throttle = Throttle(MemoryDocuments(), clock, Rates({"mail": Rate(10.0)}), patience_us=10 * SECOND)
    assert await throttle.take("mail", TENANT) is None
    waiting = [asyncio.create_task(throttle.take("mail", TENANT)) for _ in range(WAITERS_MAX)]
    await asyncio.wait(waiting, timeout=0.01)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.wait(waiting[1:])
    clock.advance(SECOND)
    assert await waiting[0] is None
    clock.advance(SECOND)
    assert await throttle.take("mail", TENANT, returning=True) is None


async def test_a_short_line_is_served_beside_a_long_one_and_nothing_is_left_unused() -> None:
    purse, now = Purse(Key("", "throttle", "mail"), Rate(10.0)), 5 * SECOND
    purse.empty_until = dict.fromkeys((True, False), now + SECOND)

    def places(count: int, tenant: str, *, high: bool = False) -> list[int]:
        """When they may go, in seconds from the next token on."""
        return [(purse.promise(purse.line(tenant, high=high), now) - now) // SECOND - 1 for _ in range(count)]

    places(50, "long")
    assert places(10, "short")[-1] <= 2, "ten, and ten of the others between them"
    assert places(40, "long")[-1] == 9, "a hundred in ten seconds"
    assert places(10, "long", high=True)[-1] <= 1


async def test_a_clock_set_back_does_not_stop_a_limit() -> None:
    clock, cabinet, rates = SimulatedClock(), MemoryDocuments(), Rates({"mail": Rate(10.0, burst=2)})
    throttle, other = (Throttle(cabinet, clock, rates, patience_us=0) for _ in range(2))
    places = [await throttle.take("mail", TENANT) for _ in range(50)]
    assert places.count(None) < 3
    clock.step(-3_600 * SECOND)
    place = await other.take("mail", TENANT)
    assert place is not None
    assert place < clock.now() + SECOND, "the limit is kept"
    again = await throttle.take("mail", TENANT)
    assert again is not None
    assert again < clock.now() + SECOND, "it stands behind no places of before"
    clock.advance(SECOND)
    assert await throttle.take("mail", TENANT) is None


async def test_who_waits_while_the_clock_is_set_back_goes_on() -> None:
    clock = SimulatedClock()
    throttle = Throttle(MemoryDocuments(), clock, Rates({"mail": Rate(10.0)}), patience_us=2 * SECOND)
    assert await throttle.take("mail", TENANT) is None
    first, second = (asyncio.create_task(throttle.take("mail", TENANT)) for _ in range(2))
    await asyncio.wait([first], timeout=0.01)
    clock.step(-3_600 * SECOND)
    purse = throttle._purses[Key("", "throttle", "mail")]
    await eventually(lambda: purse.empty_until[False] <= clock.now() + SECOND)
    clock.advance(SECOND)
    assert await first is None
    clock.advance(2 * SECOND)
    await asyncio.wait_for(second, 5)
