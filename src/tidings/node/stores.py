"""Which store an address names: PostgreSQL by its URL, SQLite by its file, or memory."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tidings.clock import Clock
from tidings.config import Config
from tidings.domain.errors import Invalid, TidingsError
from tidings.ports import Store

MEMORY = ":memory:"
POSTGRES = ("postgres://", "postgresql://")


class CannotStart(TidingsError):
    """A node that must not run like this; the text says how to go on."""


async def open_store(path: str, config: Config, clock: Clock) -> Store:
    """The store that a path names; `:memory:` forgets everything at its end."""
    options: dict[str, Any] = {
        "partitions": config.log.partitions,
        "id_retention_us": config.ids.retention_us,
        "retention_us": config.log.retention_us,
        "retention_bytes": config.log.retention_bytes,
        "receipt_retention_us": config.ids.idempotency_retention_us,
        "created": clock.now(),
    }
    if path == MEMORY:
        from tidings.timeline.memory.store import MemoryStore

        return MemoryStore(**options)
    if is_postgres(path):
        try:
            from tidings.timeline.postgres.store import PostgresStore
        except ImportError:
            raise CannotStart("PostgreSQL needs its client: pip install 'tidings[postgres]'") from None
        return await PostgresStore.open(path, clock, **options)
    from tidings.timeline.sqlite.store import SqliteStore

    if file_of(path).is_dir():
        raise Invalid("store", f"{path} is a folder: name a file in it, such as {Path(path) / 'tidings.db'}")
    return await SqliteStore.open(file_of(path), **options)


def is_postgres(path: str) -> bool:
    """Whether a path is the URL of a database rather than a file."""
    return path.startswith(POSTGRES)


def file_of(path: str) -> Path:
    """The file that a path names, `~` understood."""
    return Path(path).expanduser()


def is_there(path: str) -> bool:
    """Whether there is such a store already, as far as can be told without opening it."""
    return is_postgres(path) or (path != MEMORY and file_of(path).exists())


def shown(path: str) -> str:
    """A store's address for people to read: without its password."""
    if not is_postgres(path):
        return path if path == MEMORY else str(file_of(path).resolve())
    parts = urlsplit(path)
    return urlunsplit(parts._replace(netloc=_without_password(parts.netloc), query="", fragment=""))


def _without_password(netloc: str) -> str:
    user, at, host = netloc.rpartition("@")
    return user.partition(":")[0] + at + host
