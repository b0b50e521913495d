"""Ending tasks."""

import asyncio
from collections.abc import Collection
from typing import Any

AGAIN_S = 0.5


async def end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Cancel tasks and wait until they are over, whatever they end with.

    Before Python 3.12 a cancel can be lost where `asyncio.wait_for` ends in the same moment: so it is said again.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=AGAIN_S)
