"""Connections that are kept and shared: at most so many, each for so many uses, none that lay idle too long."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tidings.clock import Clock

Connection = TypeVar("Connection")


class Lease(Generic[Connection]):
    """One connection while somebody uses it; `is_kept` says that it was used before."""

    __slots__ = ("connection", "returned", "uses")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.uses = 1
        self.returned = 0

    @property
    def is_kept(self) -> bool:
        return self.uses > 1


class Pool(Generic[Connection]):
    """Who wants a connection while all are in use waits for its turn."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        disconnect: Callable[[Connection], Awaitable[None]],
        clock: Clock,
        *,
        size: int,
        uses_max: int,
        idle_us: int,
    ) -> None:
        self._connect, self._disconnect = connect, disconnect
        self._clock = clock
        self._turns = asyncio.Semaphore(size)
        self._uses_max, self._idle_us = uses_max, idle_us
        self._idle: list[Lease[Connection]] = []

    async def take(self, *, fresh: bool = False) -> Lease[Connection]:
        """The connection that was used last, or a new one; raises what connecting raises. Give it back."""
        await self._turns.acquire()
        try:
            while self._idle and not fresh:
                lease = self._idle.pop()
                if self._clock.elapsed() - lease.returned <= self._idle_us:
                    lease.uses += 1
                    return lease
                await self._disconnect(lease.connection)
            return Lease(await self._connect())
        except BaseException:
            self._turns.release()
            raise

    async def give(self, lease: Lease[Connection], *, usable: bool) -> None:
        """Put it back for the next, or close it."""
        try:
            if usable and lease.uses < self._uses_max:
                lease.returned = self._clock.elapsed()
                self._idle.append(lease)
            else:
                await self._disconnect(lease.connection)
        finally:
            self._turns.release()

    async def close(self) -> None:
        """Close those that are not in use."""
        while self._idle:
            await self._disconnect(self._idle.pop().connection)
