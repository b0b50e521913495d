"""Rebalances: partitions move once committed, from dead members within five seconds, without races with the store."""

import asyncio

import pytest

from tests.bus.members import Harness, behind, partitions_of, refused, take_all
from tests.bus.simulation import SECOND_US, elapse, simulated, the_clock
from tidings.bus.consumer_groups import Membership
from tidings.domain.errors import NotAMember
from tidings.domain.schedules.schedule import Record

# --- moving ---


@simulated
async def test_a_partition_moves_only_after_its_records_are_committed() -> None:
    harness = Harness()
    first = await harness.join()
    records = await harness.fetch(first)
    second = await harness.join()
    assert second.partitions == (2, 3)
    fetching = asyncio.create_task(harness.fetch(second, wait_us=2 * SECOND_US))
    await elapse(SECOND_US)
    assert not fetching.done()
    await harness.commit(first, behind(records))  # before it learns of the change
    harness.publish(2)
    assert [(r.partition, r.offset) for r in await fetching] == [(2, 10)]
    assert (await harness.heartbeat(first)).partitions == (0, 1)


@simulated
async def test_the_next_fetch_hands_over_lost_partitions() -> None:
    harness = Harness()
    first = await harness.join()
    await harness.fetch(first)
    second = await harness.join()
    await refused(lambda: harness.fetch(first))  # it must send a heartbeat first
    assert await harness.fetch(second) == []
    first = await harness.heartbeat(first)
    assert await harness.fetch(second) == []
    await harness.fetch(first)
    assert len(await harness.fetch(second)) == 20


@simulated
async def test_an_uncommitted_partition_moves_after_a_session() -> None:
    harness = Harness()
    first = await harness.join()
    await harness.fetch(first)
    second = await harness.join()
    since = the_clock().elapsed()
    alive = asyncio.create_task(harness.keep_alive(first, 8 * SECOND_US))
    while not (records := await harness.fetch(second, wait_us=SECOND_US)):
        pass
    assert partitions_of(records) == [2, 3]
    assert 4 * SECOND_US <= the_clock().elapsed() - since <= 5 * SECOND_US
    await refused(lambda: harness.commit(first, {2: 10}))
    await alive


@pytest.mark.parametrize("waiting", [True, False])
@simulated
async def test_partitions_of_a_dead_member_move_within_five_seconds(waiting: bool) -> None:
    """Also of a member that crashed while waiting for records, which the server does not notice."""
    harness = Harness()
    dead = await harness.join()
    living = await harness.join()
    living = await take_all(harness, living)
    dead = await harness.heartbeat(dead)
    assert len(await harness.fetch(dead)) == 20
    lost = asyncio.create_task(harness.fetch(dead, wait_us=60 * SECOND_US if waiting else 0))
    await elapse()
    crashed_at = the_clock().elapsed()
    got: list[Record] = []
    while len(got) < 20:
        got += await fetch_on(harness, living, waiting)
        living = await harness.heartbeat(living)
    assert the_clock().elapsed() - crashed_at <= 5 * SECOND_US
    assert partitions_of(got) == [0, 1]
    assert await lost == []


