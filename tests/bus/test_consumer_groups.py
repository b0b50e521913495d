"""Consumer groups: shared partitions, durable offsets, former members refused, limits."""

import asyncio
import random

import pytest

from tests.bus.members import HERE, Harness, behind, partitions_of, refused
from tests.bus.simulation import GROUP, SECOND_US, TENANT, TOPIC, elapse, simulated, the_clock
from tidings.bus import consumer_groups as limits
from tidings.bus.consumer_groups import Membership
from tidings.domain.errors import Invalid, NotAMember

# --- sharing ---


@simulated
async def test_members_share_the_partitions() -> None:
    harness = Harness()
    first = await harness.join()
    assert (first.partitions, first.session_ms) == ((0, 1, 2, 3), 4_000)
    second = await harness.join()
    first = await harness.heartbeat(first)
    assert (first.partitions, second.partitions) == ((0, 1), (2, 3))
    assert first.generation == second.generation
    assert partitions_of(await harness.fetch(first)) == [0, 1]
    assert partitions_of(await harness.fetch(second)) == [2, 3]
    assert await harness.fetch(first) == []


@simulated
async def test_more_members_than_partitions_stand_by() -> None:
    harness = Harness()
    members = [await harness.join() for _ in range(5)]
    members = [await harness.heartbeat(m) for m in members]
    assert sorted(m.partitions for m in members) == [(), (0,), (1,), (2,), (3,)]
    idle = next(m for m in members if not m.partitions)
    assert await harness.fetch(idle, wait_us=SECOND_US) == []


@simulated
async def test_groups_and_tenants_are_isolated() -> None:
    harness = Harness()
    first = await harness.join("one")
    other = await harness.groups.join(TENANT, TOPIC, "others", "one")
    assert first.partitions == other.partitions == (0, 1, 2, 3)
    with pytest.raises(NotAMember):
        await harness.groups.fetch("another", TOPIC, GROUP, "one", first.generation, 10, 0)


