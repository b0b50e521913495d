"""The log: topics, reads, committed offsets and retention."""

import pytest

from tests.contract.conftest import OpenStore
from tests.contract.factories import ACME, DAY, NOW, SECOND, TOPIC, add, applied, drain, records, state, tend
from tidings.domain.notifications.notification import GROUP, TOPICS
from tidings.domain.schedules.command import Add
from tidings.domain.schedules.schedule import Topic
from tidings.ports import Store

KEY = b"always the same partition"


async def publish(store: Store, number: int, now: int = NOW, size: int = 10, key: bytes | None = KEY) -> None:
    """Release that many records, all on one partition unless the key is None."""
    await applied(store, *(add(None, now, key=key, value=b"x" * size) for _ in range(number)), now=now)
    await drain(store, now)


async def known(store: Store, name: str = TOPIC) -> Topic:
    topic = await store.topic(ACME, name)
    assert topic is not None
    return topic


async def partition(store: Store) -> int:
    """The partition that the key chose."""
    return next(index for index, following in enumerate((await known(store)).next) if following)


async def offsets(store: Store, offset: int, limit: int = 1000) -> list[int]:
    found = await store.read(ACME, TOPIC, await partition(store), offset, limit)
    return [record.offset for record in found]


@pytest.mark.parametrize(("fitting", "expected"), [(0.5, 1), (1, 1), (2.5, 2), (3, 3), (4.1, 4)])
async def test_a_read_stops_at_its_byte_bound(store: Store, fitting: float, expected: int) -> None:
    await publish(store, 30, size=5_000)  # with several lanes a key has a partition for each
    ends = (await known(store)).next
    place = ends.index(max(ends))
    [first] = await store.read(ACME, TOPIC, place, 0, 1)
    bytes_max = int(len(first.message) * fitting)
    found = await store.read(ACME, TOPIC, place, 0, 1_000, bytes_max)
    assert [record.offset for record in found] == list(range(expected))
    assert found == await store.read(ACME, TOPIC, place, 0, expected)
    assert len(await store.read(ACME, TOPIC, place, 4, 1, 1_000_000)) == 1
    assert len(await store.read(ACME, TOPIC, place, 0, 1_000, 1_000_000)) == max(ends)
    assert await store.read(ACME, TOPIC, place, max(ends), 10, 1) == []


async def test_topics(store: Store) -> None:
    assert await store.topics(ACME) == []
    assert await store.topic(ACME, TOPIC) is None
    await applied(store, add("1", topic="b"), add("2", topic="a"), add("3", topic="b"), add("4", NOW + DAY, topic="c"))
    await drain(store)
    topics = {topic.name: topic for topic in await store.topics(ACME)}
    assert sorted(topics) >= ["a", "b"]
    assert sum(topics["a"].next) == 1
    assert sum(topics["b"].next) == 2
    assert topics["b"].first == (0,) * store.partitions
    assert len(topics["b"].next) == store.partitions
    assert topics["b"] == await store.topic(ACME, "b")
    assert topics["b"].bytes > topics["a"].bytes > 0


async def test_topics_of_all_tenants_by_prefix(store: Store) -> None:
    assert await store.topics_by_prefix("notify.") == []
    adds = [add("1", topic="notify.sms"), add("2", topic="notify.sms", tenant="globex"), add("3", topic="notify_sms")]
    await applied(store, *adds, add("4", NOW + DAY, topic="notify.push"), add("5", topic="notify.email"))
    await drain(store)
    found = await store.topics_by_prefix("notify.")
    assert [(tenant, topic.name) for tenant, topic in found] == [
        (ACME, "notify.email"),
        (ACME, "notify.sms"),
        ("globex", "notify.sms"),
    ]
    assert found[0][1] == await store.topic(ACME, "notify.email")
    assert await store.topics_by_prefix("notify.sm_") == []


