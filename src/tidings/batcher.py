"""Group commit for anything: items that come while calls are under way go together into the next call."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Gathers items into batches; each batch is one call, whose answers go back one by one.

    At most `calls_max()` calls are under way. A batch weighs at most `weight_max`, unless one item alone is heavier.
    An error that `concerns_all` is everybody's; for any other one item is at fault: the batch is called again half by
    half, until that item is alone with its error. So a call that fails must have done nothing.
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
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, item: Item) -> "asyncio.Future[Answer]":
        """The answer to one item, to be awaited; raises what the call for it raised."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._under_way < self._calls_max():
            self._begin()
        return answer

    def _begin(self) -> None:
        """Begin a call at once, not only when its task runs: the next items are prepared meanwhile."""
        batch = self._take()
        begun = self._call([item for item, _ in batch])
        task = asyncio.get_running_loop().create_task(self._finish(batch, begun))
        self._under_way += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self) -> "list[tuple[Item, asyncio.Future[Answer]]]":
        """Those who have waited longest."""
        batch = [self._waiting.popleft()]
        weight = self._weight(batch[0][0])
        while self._waiting:
            weight += self._weight(self._waiting[0][0])
            if weight > self._weight_max:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _finish(
        self, batch: "list[tuple[Item, asyncio.Future[Answer]]]", begun: Awaitable[Sequence[Answer]]
    ) -> None:
        try:
            answers = await begun
        except Exception as error:  # noqa: BLE001 - those who wait have to learn of it, whatever it is
            self._go_on()
            await self._fail(batch, error)
            return
        except BaseException:
            self._under_way -= 1
            raise
        self._go_on()
        _answer(batch, answers)

    def _go_on(self) -> None:
        self._under_way -= 1
        if self._waiting and self._under_way < self._calls_max():
            self._begin()

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
