"""Readers of the log: every record once and in order, no lost wake-up, no state without readers."""

import asyncio
import random

import pytest

from tests.bus.simulation import SECOND_US, TENANT, TOPIC, FakeLog, Turn, elapse, simulated, the_clock
from tidings.bus.log_reader import LATEST, LOOK_AGAIN_US, LogReader, encode
from tidings.domain.errors import Invalid
from tidings.domain.schedules.schedule import Record

NEWS = frozenset({(TENANT, TOPIC)})
MINUTE_US = 60 * SECOND_US


def places(records: list[Record]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def in_order(records: list[Record], partitions: int = 4) -> bool:
    """Whether these are all records of each partition from the first on, without gaps or duplicates."""
    by_partition: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    for record in records:
        by_partition[record.partition].append(record.offset)
    return all(offsets == list(range(len(offsets))) for offsets in by_partition.values())


# --- reading ---


@simulated
async def test_read_continues_from_its_cursor() -> None:
    log = FakeLog()
    log.append(0, 5)
    log.append(3, 5)
    following = LogReader(log)
    first, cursor = await following.read(TENANT, TOPIC, None, 6, 0)
    rest, cursor = await following.read(TENANT, TOPIC, cursor, 6, 0)
    assert (len(first), len(rest)) == (6, 4)
    assert in_order(first + rest)
    assert await following.read(TENANT, TOPIC, cursor, 6, 0) == ([], encode((5, 0, 0, 5)))


@simulated
async def test_read_of_a_missing_topic_is_empty() -> None:
    following = LogReader(FakeLog())
    for cursor in (None, LATEST):
        assert await following.read(TENANT, TOPIC, cursor, 10, 0) == ([], encode((0, 0, 0, 0)))
    assert the_clock().elapsed() == 0


@simulated
async def test_latest_is_the_end_of_the_topic() -> None:
    log = FakeLog()
    log.append(1, 3)
    following = LogReader(log)
    records, cursor = await following.read(TENANT, TOPIC, LATEST, 10, 0)
    assert records == []
    log.append(1)
    records, _ = await following.read(TENANT, TOPIC, cursor, 10, 0)
    assert places(records) == [(1, 3)]


@simulated
async def test_records_deleted_by_retention_are_skipped() -> None:
    log = FakeLog()
    log.append(2, 10)
    log.trim(2, 7)
    records, cursor = await LogReader(log).read(TENANT, TOPIC, encode((0, 0, 3, 0)), 10, 0)
    assert places(records) == [(2, 7), (2, 8), (2, 9)]
    assert cursor == encode((0, 0, 10, 0))


@simulated
async def test_a_page_ends_at_its_byte_bound_and_no_partition_starves() -> None:
    log = FakeLog()
    for partition in range(4):
        log.append(partition, 20)
    size = len(log.records[TENANT, TOPIC][0][0].message)
    following = LogReader(log, page_bytes_max=int(2.5 * size))
    seen: list[tuple[int, int]] = []
    served: list[int] = []
    cursor: str | None = None
    while len(seen) < 80:
        records, cursor = await following.read(TENANT, TOPIC, cursor, 1_000, 0)
        assert 1 <= len(records) <= 3
        seen += places(records)
        served += [record.partition for record in records]
    assert sorted(seen) == [(partition, offset) for partition in range(4) for offset in range(20)]
    assert {*served[:30]} == {0, 1, 2, 3}


@simulated
async def test_retention_during_a_read_does_no_harm() -> None:
    class Racing(FakeLog):
        async def read(
            self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
        ) -> list[Record]:
            self.trim(2, 10)
            return await super().read(tenant, topic, partition, offset, limit, bytes_max)

    log = Racing()
    log.append(2, 10)
    assert await LogReader(log).read(TENANT, TOPIC, None, 10, 0) == ([], encode((0, 0, 10, 0)))


@simulated
async def test_records_come_in_the_order_of_release() -> None:
    log = FakeLog()
    for partition in (3, 0, 2, 0):
        log.append(partition)
        await elapse(10)
    records, _ = await LogReader(log).read(TENANT, TOPIC, None, 10, 0)
    assert places(records) == [(3, 0), (0, 0), (2, 0), (0, 1)]


@simulated
async def test_a_clock_set_back_keeps_the_order_within_a_partition() -> None:
    log = FakeLog()
    log.append(0, 2)
    log.append(1, 2)
    the_clock().step(-MINUTE_US)
    log.append(0, 2)
    records, _ = await LogReader(log).read(TENANT, TOPIC, None, 10, 0)
    assert in_order(records)


@simulated
async def test_invalid_arguments_are_refused_at_once() -> None:
    log = FakeLog()
    log.append(0)
    following = LogReader(log)
    with pytest.raises(Invalid, match="cursor"):
        await following.read(TENANT, TOPIC, "nonsense", 10, 0)
    with pytest.raises(Invalid, match="cursor"):
        following.follow(TENANT, TOPIC, "nonsense", 10)
    with pytest.raises(Invalid, match="limit"):
        following.follow(TENANT, TOPIC, None, 0)
    with pytest.raises(Invalid, match="beyond the end"):
        await following.read(TENANT, TOPIC, encode((2, 0, 0, 0)), 10, MINUTE_US)


# --- waiting ---


@simulated
async def test_a_long_poll_ends_with_the_first_record_of_a_new_topic() -> None:
    log = FakeLog()
    following = LogReader(log)
    reading = asyncio.create_task(following.read(TENANT, TOPIC, None, 10, MINUTE_US))
    await elapse(SECOND_US)
    log.append(2)
    following.notify(NEWS)
    records, cursor = await reading
    assert (places(records), cursor) == ([(2, 0)], encode((0, 0, 1, 0)))
    assert the_clock().elapsed() == SECOND_US


@simulated
async def test_a_long_poll_ends_after_its_time() -> None:
    following = LogReader(FakeLog())
    assert await following.read(TENANT, TOPIC, None, 10, MINUTE_US) == ([], encode((0, 0, 0, 0)))
    assert the_clock().elapsed() == MINUTE_US


@simulated
async def test_only_the_readers_of_a_topic_wake_up() -> None:
    log = FakeLog()
    log.append(0, topic="other")
    following = LogReader(log)
    reading = asyncio.create_task(following.read(TENANT, "other", LATEST, 10, SECOND_US))
    await elapse()
    following.notify(frozenset({(TENANT, TOPIC), ("another", "other")}))
    log.append(0, topic="other")
    await elapse(SECOND_US // 2)
    assert not reading.done()
    following.notify(frozenset({(TENANT, TOPIC), (TENANT, "other")}))
    assert places((await reading)[0]) == [(0, 1)]


@simulated
async def test_without_notifications_a_stream_polls() -> None:
    log = FakeLog()
    batches = LogReader(log).follow(TENANT, TOPIC, None, 10)
    waiting = asyncio.ensure_future(anext(batches))
    await elapse()
    log.append(0)
    assert places((await waiting)[0]) == [(0, 0)]
    assert the_clock().elapsed() == LOOK_AGAIN_US
    await batches.aclose()


@simulated
async def test_close_ends_every_wait() -> None:
    log = FakeLog()
    following = LogReader(log)
    reading = asyncio.create_task(following.read(TENANT, TOPIC, None, 10, MINUTE_US))
    batches = following.follow(TENANT, "other", None, 10)
    waiting = asyncio.ensure_future(anext(batches))
    await elapse()
    log.append(0)
    following.close()
    assert await reading == ([], encode((0, 0, 0, 0)))  # not read again: the store may be closing
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert [batch async for batch in following.follow(TENANT, TOPIC, None, 10)] == []
    assert the_clock().elapsed() == 1


@simulated
async def test_topics_without_readers_are_forgotten() -> None:
    log = FakeLog()
    following = LogReader(log)
    await following.read(TENANT, TOPIC, None, 10, SECOND_US)
    cancelled = asyncio.create_task(following.read(TENANT, TOPIC, None, 10, SECOND_US))
    batches = following.follow(TENANT, TOPIC, None, 10)
    log.append(0)
    await anext(batches)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert following._signals.keys() == NEWS
    await batches.aclose()
    assert following._signals == {}


@simulated
async def test_a_stream_reads_only_when_there_are_records() -> None:
    log = FakeLog()
    following = LogReader(log)
    batches = following.follow(TENANT, TOPIC, None, 10)
    for n in range(100):
        waiting = asyncio.ensure_future(anext(batches))
        await elapse()
        log.append(n % 4)
        following.notify(NEWS)
        await waiting
    assert (log.looks, log.pages) == (101, 100)
    await batches.aclose()


@simulated
async def test_a_burst_is_returned_in_full_pages() -> None:
    log = FakeLog()
    for partition in range(4):
        log.append(partition, 25_000)
    records: list[Record] = []
    batches = LogReader(log).follow(TENANT, TOPIC, None, 1_000)
    cursor = ""
    while len(records) < 100_000:
        batch, cursor = await anext(batches)
        assert len(batch) == 1_000
        records += batch
    await batches.aclose()
    assert in_order(records)
    assert cursor == encode((25_000,) * 4)
    assert log.pages == 400


@pytest.mark.parametrize("seed", range(60))
@simulated
async def test_no_wake_up_is_lost(seed: int) -> None:
    """In any interleaving no simulated time passes, so no reader waited for records that were there."""
    chance = random.Random(seed)
    log = FakeLog(chance)
    following = LogReader(log)
    total = 150
    readers = [asyncio.create_task(follow_all(following, total, chance)) for _ in range(3)]
    readers += [asyncio.create_task(poll_all(following, total, chance)) for _ in range(3)]
    for _ in range(total):
        log.append(chance.randrange(4))
        await log.pause()
        following.notify(NEWS)
        for _ in range(chance.choice((0, 0, 1, 5, 20))):
            await Turn()
    for records in await asyncio.gather(*readers):
        assert len(records) == total
        assert in_order(records)
    assert the_clock().elapsed() == 0
    assert following._signals == {}


async def follow_all(following: LogReader, total: int, chance: random.Random) -> list[Record]:
    records: list[Record] = []
    batches = following.follow(TENANT, TOPIC, None, chance.choice((1, 3, 100)))
    async for batch, _ in batches:
        records += batch
        for _ in range(chance.randrange(3)):
            await Turn()
        if len(records) >= total:
            break
    await batches.aclose()
    return records


async def poll_all(following: LogReader, total: int, chance: random.Random) -> list[Record]:
    records: list[Record] = []
    cursor = None
    while len(records) < total:
        batch, cursor = await following.read(TENANT, TOPIC, cursor, chance.choice((1, 3, 100)), MINUTE_US)
        records += batch
    return records
