"""Retention in small slices, and vacuum of tables with many dead rows."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import psycopg

from tidings import crash, tasks
from tidings.domain.errors import StoreError
from tidings.timeline.postgres.context import StoreContext
from tidings.timeline.postgres.lane import PostgresLane
from tidings.timeline.postgres.pool import rows
from tidings.timeline.postgres.tables import PostgresTables

SLICE_ROWS = 1_000
SLICE_PAGES = 64
PAUSE_US = 1_000_000
NO_BOUND = 1 << 62
BEFORE_ALL = -1
CHECK_S = 2.0
DEAD_ROWS_MIN = 50_000
DEAD_SHARE = 0.05  # of the live rows: a vacuum reads whole indexes

_TRIM = "SELECT * FROM tidings.trim(%s, %s, %s, %s, %s, %s)"
_FORGET = "SELECT * FROM tidings.forget(%s, %s, %s)"
_IDEMPOTENCY_KEYS = """
WITH gone AS (
    DELETE FROM tidings.receipt WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM tidings.receipt WHERE at <= %s ORDER BY at LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING 1
)
SELECT count(*) FROM gone
"""


class Retention:
    """The owner of a lane trims its part of the log; the owner of lane 0 does the rest for all lanes."""

    def __init__(self, context: StoreContext, tables: PostgresTables) -> None:
        self._context = context
        self._tables = tables
        self._next = 0
        self._after: dict[int, int] = {}
        self._page = 0
        self._swept = False

    async def trim(self, lanes: Sequence[PostgresLane], now: int) -> bool:
        """Do one slice of each kind, at most once a second; True if there is more to do."""
        if now < self._next <= now + PAUSE_US:
            return False
        more = False
        for lane in lanes:
            more = await self._trim_log(lane, now) or more
            if lane.number == 0:
                more = await self._forget(now) or more
        crash.point("trim.written")
        self._next = now if more else now + PAUSE_US
        return more

    async def _trim_log(self, lane: PostgresLane, now: int) -> bool:
        options = self._context.options
        oldest = -NO_BOUND if options.retention_us is None else now - options.retention_us
        size = NO_BOUND if options.retention_bytes is None else options.retention_bytes // self._context.lanes
        after = self._after.get(lane.number, BEFORE_ALL)
        values = (lane.number, lane.token, oldest, size, after, SLICE_ROWS)
        ((last, more),) = await self._context.pool.call(self._context.inside(_TRIM), values)
        if not more:
            self._after[lane.number] = BEFORE_ALL if last is None else last
        return bool(more) or last is not None

    async def _forget(self, now: int) -> bool:
        """Forget finished schedules, some pages at a time; a round that deletes something continues without pauses."""
        options = self._context.options
        pool, inside = self._context.pool, self._context.inside
        values = (now - options.id_retention_us, self._page, SLICE_PAGES)
        ((forgotten, pages),) = await pool.call(inside(_FORGET), values)
        self._swept = self._swept or forgotten > 0
        self._page += SLICE_PAGES
        more = self._swept
        if self._page >= pages:
            self._page, self._swept, more = 0, False, False
        ((gone,),) = await pool.call(inside(_IDEMPOTENCY_KEYS), (now - options.idempotency_retention_us, SLICE_ROWS))
        expired = await self._tables.expire(now, SLICE_ROWS)
        return more or SLICE_ROWS in {gone, expired}


_DUE = """
SELECT relname FROM pg_stat_user_tables
WHERE schemaname = %s AND n_dead_tup > %s + %s * n_live_tup ORDER BY n_dead_tup DESC
"""


class Vacuum:
    """Vacuums tables with many dead rows; done by the owner of lane 0."""

    def __init__(self, context: StoreContext, is_mine: Callable[[], bool]) -> None:
        self._context = context
        self._is_mine = is_mine
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tidings-vacuum")

    async def stop(self) -> None:
        if self._task is not None:
            await tasks.end([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            if self._is_mine():
                with contextlib.suppress(StoreError, psycopg.Error, OSError):
                    await self.look()

    async def look(self) -> list[str]:
        """Vacuum the tables that need it, one by one; returns their names."""
        schema = self._context.options.schema
        found = [name for (name,) in await self._context.pool.read(_DUE, (schema, DEAD_ROWS_MIN, DEAD_SHARE))]
        if found:
            connection = await self._context.pool.open(patient=True)
            try:
                for name in found:
                    await rows(connection, f'VACUUM (SKIP_LOCKED) "{schema}".{name}')
            finally:
                await connection.close()
        return found
