"""Migrating while nodes run: step by step, each in a short transaction that gives way instead of being waited for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psycopg

from tidings import __version__, crash
from tidings.clock import Clock
from tidings.domain.errors import StoreError
from tidings.timeline.layouts import FUNCTIONS, Done, Layouts, Plan, Step, Tell
from tidings.timeline.postgres.database import Connection, check_schema, inside
from tidings.timeline.postgres.errors import explained
from tidings.timeline.postgres.layout import (
    LAYOUTS,
    TURN_S,
    look,
    plan_of,
    prepare,
    run,
    turn_name,
    write_functions,
)
from tidings.timeline.postgres.pool import Pool
from tidings.timeline.postgres.shared import Options

# Whoever asks for a lock that conflicts with ours stands behind us while we wait: so we do not wait for long.
LOCK_MS = 200
STEP_MS = 5_000
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0
PATIENCE_US = 120_000_000

_TRY = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
_SHORT = f"SET LOCAL lock_timeout = {LOCK_MS}; SET LOCAL statement_timeout = {STEP_MS}"
_HALF_BUILT = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND NOT i.indisvalid
"""


class Migration:
    """One schema, and the layouts that it is brought up to."""

    def __init__(
        self,
        dsn: str,
        clock: Clock,
        *,
        schema: str = "tidings",
        layouts: Path = LAYOUTS,
        program: str = __version__,
        patience_us: int = PATIENCE_US,
    ) -> None:
        self._pool = Pool(dsn, 1)
        self._clock = clock
        self._schema = check_schema(schema)
        self._layouts = Layouts(layouts)
        self._program = program
        self._patience_us = patience_us

    async def plan(self) -> Plan:
        """What would be done."""
        async with self._connected() as connection:
            return plan_of(await look(connection, self._schema), self._schema, self._layouts, self._program)

    async def run(self, tell: Tell) -> Plan:
        """Bring the schema up to date; answers what was to be done. May be run again whenever it was cut off."""
        async with self._connected() as connection:
            if not self._pool.is_direct:
                raise StoreError(
                    "a migration needs PostgreSQL itself, not PgBouncer: name its own address with --store"
                )
            await self._take_turn(connection)
            laid = await look(connection, self._schema)
            plan = plan_of(laid, self._schema, self._layouts, self._program)
            if laid.version == 0:
                await self._timed(", ".join(plan.steps), self._make(connection), tell)
                return plan
            for step in self._layouts.steps[laid.version :]:
                take = self._outside if step.outside else self._inside
                await self._timed(step.label, take(connection, step), tell)
            if FUNCTIONS in plan.steps:
                await self._timed(FUNCTIONS, self._functions(connection), tell)
            return plan

    async def _make(self, connection: Connection) -> None:
        """A schema that nobody uses yet is made at once, as by the first node that starts."""
        chosen, now = Options(), self._clock.now()
        given = (connection, self._schema, self._layouts, chosen.lanes, chosen.partitions, now, self._program)
        await prepare(*given)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        connection = await self._pool.open(patient=True)
        try:
            yield connection
        except psycopg.Error as error:
            raise explained(error) from error
        finally:
            await connection.close()

    async def _take_turn(self, connection: Connection) -> None:
        """Two migrations take turns: the lock is that of our session, and ends with it."""
        while True:
            found = await connection.execute(_TRY, (turn_name(self._schema),))
            if await found.fetchone() == (True,):
                return
            await asyncio.sleep(TURN_S)

    async def _timed(self, name: str, step: Awaitable[None], tell: Tell) -> None:
        begun = self._clock.elapsed()
        await step
        tell(Done(name, self._clock.elapsed() - begun))

    async def _inside(self, connection: Connection, step: Step) -> None:
        async def act() -> None:
            await run(connection, self._schema, step.text)
            await self._reach(connection, step)
            crash.point("migrate.written")

        await self._patiently(connection, step.name, act)
        crash.point("migrate.committed")

    async def _functions(self, connection: Connection) -> None:
        async def act() -> None:
            await write_functions(connection, self._schema, self._layouts, self._program)

        await self._patiently(connection, FUNCTIONS, act)

    async def _patiently(self, connection: Connection, name: str, act: Callable[[], Awaitable[None]]) -> None:
        """Try a short transaction until it gets its locks; between two tries everybody else goes on."""
        until, pause_s = self._clock.elapsed() + self._patience_us, PAUSE_S_MIN
        while True:
            try:
                async with connection.transaction():
                    await connection.execute(_SHORT)
                    await act()
                return
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                if self._clock.elapsed() >= until:
                    raise StoreError(
                        f"step {name} did not get its locks within {self._patience_us // 1_000_000} s: something"
                        " holds them (see pg_stat_activity). Nothing of it was done; run this again when that has ended"
                    ) from None
            except psycopg.errors.QueryCanceled:
                raise StoreError(
                    f"step {name} took longer than {STEP_MS // 1_000} s and was taken back, because nodes would wait"
                    " for it: run this again when the database has less to do"
                ) from None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _outside(self, connection: Connection, step: Step) -> None:
        """Statement by statement, none of which anybody waits for. An index that was left half-built is built anew."""
        await connection.execute("SET lock_timeout = 0")
        found = await connection.execute(_HALF_BUILT, (self._schema,))
        for (index,) in await found.fetchall():
            await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}".encode())
        for statement in step.statements():
            await run(connection, self._schema, statement)
            crash.point("migrate.written")
        await self._reach(connection, step)
        crash.point("migrate.committed")

    async def _reach(self, connection: Connection, step: Step) -> None:
        """The schema has this version now; only ever one more than it had."""
        statement = inside(self._schema, "UPDATE tidings.meta SET version = %s WHERE version = %s RETURNING 1")
        found = await connection.execute(statement.encode(), (step.number, step.number - 1))
        assert await found.fetchone() is not None, "nobody else migrates at the same time"