async def fetch_on(harness: Harness, m: Membership, waiting: bool) -> list[Record]:
    if not waiting:
        await elapse(SECOND_US // 2)
    return await harness.fetch(await harness.heartbeat(m), wait_us=60 * SECOND_US if waiting else 0)


@simulated
async def test_a_waiting_member_gets_the_partitions_of_an_expired_one_to_the_millisecond() -> None:
    harness = Harness()
    await take_all(harness, await harness.join())
    living = await harness.join()
    await harness.keep_alive(living, 3 * SECOND_US)
    assert await harness.fetch(living, wait_us=2 * SECOND_US) == []
    assert 4 * SECOND_US <= the_clock().elapsed() <= 4 * SECOND_US + 1_000
    assert (await harness.heartbeat(living)).partitions == (0, 1, 2, 3)


@simulated
async def test_a_waiting_member_learns_at_once_that_its_partitions_changed() -> None:
    harness = Harness()
    first = await take_all(harness, await harness.join())
    fetching = asyncio.create_task(harness.fetch(first, wait_us=2 * SECOND_US))
    await elapse(SECOND_US)
    second = await harness.join()
    assert await fetching == []
    assert the_clock().elapsed() == SECOND_US
    first = await harness.heartbeat(first)
    fetching = asyncio.create_task(harness.fetch(first, wait_us=2 * SECOND_US))
    await elapse(SECOND_US)
    await harness.leave(second)
    assert await fetching == []
    assert (await harness.heartbeat(first)).partitions == (0, 1, 2, 3)


@simulated
async def test_leaving_ends_the_members_own_wait() -> None:
    harness = Harness()
    m = await take_all(harness, await harness.join())
    fetching = asyncio.create_task(harness.fetch(m, wait_us=2 * SECOND_US))
    await elapse()
    await harness.leave(m)
    with pytest.raises(NotAMember):
        await fetching


# --- races with the store ---


@pytest.mark.parametrize("abandoned", [True, False])
@simulated
async def test_a_commit_in_progress_finishes_before_a_rebalance(abandoned: bool) -> None:
    """Even if its caller has gone: the next holder starts after it, and it cannot be applied later."""
    harness = Harness()
    first = await harness.join()
    records = await harness.fetch(first)
    harness.log.writable.clear()
    committing = asyncio.create_task(harness.commit(first, behind(records)))
    await elapse()
    if abandoned:
        committing.cancel()
    await elapse(5 * SECOND_US)  # the first member's session is over
    joining = asyncio.create_task(harness.join())
    await elapse(SECOND_US)
    assert not joining.done()
    harness.log.writable.set()
    second = await joining
    await asyncio.wait([committing])
    assert second.partitions == (0, 1, 2, 3)
    assert await harness.fetch(second) == []
    await refused(lambda: harness.commit(first, {0: 1}))
    assert harness.log.commits == [behind(records)]


@simulated
async def test_a_slow_store_does_not_end_sessions() -> None:
    harness = Harness()
    first = await harness.join()
    second = await harness.join()
    first = await harness.heartbeat(first)
    harness.log.writable.clear()
    committing = asyncio.create_task(harness.commit(second, {2: 1}))
    await elapse(3 * SECOND_US)
    beating = [asyncio.create_task(harness.heartbeat(m)) for m in (first, second)]
    await elapse(3 * SECOND_US)
    harness.log.writable.set()
    await committing
    assert [m.partitions for m in await asyncio.gather(*beating)] == [(0, 1), (2, 3)]


@pytest.mark.parametrize("owing", [True, False])
@simulated
async def test_records_read_for_a_former_holder_are_dropped(owing: bool) -> None:
    """The partition moved while its records were read: only its new holder gets them."""
    harness = Harness()
    first = await harness.join()
    owed = await harness.fetch(first, 12) if owing else []
    harness.log.readable.clear()
    fetching = asyncio.create_task(harness.fetch(first))
    await elapse()
    second = await harness.join()
    harness.log.readable.set()
    records = await fetching
    assert partitions_of(records) == [0, 1]
    await harness.commit(first, behind(owed))
    assert len(records) + len(owed) + len(await harness.fetch(second)) == 40


@simulated
async def test_records_read_for_a_member_that_left_are_dropped() -> None:
    harness = Harness()
    first = await harness.join()
    harness.log.readable.clear()
    fetching = asyncio.create_task(harness.fetch(first))
    await elapse()
    await harness.leave(first)
    harness.log.readable.set()
    assert await fetching == []


@simulated
async def test_close_ends_every_fetch() -> None:
    harness = Harness()
    m = await take_all(harness, await harness.join())
    fetching = asyncio.create_task(harness.fetch(m, wait_us=2 * SECOND_US))
    await elapse()
    harness.following.close()
    assert await fetching == []
    assert the_clock().elapsed() == 1


@simulated
async def test_losing_the_store_removes_all_members() -> None:
    harness = Harness()
    m = await harness.join()
    harness.groups.disband()
    await refused(lambda: harness.heartbeat(m))
    assert harness.groups._local._groups == {}
    assert (await harness.join()).partitions == (0, 1, 2, 3)
