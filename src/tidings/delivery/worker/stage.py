"""A stage of the pipeline: runs a step on everything that arrived while the step before was running."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from tidings.domain.errors import NotOwner, StoreError

RETRY_S = 0.25
LOCKED_PARTS = 16  # of a batch with a locked row: each part with it waits, so few attempts must find it
LOCKED_S = 10.0  # PostgreSQL waits 2 s for a locked row, and so does everything in the same transaction
BATCH_MAX = 500
TURN_MAX = 64  # bounds the items of a CPU-bound step, so that high priority gets its turn in between

logger = logging.getLogger("tidings.delivery")

Item = TypeVar("Item")


class Stage(Generic[Item]):
    """One call of `step` at a time, with up to `batch_max` items.

    While the store is away the same batch is tried again. If it waited too long for a row, parts of the batch are,
    and an item whose row is still locked is held back for a while: each attempt makes those beside it wait. Any other
    error is the fault of one item, or of a bug: the halves are tried again, until the item that fails alone is given to
    `on_error`. So a step must be repeatable: what it does to its items comes after the last call that may fail, and an
    error of one of them must not end the step.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[list[Item]], Awaitable[None]],
        *,
        batch_max: int,
        on_error: Callable[[Item, Exception], None],
    ) -> None:
        self._name = name
        self._step = step
        self._batch_max = batch_max
        self._on_error = on_error
        self._waiting: deque[Item] = deque()
        self._task: asyncio.Task[None] | None = None
        self._locked: set[asyncio.TimerHandle] = set()  # of items whose row is locked
        self._stopping = False

    def put(self, items: Iterable[Item]) -> None:
        """Add items to the next batch."""
        self._waiting.extend(items)
        if self._task is None and self._waiting and not self._stopping:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"tidings-deliver-{self._name}")

    def clear(self) -> list[Item]:
        """Take back what waits for its turn."""
        items = list(self._waiting)
        self._waiting.clear()
        return items

    @property
    def is_idle(self) -> bool:
        """Whether everything has run."""
        return self._task is None

    async def idle(self) -> None:
        """Return once everything has run."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """End the step that is running, and run no more."""
        self._stopping = True
        for timer in self._locked:
            timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(self._batch_max, len(self._waiting)))]
                await self._attempt(batch)
        finally:
            self._task = None

    async def _attempt(self, batch: list[Item]) -> None:
        while True:
            try:
                await self._step(batch)
                return
            except (StoreError, NotOwner) as error:
                await asyncio.sleep(RETRY_S)
                if isinstance(error, StoreError) and not error.concerns_all:
                    if len(batch) > 1:
                        await self._attempt_parts(batch, LOCKED_PARTS)
                    else:
                        self._hold_back(batch[0])
                    return
            except Exception as error:
                if len(batch) == 1:
                    logger.exception("a delivery failed in the step %s of the worker", self._name)
                    try:
                        self._on_error(batch[0], error)
                    except Exception:
                        logger.exception("a delivery that failed in the step %s could not be given up", self._name)
                    return
                await self._attempt_parts(batch, 2)
                return

    def _hold_back(self, item: Item) -> None:
        def resume() -> None:
            self._locked.discard(timer)
            self.put((item,))

        timer = asyncio.get_running_loop().call_later(LOCKED_S, resume)
        self._locked.add(timer)

    async def _attempt_parts(self, batch: list[Item], count: int) -> None:
        size = -(-len(batch) // count)
        for start in range(0, len(batch), size):
            await self._attempt(batch[start : start + size])
