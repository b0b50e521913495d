"""Group commit for anything: what is asked while an answer is on its way is asked together, next."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

TOGETHER_MAX = 500


class Gathering(Generic[Item, Answer]):
    """One call at a time, each with all that gathered meanwhile; what is urgent goes first."""

    def __init__(
        self, call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], together_max: int = TOGETHER_MAX
    ) -> None:
        self._call = call
        self._together_max = together_max
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._urgent: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # to ask for it each time is a system call

    async def ask(self, item: Item, *, urgent: bool = False) -> Answer:
        """The answer to one; raises what the call for it, and for those beside it, raised."""
        return await self.begin(item, urgent=urgent)

    def begin(self, item: Item, *, urgent: bool = False) -> "asyncio.Future[Answer]":
        """The same for who has something else to do meanwhile."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        (self._urgent if urgent else self._waiting).append((item, answer))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return answer

    async def _run(self) -> None:
        try:
            while self._urgent or self._waiting:
                await self._step(self._take())
        finally:
            self._task = None

    def _take(self) -> list[tuple[Item, "asyncio.Future[Answer]"]]:
        """The next ones, without those who no longer wait."""
        taken: list[tuple[Item, asyncio.Future[Answer]]] = []
        for queue in (self._urgent, self._waiting):
            while queue and len(taken) < self._together_max:
                item, answer = queue.popleft()
                if not answer.done():
                    taken.append((item, answer))
        return taken

    async def _step(self, taken: list[tuple[Item, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._call([item for item, _ in taken]) if taken else ()
        except Exception as error:  # noqa: BLE001 - it belongs to those who asked
            for _, waiter in taken:
                if not waiter.done():
                    waiter.set_exception(error)
            return
        for (_, waiter), answer in zip(taken, answers, strict=True):
            if not waiter.done():
                waiter.set_result(answer)
