"""Rebalances: partitions move once committed, from dead members within five seconds, without races with the store."""

import asyncio

import pytest

from tests.bus.members import Scene, behind, partitions_of, refused, take_all
from tests.bus.simulation import SECOND_US, elapse, simulated, the_clock
from tidings.bus.consumer_groups import Membership
from tidings.domain.errors import NotAMember
from tidings.domain.schedules.schedule import Record

# --- moving ---


@simulated
async def test_a_partition_moves_only_after_its_records_are_committed() -> None:
    scene = Scene()
    first = await scene.join()
    records = await scene.fetch(first)
    second = await scene.join()
    assert second.partitions == (2, 3)
    fetching = asyncio.create_task(scene.fetch(second, wait_us=2 * SECOND_US))
    await elapse(SECOND_US)
    assert not fetching.done()
    await scene.commit(first, behind(records))  # before it learns of the change
    scene.publish(2)
    assert [(r.partition, r.offset) for r in await fetching] == [(2, 10)]
    assert (await scene.heartbeat(first)).partitions == (0, 1)


@simulated
async def test_the_next_fetch_hands_over_lost_partitions() -> None:
    scene = Scene()
    first = await scene.join()
    await scene.fetch(first)
    second = await scene.join()
    await refused(lambda: scene.fetch(first))  # it must send a heartbeat first
    assert await scene.fetch(second) == []
    first = await scene.heartbeat(first)
    assert await scene.fetch(second) == []
    await scene.fetch(first)
    assert len(await scene.fetch(second)) == 20


@simulated
async def test_an_uncommitted_partition_moves_after_a_session() -> None:
    scene = Scene()
    first = await scene.join()
    await scene.fetch(first)
    second = await scene.join()
    since = the_clock().elapsed()
    alive = asyncio.create_task(scene.keep_alive(first, 8 * SECOND_US))
    while not (records := await scene.fetch(second, wait_us=SECOND_US)):
        pass
    assert partitions_of(records) == [2, 3]
    assert 4 * SECOND_US <= the_clock().elapsed() - since <= 5 * SECOND_US
    await refused(lambda: scene.commit(first, {2: 10}))
    await alive


@pytest.mark.parametrize("waiting", [True, False])
@simulated
async def test_partitions_of_a_dead_member_move_within_five_seconds(waiting: bool) -> None:
    """Also of a member that died while waiting for records, which the server does not notice."""
    scene = Scene()
    dead = await scene.join()
    living = await scene.join()
    living = await take_all(scene, living)
    dead = await scene.heartbeat(dead)
    assert len(await scene.fetch(dead)) == 20
    lost = asyncio.create_task(scene.fetch(dead, wait_us=60 * SECOND_US if waiting else 0))
    await elapse()
    died = the_clock().elapsed()
    got: list[Record] = []
    while len(got) < 20:
        got += await fetch_on(scene, living, waiting)
        living = await scene.heartbeat(living)
    assert the_clock().elapsed() - died <= 5 * SECOND_US
    assert partitions_of(got) == [0, 1]
    assert await lost == []


