"""The stores that the suite runs over, and how each is opened."""

import contextlib
import importlib
import importlib.util
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import TypedDict, Unpack

import pytest

from tidings.ports import Store
from tidings.timeline.memory import MemoryStore

LEASE_US = 3_000_000

NAMES = ("memory", "sqlite")

# A store that is being written may be named here until its module is there. Empty: every store is mandatory.
MAY_BE_MISSING: frozenset[str] = frozenset()

_numbers: Iterator[int] = count(1)


class Options(TypedDict, total=False):
    """What every store can be told when it is opened."""

    partitions: int
    id_retention_us: int
    retention_us: int
    retention_bytes: int | None
    receipt_retention_us: int
    created: int


def is_missing(name: str) -> bool:
    """Whether a store is not written yet; one that is there but broken is not missing."""
    if name not in MAY_BE_MISSING:
        return False
    try:
        return importlib.util.find_spec(f"tidings.timeline.{name}.store") is None
    except ModuleNotFoundError:
        return True


def parameters() -> list[object]:
    """The stores for `pytest.fixture(params=...)`; those that are not written yet are skipped and say so."""
    unwritten = pytest.mark.skip(reason="this store is not written yet")
    return [pytest.param(name, marks=[unwritten] if is_missing(name) else []) for name in NAMES]


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
            module = importlib.import_module("tidings.timeline.sqlite.store")
            store: Store = await module.SqliteStore.open(folder / f"{next(_numbers)}.db", **options)
            return store
        case _:
            raise AssertionError(f"no way to open {name} is known")
