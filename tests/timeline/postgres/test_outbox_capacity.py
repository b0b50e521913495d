"""The capacity of a lane's outbox: counted by its owner from the stored records, separately for each route."""

from typing import Any

import pytest

from tests.contract.factories import NOW, SECOND, add, applied, drain, lane_of, next_due
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.errors import StoreError
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.postgres.store import PostgresStore

ROOM = 20
LEASE_US = 3 * SECOND


async def owner_of(open_store: OpenStore) -> PostgresStore:
    store = await open_store(SimulatedClock(), lanes=1, outbox_rows_max=ROOM)
    assert await store.acquire(0, LEASE_US)
    return store


async def test_a_new_owner_of_a_lane_counts_the_stored_records(open_store: OpenStore) -> None:
    first = await owner_of(open_store)
    await applied(first, *(add(f"row-{index:02}", NOW, topic="kafka:orders") for index in range(2 * ROOM)))
    assert (await drain(first)).handed == ROOM
    await lane_of(first).hold([0, 1, 2], "no such topic")
    await lane_of(first).settle(5)
    await first.resign()
    second = await owner_of(open_store)
    assert (await drain(second)).handed == 5
    assert next_due(second) is None
    assert await lane_of(second).outbox() == (5, ROOM + 5)


async def test_the_outbox_is_counted_again_after_a_failed_release(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was lost, and the release was committed."""
    store = await owner_of(open_store)
    await applied(store, *(add(None, NOW, topic="kafka:orders") for _ in range(2 * ROOM)))
    pool = store._context.pool
    call = pool.call

    async def lose(statement: str, values: Any = ()) -> Any:
        answer = await call(statement, values)
        if statement == store._context.sql["release"]:
            raise StoreError("the connection was lost")
        return answer

    with monkeypatch.context() as lost:
        lost.setattr(pool, "call", lose)
        with pytest.raises(StoreError):
            await lane_of(store).release(NOW, 15)
    assert await lane_of(store).outbox() == (0, 15)
    assert (await drain(store)).handed == ROOM - 15


async def test_a_schedule_for_kafka_from_another_node_wakes_the_owner(open_store: OpenStore) -> None:
    owner = await owner_of(open_store)
    other = await open_store(SimulatedClock(), lanes=1)
    await applied(owner, *(add(None, NOW, topic="kafka:orders") for _ in range(ROOM)))
    await drain(owner)
    await applied(other, add("late", NOW, topic="kafka:orders"))
    lane = owner.lanes()[0]

    async def is_known() -> bool:
        return lane._kafka.due == NOW

    await eventually(is_known)
    assert next_due(owner) is None
    lane.arrived(1)
    assert next_due(owner) == NOW
    assert (await drain(owner)).handed == 1
