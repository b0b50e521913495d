"""Turns: how many lanes of a node publish at the same time.

A transaction costs much the same whatever it holds, and holds up every reader of its partitions until it ends. So when
many lanes have something, each waits for its turn and then takes all that has gathered, in fewer and shorter ones.
"""

import asyncio
from types import TracebackType

AT_ONCE_MAX = 2


class Turns:
    """Given out in the order of asking."""

    def __init__(self, at_once_max: int = AT_ONCE_MAX) -> None:
        self._free = asyncio.Semaphore(at_once_max)

    def turn(self) -> "Turn":
        return Turn(self._free)


class Turn:
    """One lane's. Who takes too long lets the next begin: what holds it up may be its own affair."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._has_it = False

    async def __aenter__(self) -> "Turn":
        await self._free.acquire()
        self._has_it = True
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.pass_on()

    def pass_on(self) -> None:
        """Let another have it."""
        if self._has_it:
            self._has_it = False
            self._free.release()
