"""Desks for the tests of this folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.edges.http.notifications.notification_server import Desk, staffed
from tidings.timeline.memory import MemoryStore
from tidings.timeline.sqlite.store import SqliteStore


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """One over the memory store."""
    async with staffed(MemoryStore(), tmp_path) as open_desk:
        yield open_desk


@pytest.fixture(params=["memory", "sqlite"])
async def each_desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    """One over every store in turn."""
    store = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "tidings.db")
    async with staffed(store, tmp_path) as open_desk:
        yield open_desk
