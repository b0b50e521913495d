"""The dispatcher: releases what is due on a lane, and sleeps until the next due time."""

import asyncio
import ctypes
import ctypes.util
import logging
import os
import sys

from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Handed, Listener, Missed, Released
from tidings.ports import Lane, Release

_MICRO = 1_000_000

BATCH_ROWS_MIN = 128
BATCH_ROWS_MAX = 2_048
SHARED_ROWS_MAX = 384  # while several tenants have releases: none waits long for the batch of another
SHARED_US = 1_000_000
BATCH_BYTES_MAX = 4 * 1024 * 1024
SLEEP_US_MAX = 1_000_000
RETRY_US = 250_000

logger = logging.getLogger("tidings.dispatch")


class Waiter:
    """Sleeps with sub-millisecond precision on Linux; event loops round to whole milliseconds.

    `wake` ends the present or the next wait at once.
    """

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self.wake = self._woken.set
        self._timer = _TimerFd.open() if sys.platform == "linux" else None
        if self._timer is not None:
            asyncio.get_running_loop().add_reader(self._timer.descriptor, self._expired)

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


class Dispatcher:
    """Releases what is due on a lane while this process owns it."""

    def __init__(self, lane: Lane, clock: Clock, waiter: Waiter, on_fact: Listener) -> None:
        self._lane = lane
        self._clock = clock
        self._waiter = waiter
        self._on_fact = on_fact
        self._stopping = False
        self._rows = BATCH_ROWS_MIN
        self._shared_until = 0
        self._last_error = ""

    async def run(self) -> None:
        """Release until stopped; a batch is always finished."""
        while not self._stopping:
            try:
                pause_us = await self.tick()
            except NotOwner:
                pause_us = RETRY_US
            except StoreError as error:
                self._log_error(str(error))
                self._rows = max(1, self._rows // 2)  # the batch may have been too large
                pause_us = RETRY_US
            if pause_us > 0:
                await self._waiter.wait(pause_us)

    async def tick(self) -> int:
        """Release one batch of what is due; returns how long to sleep, 0 if there is more.

        Batches grow while there is more, so that the first rows of a burst do not wait for the rest.
        """
        now = self._clock.now()
        due = self._lane.next_due()
        if due is None or due > now:
            return SLEEP_US_MAX if due is None else min(due - now, SLEEP_US_MAX)
        release = await self._lane.release(now, self._rows, self._clock)
        self._log_error("")
        self._rows = self._next_rows(now, release)
        self._announce(now, release)
        return 0

    def stop(self) -> None:
        """Stop once the current batch is finished."""
        self._stopping = True
        self._waiter.wake()

    def _log_error(self, reason: str) -> None:
        """Log an error once, not at every retry."""
        if reason and reason != self._last_error:
            logger.warning("cannot release on lane %d, trying again: %s", self._lane.number, reason)
        self._last_error = reason

    def _announce(self, now: int, release: Release) -> None:
        if release.lateness_us or release.topics:
            self._on_fact(Released(now, release.lateness_us, release.topics))
        if release.handed:
            self._on_fact(Handed(now, release.handed, self._lane.number))
        if release.missed:
            self._on_fact(Missed(now, release.missed))

    def _next_rows(self, now: int, release: Release) -> int:
        """The size of the next batch: it doubles while there is more, up to limits on rows and bytes."""
        if len({tenant for tenant, _ in release.topics}) > 1:
            self._shared_until = now + SHARED_US
        if not release.more:  # or the outbox has no more room for records to Kafka
            return max(BATCH_ROWS_MIN, min(self._rows, len(release.lateness_us) + release.handed))
        most = SHARED_ROWS_MAX if now < self._shared_until else BATCH_ROWS_MAX
        if release.bytes > BATCH_BYTES_MAX:
            most = min(most, max(1, self._rows * BATCH_BYTES_MAX // release.bytes))
        return min(self._rows * 2, most)
