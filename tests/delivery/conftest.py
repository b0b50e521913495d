"""All services of delivery over every store, with the user Ada and the template `reminder`."""

import os
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.contract.stores import Served, new_sqlite, opened, parameters
from tests.delivery.services import ACME, ADA, Services, reminder
from tests.delivery.world import World, started_world
from tests.servers.fixtures import postgres
from tidings.clock import SystemClock
from tidings.ports import Store
from tidings.testing import SimulatedClock
from tidings.timeline.memory import MemoryStore
from tidings.timeline.postgres.store import PostgresStore

__all__ = ["postgres"]

_numbers = count(1)


@pytest.fixture(params=parameters(lanes=False))  # documents do not depend on lanes
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture
async def services(store: Store) -> Services:
    services = Services(store, SimulatedClock())
    await services.users.put(ACME, "ada", ADA)
    await services.templates.put(ACME, "reminder", reminder())
    return services


@pytest.fixture(params=parameters(lanes=False))
async def world_on_each_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(await _open(request.param, tmp_path)) as world:
        yield world


async def _open(name: str, folder: Path) -> Store:
    """A new store on the system's clock, which an engine will own."""
    if name == "memory":
        return MemoryStore()
    if name == "sqlite":
        return await new_sqlite(folder / "world.db")
    schema = f"world_{os.getpid()}_{next(_numbers)}"
    return await PostgresStore.open(Served.dsn(), SystemClock(), lanes=1, schema=schema)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        yield world
