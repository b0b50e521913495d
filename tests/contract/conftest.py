"""The fixtures of the suite: `store`, and `open_store` for tests that need options or more than one."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol, Unpack

import pytest

from tests.contract.stores import Options, has_lanes, needs_a_server, opened, parameters
from tidings.ports import Store


class OpenStore(Protocol):
    """Opens a new store of the kind under test."""

    async def __call__(self, **options: Unpack[Options]) -> Store: ...


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the numbers of lanes that a test does not support."""
    unfit = [item for item in items if not _is_fit(item)]
    items[:] = [item for item in items if _is_fit(item)]
    config.hook.pytest_deselected(items=unfit)


def _is_fit(item: pytest.Item) -> bool:
    called = getattr(item, "callspec", None)  # with which parameters
    name = None if called is None else called.params.get("open_store")
    if name is None or not needs_a_server(name):
        return True
    return has_lanes(name) == (item.get_closest_marker("one_lane") is None)


@pytest.fixture(params=parameters())
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(**options: Unpack[Options]) -> Store:
            return await stack.enter_async_context(opened(request.param, tmp_path, **options))

        yield open_one


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()
