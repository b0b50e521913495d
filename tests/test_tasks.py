"""Cancelling tasks: all have ended afterwards, even those that swallowed the cancellation."""

import asyncio
import contextlib

import pytest

from tidings import tasks


@pytest.mark.slow
async def test_a_lost_cancellation_is_repeated() -> None:
    started = asyncio.Event()

    async def ignores_the_first_cancel() -> None:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(ignores_the_first_cancel())
    await started.wait()
    await asyncio.wait_for(tasks.end([task]), 10)
    assert task.cancelled()


async def test_the_error_of_a_task_is_not_raised() -> None:
    async def fail() -> None:
        raise RuntimeError("a mistake")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    await tasks.end([task])
    assert isinstance(task.exception(), RuntimeError)


async def test_ending_no_tasks_returns_at_once() -> None:
    await tasks.end([])
