"""The database: schema names, named queries, error messages, and arrays as binary parameters."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo, Format

from tidings.domain.errors import Invalid, NotAllowed, NotOwner, StoreError, TidingsError

_SQL = files(__package__) / "sql"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")

Connection = psycopg.AsyncConnection[tuple[object, ...]]

VERSION_MIN = 15
NOT_OWNER = "TD002"
HAS_MOVED = "TD003"
LOST = (
    "the connection to PostgreSQL was lost before the answer: whether the changes were made is not known."
    " Send them again: with an id, or an idempotency key, nothing is done twice"
)
URL_HINT = "write postgres://user:password@host:5432/database"
PASSWORD_HINT = (
    f"{URL_HINT}, and in a password %40 for @, %3A for :, %2F for /, %3F for ?,"
    " %23 for # and %25 for %; or leave it out and set PGPASSWORD"
)

# Messages of the server or of libpq when a connection fails, and what to do then.
_ADVICE = (
    (r"password authentication failed|no password supplied", "correct user and password in the URL, or set PGPASSWORD"),
    (r'database "(?P<name>.*)" does not exist', "make it there: CREATE DATABASE {name} OWNER {user}"),
    (r'role "(?P<name>.*)" does not exist', "make it there: CREATE ROLE {name} LOGIN PASSWORD '...'"),
    (r"no pg_hba\.conf entry", "let this machine in by a line in the server's pg_hba.conf"),
    (r"permission denied for database (?P<name>.*)", "GRANT CONNECT, CREATE ON DATABASE {name} TO {user}"),
    (r"too many connections for role", "ALTER ROLE {user} CONNECTION LIMIT, higher or -1 for none"),
    (r'too many connections for database "(?P<name>.*)"', "ALTER DATABASE {name} CONNECTION LIMIT, higher or -1"),
    (
        r"too many clients|remaining connection slots|too many connections",
        "raise its max_connections, or use PgBouncer",
    ),
    (r"starting up|shutting down|recovery mode|not yet accepting", "it will answer soon: try again"),
    (r"read-only|is not read-only|hot standby", "name the primary, not a standby"),
    (r"SSL|certificate", "see sslmode and sslrootcert in the URL"),
)
_NOT_THERE = "see that it runs, and that host and port are right"
_UNKNOWN_PARAMETER = re.compile(r'invalid URI query parameter: "([a-z_]+)"')

_HEADER = Struct(">iiIii")
_LENGTH = Struct(">i").pack
_LENGTHS = [_LENGTH(length) for length in range(2_048)]
_FEW = len(_LENGTHS)
_NULL = _LENGTH(-1)
_INT8_ITEM = Struct(">iq").pack
_INT2, _INT4, _INT8, _TEXT, _BYTEA, _UUID = 21, 23, 20, 25, 17, 2950

Numbers = npt.NDArray[np.int64]


def check_schema(schema: str) -> str:
    """Check that a name can be used for a schema."""
    if not _NAME.match(schema):
        raise Invalid("schema", f"{schema!r} is not a valid name: use lower-case letters, digits and underscores")
    if schema.startswith("pg_") or schema == "information_schema":
        raise Invalid("schema", f"{schema} is reserved by PostgreSQL: use another name")
    return schema


def inside(schema: str, text: str) -> str:
    """The same statements for another schema than `tidings`, which is also the name of the notification channel.

    The name is quoted, because it may be an SQL keyword such as `user`.
    """
    return re.sub(r"\btidings\.", f'"{schema}".', text).replace("'tidings'", f"'{schema}'")


def queries(name: str, schema: str) -> dict[str, str]:
    """The statements of a .sql file, by the name in their `-- name:` line."""
    parts = re.split(r"^-- name: (\w+)\n", (_SQL / f"{name}.sql").read_text(), flags=re.MULTILINE)
    statements = (inside(schema, part.strip().rstrip(";")) for part in parts[2::2])
    return dict(zip(parts[1::2], statements, strict=True))


class Lost(StoreError):
    """The connection ended during a call."""


class TookTooLong(StoreError):
    """A statement, or its wait for a lock, exceeded its timeout, and was rolled back."""

    concerns_all = False


class Contended(StoreError):
    """This transaction conflicted with another and was rolled back: try again."""


def check_url(url: str) -> str:
    """Reject an invalid URL. The error does not quote it, because the wrong part may belong to the password."""
    userinfo, _, rest = url.partition("://")[2].partition("?")[0].partition("@")
    if "@" in rest or ("/" in userinfo and rest):
        raise Invalid("store", f"the user or the password in this URL contains an unescaped @ or /: {PASSWORD_HINT}")
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.Error as error:
        raise Invalid("store", _unreadable(str(error))) from None
    ports = str(parameters.get("port", "")).split(",")
    if not all(port.isdigit() or not port for port in ports):
        raise Invalid("store", f"the port in this URL is not a number: {URL_HINT}")
    return url


def _unreadable(said: str) -> str:
    """The error of libpq for a URL, without the parts of the URL that it quotes."""
    if unknown := _UNKNOWN_PARAMETER.search(said):
        near = get_close_matches(unknown[1], [option.keyword.decode() for option in Conninfo.get_defaults()], n=1)
        guess = f"did you mean {near[0]}?" if near else "leave it out"
        return f"this URL has a parameter {unknown[1]} that PostgreSQL does not know: {guess}"
    if "percent-encoded" in said:
        return f"this URL has a % that does not begin a code such as %40: {PASSWORD_HINT}"
    return f"this URL cannot be read: {PASSWORD_HINT}"


def check_version(number: int) -> None:
    """Reject a server that is too old; the number is that of libpq, such as 150004."""
    if number // 10_000 < VERSION_MIN:
        raise StoreError(f"PostgreSQL {number // 10_000} is too old: Tidings needs {VERSION_MIN} or newer")


def unreachable(error: psycopg.Error) -> StoreError:
    """The error for a connection that cannot be opened."""
    text = brief(error).removeprefix("connection failed: ").removeprefix("connection is bad: ")
    user = error.pgconn.user.decode() if error.pgconn is not None else "this user"
    for pattern, advice in _ADVICE:
        if found := re.search(pattern, text):
            return StoreError(f"PostgreSQL refused: {text}: {advice.format(user=user, **found.groupdict())}")
    return StoreError(f"PostgreSQL cannot be reached: {text}: {_NOT_THERE}")


def explained(error: psycopg.Error, connection: psycopg.AsyncConnection[Any] | None = None) -> TidingsError:
    """The error for a call that failed."""
    if error.sqlstate == NOT_OWNER:
        return NotOwner("another node owns this lane")
    if error.sqlstate == HAS_MOVED:
        return StoreError("this store has moved to another place and accepts no more changes: restart this node")
    if isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure):
        return Contended("this call conflicted with another in PostgreSQL: try again")
    if isinstance(error, psycopg.errors.CharacterNotInRepertoire | psycopg.errors.UntranslatableCharacter):
        # Not an error of the store: retries would not help, and other commands of the batch are not affected.
        return Invalid("text", f"PostgreSQL cannot store it, remove NUL and similar characters: {brief(error)}")
    if isinstance(error, psycopg.errors.DiskFull):
        return StoreError(
            "PostgreSQL's disk is full: nothing was changed. Free some space; Tidings continues by itself"
        )
    if isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
        return TookTooLong(f"PostgreSQL took too long and nothing was changed: {brief(error)}")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return NotAllowed("this PostgreSQL is a standby, or read-only: name the primary; nothing was changed")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return not_allowed(error, "this user" if connection is None or connection.closed else connection.info.user)
    if isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate.startswith(("57P", "08", "25P"))
    ):
        return Lost(LOST)
    return StoreError(f"PostgreSQL refused: {brief(error)}")


def not_allowed(error: psycopg.Error, user: str, missing: str | None = None) -> NotAllowed:
    """The error for missing privileges; `missing` is a schema that we may not create."""
    if missing is not None:
        advice = f"have an administrator do it: CREATE SCHEMA {missing} AUTHORIZATION {user}"
    elif found := re.search(r"permission denied for schema (\w+)", str(error)):
        advice = f"have an administrator hand it over: ALTER SCHEMA {found[1]} OWNER TO {user}"
    else:
        advice = f"serve as the role that owns the schema, or GRANT that role TO {user}"
    return NotAllowed(f"PostgreSQL refused: {brief(error)}: {advice}")


def brief(error: psycopg.Error) -> str:
    """The first line of an error message."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


