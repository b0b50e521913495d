"""The layout of a schema: created by the first node, checked by every node, and migrated by `tidings migrate`.

The documents of version 0.1 are moved to tables by the first node of this version.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import sql

from tidings import __version__, crash
from tidings.clock import Clock
from tidings.domain.errors import Invalid, StoreError
from tidings.ports.tables import ChangeGroup
from tidings.timeline.document_rows import Document, decode_tags, group_of
from tidings.timeline.migrations import FUNCTIONS, Layouts, OldLayout, OnStep, Plan, Step, StepDone, by_version
from tidings.timeline.postgres.context import Options
from tidings.timeline.postgres.database import (
    Connection,
    TookTooLong,
    check_schema,
    explained,
    inside,
    not_allowed,
    queries,
)
from tidings.timeline.postgres.pool import Pool, Row, rows
from tidings.timeline.postgres.tables import PostgresTables

logger = logging.getLogger("tidings.store")

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

SLICE_ROWS = 5_000  # of documents
WAIT_S = 0.1  # until the next look whether another node has finished a slice
LOCK_TRIES_MAX = 300
LOGGED_ROWS = 100_000

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
            if found.version:
                text = "replaced the functions of version %s in the schema %s by those of version %s"
                logger.info(text, found.program, schema, program)


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


class DocumentMigration:
    """Moves the documents of one schema to tables, before a node serves anything.

    One node at a time copies a slice, with the progress in the same transaction; the others wait. A crash loses at most
    one slice, which the next node copies again. Documents cannot be changed from the first slice on, and are dropped
    after the last one.
    """

    def __init__(self, pool: Pool, tables: PostgresTables, schema: str) -> None:
        self._pool = pool
        self._tables = tables
        self._sql = queries("document_migration", schema)
        self._copied = 0

    async def run(self, now: int, *, slice_rows: int = SLICE_ROWS) -> int:
        """Return once all documents are moved; the result is how many this node has copied."""
        if not await self._has_documents():
            return 0
        try:
            await self._short("close")
            await self._copy(now, slice_rows)
            crash.point("migrate.copied")
            await self._short("drop")
        except StoreError:
            if await self._has_documents():  # else another node has dropped them
                raise
        return self._copied

    async def _has_documents(self) -> bool:
        return bool(await self._pool.read(self._sql["has_documents"]))

    async def _copy(self, now: int, slice_rows: int) -> None:
        """Copy all documents that are not copied yet."""
        following = None
        while True:
            known = following or await self._read(await self._after(), now, slice_rows)
            ahead = asyncio.create_task(self._read(known.last, now, slice_rows))  # while the server writes this one
            try:
                done = await self._write(known, now)
            finally:
                following = await ahead
            if done is None:
                return
            if not done:  # another node is at it
                await asyncio.sleep(WAIT_S)
                following = None
            elif self._copied // LOGGED_ROWS < (self._copied + done) // LOGGED_ROWS:
                logger.info("copied %d documents of version 0.1 to tables", self._copied + done)
            self._copied += done

    async def _short(self, name: str) -> None:
        """Run a statement that locks the documents. Others wait behind us for the lock, so we never wait for long."""
        for _ in range(LOCK_TRIES_MAX):
            try:
                async with self._pool.transaction() as connection:
                    await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}; {self._sql[name]}".encode())
                return
            except TookTooLong:
                await asyncio.sleep(WAIT_S)
        raise StoreError("the documents of this store are locked by another session: see pg_stat_activity")

    async def _after(self) -> UUID:
        ((after,),) = await self._pool.read(self._sql["after"])
        assert isinstance(after, UUID)
        return after

    async def _read(self, after: UUID, now: int, slice_rows: int) -> "_Slice":
        """The slice of documents after a key, as rows."""
        page = await self._pool.read(self._sql["page"], (after, slice_rows))
        found = _Slice(after, page[-1][0] if page else after, len(page), [], [], [])
        for document in _documents(page, now):
            group = group_of(document)
            if group is None:
                continue
            if document.kind == "suppressed":
                found.suppressions.append(group)
            else:
                found.new.append(group)
                found.versions.append(document.version)
        return found

    async def _write(self, found: "_Slice", now: int) -> int | None:
        """Write a slice; returns its size, 0 if another node has written it or does, None if all are written."""
        async with self._pool.transaction() as connection:
            progress = await rows(connection, self._sql["take"])
            if progress and progress[0][1]:
                return None
            if not progress or progress[0][0] != found.after:
                return 0
            await self._tables.write(connection, found.new, now, found.versions)
            await self._tables.write(connection, found.suppressions, now)
            await rows(connection, self._sql["advance"], (found.last, not found.size))
            crash.point("migrate.written")
        return found.size or None


class _Slice(NamedTuple):
    """Documents in the order of their keys: after which, up to which, how many, and what they become.

    Rows keep the versions of their documents, which callers have as ETags. Several suppressions can become one.
    """

    after: UUID
    last: UUID
    size: int
    new: list[ChangeGroup]
    versions: list[int]
    suppressions: list[ChangeGroup]


def _documents(page: Sequence[Row], now: int) -> list[Document]:
    """The documents of rows, without expired ones."""
    return [
        Document(tenant.decode(), kind.decode(), name.decode(), body, version, decode_tags(tags), order, until)
        for _, tenant, kind, name, body, version, tags, order, until in page
        if until is None or until > now
    ]
