"""Servers for the tests of this folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.stores import new_sqlite
from tests.edges.http.notifications.notification_server import NotificationServer, notification_server
from tidings.timeline.memory import MemoryStore


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NotificationServer]:
    """A server over the memory store."""
    async with notification_server(MemoryStore(), tmp_path) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite"])
async def server_on_each_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NotificationServer]:
    """A server over every store in turn."""
    store = MemoryStore() if request.param == "memory" else await new_sqlite(tmp_path / "tidings.db")
    async with notification_server(store, tmp_path) as server:
        yield server
