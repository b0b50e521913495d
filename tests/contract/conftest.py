"""The fixtures of the suite: `store`, and `open_store` for tests that need options or more than one."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol, Unpack

import pytest

from tests.contract.stores import Options, has_lanes, opened, parameters
from tidings.ports import Store


class OpenStore(Protocol):
    """Opens a new store of the kind under test."""

    async def __call__(self, **options: Unpack[Options]) -> Store: ...


@pytest.fixture(params=parameters())
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    one_lane = request.node.get_closest_marker("one_lane")
    if one_lane is not None and has_lanes(request.param):
        pytest.skip(f"holds for one lane: {one_lane.args[0]}")
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(**options: Unpack[Options]) -> Store:
            return await stack.enter_async_context(opened(request.param, tmp_path, **options))

        yield open_one


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()
