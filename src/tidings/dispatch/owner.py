"""Ownership of lanes: taken by a lease, renewed while we live, and the housekeeping that comes with it."""

import asyncio
import contextlib
from collections.abc import Callable

from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Listener, Standing
from tidings.domain.fleet import Report
from tidings.ports import Lane, Store

POLL_S = 0.25
TEND_IDLE_S = 0.25


class Owner:
    """Keeps the leases of our lanes, or stands by until one is free. `follow` is told when that changes.

    In a fleet a process without a lane is as good as any: it takes changes, and others release them.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lease_us: int,
        follow: Callable[[], None],
        tell: Listener,
        report: Callable[[], Report] = Report,
    ) -> None:
        self._store = store
        self._clock = clock
        self._lease_us = lease_us
        self._follow = follow
        self._tell = tell
        self._report = report
        self._renewed = 0
        self._stopped = asyncio.Event()
        self._called = asyncio.Event()
        self._owning = asyncio.Event()
        store.on_free(self._called.set)
        self._asked = self._owns = False
        self._lanes: list[Lane] = []
        self._error: str | None = None

    def readiness(self) -> tuple[bool, str]:
        """Whether we take changes, and if not, what we wait for."""
        if self._owns:
            silent_us = self._clock.elapsed() - self._renewed
            if silent_us < self._lease_us:
                return True, "ready"
            return False, f"the store has not answered for {silent_us // 1_000_000} s"
        if not self._asked:
            return False, "starting: the store is about to be taken over"
        killed = f"or was killed less than {self._lease_us / 1_000_000:g} s ago"
        return False, self._error or f"standing by: another process owns this store, {killed}"

    async def run(self) -> None:
        """Renew until stopped, then resign."""
        while not self._stopped.is_set():
            await self.try_once()
            await self._rest(POLL_S if not self._owns else self._lease_us / 4_000_000)
        if self._owns:
            with contextlib.suppress(StoreError):  # then the lease runs out by itself
                await self._store.resign()

    async def try_once(self) -> None:
        """Take or renew the leases."""
        elapsed = self._clock.elapsed()
        try:
            owns = await self._store.acquire(elapsed, self._lease_us, self._report())
            self._error = None
        except StoreError as error:
            owns, self._error = False, str(error)
        self._asked, self._renewed = True, elapsed
        if owns:
            self._owning.set()
        elif not self._stopped.is_set():
            self._owning.clear()
        lanes = list(self._store.lanes())
        if owns != self._owns or [lane.number for lane in lanes] != [lane.number for lane in self._lanes]:
            self._owns = owns
            self._tell(Standing(self._clock.now(), owns, tuple(lane.number for lane in lanes)))
        if lanes != self._lanes:
            self._lanes = lanes
            self._follow()

    def stop(self) -> None:
        """End after the slice in hand."""
        self._stopped.set()
        self._called.set()
        self._owning.set()

    async def owned(self) -> bool:
        """Wait until we own a lane; False if we are stopped instead."""
        await self._owning.wait()
        return not self._stopped.is_set()

    async def tend(self) -> None:
        """Do the housekeeping that comes with ownership, slice by slice, until stopped."""
        while not self._stopped.is_set():
            more = False
            if self._owns:
                try:
                    more = await self._store.tend(self._clock.now())
                except (NotOwner, StoreError):
                    more = False
                self._follow()
            await self.pause(0.001 if more else TEND_IDLE_S)

    async def _rest(self, seconds: float) -> None:
        """Until it is time to renew, or somebody has handed lanes over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._called.wait(), seconds)
        self._called.clear()

    async def pause(self, seconds: float) -> None:
        """Until some time has passed, or we are stopped."""
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return
