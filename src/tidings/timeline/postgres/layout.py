"""The layout of the database: made at once where there is none, looked at by every node that starts."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from tidings import __version__
from tidings.domain.errors import Invalid
from tidings.timeline.layouts import Layouts, OldLayout, Plan, by_version
from tidings.timeline.postgres.database import Connection, inside
from tidings.timeline.postgres.errors import not_allowed

LANES_MAX = 256
PARTITIONS_MAX = 1_024
LAYOUTS = Path(str(files(__package__) / "sql"))
TURN_S = 0.05  # between two looks whether it is our turn
QUICK = "SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '10s'"

_TRY = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
_VERSION = "SELECT version, functions, program FROM tidings.meta"
_FUNCTIONS = "UPDATE tidings.meta SET functions = %s, program = %s"


class Laid(NamedTuple):
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
        laid = await look(connection, schema)
        if laid.version == 0:
            await _make(connection, schema, layouts, lanes, partitions, created)
        if laid.version == 0 or laid.stale(layouts, program):
            await connection.execute(QUICK)
            await write_functions(connection, schema, layouts, program)


async def _needs(connection: Connection, schema: str, layouts: Layouts, program: str) -> bool:
    laid = await look(connection, schema)
    if laid.version == 0:
        return True
    plan = plan_of(laid, schema, layouts, program)
    if plan.version < plan.known:
        raise OldLayout(f"the schema {schema} has layout {plan.version}, and this Tidings needs layout {plan.known}")
    return bool(plan.steps)


def plan_of(laid: Laid, schema: str, layouts: Layouts, program: str) -> Plan:
    """What a schema needs; `NewerLayout` if it is ahead of us."""
    return layouts.plan(laid.version, f"the schema {schema}", stale=laid.stale(layouts, program))


async def look(connection: Connection, schema: str) -> Laid:
    """What is there."""
    found = await connection.execute("SELECT to_regclass(%s)", (f'"{schema}".meta',))
    if await found.fetchone() == (None,):
        return Laid(0)
    answer = await connection.execute(inside(schema, _VERSION).encode())
    row: Any = await answer.fetchone()
    assert row is not None, "the one row is written together with its table"
    return Laid(*row)


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
            found = await connection.execute(_TRY, (turn_name(schema),))
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
