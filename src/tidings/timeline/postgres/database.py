"""The database: the schema that a store lies in, and the queries by name."""

import re
from importlib.resources import files

import psycopg

from tidings.domain.errors import Invalid

_SQL = files(__package__) / "sql"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")

Connection = psycopg.AsyncConnection[tuple[object, ...]]


def check_schema(schema: str) -> str:
    """A plain name that may be given to a schema."""
    if not _NAME.match(schema):
        raise Invalid("schema", f"{schema!r} is not a plain name: use small letters, digits and underscores")
    if schema.startswith("pg_") or schema == "information_schema":
        raise Invalid("schema", f"{schema} is PostgreSQL's own: use another name")
    return schema


def inside(schema: str, text: str) -> str:
    """The same statements for another schema than `tidings`; it is the name of the channel too.

    It is quoted: a name such as `user` is a word of SQL.
    """
    return re.sub(r"\btidings\.", f'"{schema}".', text).replace("'tidings'", f"'{schema}'")


def queries(name: str, schema: str) -> dict[str, str]:
    """The statements of a .sql file, each under its `-- name:` line."""
    parts = re.split(r"^-- name: (\w+)\n", (_SQL / f"{name}.sql").read_text(), flags=re.MULTILINE)
    statements = (inside(schema, part.strip().rstrip(";")) for part in parts[2::2])
    return dict(zip(parts[1::2], statements, strict=True))