@pytest.mark.one_lane("an id chooses the lane, and the lane the partition")
async def test_reading_from_an_offset(store: Store) -> None:
    await publish(store, 10)
    assert await offsets(store, 0) == list(range(10))
    assert await offsets(store, 4) == [4, 5, 6, 7, 8, 9]
    assert await offsets(store, 4, limit=2) == [4, 5]
    assert await offsets(store, 10) == []
    assert await offsets(store, 99) == []
    await publish(store, 2, NOW + 1)
    assert await offsets(store, 10) == [10, 11]


async def test_reading_a_missing_topic_returns_nothing(store: Store) -> None:
    assert await store.read(ACME, "missing", 0, 0, 10) == []
    await publish(store, 1)
    assert await store.read(ACME, TOPIC, store.partitions, 0, 10) == []
    assert await store.read(ACME, TOPIC, (await partition(store) + 1) % store.partitions, 0, 10) == []


async def test_the_log_is_in_order_of_release(store: Store) -> None:
    for step in range(5):
        await publish(store, 3, NOW + step)
    moments = [record.released for record in await store.read(ACME, TOPIC, await partition(store), 0, 100)]
    assert moments == sorted(moments)


# --- committed offsets ---


async def test_committed_offsets_are_returned(store: Store) -> None:
    await publish(store, 5)
    assert await store.committed(ACME, TOPIC, "readers") == {}
    await store.commit(ACME, TOPIC, "readers", {0: 3, 2: 1})
    assert await store.committed(ACME, TOPIC, "readers") == {0: 3, 2: 1}
    await store.commit(ACME, TOPIC, "readers", {0: 4, 1: 7})
    assert await store.committed(ACME, TOPIC, "readers") == {0: 4, 1: 7, 2: 1}
    await store.commit(ACME, TOPIC, "readers", {0: 2})
    assert (await store.committed(ACME, TOPIC, "readers"))[0] == 2


async def test_groups_are_independent(store: Store) -> None:
    await publish(store, 1)
    await applied(store, add("x", topic="other"), add("y", tenant="globex"))
    await drain(store)
    await store.commit(ACME, TOPIC, "readers", {0: 3})
    assert await store.committed(ACME, TOPIC, "writers") == {}
    assert await store.committed(ACME, "other", "readers") == {}
    assert await store.committed("globex", TOPIC, "readers") == {}


# --- retention ---


@pytest.mark.one_lane("an id chooses the lane, and the lane the partition")
async def test_old_records_are_deleted_and_offsets_continue(open_store: OpenStore) -> None:
    store = await open_store(retention_us=DAY)
    await publish(store, 5, NOW)
    await publish(store, 3, NOW + DAY)
    await tend(store, NOW + DAY - SECOND)
    assert await offsets(store, 0) == list(range(8))
    await tend(store, NOW + DAY + SECOND)
    assert await offsets(store, 0) == [5, 6, 7]
    assert await offsets(store, 6) == [6, 7]
    topic = await known(store)
    assert (topic.first[await partition(store)], topic.next[await partition(store)]) == (5, 8)
    await tend(store, NOW + 3 * DAY)
    assert await records(store) == []
    assert (await known(store)).first == (await known(store)).next
    await publish(store, 1, NOW + 3 * DAY)
    assert await offsets(store, 0) == [8]


async def test_retention_by_age_is_for_every_partition(open_store: OpenStore) -> None:
    store = await open_store(retention_us=DAY)
    await publish(store, 60, NOW, key=None)
    assert min((await known(store)).next) > 0
    await tend(store, NOW + 2 * DAY)
    assert await records(store) == []
    assert sum((await known(store)).first) == 60


