"""Group commit for any call: items that arrive while calls are in progress go together into the next call."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")
_Batch = list[tuple[Sequence[Item], asyncio.Future[list[Answer]]]]


class Batcher(Generic[Item, Answer]):
    """Collects the items of several callers into batches; each batch is one call, with an answer for each item.

    At most `calls_max` calls run at a time. The items of one caller stay together. A batch weighs at most `weight_max`,
    unless the items of a single caller are heavier. An error for which `concerns_all` is true fails the whole batch.
    Any other error is the fault of one caller: the two halves of the batch are called again, until that caller fails
    alone. So a failed call must have changed nothing.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[list[Answer]]],
        *,
        weight: Callable[[Sequence[Item]], int],
        weight_max: int,
        calls_max: int,
        concerns_all: Callable[[BaseException], bool],
    ) -> None:
        self._call = call
        self._weight = weight
        self._weight_max = weight_max
        self._calls_max = calls_max
        self._concerns_all = concerns_all
        self._waiting: deque[tuple[Sequence[Item], asyncio.Future[list[Answer]]]] = deque()
        self._calls = 0
        self._running: set[asyncio.Future[Any]] = set()

    def submit(self, items: Sequence[Item]) -> "asyncio.Future[list[Answer]]":
        """A future of the answers to the items of one caller; it raises what the call raised."""
        answers: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, answers))
        if self._calls < self._calls_max:
            self._start()
        return answers

    def _start(self) -> None:
        """Start a call now, so that the next items can be prepared meanwhile."""
        batch = self._take()
        call = self._begin(_items(batch))
        self._calls += 1
        self._running.add(call)
        call.add_done_callback(partial(self._finished, batch))

    def _begin(self, items: Sequence[Item]) -> "asyncio.Future[list[Answer]]":
        """The call; one that raises at once is a failed call, like one that fails later."""
        try:
            return asyncio.ensure_future(self._call(items))
        except Exception as error:  # noqa: BLE001 - the waiting callers get the error, whatever it is
            failed: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    def _take(self) -> _Batch[Item, Answer]:
        """The callers that have waited longest, up to the weight of a batch."""
        batch = [self._waiting.popleft()]
        weight = self._weight(batch[0][0])
        while self._waiting:
            weight += self._weight(self._waiting[0][0])
            if weight > self._weight_max:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _finished(self, batch: _Batch[Item, Answer], call: "asyncio.Future[list[Answer]]") -> None:
        """Start the next call, then answer the callers of this one."""
        self._running.discard(call)
        self._calls -= 1
        if call.cancelled():
            for _, waiter in batch:
                waiter.cancel()
            return
        if self._waiting and self._calls < self._calls_max:
            self._start()
        error = call.exception()
        if error is None:
            _answer(batch, call.result())
        elif len(batch) == 1 or self._concerns_all(error):
            _fail(batch, error)
        else:
            halves = asyncio.ensure_future(self._call_halves(batch))
            self._running.add(halves)
            halves.add_done_callback(self._running.discard)

    async def _call_halves(self, batch: _Batch[Item, Answer]) -> None:
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]):
            try:
                answers = await self._call(_items(part))
            except Exception as error:  # noqa: BLE001 - every waiting caller gets the error, whatever it is
                if len(part) == 1 or self._concerns_all(error):
                    _fail(part, error)
                else:
                    await self._call_halves(part)
            else:
                _answer(part, answers)


def _items(batch: _Batch[Item, Answer]) -> Sequence[Item]:
    return batch[0][0] if len(batch) == 1 else [item for items, _ in batch for item in items]


def _answer(batch: _Batch[Item, Answer], answers: list[Answer]) -> None:
    start = 0
    for items, waiter in batch:
        end = start + len(items)
        if not waiter.done():
            waiter.set_result(answers[start:end])
        start = end


def _fail(batch: _Batch[Item, Answer], error: BaseException) -> None:
    for _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(error)
