"""The nodes of a fleet: lanes by role, the list of nodes, and nodes that ended recently."""

import pytest

from tests.contract.factories import ACME, NOW, SECOND, add
from tests.timeline.postgres.conftest import OpenStore
from tests.timeline.postgres.test_leases import LEASE_US, SHORT_US, numbers
from tidings.clock import SystemClock
from tidings.domain.fleet import Report
from tidings.engine import Engine, Settings
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.postgres.store import PostgresStore

WITHOUT_DISPATCH = Report("front", ("api", "intake"))
WITH_DISPATCH = Report("back", ("dispatch",))


async def acquire(store: PostgresStore, report: Report, lease_us: int = LEASE_US) -> bool:
    return await store.acquire(store.clock.elapsed(), lease_us, report)


async def test_a_node_that_does_not_dispatch_takes_no_lane_and_has_no_share(open_store: OpenStore) -> None:
    front, back, more = [await open_store(SimulatedClock(), lanes=4) for _ in range(3)]
    assert await acquire(front, WITHOUT_DISPATCH), "it takes changes"
    assert numbers(front) == []
    await acquire(back, WITH_DISPATCH)
    assert numbers(back) == [0, 1, 2, 3]
    for _ in range(2):
        for store, report in ((front, WITHOUT_DISPATCH), (back, WITH_DISPATCH), (more, WITH_DISPATCH)):
            await acquire(store, report)
    assert (len(numbers(front)), len(numbers(back)), len(numbers(more))) == (0, 2, 2)
    fleet = await front.nodes(NOW)
    assert [node.report.name for node in fleet.nodes] == ["front", "back", "back"]
    assert [sum(lane.node == node.id for lane in fleet.lanes) for node in fleet.nodes] == [0, 2, 2]


async def test_a_node_that_stops_dispatching_gives_its_lanes_back(open_store: OpenStore) -> None:
    store = await open_store(SimulatedClock(), lanes=4)
    await acquire(store, WITH_DISPATCH)
    assert await acquire(store, WITHOUT_DISPATCH)
    assert numbers(store) == []
    assert {lane.node for lane in (await store.nodes(NOW)).lanes} == {None}


async def test_a_node_without_a_lane_accepts_changes(open_store: OpenStore) -> None:
    stores = [await open_store(SimulatedClock(), lanes=1) for _ in range(2)]
    for store in (*stores, *stores):
        assert await acquire(store, Report())
    (idle,) = [store for store in stores if not store.lanes()]
    (owner,) = [store for store in stores if store.lanes()]
    assert [outcome.outcome for outcome in await idle.apply([add("one")], NOW)] == ["scheduled"]
    (lane,) = owner.lanes()
    assert len((await lane.release(NOW, 10)).lateness_us) == 1


async def test_a_dead_node_is_remembered_and_its_lanes_are_free(open_store: OpenStore) -> None:
    dead, other = [await open_store(SystemClock(), lanes=2) for _ in range(2)]
    await acquire(dead, Report("dead"), SHORT_US)
    await acquire(other, WITHOUT_DISPATCH)

    async def is_gone() -> bool:
        return [node.is_alive for node in (await other.nodes(NOW)).nodes] == [False, True]

    await eventually(is_gone)
    assert [(lane.node, lane.since) for lane in (await other.nodes(NOW)).lanes] == [(None, None), (None, None)]


async def test_a_node_that_leaves_is_forgotten_at_once(open_store: OpenStore) -> None:
    store, other = [await open_store(SystemClock(), lanes=2) for _ in range(2)]
    await acquire(store, WITHOUT_DISPATCH)
    await acquire(other, Report())
    await store.close()
    assert len((await other.nodes(NOW)).nodes) == 1


@pytest.mark.parametrize("roles", [("api",), ("dispatch",)])
async def test_an_engine_is_ready_with_any_roles(open_store: OpenStore, roles: tuple[str, ...]) -> None:
    store = await open_store(SystemClock(), lanes=2)
    engine = Engine(store, SystemClock(), Settings(about=Report("one", roles)))
    await engine.start()
    assert engine.readiness() == (True, "ready")
    outcome = (await engine.submit([add("one", engine.clock.now(), tenant=ACME)]))[0]
    assert outcome.outcome == "scheduled"
    await engine.stop()


async def test_releases_are_reported_with_their_lateness(open_store: OpenStore) -> None:
    store = await open_store(SystemClock(), lanes=2)
    engine = Engine(store, SystemClock(), Settings(about=Report("one")))
    await engine.start()
    await engine.submit([add(f"s{number}", engine.clock.now() - SECOND) for number in range(50)])

    async def reported() -> bool:
        (node,) = (await engine.nodes()).nodes
        return node.report.released == 50 and node.report.p50_us >= SECOND

    await eventually(reported, 10)
    (node,) = (await engine.nodes()).nodes
    assert node.report.p50_us <= node.report.p99_us <= node.report.max_us < 10 * SECOND
    await engine.stop()
