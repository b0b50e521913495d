"""Ownership of lanes: taken by a lease, renewed while we live, and the housekeeping that comes with it."""

import asyncio
import contextlib
from collections.abc import Callable

from tidings.clock import Clock
from tidings.domain.errors import NotAllowed, NotOwner, StoreError
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
        self._stood_us = 0  # how long this process was stopped before it asked last

    def trouble(self) -> str | None:
        """Why the store is known not to take changes, so that nobody has to find it out for himself."""
        return None if self._owns else self._error

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
            pause_s = POLL_S if not self._owns else self._lease_us / 4_000_000
            begun = self._clock.elapsed()
            await self._rest(pause_s)
            over_us = self._clock.elapsed() - begun - int(pause_s * 1_000_000)
            self._stood_us = over_us if over_us > self._lease_us else 0
        if self._owns:
            with contextlib.suppress(StoreError):  # then the lease runs out by itself
                await self._store.resign()

    async def try_once(self) -> None:
        """Take or renew the leases. Who may not write learns it the first time, later he waits like anybody."""
        elapsed = self._clock.elapsed()
        try:
            owns = await self._ask(elapsed)
            self._error = None
        except StoreError as error:
            if isinstance(error, NotAllowed) and not self._asked:
                raise
            owns, self._error = False, str(error)
        self._asked, self._renewed = True, elapsed
        self._stand(owns, list(self._store.lanes()))

    async def _ask(self, elapsed: int) -> bool:
        """What the store answers. While it is silent for longer than a lease we stand as if it had refused."""
        asking = asyncio.ensure_future(self._store.acquire(elapsed, self._lease_us, self._report()))
        try:
            answered, _ = await asyncio.wait({asking}, timeout=self._lease_us / 1_000_000)
            if not answered:
                self._error = f"the store has not answered for {self._lease_us / 1_000_000:g} s"
                self._stand(False, list(self._store.lanes()))
            return await asking
        finally:
            asking.cancel()

    def _stand(self, owns: bool, lanes: list[Lane]) -> None:
        """Note how we stand, and tell it if it has changed."""
        if owns:
            self._owning.set()
        elif not self._stopped.is_set():
            self._owning.clear()
        numbers = tuple(lane.number for lane in lanes)
        if owns != self._owns or numbers != tuple(lane.number for lane in self._lanes):
            self._owns = owns
            stood = f"this process stood still for {self._stood_us / 1_000_000:.0f} s" if self._stood_us else ""
            self._tell(Standing(self._clock.now(), owns, numbers, stood if owns else self._error or ""))
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
