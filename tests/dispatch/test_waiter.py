"""The waiter: ends in time, ends when woken, and loses no wake-up. Benchmarks measure its precision."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from tests.dispatch.event_loop import turns
from tidings.dispatch import dispatcher as module
from tidings.dispatch.dispatcher import Waiter

LONG_US = 60_000_000
PATIENCE_S = 5.0


@pytest.fixture(params=["fine", "coarse"])
async def waiter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "AsyncWaiter":
    if request.param == "coarse":
        monkeypatch.setattr(module._TimerFd, "open", lambda: None)
    return AsyncWaiter(Waiter())


class AsyncWaiter:
    """A waiter with a timeout for tests."""

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter

    async def wait(self, us: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.waiter.wait(us)

    async def is_waiting(self, us: int) -> asyncio.Task[None]:
        """Start a wait, and return once it waits."""
        task = asyncio.create_task(self.wait(us))
        await turns(5)
        assert not task.done()
        return task


async def test_a_wait_ends_after_its_time(waiter: AsyncWaiter) -> None:
    for us in (1, 100, 2_000):
        await waiter.wait(us)
    waiter.waiter.close()


@pytest.mark.parametrize("us", [0, -1])
async def test_a_wait_of_zero_or_less_returns_at_once(waiter: AsyncWaiter, us: int) -> None:
    await waiter.wait(us)
    waiter.waiter.close()


async def test_a_wait_ends_when_woken(waiter: AsyncWaiter) -> None:
    waiting = await waiter.is_waiting(LONG_US)
    waiter.waiter.wake()
    await waiting
    waiter.waiter.close()


async def test_a_wake_up_before_the_wait_is_not_lost(waiter: AsyncWaiter) -> None:
    waiter.waiter.wake()
    await waiter.wait(LONG_US)
    waiter.waiter.close()


async def test_several_wake_ups_count_as_one(waiter: AsyncWaiter) -> None:
    for _ in range(3):
        waiter.waiter.wake()
    await waiter.wait(LONG_US)
    waiting = await waiter.is_waiting(LONG_US)
    waiter.waiter.wake()
    await waiting
    waiter.waiter.close()


async def test_a_wait_may_be_cancelled(waiter: AsyncWaiter) -> None:
    waiting = await waiter.is_waiting(LONG_US)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await waiter.wait(100)
    waiter.waiter.close()


async def test_a_shorter_wait_follows_a_longer_one(waiter: AsyncWaiter) -> None:
    waiting = await waiter.is_waiting(LONG_US)
    waiter.waiter.wake()
    await waiting
    await waiter.wait(1_000)
    waiter.waiter.close()


@pytest.mark.parametrize("seed", range(5))
async def test_no_item_is_missed_in_any_interleaving(waiter: AsyncWaiter, seed: int) -> None:
    """A producer adds items and wakes, a consumer takes and waits, in any interleaving."""
    chance = random.Random(seed)
    brought: list[int] = []
    taken: list[int] = []

    async def bring(numbers: Iterator[int]) -> None:
        for number in numbers:
            brought.append(number)
            waiter.waiter.wake()
            await turns(chance.choice((0, 0, 1, 2, 5)))

    async def take() -> None:
        while len(taken) < 500:
            taken.extend(brought)
            brought.clear()
            await turns(chance.choice((0, 0, 1, 2, 5)))
            if len(taken) < 500:
                await waiter.wait(LONG_US)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(take(), bring(iter(range(500))))
    assert taken == list(range(500))
    waiter.waiter.close()


async def test_it_may_be_woken_after_close(waiter: AsyncWaiter) -> None:
    waiter.waiter.close()
    waiter.waiter.wake()
    waiter.waiter.close()
