"""Lanes and leases: shared evenly, handed over at once, taken over after a crash, and no zombie writes."""

import asyncio

import pytest

from tests.contract.factories import ACME, NOW, SECOND, add, records
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.clock import SystemClock
from tidings.domain.errors import NotOwner, StoreError
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.postgres.lane import PostgresLane
from tidings.timeline.postgres.pool import rows
from tidings.timeline.postgres.store import PostgresStore

LEASE_US = 3 * SECOND
SHORT_US = 1_500_000


def numbers(store: PostgresStore) -> list[int]:
    return [lane.number for lane in store.lanes()]


async def acquire(*stores: PostgresStore, lease_us: int = LEASE_US, rounds: int = 3) -> None:
    """Let each renew a few times, as its owner does."""
    for _ in range(rounds):
        for store in stores:
            await store.acquire(store.clock.elapsed(), lease_us)


async def test_a_single_node_owns_all_lanes(open_store: OpenStore) -> None:
    store = await open_store(SimulatedClock())
    assert not store.lanes()
    assert await store.acquire(0, LEASE_US)
    assert numbers(store) == list(range(16))


@pytest.mark.parametrize(("lanes", "nodes"), [(16, 2), (16, 3), (4, 3), (2, 3), (1, 2)])
async def test_nodes_share_lanes_evenly(open_store: OpenStore, lanes: int, nodes: int) -> None:
    stores = [await open_store(SimulatedClock(), lanes=lanes) for _ in range(nodes)]
    await acquire(stores[0])
    await acquire(*stores)
    owned = [numbers(store) for store in stores]
    assert sorted(number for each in owned for number in each) == list(range(lanes)), "each lane once"
    sizes = sorted(len(each) for each in owned)
    assert sizes[-1] - sizes[0] <= 1


async def test_shared_lanes_stay_with_their_nodes(open_store: OpenStore) -> None:
    stores = [await open_store(SimulatedClock()) for _ in range(3)]
    await acquire(*stores)
    tokens = [{lane.number: lane.token for lane in store.lanes()} for store in stores]
    await acquire(*stores)
    assert [{lane.number: lane.token for lane in store.lanes()} for store in stores] == tokens


async def test_a_node_that_resigns_hands_over_at_once_and_notifies_others(open_store: OpenStore) -> None:
    first, second = [await open_store(SystemClock()) for _ in range(2)]
    await acquire(first, second)
    called = asyncio.Event()
    second.on_free(called.set)
    await first.resign()
    assert not first.lanes()
    await asyncio.wait_for(called.wait(), 5)
    await acquire(second, rounds=1)
    assert numbers(second) == list(range(16))


async def test_lanes_of_a_crashed_node_are_free_when_its_lease_expires(open_store: OpenStore) -> None:
    crashed, other = [await open_store(SystemClock(), lanes=4) for _ in range(2)]
    await acquire(crashed, other, lease_us=SHORT_US)
    assert len(numbers(other)) == 2

    async def owns_all() -> bool:
        await acquire(other, lease_us=SHORT_US, rounds=1)
        return len(numbers(other)) == 4

    await eventually(owns_all, 5)
    assert numbers(crashed) == [], "by its own clock it owned nothing before anybody else did"


async def test_a_lease_counts_from_before_the_request_by_the_clock_of_the_node(open_store: OpenStore) -> None:
    clock = SimulatedClock(elapsed=7 * SECOND)
    store = await open_store(clock)
    await store.acquire(5 * SECOND, LEASE_US)  # two seconds ago, and the answer came only now
    assert len(store.lanes()) == 16
    clock.advance(SECOND - 1)
    assert len(store.lanes()) == 16
    (lane, *_) = store.lanes()
    clock.advance(1)
    assert not store.lanes()
    with pytest.raises(NotOwner, match="expired"):
        await lane.release(NOW, 100)


