"""The forwarder: publishes the outbox of a lane to Kafka, in order and once, while this process owns the lane.

A limit says how many lanes of a node publish at the same time. A transaction costs about the same whatever its size,
and delays every reader of its partitions until it ends. So when many lanes have records, each waits for its turn and
then publishes all that has accumulated, in fewer and shorter transactions.
"""

import asyncio
from types import TracebackType

AT_ONCE_MAX = 2


class Turns:
    """Limits how many lanes publish at the same time; they wait in the order of their calls."""

    def __init__(self, at_once_max: int = AT_ONCE_MAX) -> None:
        self._free = asyncio.Semaphore(at_once_max)

    def turn(self) -> "Turn":
        """A turn of one lane, to be used as an asynchronous context manager."""
        return Turn(self._free)


class Turn:
    """One lane's turn to publish. A lane that takes too long gives it up: the cause may concern that lane alone."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_held = False

    async def __aenter__(self) -> "Turn":
        await self._free.acquire()
        self._is_held = True
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Let the next lane begin."""
        if self._is_held:
            self._is_held = False
            self._free.release()
