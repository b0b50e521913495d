"""Vacuuming what passes through: at full speed the server's own launcher, which looks once a minute, comes too late."""

import asyncio
import contextlib
from collections.abc import Callable

import psycopg

from tidings import tasks
from tidings.domain.errors import StoreError
from tidings.timeline.postgres.pool import rows
from tidings.timeline.postgres.shared import Shared

LOOK_S = 2.0
DEAD_ROWS_MIN = 50_000
DEAD_SHARE = 0.05  # of what lives: a vacuum reads the whole of an index

_DUE = """
SELECT relname FROM pg_stat_user_tables
WHERE schemaname = %s AND n_dead_tup > %s + %s * n_live_tup ORDER BY n_dead_tup DESC
"""


class Vacuum:
    """Done by whoever owns the first lane."""

    def __init__(self, shared: Shared, is_mine: Callable[[], bool]) -> None:
        self._shared = shared
        self._is_mine = is_mine
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tidings-vacuum")

    async def stop(self) -> None:
        if self._task is not None:
            await tasks.end([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._is_mine():
                with contextlib.suppress(StoreError, psycopg.Error, OSError):
                    await self.look()

    async def look(self) -> list[str]:
        """Vacuum the tables that need it, one after the other; answers which."""
        schema = self._shared.options.schema
        found = [name for (name,) in await self._shared.pool.read(_DUE, (schema, DEAD_ROWS_MIN, DEAD_SHARE))]
        if found:
            connection = await self._shared.pool.open(patient=True)
            try:
                for name in found:
                    await rows(connection, f'VACUUM (SKIP_LOCKED) "{schema}".{name}')
            finally:
                await connection.close()
        return found