async def test_a_busy_lane_does_not_delay_the_renewal_of_leases(open_store: OpenStore) -> None:
    """However long its release takes, no lease of the node expires."""
    store, other = [await open_store(SystemClock(), lanes=4) for _ in range(2)]
    await acquire(store, rounds=1)
    (lane, *_) = store.lanes()
    async with store._context.pool.transaction() as connection:
        await rows(connection, store._context.sql["own"], (lane.number, lane.token))
        await asyncio.wait_for(acquire(store, rounds=1), 1)
        assert numbers(store) == [0, 1, 2, 3]
        await asyncio.wait_for(store.resign(), 1)
        await acquire(other, rounds=1)
        assert numbers(other) == [1, 2, 3], "what it still works on is left for later"
    await acquire(other, rounds=1)
    assert numbers(other) == [0, 1, 2, 3]


async def test_busy_lanes_are_given_back_later(open_store: OpenStore) -> None:
    store, other = [await open_store(SystemClock(), lanes=2) for _ in range(2)]
    await acquire(store, rounds=1)
    async with store._context.pool.transaction() as connection:
        for lane in store.lanes():
            await rows(connection, store._context.sql["own"], (lane.number, lane.token))
        await acquire(other, store, rounds=1)
        assert numbers(store) == [0, 1]
    await acquire(store, other, rounds=1)
    assert (numbers(store), numbers(other)) == ([0], [1])


async def test_idle_lanes_are_given_back_at_once(open_store: OpenStore) -> None:
    """A lane that is busy for long does not delay others: there may be no time when all are idle."""
    store, other = [await open_store(SystemClock(), lanes=4) for _ in range(2)]
    await acquire(store, rounds=1)
    async with store._context.pool.transaction() as connection:
        lane = store.lanes()[-1]
        await rows(connection, store._context.sql["own"], (lane.number, lane.token))
        await acquire(other, store, other, rounds=1)
        assert (numbers(store), numbers(other)) == ([0, 3], [1, 2])


async def test_a_store_clock_set_back_does_not_extend_the_lease_of_a_dead_node(
    open_store: OpenStore, postgres: Postgres, schema: str
) -> None:
    """As after a failover to a server whose clock is behind."""
    dead, other = [await open_store(SystemClock(), lanes=2) for _ in range(2)]
    await acquire(dead, rounds=1)
    with postgres.connect() as connection:
        body = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 60000000"
        function = f"CREATE OR REPLACE FUNCTION {schema}.now() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT {body}'"
        connection.execute(function.encode())
    assert [node.is_alive for node in (await other.nodes(NOW)).nodes] == [False]
    await acquire(other, rounds=1)
    assert numbers(other) == [0, 1]


async def test_an_abandoned_transaction_holds_its_lane_no_longer_than_a_lease(open_store: OpenStore) -> None:
    """As when a machine loses power or network during a release of recurring schedules."""
    gone, other = [await open_store(SystemClock(), lanes=1) for _ in range(2)]
    await acquire(gone, rounds=1)
    (lane,) = gone.lanes()
    begun = SystemClock().elapsed()

    async def owns() -> bool:
        await acquire(other, rounds=1)
        return bool(other.lanes())

    async def stand_still() -> None:
        async with gone._context.pool.transaction() as connection:
            await rows(connection, gone._context.sql["own"], (lane.number, lane.token))
            await eventually(owns, 10)

    with pytest.raises(StoreError):
        await stand_still()
    assert SystemClock().elapsed() - begun < LEASE_US + SECOND


async def zombie(open_store: OpenStore) -> tuple[PostgresLane, PostgresStore]:
    """A lane of a node that was suspended for longer than its lease, and its present owner."""
    clock = SimulatedClock()
    still = await open_store(clock, lanes=1)
    await still.acquire(0, 1)
    (lane,) = still.lanes()
    assert isinstance(lane, PostgresLane)
    owner = await open_store(SimulatedClock(), lanes=1)
    await still.apply([add("one"), add("kafka", topic="kafka:orders")], NOW)

    async def owns() -> bool:
        await owner.acquire(0, LEASE_US)
        return len(owner.lanes()) == 1

    await eventually(owns)
    return lane, owner


