"""Servers for the tests of this folder."""

import importlib.util
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.edges.http.site import Site, serving
from tidings.edges.http.openapi.describe import describe
from tidings.timeline.memory import MemoryStore


@pytest.fixture(scope="session", autouse=True)
def one_description() -> Iterator[None]:
    """Derive the OpenAPI document once for each version: it takes longer than all else that starts a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidings.edges.http.admin.describe", cache(describe))
        yield


def has_sqlite() -> bool:
    return importlib.util.find_spec("tidings.timeline.sqlite.store") is not None


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A server over the memory store."""
    async with serving(MemoryStore()) as served:
        yield served


@pytest.fixture(
    params=["memory", pytest.param("sqlite", marks=pytest.mark.skipif(not has_sqlite(), reason="no store"))]
)
async def each_site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """A server over every store in turn."""
    if request.param == "memory":
        async with serving(MemoryStore()) as served:
            yield served
        return
    from tidings.timeline.sqlite.store import SqliteStore

    async with serving(await SqliteStore.open(tmp_path / "tidings.db")) as served:
        yield served
