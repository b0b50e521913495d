"""The office of the tests, with Ada and a reminder in it."""

from collections.abc import AsyncIterator

import pytest

from tests.delivery.office import ACME, ADA, Office, reminder
from tidings.ports import Store
from tidings.testing import SimulatedClock
from tidings.timeline.memory import MemoryStore


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = MemoryStore()
    assert await store.acquire(0, 3_000_000)
    yield store
    await store.close()


@pytest.fixture
async def office(store: Store) -> Office:
    office = Office(store, SimulatedClock())
    await office.users.put(ACME, "ada", ADA)
    await office.templates.put(ACME, "reminder", reminder())
    return office