@pytest.mark.parametrize(
    "act",
    [
        lambda lane: lane.release(NOW, 100),
        lambda lane: lane.settle(1),
        lambda lane: lane.hold([0], "reason"),
        lambda lane: lane.free([0]),
        lambda lane: lane.drop(0, "too_large", [], NOW),
        lambda lane: lane.confirm(),
    ],
    ids=["release", "settle", "hold", "free", "drop", "confirm"],
)
async def test_a_zombie_changes_nothing(open_store: OpenStore, act: object) -> None:
    lane, owner = await zombie(open_store)
    with pytest.raises(NotOwner):
        await act(lane)  # type: ignore[operator]
    assert await records(owner) == []
    (mine,) = owner.lanes()
    assert await mine.outbox() == (0, 0)
    await mine.confirm()
    assert len((await mine.release(NOW, 100)).lateness_us) == 1


async def test_a_release_of_recurring_schedules_is_fenced_too(open_store: OpenStore) -> None:
    lane, _ = await zombie(open_store)
    with pytest.raises(NotOwner):
        await lane._release_recurring([[1, NOW, 1]], NOW, object())  # type: ignore[arg-type]


async def test_a_schedule_accepted_by_another_node_wakes_the_owner(open_store: OpenStore) -> None:
    """By NOTIFY, long before the next poll could find it."""
    owner, other = [await open_store(SystemClock(), lanes=1) for _ in range(2)]
    await acquire(owner, rounds=1)
    (lane,) = owner.lanes()
    woken = asyncio.Event()
    lane.watch(woken.set)
    now = SystemClock().now()
    await other.apply([add("first", now + 60 * SECOND)], now)
    await eventually(lambda: lane.next_due() == now + 60 * SECOND)
    woken.clear()
    await other.apply([add("soon", now + SECOND)], now)
    await asyncio.wait_for(woken.wait(), 5)
    assert lane.next_due() == now + SECOND


async def test_more_lanes_than_fit_into_a_notification_are_all_woken(open_store: OpenStore) -> None:
    owner, other = [await open_store(SystemClock(), lanes=256, partitions=256) for _ in range(2)]
    await acquire(owner, rounds=1)
    await eventually(lambda: owner._watch.is_listening)
    owner._watch._tasks[1].cancel()
    now = SystemClock().now()
    topics = ("greetings", "kafka:orders")
    await other.apply([add(f"s{number}", now, topic=topics[number % 2]) for number in range(4_000)], now)
    routes = owner._context.next_due.routes.values()
    await eventually(lambda: all(head.due == now for head in routes))


async def test_without_notifications_polling_finds_new_schedules(open_store: OpenStore) -> None:
    """Behind PgBouncer there are no notifications: it polls often instead."""
    owner, other = [await open_store(SystemClock(), lanes=1) for _ in range(2)]
    await acquire(owner, rounds=1)
    owner._watch._tasks[0].cancel()
    (lane,) = owner.lanes()
    now = SystemClock().now()
    await other.apply([add("soon", now)], now)
    await eventually(lambda: lane.next_due() is not None)
    await eventually(lambda: not owner._watch.is_listening, 10)
    await other.apply([add("before", now - SECOND, tenant=ACME)], now)
    await eventually(lambda: lane.next_due() == now - SECOND)


async def test_a_store_clock_that_is_behind_delays_releases(open_store: OpenStore) -> None:
    """Nothing is released before its due time by the clock of the store, whatever the clock of the node shows."""
    ahead = SimulatedClock(SystemClock().now() + 3600 * SECOND)
    store = await open_store(ahead, lanes=1)
    await store.acquire(0, LEASE_US)
    (lane,) = store.lanes()
    due = ahead.now() - 1800 * SECOND
    await store.apply([add("one", due)], ahead.now())
    assert not (await lane.release(ahead.now(), 10, ahead)).lateness_us
    assert lane.next_due() is not None
    assert (lane.next_due() or 0) > ahead.now(), "and it is not asked again before its time"