@simulated
async def test_a_topic_may_be_created_after_its_group() -> None:
    harness = Harness()
    m = await harness.groups.join(TENANT, "new", GROUP)
    fetching = asyncio.create_task(harness.groups.fetch(TENANT, "new", GROUP, m.member, m.generation, 10, SECOND_US))
    await elapse(SECOND_US // 2)
    harness.log.append(3, topic="new")
    harness.following.notify(frozenset({(TENANT, "new")}))
    assert [record.partition for record in await fetching] == [3]
    assert the_clock().elapsed() == SECOND_US // 2


# --- offsets ---


@simulated
async def test_a_restart_resumes_from_the_committed_offsets() -> None:
    harness = Harness()
    before = await harness.join("one")
    await harness.fetch(before)
    await harness.commit(before, {0: 10, 1: 4})
    await elapse(SECOND_US)
    harness.restart()
    with pytest.raises(NotAMember):
        await harness.fetch(before)
    after = await harness.join("one")
    assert after.generation > before.generation
    records = await harness.fetch(after)
    assert {partition: partitions_of(records).count(partition) for partition in range(4)} == {
        0: 0,
        1: 1,
        2: 1,
        3: 1,
    }
    assert min(record.offset for record in records if record.partition == 1) == 4


@simulated
async def test_a_new_holder_starts_from_the_committed_offset() -> None:
    harness = Harness()
    first = await harness.join()
    await harness.fetch(first)
    await harness.commit(first, {0: 3})
    await harness.leave(first)
    second = await harness.join()
    assert behind(await harness.fetch(second, limit=100)) == {0: 10, 1: 10, 2: 10, 3: 10}
    await harness.leave(second)
    third = await harness.join()
    offsets = [record.offset for record in await harness.fetch(third) if record.partition == 0]
    assert offsets == list(range(3, 10))


@simulated
async def test_a_member_does_not_fetch_the_same_records_twice() -> None:
    harness = Harness()
    m = await harness.join()
    records = await harness.fetch(m, 25) + await harness.fetch(m, 25)
    assert len({(record.partition, record.offset) for record in records}) == 40
    assert await harness.fetch(m) == []


@simulated
async def test_a_member_that_joins_again_gets_uncommitted_records_again() -> None:
    harness = Harness()
    m = await harness.join()
    lost = await harness.fetch(m)
    assert await harness.fetch(m) == []
    m = await harness.join(m.member)
    assert await harness.fetch(m) == lost


@pytest.mark.parametrize("seed", range(10))
@simulated
async def test_concurrent_fetches_share_the_records(seed: int) -> None:
    harness = Harness()
    harness.log.chance = random.Random(seed)
    m = await harness.join()
    both = await asyncio.gather(harness.fetch(m, 25), harness.fetch(m, 25))
    records = both[0] + both[1] + await harness.fetch(m)
    assert len({(record.partition, record.offset) for record in records}) == len(records) == 40


@pytest.mark.parametrize(("offsets", "word"), [({0: 11}, "ends at 10"), ({0: 1, 1: -1}, "ends at 10")])
@simulated
async def test_invalid_offsets_are_refused(offsets: dict[int, int], word: str) -> None:
    harness = Harness()
    m = await harness.join()
    with pytest.raises(Invalid, match=word):
        await harness.commit(m, offsets)
    assert harness.log.commits == []


@simulated
async def test_an_empty_commit_is_a_heartbeat() -> None:
    harness = Harness()
    m = await harness.join()
    for _ in range(3):
        await elapse(3 * SECOND_US)
        await harness.commit(m, {})
    assert harness.log.commits == []
    assert (await harness.heartbeat(m)).partitions == (0, 1, 2, 3)


# --- who is refused ---


@simulated
async def test_former_members_are_refused() -> None:
    harness = Harness()
    left = await harness.join()
    await harness.fetch(left)
    await harness.leave(left)
    dead = await harness.join()
    await harness.fetch(dead)
    await elapse(4 * SECOND_US)
    await harness.join()
    for former in (left, dead):
        await refused(lambda m=former: harness.commit(m, {0: 5}))  # type: ignore[misc]
        await refused(lambda m=former: harness.fetch(m))  # type: ignore[misc]
        await refused(lambda m=former: harness.heartbeat(m))  # type: ignore[misc]
        await refused(lambda m=former: harness.leave(m))  # type: ignore[misc]
    assert harness.log.commits == []


@simulated
async def test_wrong_generations_are_refused() -> None:
    harness = Harness()
    m = await harness.join("one")
    for generation in (m.generation - 1, m.generation + 1):
        wrong = Membership(m.member, generation, m.partitions, m.session_ms)
        await refused(lambda w=wrong: harness.commit(w, {0: 5}))  # type: ignore[misc]
        await refused(lambda w=wrong: harness.fetch(w))  # type: ignore[misc]
        await refused(lambda w=wrong: harness.heartbeat(w))  # type: ignore[misc]
    again = await harness.join("one")
    await refused(lambda: harness.commit(m, {0: 5}))
    await harness.commit(again, {0: 5})


@simulated
async def test_commits_of_partitions_of_others_are_refused() -> None:
    harness = Harness()
    first = await harness.join()
    second = await harness.join()
    await refused(lambda: harness.commit(first, {2: 1}))
    await refused(lambda: harness.commit(second, {1: 1}))
    await refused(lambda: harness.commit(second, {2: 1, 99: 1}))
    await harness.commit(second, {2: 1, 3: 1})
    assert harness.log.commits == [{2: 1, 3: 1}]


@simulated
async def test_a_late_commit_does_not_overwrite_that_of_another_holder() -> None:
    """Partition 2 moves to another member and back; commits from the first holding are stale."""
    harness = Harness()
    first = await harness.join()
    stale = behind([r for r in await harness.fetch(first, 12) if r.partition == 2])
    second = await harness.join()
    first = await harness.heartbeat(first)
    await harness.fetch(first)
    await harness.fetch(second)
    await harness.commit(second, {2: 10})
    await harness.leave(second)
    first = await harness.heartbeat(first)
    assert 2 in first.partitions
    await refused(lambda: harness.commit(first, stale))
    assert harness.log.offsets[HERE][2] == 10


# --- limits ---


@simulated
async def test_a_group_has_a_maximum_of_members() -> None:
    harness = Harness()
    for n in range(limits.MEMBERS_PER_GROUP_MAX):
        await harness.join(f"member-{n}")
    with pytest.raises(Invalid, match="is full"):
        await harness.join()
    await harness.join("member-7")
    await elapse(4 * SECOND_US)
    assert (await harness.join()).partitions == (0, 1, 2, 3)


@simulated
async def test_a_tenant_has_a_maximum_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_PER_TENANT_MAX", 3)
    harness = Harness()
    for n in range(3):
        await harness.groups.join(TENANT, TOPIC, f"group-{n}")
    with pytest.raises(Invalid, match="this tenant has 3 groups"):
        await harness.join()
    await harness.groups.join("another", TOPIC, GROUP)
    await elapse(4 * SECOND_US)
    await harness.join()
    assert len(harness.groups._local._groups) == 1


@pytest.mark.parametrize("names", [("", GROUP, None), (TOPIC, "", None), (TOPIC, GROUP, ""), (TOPIC, "g" * 250, None)])
@simulated
async def test_names_have_a_maximum_length(names: tuple[str, str, str | None]) -> None:
    with pytest.raises(Invalid, match="1 to 249"):
        await Harness().groups.join(TENANT, *names)


@simulated
async def test_empty_groups_are_forgotten() -> None:
    harness = Harness()
    m = await harness.join()
    await harness.leave(m)
    assert harness.groups._local._groups == {}
    m = await harness.join()
    await elapse(4 * SECOND_US)
    await refused(lambda: harness.heartbeat(m))
    assert harness.groups._local._groups == {}
    assert harness.following._signals == {}
