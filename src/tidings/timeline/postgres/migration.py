"""The layout of the database: made at once where there is none, looked at by every node that starts."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from tidings import __version__, crash
from tidings.clock import Clock
from tidings.domain.errors import Invalid, StoreError
from tidings.timeline.migrations import FUNCTIONS, Layouts, OldLayout, OnStep, Plan, Step, StepDone, by_version
from tidings.timeline.postgres.context import Options
from tidings.timeline.postgres.database import Connection, check_schema, explained, inside, not_allowed
from tidings.timeline.postgres.pool import Pool

LANES_MAX = 256
PARTITIONS_MAX = 1_024
LAYOUTS = Path(str(files(__package__) / "sql"))
TURN_S = 0.05  # between two looks whether it is our turn
QUICK = "SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '10s'"

_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
_VERSION = "SELECT version, functions, program FROM tidings.meta"
_FUNCTIONS = "UPDATE tidings.meta SET functions = %s, program = %s"


class LayoutState(NamedTuple):
    """What a schema says of its layout: its version, and by whom its functions were written. 0: there is none."""

    version: int
    functions: str = ""
    program: str = ""

    def stale(self, layouts: Layouts, program: str) -> bool:
        """Whether the functions are to be written: they are others, and not those of a newer program."""
        return self.functions != layouts.digest and by_version(program) >= by_version(self.program)


async def prepare(
    connection: Connection,
    schema: str,
    layouts: Layouts,
    lanes: int,
    partitions: int,
    created: int,
    program: str = __version__,
) -> None:
    """Make what is missing in an empty schema. An older layout is not touched: nodes may be at work on it.

    Functions belong to the program: they are written anew where they are those of an older one. Nodes that start
    together take turns; who comes second finds everything in place.
    """
    if not (await _needs(connection, schema, layouts, program)):
        return
    async with _turn(connection, schema):
        found = await look(connection, schema)
        if found.version == 0:
            await _make(connection, schema, layouts, lanes, partitions, created)
        if found.version == 0 or found.stale(layouts, program):
            await connection.execute(QUICK)
            await write_functions(connection, schema, layouts, program)


async def _needs(connection: Connection, schema: str, layouts: Layouts, program: str) -> bool:
    found = await look(connection, schema)
    if found.version == 0:
        return True
    plan = plan_of(found, schema, layouts, program)
    if plan.version < plan.known:
        raise OldLayout(f"the schema {schema} has layout {plan.version}, and this Tidings needs layout {plan.known}")
    return bool(plan.steps)


def plan_of(found: LayoutState, schema: str, layouts: Layouts, program: str) -> Plan:
    """What a schema needs; `NewerLayout` if it is ahead of us."""
    return layouts.plan(found.version, f"the schema {schema}", stale=found.stale(layouts, program))


async def look(connection: Connection, schema: str) -> LayoutState:
    """What is there."""
    found = await connection.execute("SELECT to_regclass(%s)", (f'"{schema}".meta',))
    if await found.fetchone() == (None,):
        return LayoutState(0)
    answer = await connection.execute(inside(schema, _VERSION).encode())
    row: Any = await answer.fetchone()
    assert row is not None, "the one row is written together with its table"
    return LayoutState(*row)


def turn_name(schema: str) -> str:
    """Under which name those who change a schema take turns."""
    return f"tidings/{schema}"


@contextlib.asynccontextmanager
async def _turn(connection: Connection, schema: str) -> AsyncIterator[None]:
    """A transaction that nobody else who changes the schema has at the same time.

    The lock is asked for again and again: who waited in it would hold up an index that is built meanwhile.
    """
    while True:
        async with connection.transaction():
            found = await connection.execute(_TRY_LOCK, (turn_name(schema),))
            if await found.fetchone() == (True,):
                yield
                return
        await asyncio.sleep(TURN_S)


async def write_functions(connection: Connection, schema: str, layouts: Layouts, program: str) -> None:
    """Write the functions of this program, inside the caller's transaction."""
    for text in layouts.functions:
        await run(connection, schema, text)
    await connection.execute(inside(schema, _FUNCTIONS).encode(), (layouts.digest, program))


async def run(connection: Connection, schema: str, text: str) -> None:
    """Any number of statements."""
    await connection.execute(inside(schema, text).encode())


async def _make(
    connection: Connection, schema: str, layouts: Layouts, lanes: int, partitions: int, created: int
) -> None:
    """Every table, and what is chosen once: the lanes, and how many partitions each topic has, one or more for each."""
    if not 1 <= lanes <= LANES_MAX or lanes & (lanes - 1):
        raise Invalid("lanes", f"must be a power of two from 1 to {LANES_MAX}")
    total = lanes * -(-partitions // lanes)
    if not 1 <= total <= PARTITIONS_MAX:
        raise Invalid("partitions", f"must lie between 1 and {PARTITIONS_MAX}")
    await _make_schema(connection, schema)
    for step in layouts.steps:
        await run(connection, schema, step.at_once())
    values = (layouts.known, secrets.token_hex(8), created, lanes, total)
    statement = "INSERT INTO tidings.meta (version, identity, created, lanes, partitions) VALUES (%s, %s, %s, %s, %s)"
    await connection.execute(inside(schema, statement).encode(), values)
    statement = "INSERT INTO tidings.lane (lane) SELECT generate_series(0, %s - 1)"
    await connection.execute(inside(schema, statement).encode(), (lanes,))


async def _make_schema(connection: Connection, schema: str) -> None:
    """Unless it is there: whoever was given one need not be allowed to make one."""
    found = await connection.execute("SELECT to_regnamespace(quote_ident(%s))", (schema,))
    if await found.fetchone() == (None,):
        try:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        except psycopg.errors.InsufficientPrivilege as error:
            raise not_allowed(error, connection.info.user, missing=schema) from error


# Whoever asks for a lock that conflicts with ours stands behind us while we wait: so we do not wait for long.
LOCK_MS = 200
STEP_MS = 5_000
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0
PATIENCE_US = 120_000_000

_TRY_SESSION_LOCK = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
_SHORT = f"SET LOCAL lock_timeout = {LOCK_MS}; SET LOCAL statement_timeout = {STEP_MS}"
_HALF_BUILT = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND NOT i.indisvalid
"""


class Migration:
    """One schema, and the layouts that it is as_new_put up to."""

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

    async def run(self, on_step: OnStep) -> Plan:
        """Bring the schema up to date; answers what was to be done. May be run again whenever it was cut off."""
        async with self._connected() as connection:
            if not self._pool.is_direct:
                raise StoreError(
                    "a migration needs PostgreSQL itself, not PgBouncer: name its own address with --store"
                )
            await self._take_turn(connection)
            found = await look(connection, self._schema)
            plan = plan_of(found, self._schema, self._layouts, self._program)
            if found.version == 0:
                await self._timed(", ".join(plan.steps), self._make(connection), on_step)
                return plan
            for step in self._layouts.steps[found.version :]:
                take = self._outside if step.outside else self._inside
                await self._timed(step.label, take(connection, step), on_step)
            if FUNCTIONS in plan.steps:
                await self._timed(FUNCTIONS, self._functions(connection), on_step)
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
            found = await connection.execute(_TRY_SESSION_LOCK, (turn_name(self._schema),))
            if await found.fetchone() == (True,):
                return
            await asyncio.sleep(TURN_S)

    async def _timed(self, name: str, step: Awaitable[None], on_step: OnStep) -> None:
        begun = self._clock.elapsed()
        await step
        on_step(StepDone(name, self._clock.elapsed() - begun))

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
