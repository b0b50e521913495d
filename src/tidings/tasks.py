"""Cancellation of asyncio tasks, time-outs of many at once, and the names of threads."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Hashable
from pathlib import Path
from typing import Any, Generic, TypeVar

from tidings.clock import Clock

AGAIN_S = 0.5
SECOND_US = 1_000_000
THREAD_NAME_CHARS_MAX = 15  # in Linux

Key = TypeVar("Key", bound=Hashable)


async def end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Cancel tasks and wait until they have ended, whatever their result.

    Before Python 3.12 a cancellation can be lost when `asyncio.wait_for` ends at the same time, so it is repeated.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=AGAIN_S)


class Deadlines(Generic[Key]):
    """One timer for many time-outs: `expired` is called for each key that is still here when its time is over.

    Most are removed long before. So adding and removing one costs a change of a dictionary, and not a timer.
    """

    def __init__(self, clock: Clock, expired: Callable[[Key], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._ends: dict[Key, int] = {}  # by monotonic time
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    def add(self, key: Key, within_s: float, now: int) -> None:
        """Begin the time-out of a key, at this monotonic time."""
        self._ends[key] = end = now + int(within_s * SECOND_US)
        if self._timer is None or end < self._timer_at:
            self._set_timer(now, end)

    def remove(self, key: Key) -> None:
        """A key needs its time-out no more."""
        self._ends.pop(key, None)

    def close(self) -> None:
        """End no time-out any more."""
        self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, now: int, end: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        pause_s = max(0, end - now) / SECOND_US
        self._timer, self._timer_at = asyncio.get_running_loop().call_later(pause_s, self._sweep), end

    def _sweep(self) -> None:
        """End what is over, and wait for the next one. The time for which the timer was set has come, in any case."""
        self._timer, now = None, max(self._clock.elapsed(), self._timer_at)
        for key in [key for key, end in self._ends.items() if end <= now]:
            del self._ends[key]
            self._expired(key)
        if self._ends and self._timer is None:
            self._set_timer(now, min(self._ends.values()))


def show_thread_name() -> None:
    """Show the name of this thread in tools of the system such as `top -H`, which Python does from 3.14 on."""
    with contextlib.suppress(OSError):  # not Linux
        name = threading.current_thread().name[:THREAD_NAME_CHARS_MAX]
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
