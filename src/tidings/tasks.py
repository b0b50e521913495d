"""Cancellation of asyncio tasks."""

import asyncio
from collections.abc import Collection
from typing import Any

AGAIN_S = 0.5


async def end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Cancel tasks and wait until they have ended, whatever their result.

    Before Python 3.12 a cancellation can be lost when `asyncio.wait_for` ends at the same time, so it is repeated.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=AGAIN_S)