@pytest.mark.slow
@pytest.mark.one_lane("each lane keeps its part of a topic's size")
@pytest.mark.parametrize("key", [KEY, None], ids=["one partition", "all partitions"])
async def test_large_topics_lose_their_oldest_records(open_store: OpenStore, key: bytes | None) -> None:
    store = await open_store(retention_bytes=100_000)
    for step in range(30):
        await publish(store, 1, NOW + step, size=10_000, key=key)
    await tend(store, NOW + 30)
    kept = await records(store)
    assert (await known(store)).bytes <= 100_000
    assert 6 <= len(kept) <= 10
    assert sum((await known(store)).next) == 30
    if key is not None:
        assert sorted(record.released for record in kept) == [NOW + step for step in range(30 - len(kept), 30)]


@pytest.mark.one_lane("each lane keeps its part of a topic's size")
async def test_size_is_counted_by_topic(open_store: OpenStore) -> None:
    store = await open_store(retention_bytes=100_000)
    for topic in ("a", "b", "c"):
        await applied(store, *(add(None, NOW, topic=topic, value=b"x" * 10_000) for _ in range(8)))
    await drain(store)
    await tend(store)
    assert [len(await records(store, topic)) for topic in ("a", "b", "c")] == [8, 8, 8]


async def test_without_a_size_limit_nothing_is_deleted(store: Store) -> None:
    await publish(store, 20, size=100_000)
    await tend(store)
    assert len(await records(store)) == 20


async def test_retention_does_not_affect_schedules(open_store: OpenStore) -> None:
    store = await open_store(retention_us=DAY, id_retention_us=30 * DAY)
    await applied(store, add("done"), add("later", NOW + 10 * DAY))
    await drain(store)
    await tend(store, NOW + 5 * DAY)
    assert await records(store) == []
    assert [await state(store, name, NOW + 5 * DAY) for name in ("done", "later")] == ["released", "pending"]


def schedules_for(number: int, *topics: str, size: int = 10) -> list[Add]:
    """This many schedules for each topic."""
    return [add(None, NOW, topic=topic, value=b"x" * size) for topic in topics for _ in range(number)]


async def test_records_that_no_worker_has_settled_are_kept_at_any_age(open_store: OpenStore) -> None:
    store = await open_store(retention_us=DAY)
    others = ("notify.dead", "notify.emails", "notify.email.higher", "anotify.email", "notify")
    await applied(store, *schedules_for(1, *TOPICS, *others))
    await drain(store)
    await tend(store, NOW + 100 * DAY)
    assert [len(await records(store, topic)) for topic in TOPICS] == [1] * len(TOPICS), "no worker has read them"
    assert [len(await records(store, topic)) for topic in others] == [0] * len(others)


async def test_only_settled_records_are_deleted_by_age(open_store: OpenStore) -> None:
    store = await open_store(retention_us=DAY)
    await applied(store, *schedules_for(40, "notify.sms"))
    await drain(store)
    ends = (await known(store, "notify.sms")).next
    settled = {number: end // 2 for number, end in enumerate(ends)}
    await store.commit(ACME, "notify.sms", "somebody else", dict(enumerate(ends)))
    await store.commit(ACME, "notify.sms", GROUP, settled)
    await tend(store, NOW + DAY - SECOND)
    assert sum((await known(store, "notify.sms")).first) == 0
    await tend(store, NOW + 2 * DAY)
    assert dict(enumerate((await known(store, "notify.sms")).first)) == settled
    await store.commit(ACME, "notify.sms", GROUP, dict(enumerate(ends)))
    await tend(store, NOW + 3 * DAY)
    assert await records(store, "notify.sms") == []


async def test_only_settled_records_are_deleted_by_size(open_store: OpenStore) -> None:
    store = await open_store(retention_bytes=10_000)
    await applied(store, *schedules_for(20, "notify.push", size=10_000))
    await drain(store)
    await tend(store, NOW + SECOND)
    assert len(await records(store, "notify.push")) == 20
    ends = (await known(store, "notify.push")).next
    settled = {number: end // 2 for number, end in enumerate(ends)}
    await store.commit(ACME, "notify.push", GROUP, settled)
    await tend(store, NOW + 3 * SECOND)
    assert dict(enumerate((await known(store, "notify.push")).first)) == settled
