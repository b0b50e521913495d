"""Watching for what other nodes do: they tell it by NOTIFY, which is a hint; the lanes' heads are polled besides.

A heartbeat through NOTIFY shows whether hints reach us. While it is missing, as behind PgBouncer, we poll often.
"""

import asyncio
import contextlib
from collections.abc import Callable
from uuid import UUID

import msgspec
import psycopg

from tidings import tasks
from tidings.clock import Clock
from tidings.domain.errors import StoreError
from tidings.timeline.postgres.followed import Followed
from tidings.timeline.postgres.rosters import PostgresRosters
from tidings.timeline.postgres.shared import Shared

POLL_S = 0.25
POLL_OFTEN_S = 0.02
BEAT_US = 1_000_000
BEAT_MISSING_US = 2_500_000
RETRY_S = 0.5
SWEEP_POLLS = 4  # every so many polls the whole of a lane is looked at, not only what lies above its low-water mark
DUTY = 10  # a poll that took long is not followed by another at once


class Watch:
    """Runs from the opening of a store to its close."""

    def __init__(self, shared: Shared, clock: Clock, node: UUID, free: Callable[[], None]) -> None:
        self._shared = shared
        self._clock = clock
        self._beat = f"beat {node.hex}"
        self.followed = Followed(shared, clock, node, lambda: self.hears)
        self.rosters = PostgresRosters(shared, lambda: self.hears)
        self._free = free
        self._heard = self._sent = clock.elapsed()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def hears(self) -> bool:
        """Whether what is told reaches us."""
        return self._clock.elapsed() - self._heard < BEAT_MISSING_US

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._listen(), name="tidings-listen"),
            asyncio.create_task(self._poll(), name="tidings-poll"),
            asyncio.create_task(self.followed.run(), name="tidings-followed"),
        ]

    async def stop(self) -> None:
        await tasks.end(self._tasks)

    def check(self) -> None:
        """Raise what ended one of its tasks: a node that no longer watches must not go on as if it did."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _listen(self) -> None:
        """One connection of its own, opened again whenever it is lost."""
        while True:
            with contextlib.suppress(StoreError, psycopg.Error, OSError):
                connection = await self._shared.pool.open()
                try:
                    if not self._shared.pool.is_direct:
                        return  # LISTEN would stay with a connection that others are given: we poll instead
                    await connection.execute(f'LISTEN "{self._shared.options.schema}"'.encode())
                    self.followed.stir()
                    async for told in connection.notifies():
                        with contextlib.suppress(ValueError, msgspec.MsgspecError):  # anybody may say anything here
                            self._hear(told.payload)
                finally:
                    await connection.close()
            await asyncio.sleep(RETRY_S)

    def _hear(self, told: str) -> None:
        kind, _, rest = told.partition(" ")
        if told == self._beat:
            self._heard = self._clock.elapsed()
        elif kind == "due":
            for each in rest.split():
                way, _, due = each.partition(":")
                self._shared.told(way, int(due))
        elif kind == "new":
            self.followed.hear([int(number) for number in rest.split()])
        elif kind == "made":
            self.followed.stir()
        elif kind == "moved":
            self.rosters.hear(rest)
        elif kind == "free":
            self._free()

    async def _poll(self) -> None:
        polls = 0
        while True:
            begun = self._clock.elapsed()
            with contextlib.suppress(StoreError):
                await self._send_beat()
                polls += 1
                await self._shared.look(self._shared.heads.ways, whole=polls % SWEEP_POLLS == 0)
            took_s = (self._clock.elapsed() - begun) / 1_000_000
            await asyncio.sleep(max(POLL_S if self.hears else POLL_OFTEN_S, took_s * DUTY))

    async def _send_beat(self) -> None:
        now = self._clock.elapsed()
        if now - self._sent >= BEAT_US:
            self._sent = now
            await self._shared.pools.first.call("SELECT pg_notify(%s, %s)", (self._shared.options.schema, self._beat))