class Array:
    """A column as a binary array parameter."""

    element = 0

    def __init__(self, data: bytes) -> None:
        self.data = data


class Int2s(Array):
    element = _INT2


class Int4s(Array):
    element = _INT4


class Int8s(Array):
    element = _INT8


class Texts(Array):
    element = _TEXT


class Byteas(Array):
    element = _BYTEA


class Uuids(Array):
    element = _UUID


_OIDS = {Int2s: 1005, Int4s: 1007, Int8s: 1016, Texts: 1009, Byteas: 1001, Uuids: 2951}


def register(context: AdaptContext) -> None:
    """Let a connection accept columns as parameters."""
    for kind, oid in _OIDS.items():
        context.adapters.register_dumper(kind, type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": oid}))


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj.data


def int2s(values: Sequence[int] | Numbers) -> Int2s:
    return Int2s(_fixed(values, _INT2, ">i2", 2))


def int4s(values: Sequence[int] | Numbers) -> Int4s:
    return Int4s(_fixed(values, _INT4, ">i4", 4))


def int8s(values: Sequence[int] | Numbers) -> Int8s:
    return Int8s(_fixed(values, _INT8, ">i8", 8))


def maybe_int8s(values: Sequence[int | None]) -> Int8s:
    """Numbers, some of them NULL."""
    nulls = values.count(None)
    if nulls == len(values):
        return Int8s(_header(len(values), _INT8, True) + _NULL * len(values))
    items = [_NULL if value is None else _INT8_ITEM(8, value) for value in values]
    return Int8s(_header(len(values), _INT8, nulls > 0) + b"".join(items))


def uuids(values: Sequence[bytes]) -> Uuids:
    """Sixteen bytes each."""
    if not values:
        return Uuids(_varied([], _UUID))
    return Uuids(_header(len(values), _UUID) + _LENGTHS[16] + _LENGTHS[16].join(values))


def byteas(values: Sequence[bytes | None]) -> Byteas:
    return Byteas(_varied(values, _BYTEA))


def texts(values: Sequence[bytes | None]) -> Texts:
    """Texts that are already encoded."""
    return Texts(_varied(values, _TEXT))


def maybe_texts(values: Sequence[str | None]) -> Texts:
    if values.count(None) == len(values):
        return Texts(_header(len(values), _TEXT, True) + _NULL * len(values))
    return texts([None if value is None else value.encode() for value in values])


def _header(count: int, element: int, nulls: bool = False) -> bytes:
    if count == 0:
        return _HEADER.pack(0, 0, element, 0, 0)[:12]
    return _HEADER.pack(1, int(nulls), element, count, 1)


def _fixed(values: Sequence[int] | Numbers, element: int, form: str, size: int) -> bytes:
    rows = np.empty(len(values), dtype=[("length", ">i4"), ("value", form)])
    rows["length"], rows["value"] = size, values
    return _header(len(values), element) + rows.tobytes()


def _varied(values: Sequence[bytes | None], element: int) -> bytes:
    count = len(values)
    if None in values:
        items = [_NULL if value is None else _LENGTH(len(value)) + value for value in values]
        return _header(count, element, True) + b"".join(items)
    parts = [b""] * (2 * count + 1)
    parts[0] = _header(count, element)
    present: Sequence[bytes] = values  # type: ignore[assignment]
    parts[1::2] = [_LENGTHS[size] if size < _FEW else _LENGTH(size) for size in map(len, present)]
    parts[2::2] = present
    return b"".join(parts)
