"""A timer that can be woken early, without lost wake-ups."""

import asyncio
import ctypes
import ctypes.util
import os
import sys

_MICRO = 1_000_000


class Waiter:
    """Sleeps with sub-millisecond precision on Linux; event loops round to whole milliseconds."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._timer = _TimerFd.open() if sys.platform == "linux" else None
        if self._timer is not None:
            asyncio.get_running_loop().add_reader(self._timer.descriptor, self._expired)

    def wake(self) -> None:
        """End the present or the next wait at once."""
        self._woken.set()

    async def wait(self, us: int) -> None:
        """Sleep for `us` microseconds; returns earlier when woken."""
        if us > 0 and not self._woken.is_set():
            if self._timer is not None:
                self._timer.arm(us)
                await self._woken.wait()
            else:
                await self._wait_coarse(us)
        self._woken.clear()

    def close(self) -> None:
        """Close the timer's file descriptor."""
        if self._timer is not None:
            asyncio.get_running_loop().remove_reader(self._timer.descriptor)
            self._timer.close()
            self._timer = None

    def _expired(self) -> None:
        if self._timer is not None and self._timer.drain():
            self._woken.set()

    async def _wait_coarse(self, us: int) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), us / _MICRO)
        except TimeoutError:
            return


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class _TimerFd:
    """A Linux timerfd; the standard library has it since Python 3.13."""

    _CLOCK_MONOTONIC = 1
    _FLAGS = os.O_NONBLOCK | os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0

    def __init__(self, libc: ctypes.CDLL, descriptor: int) -> None:
        self._libc = libc
        self._spec = _TimerSpec()
        self.descriptor = descriptor

    @classmethod
    def open(cls) -> "_TimerFd | None":
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "timerfd_create"):
            return None
        descriptor = libc.timerfd_create(cls._CLOCK_MONOTONIC, cls._FLAGS)
        return cls(libc, descriptor) if descriptor >= 0 else None

    def arm(self, us: int) -> None:
        seconds, rest = divmod(us, _MICRO)
        self._spec.value.seconds, self._spec.value.nanoseconds = seconds, rest * 1000
        self._libc.timerfd_settime(self.descriptor, 0, ctypes.byref(self._spec), None)

    def drain(self) -> bool:
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self.descriptor)
