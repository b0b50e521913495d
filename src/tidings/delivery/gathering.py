"""Group commit for anything: what is asked while an answer is on its way is asked together, next."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tidings.domain.errors import NotOwner, StoreError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

TOGETHER_MAX = 500


class Gathering(Generic[Item, Answer]):
    """One call at a time, each with all that gathered meanwhile. What is urgent has calls of its own, and neither waits
    for those of the rest nor shares them: they are long where much is under way."""

    def __init__(
        self, call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], together_max: int = TOGETHER_MAX
    ) -> None:
        self._call = call
        self._together_max = together_max
        self._urgent: _Queue[Item, Answer] = _Queue()
        self._rest: _Queue[Item, Answer] = _Queue()
        self._loop: asyncio.AbstractEventLoop | None = None  # to ask for it each time is a system call

    def ask(self, item: Item, *, urgent: bool = False) -> "asyncio.Future[Answer]":
        """The answer to one, to be awaited; raises what the call for it raised."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        queue = self._urgent if urgent else self._rest
        queue.waiting.append((item, answer))
        if queue.task is None:
            queue.task = loop.create_task(self._run(queue))
        return answer

    async def _run(self, queue: "_Queue[Item, Answer]") -> None:
        try:
            while queue.waiting:
                await self._step(queue.take(self._together_max))
        finally:
            queue.task = None

    async def _step(self, taken: list[tuple[Item, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._call([item for item, _ in taken]) if taken else ()
        except (NotOwner, StoreError) as error:
            _fail(taken, error)
            return
        except Exception as error:  # noqa: BLE001 - one of them is at fault; nobody else is to suffer for it
            await self._apart(taken, error)
            return
        for (_, waiter), answer in zip(taken, answers, strict=True):
            if not waiter.done():
                waiter.set_result(answer)

    async def _apart(self, taken: list[tuple[Item, "asyncio.Future[Answer]"]], error: Exception) -> None:
        """Ask those of a call that failed again, half by half, until who is at fault stands alone."""
        if len(taken) == 1:
            _fail(taken, error)
            return
        half = len(taken) // 2
        await self._step(taken[:half])
        await self._step(taken[half:])


def _fail(taken: list[tuple[Item, "asyncio.Future[Answer]"]], error: Exception) -> None:
    for _, waiter in taken:
        if not waiter.done():
            waiter.set_exception(error)


class _Queue(Generic[Item, Answer]):
    """Those who wait for the next call."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self.task: asyncio.Task[None] | None = None

    def take(self, together_max: int) -> list[tuple[Item, "asyncio.Future[Answer]"]]:
        """The next ones, without those who no longer wait."""
        taken: list[tuple[Item, asyncio.Future[Answer]]] = []
        while self.waiting and len(taken) < together_max:
            item, answer = self.waiting.popleft()
            if not answer.done():
                taken.append((item, answer))
        return taken
