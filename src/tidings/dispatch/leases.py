"""Leases on lanes: acquire, renew, hand over; and how late this node runs."""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy

from tidings.clock import Clock
from tidings.domain.errors import NotAllowed, NotOwner, StoreError
from tidings.domain.facts import Listener, OwnershipChanged
from tidings.domain.fleet import Report
from tidings.ports import Lane, Store

SPAN_US = 60_000_000
SLICE_US = 5_000_000
STEP = 1.05
STEPS = 500  # up to 11 hours; later values count in the last step
FEW = 24  # below this many, numpy costs more than it saves

POLL_S = 0.25
MAINTENANCE_IDLE_S = 0.25


class Lateness(msgspec.Struct, frozen=True, gc=False):
    """How many occurrences were released, and how late they were, in microseconds."""

    released: int = 0
    p50_us: int = 0
    p99_us: int = 0
    max_us: int = 0


class LatenessWindow:
    """Counts the lateness of releases in the last minute, in constant memory; anew if the clock is set back."""

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque()

    def add(self, late_us: Sequence[int], now: int) -> None:
        """Count a batch that was released now."""
        if not self._slices or abs(now - self._slices[-1].started) >= SLICE_US:
            self._slices.append(_Slice(now))
        self._slices[-1].add(late_us)
        self._forget(now)

    def pace(self, now: int) -> Lateness:
        """The lateness of the last minute."""
        self._forget(now)
        counts = sum((part.counts for part in self._slices), numpy.zeros(STEPS, dtype=numpy.int64))
        total = int(counts.sum())
        if not total:
            return Lateness()
        most = max(part.max_us for part in self._slices)
        below = numpy.cumsum(counts)
        p50, p99 = (int(numpy.searchsorted(below, math.ceil(total * share))) for share in (0.5, 0.99))
        return Lateness(total, min(_late(p50), most), min(_late(p99), most), most)

    def _forget(self, now: int) -> None:
        """Drop what is older than a minute. Lanes report in any order, so a little ahead of `now` is not wrong."""
        while self._slices and not -SLICE_US < now - self._slices[0].started < SPAN_US:
            self._slices.popleft()


class _Slice:
    def __init__(self, started: int) -> None:
        self.started = started
        self.counts = numpy.zeros(STEPS, dtype=numpy.int64)
        self.max_us = 0

    def add(self, late_us: Sequence[int]) -> None:
        if len(late_us) < FEW:
            for late in late_us:
                self.counts[_step(late)] += 1
        else:
            values = numpy.maximum(numpy.asarray(late_us, dtype=numpy.int64), 0)
            steps = numpy.ceil(numpy.log1p(values) / math.log(STEP)).astype(numpy.int64)
            self.counts += numpy.bincount(numpy.minimum(steps, STEPS - 1), minlength=STEPS)
        self.max_us = max(self.max_us, int(max(late_us, default=0)))


def _step(late_us: int) -> int:
    return min(STEPS - 1, math.ceil(math.log1p(max(0, late_us)) / math.log(STEP)))


def _late(step: int) -> int:
    """The largest value that is counted in a step."""
    return int(STEP**step) - 1


