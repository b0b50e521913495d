"""Every store shows its owner, with the report of that node."""

import msgspec

from tests.contract.factories import NOW, SECOND, add
from tests.contract.stores import LEASE_US
from tidings.domain.fleet import Report
from tidings.ports import Store

REPORT = Report("north:1", ("api", "dispatch"), "http://north:8460", "0.1.0", NOW, 7, 1_000, 2_000, 3_000)


async def test_the_owner_is_shown_with_its_report(store: Store) -> None:
    assert await store.acquire(0, LEASE_US, REPORT)
    fleet = await store.nodes(NOW)
    (node,) = fleet.nodes
    assert node.is_alive
    assert msgspec.structs.replace(node.report, ahead_us=0) == REPORT
    assert {lane.node for lane in fleet.lanes} == {node.id}
    assert [lane.number for lane in fleet.lanes] == list(range(len(store.lanes())))
    assert all(lane.since is not None and lane.overdue_us == 0 for lane in fleet.lanes)


async def test_a_new_report_replaces_the_old_one(store: Store) -> None:
    await store.acquire(0, LEASE_US, REPORT)
    (before,) = (await store.nodes(NOW)).nodes
    await store.acquire(0, LEASE_US, msgspec.structs.replace(REPORT, at=NOW + SECOND, released=8))
    (node,) = (await store.nodes(NOW + SECOND)).nodes
    assert node.report.released == 8
    assert (node.id, node.since) == (before.id, before.since)


async def test_the_lateness_of_a_lane_is_shown(store: Store) -> None:
    await store.acquire(0, LEASE_US, REPORT)
    await store.apply([add("late", NOW - 5 * SECOND), add("later", NOW - SECOND), add("future", NOW + SECOND)], NOW)
    overdue = [lane.overdue_us for lane in (await store.nodes(NOW)).lanes]
    assert max(overdue) == 5 * SECOND
    for lane in store.lanes():
        await lane.release(NOW, 100)
    assert not any(lane.overdue_us for lane in (await store.nodes(NOW)).lanes)


async def test_a_node_that_resigned_owns_nothing(store: Store) -> None:
    await store.acquire(0, LEASE_US, REPORT)
    await store.resign()
    fleet = await store.nodes(NOW)
    owners = {lane.node for lane in fleet.lanes}
    assert owners == {None} or type(store).__name__ == "MemoryStore", "a store in memory has only one process"
