"""The database: its layout by version, made or brought up to date when a store is opened, and the queries by name."""

import re
import secrets
from importlib.resources import files
from pathlib import Path

import psycopg
from psycopg import sql

from tidings.domain.errors import Invalid, StoreError

LANES_MAX = 256
PARTITIONS_MAX = 1_024

_SQL = files(__package__) / "sql"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")

Connection = psycopg.AsyncConnection[tuple[object, ...]]


def check_schema(schema: str) -> str:
    """A name that needs no quotes."""
    if not _NAME.match(schema):
        raise Invalid("schema", f"{schema!r} is not a plain name: use small letters, digits and underscores")
    return schema


def inside(schema: str, text: str) -> str:
    """The same statements for another schema than `tidings`; it is the name of the channel too."""
    return re.sub(r"\btidings\.", f"{schema}.", text).replace("'tidings'", f"'{schema}'")


def queries(name: str, schema: str) -> dict[str, str]:
    """The statements of a .sql file, each under its `-- name:` line."""
    parts = re.split(r"^-- name: (\w+)\n", (_SQL / f"{name}.sql").read_text(), flags=re.MULTILINE)
    statements = (inside(schema, part.strip().rstrip(";")) for part in parts[2::2])
    return dict(zip(parts[1::2], statements, strict=True))


def migrations() -> list[Path]:
    """The numbered layouts, oldest first."""
    return sorted(Path(str(_SQL)).glob("[0-9][0-9][0-9][0-9]_*.sql"))


def functions() -> list[str]:
    """What is done on the server, as this version of Tidings does it."""
    return [path.read_text() for path in sorted(Path(str(_SQL)).glob("functions*.sql"))]


async def prepare(connection: Connection, schema: str, lanes: int, partitions: int, created: int) -> None:
    """Make what is missing and bring an older layout up to date, in one transaction.

    Nodes that start together take turns; who comes second finds everything in place.
    """
    steps = migrations()
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"tidings/{schema}",))
        version = await _version(connection, schema)
        if version > len(steps):
            raise StoreError(
                f"the schema {schema} was written by a newer Tidings (layout {version}, this one knows {len(steps)}):"
                " upgrade Tidings, or name another schema or database"
            )
        if version == 0:
            await _make_schema(connection, schema)
        for step in steps[version:]:
            await _run(connection, schema, step.read_text())
        if version < len(steps):
            for text in functions():
                await _run(connection, schema, text)
        if version == 0:
            await _begin(connection, schema, lanes, partitions, created, len(steps))
        elif version < len(steps):
            await _run(connection, schema, f"UPDATE tidings.meta SET version = {len(steps)}")


async def _make_schema(connection: Connection, schema: str) -> None:
    """Unless it is there: whoever was given one need not be allowed to make one."""
    found = await connection.execute("SELECT to_regnamespace(%s)", (schema,))
    if await found.fetchone() == (None,):
        await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))


async def _version(connection: Connection, schema: str) -> int:
    found = await connection.execute("SELECT to_regclass(%s)", (f"{schema}.meta",))
    if await found.fetchone() == (None,):
        return 0
    answer = await connection.execute(inside(schema, "SELECT version FROM tidings.meta").encode())
    row = await answer.fetchone()
    assert row is not None, "the one row is written together with its table"
    return int(str(row[0]))


async def _run(connection: Connection, schema: str, text: str) -> None:
    await connection.execute(inside(schema, text).encode())


async def _begin(connection: Connection, schema: str, lanes: int, partitions: int, created: int, version: int) -> None:
    """What is chosen once: the lanes, and how many partitions each topic has, at least one for each lane."""
    if not 1 <= lanes <= LANES_MAX or lanes & (lanes - 1):
        raise Invalid("lanes", f"must be a power of two from 1 to {LANES_MAX}")
    total = lanes * -(-partitions // lanes)
    if not 1 <= total <= PARTITIONS_MAX:
        raise Invalid("partitions", f"must lie between 1 and {PARTITIONS_MAX}")
    values = (version, secrets.token_hex(8), created, lanes, total)
    statement = "INSERT INTO tidings.meta (version, identity, created, lanes, partitions) VALUES (%s, %s, %s, %s, %s)"
    await connection.execute(inside(schema, statement).encode(), values)
    statement = "INSERT INTO tidings.lane (lane) SELECT generate_series(0, %s - 1)"
    await connection.execute(inside(schema, statement).encode(), (lanes,))
