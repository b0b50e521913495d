"""A thread for a Kafka client that blocks."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class OwnThread:
    """A single thread that runs blocking calls one after the other."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    def start(self, work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Queue a call; the future is done when the call is."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run a call and wait for its result."""
        return await self.start(work, *arguments)

    def close(self) -> None:
        """End the thread after the calls that are queued."""
        self._pool.shutdown(wait=False)
