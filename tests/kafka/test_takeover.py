"""Take-over of a producer: readers are blocked only briefly, and open transactions hide nothing."""

import asyncio
import contextlib
import threading
import time
import uuid
from pathlib import Path

import aiohttp
import apsw
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.faults.node_process import NodeProcess, start_plain
from tests.kafka.faults.nodes import OWNER, STANDBY, environment, kill
from tests.kafka.site import expect_progress, read_all
from tests.servers.kafka import Broker
from tests.servers.transactions import transactional
from tidings.bus.kafka.producers import (
    MARKER_PARTITIONS,
    PROGRESS,
    Marker,
    TransactionalProducer,
    encode,
    partition_of,
    read_marker,
)
from tidings.bus.kafka.topics import Cluster
from tidings.domain.schedules.schedule import Message, Outgoing, pack
from tidings.testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timed]

HELD_UP_S_MAX = 5.0
READ_S_MAX = 60.0
READ_AGAIN_S_MAX = 15.0
OTHER_TRANSACTION = b"of somebody else"


async def schedule(node: NodeProcess, topic: str, *values: str) -> None:
    async with aiohttp.ClientSession(await node.url()) as session:
        for value in values:
            with contextlib.suppress(aiohttp.ClientError):  # it may die of it
                async with session.post("/v1/schedules", json={"topic": topic, "value": value}) as response:
                    assert response.status < 300, await response.text()


def await_value(broker: Broker, topic: str, value: bytes) -> None:
    """Read committed records until this one comes."""
    settings = broker.client(group_id=f"tests-{uuid.uuid4()}", isolation_level="read_committed")
    consumer = Consumer(settings | {"enable.auto.commit": False, "fetch.wait.max.ms": 10})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + READ_S_MAX
        while time.monotonic() < deadline:
            for message in consumer.consume(100, 0.05):
                if message.error() is None and message.value() == value:
                    return
        raise TimeoutError(f"{value!r} did not come within {READ_S_MAX} s")
    finally:
        consumer.close()


@pytest.mark.parametrize("has_standby", [True, False], ids=["one stands by", "started again"])
async def test_readers_are_blocked_only_briefly(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], has_standby: bool
) -> None:
    topic = f"held-up-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic)
    settings = environment(tmp_path, broker.bootstrap, topic)
    first = await start_plain(tmp_path, **settings, TIDINGS_CRASH_AT="kafka.marked:2")
    await first.logged(OWNER)
    await schedule(first, topic, "before")
    await asyncio.to_thread(await_value, broker, topic, b"before")
    second = None
    if has_standby:
        second = await start_plain(tmp_path, **settings)
        await second.logged(STANDBY)
    await schedule(first, topic, "caught in the transaction")
    assert await first.ended(10)
    crashed_at = time.monotonic()
    producer = Producer(broker.client())
    producer.produce(topic, OTHER_TRANSACTION)
    assert producer.flush(10) == 0
    if second is None:
        second = await start_plain(tmp_path, **settings)
    await asyncio.to_thread(await_value, broker, topic, OTHER_TRANSACTION)
    held_up_s = time.monotonic() - crashed_at
    await asyncio.to_thread(await_value, broker, topic, b"caught in the transaction")
    released_s = time.monotonic() - crashed_at
    await kill(second)
    values = [message.value() or b"" for message in read_all(broker, topic)]
    with capsys.disabled():
        print(f"\nread_committed held up for {held_up_s:.1f} s, the caught record out after {released_s:.1f} s")
    assert sorted(values) == sorted([b"before", OTHER_TRANSACTION, b"caught in the transaction"])
    assert held_up_s <= HELD_UP_S_MAX


async def test_requests_are_read_soon_after_a_kill(broker: Broker, tmp_path: Path) -> None:
    """A new reader does not wait until Kafka notices the death of the former one."""
    tenant = f"heirs-{uuid.uuid4().hex[:8]}"
    broker.create_topic(f"assignments.{tenant}")
    broker.create_topic(f"executions.{tenant}")
    settings = environment(tmp_path, broker.bootstrap, tenant)
    producer = Producer(broker.client())
    for value in (b"first", b"second"):
        begun = time.monotonic()
        node = await start_plain(tmp_path, **settings)
        await node.logged(OWNER)
        producer.produce(f"assignments.{tenant}", value, headers=[("intervals-schedule", "PT0.1S")])
        assert producer.flush(10) == 0
        await asyncio.to_thread(await_value, broker, f"executions.{tenant}", value)
        assert time.monotonic() - begun <= READ_AGAIN_S_MAX
        await kill(node)


