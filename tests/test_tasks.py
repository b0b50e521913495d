"""Ending tasks: all are over afterwards, whatever they did with the cancel."""

import asyncio
import contextlib

import pytest

from tidings import tasks


@pytest.mark.slow
async def test_a_cancel_that_is_lost_is_said_again() -> None:
    begun = asyncio.Event()

    async def deaf_once() -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(deaf_once())
    await begun.wait()
    await asyncio.wait_for(tasks.end([task]), 10)
    assert task.cancelled()


async def test_what_a_task_died_of_is_not_raised() -> None:
    async def fail() -> None:
        raise RuntimeError("a mistake")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    await tasks.end([task])
    assert isinstance(task.exception(), RuntimeError)


async def test_no_tasks_are_ended_at_once() -> None:
    await tasks.end([])
