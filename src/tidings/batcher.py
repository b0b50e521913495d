"""Group commit for any call: items that arrive while calls are in progress go together into the next call."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Collects items into batches; each batch is one call, which returns an answer for each item.

    At most `calls_max()` calls run at a time. A batch weighs at most `weight_max`, unless a single item is heavier. An
    error for which `concerns_all` is true fails the whole batch. Any other error is the fault of one item: the two
    halves of the batch are called again, until that item fails alone. So a failed call must have changed nothing.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        weight: Callable[[Item], int],
        weight_max: int,
        calls_max: Callable[[], int],
        concerns_all: Callable[[Exception], bool],
    ) -> None:
        self._call = call
        self._weight = weight
        self._weight_max = weight_max
        self._calls_max = calls_max
        self._concerns_all = concerns_all
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._calls = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, item: Item) -> "asyncio.Future[Answer]":
        """A future of the answer to one item; it raises what the call raised."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._calls < self._calls_max():
            self._start()
        return answer

    def _start(self) -> None:
        """Start a call now, not when its task first runs, so that the next items can be prepared meanwhile."""
        batch = self._take()
        call = self._call([item for item, _ in batch])
        task = asyncio.get_running_loop().create_task(self._finish(batch, call))
        self._calls += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self) -> "list[tuple[Item, asyncio.Future[Answer]]]":
        """The items that have waited longest, up to the weight of a batch."""
        batch = [self._waiting.popleft()]
        weight = self._weight(batch[0][0])
        while self._waiting:
            weight += self._weight(self._waiting[0][0])
            if weight > self._weight_max:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _finish(
        self, batch: "list[tuple[Item, asyncio.Future[Answer]]]", call: Awaitable[Sequence[Answer]]
    ) -> None:
        try:
            answers = await call
        except Exception as error:  # noqa: BLE001 - every waiting caller gets the error, whatever it is
            self._call_done()
            await self._fail(batch, error)
            return
        except BaseException:
            self._calls -= 1
            raise
        self._call_done()
        _answer(batch, answers)

    def _call_done(self) -> None:
        self._calls -= 1
        if self._waiting and self._calls < self._calls_max():
            self._start()

    async def _fail(self, batch: "list[tuple[Item, asyncio.Future[Answer]]]", error: Exception) -> None:
        if len(batch) == 1 or self._concerns_all(error):
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]):
            try:
                answers = await self._call([item for item, _ in part])
            except Exception as fault:  # noqa: BLE001 - as above
                await self._fail(part, fault)
            else:
                _answer(part, answers)


def _answer(batch: "list[tuple[Item, asyncio.Future[Answer]]]", answers: Sequence[Answer]) -> None:
    for (_, waiter), answer in zip(batch, answers, strict=True):
        if not waiter.done():
            waiter.set_result(answer)
