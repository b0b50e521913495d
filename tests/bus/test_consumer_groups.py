"""Consumer groups: shared partitions, durable offsets, former members refused, limits."""

import asyncio
import random

import pytest

from tests.bus.members import HERE, Scene, behind, partitions_of, refused
from tests.bus.simulation import GROUP, SECOND_US, TENANT, TOPIC, elapse, simulated, the_clock
from tidings.bus import consumer_groups as limits
from tidings.bus.consumer_groups import Membership
from tidings.domain.errors import Invalid, NotAMember

# --- sharing ---


@simulated
async def test_members_share_the_partitions() -> None:
    scene = Scene()
    first = await scene.join()
    assert (first.partitions, first.session_ms) == ((0, 1, 2, 3), 4_000)
    second = await scene.join()
    first = await scene.heartbeat(first)
    assert (first.partitions, second.partitions) == ((0, 1), (2, 3))
    assert first.generation == second.generation
    assert partitions_of(await scene.fetch(first)) == [0, 1]
    assert partitions_of(await scene.fetch(second)) == [2, 3]
    assert await scene.fetch(first) == []


@simulated
async def test_more_members_than_partitions_stand_by() -> None:
    scene = Scene()
    members = [await scene.join() for _ in range(5)]
    members = [await scene.heartbeat(m) for m in members]
    assert sorted(m.partitions for m in members) == [(), (0,), (1,), (2,), (3,)]
    idle = next(m for m in members if not m.partitions)
    assert await scene.fetch(idle, wait_us=SECOND_US) == []


@simulated
async def test_groups_and_tenants_are_isolated() -> None:
    scene = Scene()
    first = await scene.join("one")
    other = await scene.groups.join(TENANT, TOPIC, "others", "one")
    assert first.partitions == other.partitions == (0, 1, 2, 3)
    with pytest.raises(NotAMember):
        await scene.groups.fetch("another", TOPIC, GROUP, "one", first.generation, 10, 0)