async def fetch_on(scene: Scene, m: Membership, waiting: bool) -> list[Record]:
    if not waiting:
        await elapse(SECOND_US // 2)
    return await scene.fetch(await scene.heartbeat(m), wait_us=60 * SECOND_US if waiting else 0)


@simulated
async def test_a_waiting_member_gets_the_partitions_of_an_expired_one_to_the_millisecond() -> None:
    scene = Scene()
    await take_all(scene, await scene.join())
    living = await scene.join()
    await scene.keep_alive(living, 3 * SECOND_US)
    assert await scene.fetch(living, wait_us=2 * SECOND_US) == []
    assert 4 * SECOND_US <= the_clock().elapsed() <= 4 * SECOND_US + 1_000
    assert (await scene.heartbeat(living)).partitions == (0, 1, 2, 3)


@simulated
async def test_a_waiting_member_learns_at_once_that_its_partitions_changed() -> None:
    scene = Scene()
    first = await take_all(scene, await scene.join())
    fetching = asyncio.create_task(scene.fetch(first, wait_us=2 * SECOND_US))
    await elapse(SECOND_US)
    second = await scene.join()
    assert await fetching == []
    assert the_clock().elapsed() == SECOND_US
    first = await scene.heartbeat(first)
    fetching = asyncio.create_task(scene.fetch(first, wait_us=2 * SECOND_US))
    await elapse(SECOND_US)
    await scene.leave(second)
    assert await fetching == []
    assert (await scene.heartbeat(first)).partitions == (0, 1, 2, 3)


@simulated
async def test_leaving_ends_the_members_own_wait() -> None:
    scene = Scene()
    m = await take_all(scene, await scene.join())
    fetching = asyncio.create_task(scene.fetch(m, wait_us=2 * SECOND_US))
    await elapse()
    await scene.leave(m)
    with pytest.raises(NotAMember):
        await fetching


# --- races with the store ---


@pytest.mark.parametrize("abandoned", [True, False])
@simulated
async def test_a_commit_in_progress_finishes_before_a_rebalance(abandoned: bool) -> None:
    """Even if its caller has gone: the next holder starts after it, and it cannot be applied later."""
    scene = Scene()
    first = await scene.join()
    records = await scene.fetch(first)
    scene.log.writable.clear()
    committing = asyncio.create_task(scene.commit(first, behind(records)))
    await elapse()
    if abandoned:
        committing.cancel()
    await elapse(5 * SECOND_US)  # the first member's session is over
    joining = asyncio.create_task(scene.join())
    await elapse(SECOND_US)
    assert not joining.done()
    scene.log.writable.set()
    second = await joining
    await asyncio.wait([committing])
    assert second.partitions == (0, 1, 2, 3)
    assert await scene.fetch(second) == []
    await refused(lambda: scene.commit(first, {0: 1}))
    assert scene.log.commits == [behind(records)]


@simulated
async def test_a_slow_store_does_not_end_sessions() -> None:
    scene = Scene()
    first = await scene.join()
    second = await scene.join()
    first = await scene.heartbeat(first)
    scene.log.writable.clear()
    committing = asyncio.create_task(scene.commit(second, {2: 1}))
    await elapse(3 * SECOND_US)
    beating = [asyncio.create_task(scene.heartbeat(m)) for m in (first, second)]
    await elapse(3 * SECOND_US)
    scene.log.writable.set()
    await committing
    assert [m.partitions for m in await asyncio.gather(*beating)] == [(0, 1), (2, 3)]


@pytest.mark.parametrize("owing", [True, False])
@simulated
async def test_records_read_for_a_former_holder_are_dropped(owing: bool) -> None:
    """The partition moved while its records were read: only its new holder gets them."""
    scene = Scene()
    first = await scene.join()
    owed = await scene.fetch(first, 12) if owing else []
    scene.log.readable.clear()
    fetching = asyncio.create_task(scene.fetch(first))
    await elapse()
    second = await scene.join()
    scene.log.readable.set()
    records = await fetching
    assert partitions_of(records) == [0, 1]
    await scene.commit(first, behind(owed))
    assert len(records) + len(owed) + len(await scene.fetch(second)) == 40


@simulated
async def test_records_read_for_a_member_that_left_are_dropped() -> None:
    scene = Scene()
    first = await scene.join()
    scene.log.readable.clear()
    fetching = asyncio.create_task(scene.fetch(first))
    await elapse()
    await scene.leave(first)
    scene.log.readable.set()
    assert await fetching == []


@simulated
async def test_close_ends_every_fetch() -> None:
    scene = Scene()
    m = await take_all(scene, await scene.join())
    fetching = asyncio.create_task(scene.fetch(m, wait_us=2 * SECOND_US))
    await elapse()
    scene.following.close()
    assert await fetching == []
    assert the_clock().elapsed() == 1


@simulated
async def test_losing_the_store_removes_all_members() -> None:
    scene = Scene()
    m = await scene.join()
    scene.groups.disband()
    await refused(lambda: scene.heartbeat(m))
    assert scene.groups._local._groups == {}
    assert (await scene.join()).partitions == (0, 1, 2, 3)
