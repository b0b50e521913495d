"""The thread of a connection runs urgent calls before those that wait, and loses none."""

import asyncio
import threading

import pytest

from tidings.domain.errors import StoreError
from tidings.timeline.sqlite.writer import DatabaseThread

WAIT_S = 10


async def test_an_urgent_call_runs_after_the_running_one_and_before_all_that_wait() -> None:
    thread, began, may_end = DatabaseThread("test"), threading.Event(), threading.Event()
    ran: list[str] = []

    def hold() -> None:
        began.set()
        assert may_end.wait(WAIT_S)
        ran.append("running")

    running = thread.start(hold)
    assert await asyncio.to_thread(began.wait, WAIT_S)
    waiting = [thread.start(ran.append, f"waiting {number}") for number in range(3)]
    urgent = [thread.start_next(ran.append, f"urgent {number}") for number in range(2)]
    may_end.set()
    await asyncio.gather(running, *waiting, *urgent)
    await thread.close()
    assert ran == ["running", "urgent 0", "waiting 0", "urgent 1", "waiting 1", "waiting 2"]


async def test_an_urgent_call_wakes_a_thread_that_has_nothing_to_do() -> None:
    thread = DatabaseThread("test")
    assert await asyncio.wait_for(thread.start_next(lambda: 7), WAIT_S) == 7
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(thread.start_next(lambda: 1 // 0), WAIT_S)
    await thread.close()
    with pytest.raises(StoreError, match="closed"):
        await thread.start_next(lambda: 7)


async def test_closing_runs_urgent_calls_that_were_submitted_before() -> None:
    thread = DatabaseThread("test")
    ran: list[int] = []
    calls = [thread.start_next(ran.append, number) for number in range(100)]
    await thread.close()
    await asyncio.wait_for(asyncio.gather(*calls), WAIT_S)
    assert ran == list(range(100))