@simulated
async def test_a_topic_may_be_created_after_its_group() -> None:
    scene = Scene()
    m = await scene.groups.join(TENANT, "new", GROUP)
    fetching = asyncio.create_task(scene.groups.fetch(TENANT, "new", GROUP, m.member, m.generation, 10, SECOND_US))
    await elapse(SECOND_US // 2)
    scene.log.append(3, topic="new")
    scene.following.notify(frozenset({(TENANT, "new")}))
    assert [record.partition for record in await fetching] == [3]
    assert the_clock().elapsed() == SECOND_US // 2


# --- offsets ---


@simulated
async def test_a_restart_resumes_from_the_committed_offsets() -> None:
    scene = Scene()
    before = await scene.join("one")
    await scene.fetch(before)
    await scene.commit(before, {0: 10, 1: 4})
    await elapse(SECOND_US)
    scene.restart()
    with pytest.raises(NotAMember):
        await scene.fetch(before)
    after = await scene.join("one")
    assert after.generation > before.generation
    records = await scene.fetch(after)
    assert {partition: partitions_of(records).count(partition) for partition in range(4)} == {
        0: 0,
        1: 1,
        2: 1,
        3: 1,
    }
    assert min(record.offset for record in records if record.partition == 1) == 4


@simulated
async def test_a_new_holder_starts_from_the_committed_offset() -> None:
    scene = Scene()
    first = await scene.join()
    await scene.fetch(first)
    await scene.commit(first, {0: 3})
    await scene.leave(first)
    second = await scene.join()
    assert behind(await scene.fetch(second, limit=100)) == {0: 10, 1: 10, 2: 10, 3: 10}
    await scene.leave(second)
    third = await scene.join()
    offsets = [record.offset for record in await scene.fetch(third) if record.partition == 0]
    assert offsets == list(range(3, 10))


@simulated
async def test_a_member_does_not_fetch_the_same_records_twice() -> None:
    scene = Scene()
    m = await scene.join()
    records = await scene.fetch(m, 25) + await scene.fetch(m, 25)
    assert len({(record.partition, record.offset) for record in records}) == 40
    assert await scene.fetch(m) == []


@simulated
async def test_a_member_that_joins_again_gets_uncommitted_records_again() -> None:
    scene = Scene()
    m = await scene.join()
    lost = await scene.fetch(m)
    assert await scene.fetch(m) == []
    m = await scene.join(m.member)
    assert await scene.fetch(m) == lost


@pytest.mark.parametrize("seed", range(10))
@simulated
async def test_concurrent_fetches_share_the_records(seed: int) -> None:
    scene = Scene()
    scene.log.chance = random.Random(seed)
    m = await scene.join()
    both = await asyncio.gather(scene.fetch(m, 25), scene.fetch(m, 25))
    records = both[0] + both[1] + await scene.fetch(m)
    assert len({(record.partition, record.offset) for record in records}) == len(records) == 40


@pytest.mark.parametrize(("offsets", "word"), [({0: 11}, "ends at 10"), ({0: 1, 1: -1}, "ends at 10")])
@simulated
async def test_invalid_offsets_are_refused(offsets: dict[int, int], word: str) -> None:
    scene = Scene()
    m = await scene.join()
    with pytest.raises(Invalid, match=word):
        await scene.commit(m, offsets)
    assert scene.log.commits == []


@simulated
async def test_an_empty_commit_is_a_heartbeat() -> None:
    scene = Scene()
    m = await scene.join()
    for _ in range(3):
        await elapse(3 * SECOND_US)
        await scene.commit(m, {})
    assert scene.log.commits == []
    assert (await scene.heartbeat(m)).partitions == (0, 1, 2, 3)


# --- who is refused ---


@simulated
async def test_former_members_are_refused() -> None:
    scene = Scene()
    left = await scene.join()
    await scene.fetch(left)
    await scene.leave(left)
    dead = await scene.join()
    await scene.fetch(dead)
    await elapse(4 * SECOND_US)
    await scene.join()
    for former in (left, dead):
        await refused(lambda m=former: scene.commit(m, {0: 5}))  # type: ignore[misc]
        await refused(lambda m=former: scene.fetch(m))  # type: ignore[misc]
        await refused(lambda m=former: scene.heartbeat(m))  # type: ignore[misc]
        await refused(lambda m=former: scene.leave(m))  # type: ignore[misc]
    assert scene.log.commits == []


@simulated
async def test_wrong_generations_are_refused() -> None:
    scene = Scene()
    m = await scene.join("one")
    for generation in (m.generation - 1, m.generation + 1):
        wrong = Membership(m.member, generation, m.partitions, m.session_ms)
        await refused(lambda w=wrong: scene.commit(w, {0: 5}))  # type: ignore[misc]
        await refused(lambda w=wrong: scene.fetch(w))  # type: ignore[misc]
        await refused(lambda w=wrong: scene.heartbeat(w))  # type: ignore[misc]
    again = await scene.join("one")
    await refused(lambda: scene.commit(m, {0: 5}))
    await scene.commit(again, {0: 5})


@simulated
async def test_commits_of_partitions_of_others_are_refused() -> None:
    scene = Scene()
    first = await scene.join()
    second = await scene.join()
    await refused(lambda: scene.commit(first, {2: 1}))
    await refused(lambda: scene.commit(second, {1: 1}))
    await refused(lambda: scene.commit(second, {2: 1, 99: 1}))
    await scene.commit(second, {2: 1, 3: 1})
    assert scene.log.commits == [{2: 1, 3: 1}]


@simulated
async def test_a_late_commit_does_not_overwrite_that_of_another_holder() -> None:
    """Partition 2 moves to another member and back; commits from the first holding are stale."""
    scene = Scene()
    first = await scene.join()
    stale = behind([r for r in await scene.fetch(first, 12) if r.partition == 2])
    second = await scene.join()
    first = await scene.heartbeat(first)
    await scene.fetch(first)
    await scene.fetch(second)
    await scene.commit(second, {2: 10})
    await scene.leave(second)
    first = await scene.heartbeat(first)
    assert 2 in first.partitions
    await refused(lambda: scene.commit(first, stale))
    assert scene.log.offsets[HERE][2] == 10


# --- limits ---


@simulated
async def test_a_group_has_a_maximum_of_members() -> None:
    scene = Scene()
    for n in range(limits.MEMBERS_PER_GROUP_MAX):
        await scene.join(f"member-{n}")
    with pytest.raises(Invalid, match="is full"):
        await scene.join()
    await scene.join("member-7")
    await elapse(4 * SECOND_US)
    assert (await scene.join()).partitions == (0, 1, 2, 3)


@simulated
async def test_a_tenant_has_a_maximum_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_PER_TENANT_MAX", 3)
    scene = Scene()
    for n in range(3):
        await scene.groups.join(TENANT, TOPIC, f"group-{n}")
    with pytest.raises(Invalid, match="this tenant has 3 groups"):
        await scene.join()
    await scene.groups.join("another", TOPIC, GROUP)
    await elapse(4 * SECOND_US)
    await scene.join()
    assert len(scene.groups._local._groups) == 1


@pytest.mark.parametrize("names", [("", GROUP, None), (TOPIC, "", None), (TOPIC, GROUP, ""), (TOPIC, "g" * 250, None)])
@simulated
async def test_names_have_a_maximum_length(names: tuple[str, str, str | None]) -> None:
    with pytest.raises(Invalid, match="1 to 249"):
        await Scene().groups.join(TENANT, *names)


@simulated
async def test_empty_groups_are_forgotten() -> None:
    scene = Scene()
    m = await scene.join()
    await scene.leave(m)
    assert scene.groups._local._groups == {}
    m = await scene.join()
    await elapse(4 * SECOND_US)
    await refused(lambda: scene.heartbeat(m))
    assert scene.groups._local._groups == {}
    assert scene.following._signals == {}
