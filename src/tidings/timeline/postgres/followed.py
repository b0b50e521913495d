"""The topics that readers of this node wait for: made known to whoever releases, so that it tells us by NOTIFY.

A release that began before we said so does not know of it. So for a moment afterwards we look ourselves how far these
topics have come, and go on looking for as long as hints do not reach us, as behind PgBouncer.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from uuid import UUID

from tidings.clock import Clock
from tidings.domain.errors import StoreError
from tidings.timeline.postgres import arrays
from tidings.timeline.postgres.shared import Shared

FOLLOWED_US = 10_000_000  # how long others believe us, if we do not say it again
RENEW_US = 2_000_000
LINGER_US = 10_000_000  # who polls comes back soon: the next wait then costs no write
UNSURE_US = 500_000
LOOK_S = 0.03

Key = tuple[str, str]  # tenant and topic


class Followed:
    """What is waited for here. `listeners` are told the topics on which something was put."""

    def __init__(self, shared: Shared, clock: Clock, node: UUID, hears: Callable[[], bool]) -> None:
        self._shared = shared
        self._clock = clock
        self._node = node
        self._hears = hears
        self._waits: Counter[Key] = Counter()
        self._lingers: dict[Key, int] = {}  # nobody waits any more: until when it is followed still
        self._told: frozenset[int] = frozenset()
        self._telling = asyncio.Lock()
        self._stirred = asyncio.Event()
        self._unsure_until = self._renew_at = 0
        self._ends: dict[int, int] = {}
        self.listeners: list[Callable[[frozenset[Key]], None]] = []

    async def follow(self, key: Key) -> None:
        """Somebody begins to wait."""
        self._waits[key] += 1
        self._lingers.pop(key, None)
        await self._meet()

    def unfollow(self, key: Key) -> None:
        """Somebody waits no longer."""
        self._waits[key] -= 1
        if not self._waits[key]:
            del self._waits[key]
            self._lingers[key] = self._clock.elapsed() + LINGER_US

    def hear(self, numbers: list[int]) -> None:
        """Something was put onto these topics; none stands for more than could be told."""
        self._ring(set(numbers) & self._told if numbers else self._told)

    def stir(self) -> None:
        """A topic was made that somebody may wait for already, or hints may have been lost."""
        self._unsure_until = self._clock.elapsed() + UNSURE_US
        self._stirred.set()

    async def run(self) -> None:
        """Keep known what is waited for, and look where it must be."""
        while True:
            with contextlib.suppress(TimeoutError):
                pause_s = LOOK_S if self._waits and self._is_unsure() else RENEW_US / 1_000_000
                async with asyncio.timeout(pause_s):  # wait_for would swallow a cancel that comes as it is stirred
                    await self._stirred.wait()
            self._stirred.clear()
            with contextlib.suppress(StoreError):
                await self._step()

    async def close(self) -> None:
        """Nobody waits here any more."""
        if self._told:
            with contextlib.suppress(StoreError):  # then it is believed for a while
                await self._shared.pool.call(self._shared.sql["unfollow"], (self._node,))

    async def _step(self) -> None:
        if self._clock.elapsed() >= self._renew_at:
            await self._renew()
        if self._waits and self._is_unsure():
            await self._meet()
            await self._look()

    def _is_unsure(self) -> bool:
        return not self._hears() or self._clock.elapsed() < self._unsure_until

    async def _meet(self) -> None:
        """Follow what is waited for as soon as there are such topics."""
        names = self._shared.names
        if any(names.missing(*key) for key in self._waits):
            await names.load()
        async with self._telling:
            if not self._numbers() <= self._told:
                await self._tell()
                self.stir()

    async def _renew(self) -> None:
        """Say again what is followed, and leave out what nobody came back to."""
        now = self._clock.elapsed()
        self._lingers = {key: until for key, until in self._lingers.items() if until > now}
        async with self._telling:
            if self._told or self._waits:
                await self._tell()
        self._renew_at = now + RENEW_US

    async def _tell(self) -> None:
        told = self._numbers()
        if told:
            values = (self._node, arrays.int4s(sorted(told)), FOLLOWED_US)
            await self._shared.pool.call(self._shared.sql["follow"], values)
        elif self._told:
            await self._shared.pool.call(self._shared.sql["unfollow"], (self._node,))
        self._told = told
        self._ends = {number: end for number, end in self._ends.items() if number in told}

    def _numbers(self) -> frozenset[int]:
        names = self._shared.names
        keys = self._waits.keys() | self._lingers.keys()
        return frozenset(names.topic(*key) for key in keys if not names.missing(*key))

    async def _look(self) -> None:
        """What has come further than it was when we last looked."""
        told = self._told
        if not told:
            return
        values = (arrays.int4s(sorted(told)),)
        found: dict[int, int] = dict(await self._shared.pool.read(self._shared.sql["ends"], values))
        moved = {number for number, end in found.items() if self._ends.get(number) != end}
        self._ends |= found
        self._ring(moved)

    def _ring(self, numbers: set[int] | frozenset[int]) -> None:
        if numbers:
            news = frozenset(self._shared.names.destination(number) for number in numbers)
            for listener in self.listeners:
                listener(news)
