"""Answers that take their time end early when the client goes away or the server stops."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Receive

from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import Disconnected
from tidings.edges.http.routing import Call

T = TypeVar("T")


class Endings:
    """What can end a wait from outside."""

    def __init__(self, stopping: asyncio.Task[bool], gone: asyncio.Task[None]) -> None:
        self._stopping = stopping
        self._gone = gone

    async def wait(self, task: asyncio.Task[Any], timeout: float | None = None) -> None:
        """Until the task is done, or this ends, or the time is over."""
        waits = {task, self._stopping, self._gone}
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_gone(self) -> bool:
        """Whether the client went away."""
        return self._gone.done()

    @property
    def is_over(self) -> bool:
        """Whether there is no use in waiting any longer."""
        return self._stopping.done() or self._gone.done()


@asynccontextmanager
async def endings(edge: Edge, call: Call) -> AsyncIterator[Endings]:
    """Watch for the end of a call whose body has been read."""
    stopping = asyncio.create_task(edge.stopping.wait())
    gone = asyncio.create_task(_gone(call.receive))
    try:
        yield Endings(stopping, gone)
    finally:
        stopping.cancel()
        gone.cancel()


async def unless_ended(edge: Edge, call: Call, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work gives, None if the server stops first; nobody is answered who is not there any more."""
    task = asyncio.create_task(work)
    async with endings(edge, call) as ending:
        try:
            await ending.wait(task)
        finally:
            if not task.done():
                await cancelled(task)
        if not task.cancelled():
            return task.result()
        if ending.is_gone:
            raise Disconnected
        return None


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it is over."""
    task.cancel()
    await asyncio.wait({task})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
