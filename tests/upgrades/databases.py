"""The stores of the fixtures: a SQLite file, and a PostgreSQL whose clock is shifted like that of the node."""

import lzma
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import psycopg

from tests.servers.postgres import Postgres, binary

FIXTURES = Path(__file__).parent / "fixtures"

# `tidings.now()` calls clock_timestamp() without naming its schema: one before pg_catalog in the path replaces it.
SHIFTED = """
CREATE SCHEMA shifted;
CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + interval ''{shift_us} microseconds''';
"""


class Database(Protocol):
    """A store that can be copied while a node uses it, as a crash would leave it."""

    name: str  # of its fixture
    host: str  # the loopback address of the receivers of webhooks that its users have

    @property
    def address(self) -> str:
        """The setting `store.path`."""
        ...

    def shift(self, shift_us: int) -> None:
        """Set the clock of the store, where it has one."""
        ...

    def crash(self) -> None:
        """Go on with a copy of what is committed at this moment."""
        ...

    def dump(self) -> bytes: ...

    def restore(self, dump: bytes) -> None: ...


class SqliteFile:
    """A SQLite file in a folder."""

    name = "0.1.db"
    host = "127.88.0.1"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = 0

    @property
    def _path(self) -> Path:
        return self._folder / f"store-{self._copies}.db"

    @property
    def address(self) -> str:
        return str(self._path)

    def shift(self, shift_us: int) -> None:
        """The node's clock is the only one."""

    def crash(self) -> None:
        before = self._path
        self._copies += 1
        with closing(sqlite3.connect(before)) as source, closing(sqlite3.connect(self._path)) as target:
            source.backup(target)

    def dump(self) -> bytes:
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self._path.read_bytes()

    def restore(self, dump: bytes) -> None:
        self._path.write_bytes(dump)


class PostgresDatabase:
    """A database of a PostgreSQL server."""

    name = "0.1.sql"
    host = "127.88.0.2"

    def __init__(self, server: Postgres, prefix: str = "upgrade") -> None:
        self._server = server
        self._prefix = prefix
        self._copies = 0
        self._shift_us = 0
        self._create()

    @property
    def _database(self) -> str:
        return f"{self._prefix}_{self._copies}"

    @property
    def address(self) -> str:
        return urlsplit(self._server.dsn)._replace(path=f"/{self._database}").geturl()

    def shift(self, shift_us: int) -> None:
        self._shift_us = shift_us
        with self._connect() as connection:
            connection.execute("DROP SCHEMA IF EXISTS shifted CASCADE")
            connection.execute(SHIFTED.format(shift_us=shift_us))

    def crash(self) -> None:
        dump = self.dump()
        self._copies += 1
        self._create()
        self.shift(self._shift_us)
        self.restore(dump)

    def dump(self) -> bytes:
        """The schema as a script, without the lines that only the same release of psql understands."""
        options = ("--schema=tidings", "--no-owner", "--no-privileges", self.address)
        done = subprocess.run([str(binary("pg_dump")), *options], check=True, capture_output=True)
        lines = done.stdout.splitlines(keepends=True)
        return b"".join(line for line in lines if not line.startswith((b"\\restrict", b"\\unrestrict")))

    def restore(self, dump: bytes) -> None:
        options = ("--quiet", "--set=ON_ERROR_STOP=1", "--output=/dev/null", self.address)
        subprocess.run([str(binary("psql")), *options], input=dump, check=True, capture_output=True)

    def _create(self) -> None:
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self._database}".encode())
            path = "shifted, pg_catalog, public"
            connection.execute(f"ALTER DATABASE {self._database} SET search_path = {path}".encode())

    def _connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(self.address, autocommit=True)


def fixture(name: str) -> bytes:
    """A file of the fixtures, decompressed."""
    return lzma.decompress((FIXTURES / f"{name}.xz").read_bytes())


def write_fixture(folder: Path, name: str, content: bytes) -> None:
    """Compress a file into a folder."""
    packed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
    (folder / f"{name}.xz").write_bytes(packed)
    print(f"{name}.xz: {len(packed):,} bytes of {len(content):,}")
