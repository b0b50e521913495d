"""A thread of one's own for clients that block."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class OwnThread:
    """Runs one piece of work after the other."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    def start(self, work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Begin, once what was started before has ended."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """The same, to its end."""
        return await self.start(work, *arguments)

    def close(self) -> None:
        """End after the work in hand."""
        self._pool.shutdown(wait=False)
