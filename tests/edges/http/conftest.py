"""Servers for the tests of this folder."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.contract.stores import new_sqlite
from tests.edges.http.site import Site, serving
from tidings.edges.http.openapi.describe import describe
from tidings.timeline.memory import MemoryStore

POLL_S = 0.001


@pytest.fixture(scope="session", autouse=True)
def one_description() -> Iterator[None]:
    """Derive the OpenAPI document once for each version: it takes longer than all else that starts a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidings.edges.http.admin.describe", cache(describe))
        yield


@pytest.fixture(scope="session", autouse=True)
def short_pauses() -> Iterator[None]:
    """Let a server that stops look more often whether it may: uvicorn waits for 0.1 s, longer than most tests take."""
    hurried = SimpleNamespace(**vars(asyncio) | {"sleep": partial(asyncio.sleep, POLL_S)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", hurried)
        yield


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A server over the memory store."""
    async with serving(MemoryStore()) as served:
        yield served


@pytest.fixture(params=["memory", "sqlite"])
async def each_site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """A server over every store in turn."""
    store = MemoryStore() if request.param == "memory" else await new_sqlite(tmp_path / "tidings.db")
    async with serving(store) as served:
        yield served
