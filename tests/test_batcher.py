"""Group commit: what is batched, in which order, and which callers receive an error."""

import asyncio
from collections.abc import Sequence

import pytest

from tidings.batcher import Batcher
from tidings.domain.errors import StoreError


async def turn() -> None:
    """Let everything that is ready run once."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.call_soon(over.set_result, None)
    await over


class Calls:
    """The calls that were made; each waits until the test lets it finish."""

    def __init__(self, calls_max: int = 1, weight_max: int = 10) -> None:
        self.made: list[list[int]] = []
        self.ends: list[asyncio.Future[None]] = []
        self.bad: set[int] = set()
        self.broken = False
        self.batcher: Batcher[int, int] = Batcher(
            self._call,
            weight=lambda items: sum(max(1, item) for item in items),
            weight_max=weight_max,
            calls_max=calls_max,
            concerns_all=lambda error: isinstance(error, StoreError),
        )

    async def _call(self, items: Sequence[int]) -> list[int]:
        self.made.append(list(items))
        self.ends.append(asyncio.get_running_loop().create_future())
        await self.ends[-1]
        if self.broken:
            raise StoreError("away")
        if self.bad.intersection(items):
            raise ValueError(f"{self.bad.intersection(items)}")
        return [-item for item in items]

    async def finish(self) -> None:
        """Let every call finish."""
        for _ in range(100):
            for end in self.ends:
                if not end.done():
                    end.set_result(None)
            await turn()


async def test_items_that_arrive_during_a_call_go_into_the_next() -> None:
    calls = Calls()
    answers = [calls.batcher.submit([item]) for item in (1, 0, -1, -2)]
    await calls.finish()
    assert await asyncio.gather(*answers) == [[-1], [0], [1], [2]]
    assert calls.made == [[1], [0, -1, -2]]


async def test_the_items_of_a_caller_stay_together_and_each_caller_gets_the_answers_to_its_own() -> None:
    calls = Calls()
    answers = [calls.batcher.submit(items) for items in ([1], [2, 3], [], [4], [5, 6])]
    await calls.finish()
    assert await asyncio.gather(*answers) == [[-1], [-2, -3], [], [-4], [-5, -6]]
    assert calls.made == [[1], [2, 3, 4], [5, 6]]


async def test_batches_are_limited_by_weight_and_a_heavy_item_goes_alone() -> None:
    calls = Calls(weight_max=10)
    answers = [calls.batcher.submit([item]) for item in (1, 6, 4, 1, 99, 2)]
    await calls.finish()
    assert await asyncio.gather(*answers) == [[-1], [-6], [-4], [-1], [-99], [-2]]
    assert calls.made == [[1], [6, 4], [1], [99], [2]]


async def test_at_most_calls_max_calls_run_at_once() -> None:
    calls = Calls(calls_max=2)
    answers = [calls.batcher.submit([item]) for item in (1, 2, 3, 4)]
    await turn()
    assert calls.made == [[1], [2]]
    await calls.finish()
    assert await asyncio.gather(*answers) == [[-1], [-2], [-3], [-4]]
    assert calls.made == [[1], [2], [3, 4]]


async def test_a_failing_item_fails_alone_and_the_others_are_answered() -> None:
    calls = Calls(weight_max=100)
    calls.bad = {4}
    answers = [calls.batcher.submit([item]) for item in (1, 2, 3, 4, 5)]
    await calls.finish()
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(each) for each in found] == [list, list, list, ValueError, list]
    assert calls.made == [[1], [2, 3, 4, 5], [2, 3], [4, 5], [4], [5]]


async def test_an_error_that_concerns_all_items_fails_all() -> None:
    calls = Calls()
    calls.broken = True
    answers = [calls.batcher.submit([item]) for item in (1, 2, 3)]
    await calls.finish()
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert all(isinstance(each, StoreError) for each in found)
    assert len(calls.made) == 2
    calls.broken = False
    after = calls.batcher.submit([5])
    await calls.finish()
    assert await after == [-5]


async def test_a_cancelled_caller_does_not_disturb_the_others() -> None:
    calls = Calls()
    answers = [calls.batcher.submit([item]) for item in (1, 2, 3)]
    answers[1].cancel()
    await calls.finish()
    assert await answers[2] == [-3]
    with pytest.raises(asyncio.CancelledError):
        await answers[1]


async def test_a_caller_whose_items_fail_at_once_gets_the_error_also_after_another_call() -> None:
    ends: list[asyncio.Future[list[int]]] = []

    def call(items: Sequence[int]) -> "asyncio.Future[list[int]]":
        if 0 in items:
            raise ValueError("no zero")
        ends.append(asyncio.get_running_loop().create_future())
        return ends[-1]

    batcher: Batcher[int, int] = Batcher(
        call, weight=len, weight_max=10, calls_max=1, concerns_all=lambda error: isinstance(error, StoreError)
    )
    first, bad, good = (batcher.submit([item]) for item in (1, 0, 2))
    ends[0].set_result([-1])
    assert await asyncio.wait_for(first, 5) == [-1]
    with pytest.raises(ValueError, match="no zero"):
        await asyncio.wait_for(bad, 5)
    ends[1].set_result([-2])
    assert await good == [-2]