def test_a_marker_after_the_open_transaction_of_another_lane_is_found(broker: Broker) -> None:
    """It is not visible until that ends; an older one must not be taken for the last."""
    cluster = Cluster(broker.bootstrap, f"lane-{uuid.uuid4().hex[:8]}")
    key = f"{cluster.name}/0"
    lane = TransactionalProducer(cluster, "store")
    lane.take_over()
    mine, other = transactional(broker), transactional(broker)

    def mark(producer: Producer, name: str, following: int) -> None:
        producer.begin_transaction()
        producer.produce(PROGRESS, encode(Marker("store", following)), name, partition=0)
        assert producer.flush(10) == 0

    mark(mine, key, 10)
    mine.commit_transaction(10)
    mark(other, "another/0", 1)
    mark(mine, key, 20)
    mine.commit_transaction(10)
    ending = threading.Timer(1.0, other.abort_transaction)
    ending.start()
    assert read_marker(cluster, key, 0) == Marker("store", 20)
    ending.join()
    lane.close()


def test_an_open_transaction_of_another_lane_blocks_nothing(broker: Broker) -> None:
    """It uses another partition for its markers."""
    cluster = Cluster(broker.bootstrap, f"lane-{uuid.uuid4().hex[:8]}")
    lane = TransactionalProducer(cluster, "store")
    lane.take_over()
    home = partition_of(lane.key, MARKER_PARTITIONS)
    other = transactional(broker)
    other.begin_transaction()
    other.produce(PROGRESS, encode(Marker("other", 1)), "another/0", partition=(home + 1) % MARKER_PARTITIONS)
    assert other.flush(10) == 0
    record = Outgoing(0, "acme", f"to-{cluster.name}", "one", 1, 1, 1, 1, pack(Message(None, b"x")), final=True)
    lane.publish([record])
    assert lane.take_over() == Marker("store", 1, record.occurrence)
    other.abort_transaction()
    lane.close()


def test_an_open_transaction_of_a_dead_owner_blocks_nothing(broker: Broker) -> None:
    """The progress is read before the old owner is fenced, and only fencing ends its open transaction."""
    cluster = Cluster(broker.bootstrap, f"lane-{uuid.uuid4().hex[:8]}")
    record = Outgoing(0, "acme", f"to-{cluster.name}", "one", 1, 1, 1, 1, pack(Message(None, b"x")), final=True)
    dead, heir = TransactionalProducer(cluster, "store"), TransactionalProducer(cluster, "store")
    dead.take_over()
    dead.publish([record])
    assert dead._producer is not None
    dead._producer.begin_transaction()
    dead._mark(dead._producer, dead.key, record)
    assert dead._producer.flush(10) == 0
    begun = time.monotonic()
    heir.peek()
    assert heir.take_over() == Marker("store", 1, record.occurrence)
    assert time.monotonic() - begun < HELD_UP_S_MAX
    for lane in (dead, heir):
        lane.close()


def test_the_marker_partition_stays_when_partitions_are_added() -> None:
    assert partition_of("tidings/0", 1) == partition_of("other/0", 15) == 0
    assert partition_of("tidings/0", 16) == partition_of("tidings/0", 64)
    assert len({partition_of(f"tidings/{number}", 16) for number in range(16)}) > 4


async def test_published_parked_records_are_not_sent_again(broker: Broker, tmp_path: Path) -> None:
    """Records of a missing topic are parked; the forwarder's marker may not have passed them."""
    topic = f"late-{uuid.uuid4().hex[:8]}"
    expect_progress(broker)
    settings = environment(tmp_path, broker.bootstrap, topic) | {"TIDINGS_KAFKA_TOPICS": "expect"}
    first = await start_plain(tmp_path, **settings)
    await first.logged(OWNER)
    await schedule(first, topic, "one", "two")
    await first.logged("cannot write to the topic")
    broker.create_topic(topic)
    await asyncio.to_thread(await_value, broker, topic, b"two")
    with contextlib.closing(apsw.Connection(settings["TIDINGS_STORE_PATH"])) as store:
        await eventually(lambda: store.execute("SELECT count(*) FROM held").get == 0)
    await kill(first)
    second = await start_plain(tmp_path, **settings)
    await second.logged(OWNER)
    await schedule(second, topic, "three")
    await asyncio.to_thread(await_value, broker, topic, b"three")
    await kill(second)
    assert [message.value() for message in read_all(broker, topic)] == [b"one", b"two", b"three"]
