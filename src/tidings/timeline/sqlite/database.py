"""Opening the file: connections, pragmas, migrations, and the queries by name."""

import re
from importlib.resources import files
from pathlib import Path

import apsw

from tidings.domain.errors import StoreError

BUSY_MS = 5_000
CACHE_KIB = 16 * 1024
PAGE_BYTES = 4_096  # with 8 KiB the many tails of intake make every commit half as large again
APPLICATION_ID = 0x7469_6469  # "tidi"

_SQL = files(__package__) / "sql"


def queries(name: str) -> dict[str, str]:
    """The statements of a .sql file, each under its `-- name:` line."""
    text = (_SQL / f"{name}.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


def connect(path: str, *, reader: bool = False) -> apsw.Connection:
    """A connection with our pragmas: write-ahead log, and every commit on disk before it returns."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(BUSY_MS)
    pragmas = [
        f"page_size={PAGE_BYTES}",
        "synchronous=FULL",
        f"cache_size=-{CACHE_KIB}",
        "temp_store=MEMORY",
        "foreign_keys=OFF",
    ]
    if reader:
        pragmas.append("query_only=ON")
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def prepare(path: str) -> None:
    """Make the file if it is new, bring an older layout up to date, refuse what we do not know."""
    try:
        if Path(path).parent.is_dir() and not Path(path).exists():
            Path(path).touch(mode=0o600)  # it will hold everybody's messages
        _prepare(path)
    except apsw.NotADBError as error:
        raise StoreError(f"{path} is not a Tidings store: {error}. Name another file with --store.") from None
    except (apsw.CantOpenError, OSError) as error:
        raise StoreError(f"{path} cannot be opened: {error}. Does its folder exist, and may we write there?") from None
    except apsw.ReadOnlyError:
        raise StoreError(f"{path} is read-only: Tidings needs to write to it and beside it.") from None
    except apsw.Error as error:
        raise StoreError(f"{path}: {explain(error)}") from None


def _prepare(path: str) -> None:
    connection = connect(path)
    try:
        application = connection.pragma("application_id")
        if application not in {0, APPLICATION_ID} or (application == 0 and _has_tables(connection)):
            raise StoreError(f"{path} is a database of another program. Name another file with --store.")
        connection.pragma("journal_mode", "wal")
        _migrate(connection, path)
    finally:
        connection.close()


def _has_tables(connection: apsw.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None


def _migrate(connection: apsw.Connection, path: str) -> None:
    migrations = migration_files()
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.pragma("user_version")
        if version > len(migrations):
            raise StoreError(
                f"{path} was written by a newer Tidings (layout {version}, this one knows {len(migrations)}): "
                "upgrade Tidings, or name another file with --store."
            )
        for number in range(version, len(migrations)):
            connection.execute(migrations[number].read_text())
        if version < len(migrations):
            connection.pragma("user_version", len(migrations))
            connection.pragma("application_id", APPLICATION_ID)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def migration_files() -> list[Path]:
    """The numbered layouts, oldest first."""
    folder = Path(str(_SQL))
    return sorted(folder.glob("[0-9][0-9][0-9][0-9]_*.sql"))


def file_bytes(path: str) -> int:
    """What the store takes on disk, its write-ahead log included."""
    files_there = (Path(path + end) for end in ("", "-wal"))
    return sum(file.stat().st_size for file in files_there if file.exists())


def explain(error: apsw.Error) -> str:
    """What went wrong in the file, and what to do."""
    match error:
        case apsw.FullError():
            return "the disk is full: nothing was changed. Free some space; Tidings goes on by itself."
        case apsw.BusyError():
            return "the store is locked by another program for more than 5 s: end what holds it."
        case apsw.IOError():
            return f"the disk failed: {error}. Nothing was acknowledged."
        case apsw.CorruptError():
            return f"the file is damaged: {error}. Put back a copy, or name another file with --store."
        case _:
            return f"the store failed: {error}"
