"""The layout of a schema: created by the first node, checked by every node, and migrated by `tidings migrate`."""

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
TURN_S = 0.05  # between two attempts to get the lock
QUICK = "SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '10s'"

_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
_VERSION = "SELECT version, functions, program FROM tidings.meta"
_FUNCTIONS = "UPDATE tidings.meta SET functions = %s, program = %s"

# Other transactions queue behind a lock that we wait for, so we never wait for long.
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


class LayoutState(NamedTuple):
    """The layout of a schema: its version (0: it has none), the digest of its functions, and the program version."""

    version: int
    functions: str = ""
    program: str = ""

    def stale(self, layouts: Layouts, program: str) -> bool:
        """Whether the functions must be written: they differ, and are not those of a newer program."""
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
    """Create the layout in an empty schema. An older layout is not changed: nodes may be using it.

    Functions belong to the program: those of an older one are replaced. Nodes that start together take turns; the
    second one finds everything in place.
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
    """The steps that a schema needs; `NewerLayout` if it is newer than this program."""
    return layouts.plan(found.version, f"the schema {schema}", stale=found.stale(layouts, program))


async def look(connection: Connection, schema: str) -> LayoutState:
    """Read the layout of a schema."""
    found = await connection.execute("SELECT to_regclass(%s)", (f'"{schema}".meta',))
    if await found.fetchone() == (None,):
        return LayoutState(0)
    answer = await connection.execute(inside(schema, _VERSION).encode())
    row: Any = await answer.fetchone()
    assert row is not None, "the row is written together with its table"
    return LayoutState(*row)


def turn_name(schema: str) -> str:
    """The name of the advisory lock for changes of a schema."""
    return f"tidings/{schema}"


@contextlib.asynccontextmanager
async def _turn(connection: Connection, schema: str) -> AsyncIterator[None]:
    """A transaction that holds the lock for changes of the schema.

    The lock is polled: a transaction that waited for it would block an index that is built concurrently.
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
    """Run any number of statements."""
    await connection.execute(inside(schema, text).encode())


async def _make(
    connection: Connection, schema: str, layouts: Layouts, lanes: int, partitions: int, created: int
) -> None:
    """Create every table, with the fixed number of lanes and of partitions for each topic, at least one for a lane."""
    if not 1 <= lanes <= LANES_MAX or lanes & (lanes - 1):
        raise Invalid("lanes", f"must be a power of two from 1 to {LANES_MAX}")
    total = lanes * -(-partitions // lanes)
    if not 1 <= total <= PARTITIONS_MAX:
        raise Invalid("partitions", f"must be between 1 and {PARTITIONS_MAX}")
    await _make_schema(connection, schema)
    for step in layouts.steps:
        await run(connection, schema, step.at_once())
    values = (layouts.known, secrets.token_hex(8), created, lanes, total)
    statement = "INSERT INTO tidings.meta (version, identity, created, lanes, partitions) VALUES (%s, %s, %s, %s, %s)"
    await connection.execute(inside(schema, statement).encode(), values)
    statement = "INSERT INTO tidings.lane (lane) SELECT generate_series(0, %s - 1)"
    await connection.execute(inside(schema, statement).encode(), (lanes,))


async def _make_schema(connection: Connection, schema: str) -> None:
    """Create the schema unless it exists: a user with an existing schema needs no privilege to create one."""
    found = await connection.execute("SELECT to_regnamespace(quote_ident(%s))", (schema,))
    if await found.fetchone() == (None,):
        try:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        except psycopg.errors.InsufficientPrivilege as error:
            raise not_allowed(error, connection.info.user, missing=schema) from error


class Migration:
    """Migrates one schema to the newest layout."""

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
        """What `run` would do."""
        async with self._connected() as connection:
            return plan_of(await look(connection, self._schema), self._schema, self._layouts, self._program)

    async def run(self, on_step: OnStep) -> Plan:
        """Migrate the schema; returns the plan. It can be run again after an interruption."""
        async with self._connected() as connection:
            if not self._pool.is_direct:
                raise StoreError(
                    "a migration needs a direct connection, not PgBouncer: name the address of PostgreSQL with --store"
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
        """Create a new schema in one step, as the first node does."""
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
        """Take the lock, which ends with our session, so that two migrations take turns."""
        while True:
            found = await connection.execute(_TRY_SESSION_LOCK, (turn_name(self._schema),))
            if await found.fetchone() == (True,):
                return
            await asyncio.sleep(TURN_S)

    async def _timed(self, name: str, step: Awaitable[None], on_step: OnStep) -> None:
        started = self._clock.elapsed()
        await step
        on_step(StepDone(name, self._clock.elapsed() - started))

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
        """Retry a short transaction until it gets its locks; nodes continue between the attempts."""
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
                        f"step {name} did not get its locks within {self._patience_us // 1_000_000} s: another"
                        " session holds them (see pg_stat_activity). Nothing was changed; run this again later"
                    ) from None
            except psycopg.errors.QueryCanceled:
                raise StoreError(
                    f"step {name} took longer than {STEP_MS // 1_000} s and was rolled back, because nodes would wait"
                    " for it: run this again when the database is less busy"
                ) from None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _outside(self, connection: Connection, step: Step) -> None:
        """Run the statements of a step one by one, without blocking nodes. Invalid indexes are built again."""
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
        """Set the version of the schema, which increases by one."""
        statement = inside(self._schema, "UPDATE tidings.meta SET version = %s WHERE version = %s RETURNING 1")
        found = await connection.execute(statement.encode(), (step.number, step.number - 1))
        assert await found.fetchone() is not None, "no other migration runs at the same time"
