"""Public test utilities: a simulated clock, and a wait for a condition with a timeout."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar, overload

POLL_S = 0.005
START = 1_795_165_200_000_000  # 2026-11-20T09:00:00Z

Value = TypeVar("Value")


class SimulatedClock:
    """A clock that moves only by `advance` and `step`. It implements `tidings.clock.Clock`."""

    def __init__(self, now: int = START, elapsed: int = 0) -> None:
        self._now = now
        self._elapsed = elapsed

    def now(self) -> int:
        """The wall time in microseconds since the epoch."""
        return self._now

    def elapsed(self) -> int:
        """Monotonic microseconds; not affected by `step`."""
        return self._elapsed

    def advance(self, by: int | timedelta) -> None:
        """Let time pass: microseconds, or a timedelta."""
        us = _microseconds(by)
        assert us >= 0, "time only moves forward: use `step` to set the wall clock back"
        self._now += us
        self._elapsed += us

    def step(self, by: int | timedelta) -> None:
        """Set the wall clock forward, or back if negative, while no time passes: microseconds, or a timedelta."""
        self._now += _microseconds(by)


def _microseconds(length: int | timedelta) -> int:
    return length // timedelta(microseconds=1) if isinstance(length, timedelta) else length


@overload
async def eventually(
    condition: Callable[[], Awaitable[Value]], timeout_s: float = ..., *, poll_s: float = ...
) -> Value: ...


@overload
async def eventually(condition: Callable[[], Value], timeout_s: float = ..., *, poll_s: float = ...) -> Value: ...


async def eventually(condition: Callable[[], Any], timeout_s: float = 5.0, *, poll_s: float = POLL_S) -> Any:
    """Poll a condition until it is true and return its value; raises `AssertionError` after the timeout."""
    value = None
    timeout = asyncio.timeout(timeout_s)
    try:
        async with timeout:
            while True:
                answer = condition()
                value = await answer if isinstance(answer, Awaitable) else answer
                if value:
                    return value
                await asyncio.sleep(poll_s)
    except TimeoutError:
        if not timeout.expired():
            raise
        raise AssertionError(f"still {value!r} after {timeout_s} s") from None