class LeaseHolder:
    """Holds the leases of our lanes, or stands by until one is free. `on_change` is called when the lanes change.

    In a fleet, a process without a lane still takes changes; others release them. `trouble` says why the store cannot
    take changes, so that requests fail at once; it is None if it can, as far as is known.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lease_us: int,
        on_change: Callable[[], None],
        on_fact: Listener,
        report: Callable[[], Report] = Report,
    ) -> None:
        self._store = store
        self._clock = clock
        self._lease_us = lease_us
        self._on_change = on_change
        self._on_fact = on_fact
        self._report = report
        self._renewed = 0
        self._stopped = asyncio.Event()
        self._called = asyncio.Event()
        self._owning = asyncio.Event()
        store.on_free(self._called.set)
        self._asked = self._owns = False
        self._lanes: list[Lane] = []
        self._error: str | None = None
        self.trouble: str | None = None
        self._stalled_us = 0  # how long this process was suspended before the last renewal

    def readiness(self) -> tuple[bool, str]:
        """Whether we take changes, and the reason if not."""
        if self._owns:
            silent_us = self._clock.elapsed() - self._renewed
            if silent_us < self._lease_us:
                return True, "ready"
            return False, f"the store has not answered for {silent_us // 1_000_000} s"
        if not self._asked:
            return False, "starting: taking the lease of the store"
        killed = f"or was killed less than {self._lease_us / 1_000_000:g} s ago"
        return False, self._error or f"standing by: another process owns this store, {killed}"

    async def run(self) -> None:
        """Renew the leases until stopped, then hand them over."""
        while not self._stopped.is_set():
            await self.try_once()
            pause_s = POLL_S if not self._owns else self._lease_us / 4_000_000
            started = self._clock.elapsed()
            await self._rest(pause_s)
            over_us = self._clock.elapsed() - started - int(pause_s * 1_000_000)
            self._stalled_us = over_us if over_us > self._lease_us else 0
        if self._owns:
            with contextlib.suppress(StoreError):  # then the lease expires
                await self._store.resign()

    async def try_once(self) -> None:
        """Take or renew the leases. A missing permission is raised the first time only; later it is retried."""
        elapsed = self._clock.elapsed()
        try:
            owns = await self._ask(elapsed)
            self._error = None
        except StoreError as error:
            if isinstance(error, NotAllowed) and not self._asked:
                raise
            owns, self._error = False, str(error)
        self._asked, self._renewed = True, elapsed
        self._set_ownership(owns, list(self._store.lanes()))

    async def _ask(self, elapsed: int) -> bool:
        """The answer of the store. If there is none for the length of a lease, we own nothing until it comes."""
        asking = asyncio.ensure_future(self._store.acquire(elapsed, self._lease_us, self._report()))
        try:
            answered, _ = await asyncio.wait({asking}, timeout=self._lease_us / 1_000_000)
            if not answered:
                self._error = f"the store has not answered for {self._lease_us / 1_000_000:g} s"
                self._set_ownership(False, list(self._store.lanes()))
            return await asking
        finally:
            asking.cancel()

    def _set_ownership(self, owns: bool, lanes: list[Lane]) -> None:
        """Record which lanes we own, and publish a fact if that has changed."""
        self.trouble = None if owns else self._error
        if owns:
            self._owning.set()
        elif not self._stopped.is_set():
            self._owning.clear()
        numbers = tuple(lane.number for lane in lanes)
        if owns != self._owns or numbers != tuple(lane.number for lane in self._lanes):
            self._owns = owns
            stalled = f"this process stood still for {self._stalled_us / 1_000_000:.0f} s" if self._stalled_us else ""
            self._on_fact(OwnershipChanged(self._clock.now(), owns, numbers, stalled if owns else self._error or ""))
        if lanes != self._lanes:
            self._lanes = lanes
            self._on_change()

    def stop(self) -> None:
        """End after the present step."""
        self._stopped.set()
        self._called.set()
        self._owning.set()

    async def owned(self) -> bool:
        """Wait until we own the store or a lane; False if stopped before."""
        await self._owning.wait()
        return not self._stopped.is_set()

    async def run_maintenance(self) -> None:
        """Do maintenance of the store in small steps while we own it, until stopped."""
        while not self._stopped.is_set():
            more = False
            if self._owns:
                try:
                    more = await self._store.tend(self._clock.now())
                except (NotOwner, StoreError):
                    more = False
                self._on_change()
            await self.pause(0.001 if more else MAINTENANCE_IDLE_S)

    async def _rest(self, seconds: float) -> None:
        """Sleep until it is time to renew, or another process hands lanes over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._called.wait(), seconds)
        self._called.clear()

    async def pause(self, seconds: float) -> None:
        """Sleep, or until stopped."""
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return
