"""Tenants that appear while a node runs get their topics, without disturbing others."""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.kafka.site import READ_S_MAX, Header, Site, read_all
from tests.servers.kafka import Broker
from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Kafka, Store
from tidings.node import build_engine, join_kafka, open_store
from tidings.testing import eventually

pytestmark = pytest.mark.slow

PARTITIONS = 3
SERVED_S_MAX = 5.0


@pytest.fixture
async def wide(broker: Broker, tmp_path: Path) -> AsyncIterator[Site]:
    """A site that creates topics with three partitions."""
    name = f"site-{uuid.uuid4().hex[:8]}"
    kafka = Kafka(servers=broker.bootstrap, name=name, partitions=PARTITIONS)
    config = Config(store=Store(path=str(tmp_path / "wide.db")), kafka=kafka)
    clock = SystemClock()
    engine = build_engine(await open_store(config.store.path, config, clock), config, clock)
    join_kafka(engine, config)
    await engine.start()
    try:
        site = Site(engine, broker, name)
        await at_work(site)
        yield site
    finally:
        await engine.stop()


async def at_work(site: Site) -> None:
    """Wait until a first tenant is served, so that the start is not measured."""
    site.send(f"assignments.{site.name}-first", b"first", None, [("intervals-schedule", b"PT0.1S")])
    await site.read(f"executions.{site.name}-first", 1)


def partitions(broker: Broker, topic: str) -> int:
    return len(AdminClient(broker.client()).list_topics(topic, timeout=READ_S_MAX).topics[topic].partitions)


INTERVALS: list[Header] = [("intervals-schedule", b"PT0.1S")]


@pytest.mark.parametrize(
    ("requests", "topics"),
    [
        ("assignments.{}", ["executions.{}", "rejections.{}"]),
        ("{}-schedule-requests", ["{}-schedule-actions", "{}-schedule-rejections"]),
        ("tidings.requests.{}", ["tidings.rejections.{}"]),
    ],
    ids=["intervals", "kaspr", "native"],
)
async def test_the_response_topics_of_a_new_tenant_are_created(wide: Site, requests: str, topics: list[str]) -> None:
    tenant = f"new-{uuid.uuid4().hex[:8]}"
    wide.broker.create_topic(requests.format(tenant))
    made = {name.format(tenant) for name in topics}
    await eventually(lambda: made <= wide.broker.topics(), SERVED_S_MAX, poll_s=0.1)
    assert {name: partitions(wide.broker, name) for name in made} == dict.fromkeys(made, PARTITIONS)


async def test_a_new_tenant_is_served(wide: Site) -> None:
    tenant = f"new-{uuid.uuid4().hex[:8]}"
    begun = time.monotonic()
    wide.send(f"assignments.{tenant}", b"hello", None, INTERVALS)
    wide.send(f"assignments.{tenant}", b"bad", None, [("intervals-schedule", b"never")])
    (record,) = await wide.read(f"executions.{tenant}", 1)
    assert time.monotonic() - begun < SERVED_S_MAX
    assert record.value() == b"hello"
    (rejection,) = await wide.read(f"rejections.{tenant}", 1)
    assert rejection.value() == b"bad"


async def test_a_missing_destination_topic_is_created(wide: Site) -> None:
    tenant = f"new-{uuid.uuid4().hex[:8]}"
    wide.send(f"tidings.requests.{tenant}", b"hello", b"k", [("tidings-to", f"{tenant}-out")])
    await wide.read(f"{tenant}-out", 1)
    assert partitions(wide.broker, f"{tenant}-out") == PARTITIONS


async def test_an_existing_topic_is_not_changed(wide: Site) -> None:
    tenant = f"new-{uuid.uuid4().hex[:8]}"
    wide.broker.create_topic(f"executions.{tenant}", partitions=2)
    wide.send(f"assignments.{tenant}", b"hello", None, INTERVALS)
    await wide.read(f"executions.{tenant}", 1)
    assert partitions(wide.broker, f"executions.{tenant}") == 2


async def test_added_partitions_are_read(wide: Site) -> None:
    tenant = f"new-{uuid.uuid4().hex[:8]}"
    requests = f"assignments.{tenant}"
    wide.send(requests, b"first", None, INTERVALS)
    await wide.read(f"executions.{tenant}", 1)
    admin = AdminClient(wide.broker.client())  # needed until the answer is there
    admin.create_partitions([NewPartitions(requests, 2)])[requests].result(READ_S_MAX)
    producer = Producer(wide.broker.client(linger_ms=0))
    producer.produce(requests, b"second", headers=INTERVALS, partition=1)
    assert producer.flush(READ_S_MAX) == 0
    records = await wide.read(f"executions.{tenant}", 2)
    assert {record.value() for record in records} == {b"first", b"second"}


async def test_a_new_topic_does_not_disturb_other_tenants(wide: Site) -> None:
    """Records read during a reassignment are accepted once: duplicates would be rejected twice."""
    tenant = f"busy-{uuid.uuid4().hex[:8]}"
    requests, out = f"assignments.{tenant}", f"rejections.{tenant}"
    wide.broker.create_topic(requests, partitions=4)
    producer = Producer(wide.broker.client(linger_ms=0))
    newcomers = [f"new-{uuid.uuid4().hex[:8]}" for _ in range(6)]
    count = 0

    async def keep_sending() -> None:
        nonlocal count
        while True:
            for _ in range(50):
                producer.produce(requests, str(count).encode(), headers=[("intervals-schedule", b"never")])
                count += 1
            await asyncio.to_thread(producer.flush, READ_S_MAX)

    sending = asyncio.create_task(keep_sending())
    try:
        for newcomer in newcomers:
            wide.send(f"assignments.{newcomer}", b"hello", None, INTERVALS)
            await wide.read(f"executions.{newcomer}", 1)
    finally:
        sending.cancel()
    producer.flush(READ_S_MAX)
    records = await eventually(lambda: complete(wide.broker, out, count), READ_S_MAX, poll_s=0.2)
    times = Counter(int(record.value() or b"") for record in records)
    assert {number: seen for number, seen in times.items() if seen > 1} == {}
    assert len(times) == count


def complete(broker: Broker, topic: str, count: int) -> list[Message]:
    records = read_all(broker, topic)
    return records if len(records) >= count else []


async def test_a_recreated_request_topic_makes_new_schedules(wide: Site) -> None:
    """Its records have offsets that were used before, and are different requests."""
    requests, executions = f"assignments.{wide.name}-again", f"executions.{wide.name}-again"
    admin = AdminClient(wide.broker.client())
    wide.send(requests, b"the same", None, INTERVALS)
    await wide.read(executions, 1)
    await asyncio.to_thread(admin.delete_topics([requests])[requests].result, READ_S_MAX)
    wide.broker.create_topic(requests)
    wide.send(requests, b"the same", None, INTERVALS)
    await wide.read(executions, 2)
