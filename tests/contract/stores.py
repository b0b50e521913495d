"""The stores that the suite runs over, and how each is opened."""

import atexit
import contextlib
import importlib
import importlib.util
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import TypedDict, Unpack

import pytest

from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out
from tests.servers.postgres import Postgres
from tidings.ports import Store
from tidings.testing import SimulatedClock
from tidings.timeline.memory import MemoryStore
from tidings.timeline.sqlite.database import prepare
from tidings.timeline.sqlite.store import SqliteStore

LEASE_US = 3_000_000

# A store with four lanes has a batch, an outbox and a partition for each: what holds for one batch, for one order, or
# of the partition that a key chooses, holds for a single lane and is marked `one_lane`. On a server the suite runs
# once: what is so marked on one lane, all else on four.
NAMES = ("memory", "sqlite", "postgres", "postgres-4")

# A store that is being written may be named here until its module is there. Empty: every store is mandatory.
MAY_BE_MISSING: frozenset[str] = frozenset()

_numbers: Iterator[int] = count(1)


class Options(TypedDict, total=False):
    """The options of every store."""

    partitions: int
    id_retention_us: int
    retention_us: int
    retention_bytes: int | None
    idempotency_retention_us: int
    created: int
    outbox_rows_max: int
    outbox_bytes_max: int


class Served:
    """The server of the stores that need one: started for the first of them, ended with the tests."""

    server: Postgres | None = None

    @classmethod
    def dsn(cls) -> str:
        if cls.server is None:
            try:
                cls.server = Postgres.start()
            except Missing as missing:
                leave_out(missing)
            atexit.register(cls.server.close)
        return cls.server.dsn


def is_missing(name: str) -> bool:
    """Whether a store is not written yet; one that is there but broken is not missing."""
    if name not in MAY_BE_MISSING:
        return False
    try:
        return importlib.util.find_spec(f"tidings.timeline.{kind(name)}.store") is None
    except ModuleNotFoundError:
        return True


def kind(name: str) -> str:
    """The folder of a store."""
    return name.partition("-")[0]


def has_lanes(name: str) -> bool:
    """Whether a store has more than one lane."""
    return "-" in name


def needs_a_server(name: str) -> bool:
    """Whether it takes its time to be tested."""
    return kind(name) == "postgres"


def parameters(*, lanes: bool = True) -> list[object]:
    """The stores for `pytest.fixture(params=...)`, or those of one lane; unwritten ones are skipped with a reason."""
    unwritten = pytest.mark.skip(reason="this store is not written yet")
    return [
        pytest.param(name, marks=unwritten if is_missing(name) else [pytest.mark.slow] * needs_a_server(name))
        for name in NAMES
        if lanes or not has_lanes(name)
    ]


@contextlib.asynccontextmanager
async def opened(name: str, folder: Path, **options: Unpack[Options]) -> AsyncIterator[Store]:
    """A new, empty store that this process owns."""
    store = await _open(name, folder, options)
    try:
        assert await store.acquire(0, LEASE_US)
        yield store
    finally:
        await store.close()


async def _open(name: str, folder: Path, options: Options) -> Store:
    match name:
        case "memory":
            return MemoryStore(**options)
        case "sqlite":
            return await new_sqlite(folder / f"{next(_numbers)}.db", **options)
        case "postgres" | "postgres-4":
            return await _open_postgres(4 if name.endswith("4") else 1, options)
        case _:
            raise AssertionError(f"no way to open {name} is known")


async def new_sqlite(path: Path, **options: Unpack[Options]) -> SqliteStore:
    """A new SQLite store. Its empty tables are copied: to create them takes longer than most tests."""
    _copy_empty(path)
    return await SqliteStore.open(path, **options)


def _copy_empty(path: Path) -> None:
    path.write_bytes(_empty_file())


@cache
def _empty_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        prepare(str(path))
        return path.read_bytes()


async def _open_postgres(lanes: int, options: Options) -> Store:
    """A schema of its own for each store, and a fixed clock, so that no lease expires.

    Nothing is polled: a poll that is answered during a release makes it read once more than these tests count.
    """
    module = importlib.import_module("tidings.timeline.postgres.store")
    schema = f"contract_{os.getpid()}_{next(_numbers)}"
    store = await module.PostgresStore.open(Served.dsn(), SimulatedClock(), lanes=lanes, schema=schema, **options)
    await store._watch.stop()
    opened: Store = store
    return opened
