"""The office of the tests, with Ada and a reminder in it, over every store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.stores import opened, parameters
from tests.delivery.office import ACME, ADA, Office, reminder
from tests.delivery.world import World, living
from tests.servers.fixtures import postgres
from tidings.ports import Store
from tidings.testing import SimulatedClock

__all__ = ["postgres"]


@pytest.fixture(params=parameters(lanes=False))  # documents know no lanes
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture
async def office(store: Store) -> Office:
    office = Office(store, SimulatedClock())
    await office.users.put(ACME, "ada", ADA)
    await office.templates.put(ACME, "reminder", reminder())
    return office


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with living() as world:
        yield world
