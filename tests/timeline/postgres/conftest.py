"""The fixtures of these tests: a server, and stores in a schema of their own."""

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.servers.fixtures import postgres
from tests.servers.postgres import Postgres
from tidings.clock import Clock
from tidings.engine import Engine
from tidings.timeline.postgres.store import PostgresStore

__all__ = ["postgres"]

_numbers = itertools.count(1)
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a server are not part of the quick check."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.slow)


class OpenStore(Protocol):
    """Opens a node on the database of the test: the same schema for all of them."""

    async def __call__(self, clock: Clock | None = None, **options: Any) -> PostgresStore: ...


async def abandon(engine: Engine) -> None:
    """End a node as a crash would: nothing is handed over, no lease is released."""
    store = engine.store
    assert isinstance(store, PostgresStore)
    await store._watch.stop()
    await store._vacuum.stop()
    await store._pools.close()
    for task in engine._tasks:
        task.cancel()


@pytest.fixture
def schema() -> str:
    return f"test_{next(_numbers)}"


@pytest.fixture
async def open_store(postgres: Postgres, schema: str) -> AsyncIterator[OpenStore]:
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(clock: Clock | None = None, **options: Any) -> PostgresStore:
            store = await PostgresStore.open(postgres.dsn, clock, schema=schema, **options)
            stack.push_async_callback(store.close)
            return store

        yield open_one
