"""An engine in this process, connected to the broker of the tests, and its clients."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.servers.kafka import Broker
from tidings.bus.kafka.producers import MARKER_PARTITIONS, PROGRESS
from tidings.clock import Clock, SystemClock
from tidings.config import Config
from tidings.config.settings import Kafka, Store
from tidings.engine import Engine
from tidings.node import build_engine, join_kafka, open_store
from tidings.testing import eventually

READ_S_MAX = 30.0

Header = tuple[str, str | bytes | None]


class Site:
    """One engine and one broker; names are unique."""

    def __init__(self, engine: Engine, broker: Broker, name: str) -> None:
        self.engine = engine
        self.broker = broker
        self.name = name
        self._made: set[str] = set()
        self._producer = Producer(broker.client(linger_ms=0))

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp_ms: int = 0,
    ) -> None:
        """Send a record as a foreign client does, with the present timestamp by default; acknowledged on return."""
        if topic not in self._made:
            self._made.add(topic)
            self.broker.create_topic(topic, exist_ok=True)
        self._producer.produce(topic, value, key, headers=list(headers), timestamp=timestamp_ms)
        assert self._producer.flush(READ_S_MAX) == 0

    async def joined(self) -> None:
        """Wait until it releases to Kafka: earlier schedules would be overdue and share batches with new ones."""
        await eventually(lambda: not self.engine.problems(), timeout_s=READ_S_MAX)

    async def read(self, topic: str, count: int) -> list[Message]:
        """The first committed records of a topic; fails if they do not come."""
        return await eventually(lambda: self._found(topic, count), timeout_s=READ_S_MAX)

    async def _found(self, topic: str, count: int) -> list[Message]:
        for task in self.engine._tasks:
            if task.done():
                task.result()
        found = await asyncio.to_thread(read_all, self.broker, topic)
        return found if len(found) >= count else []


def headers_of(message: Message) -> list[Header]:
    """The headers of a record, in order."""
    headers = message.headers()
    return headers if isinstance(headers, list) else []


def read_all(broker: Broker, topic: str) -> list[Message]:
    """All committed records of a topic."""
    if topic not in broker.topics():
        return []
    settings = broker.client(
        group_id=f"tests-{uuid.uuid4()}", isolation_level="read_committed", enable_partition_eof=True
    )
    consumer = Consumer(settings | {"enable.auto.commit": False, "fetch.wait.max.ms": 10})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found, ends, deadline = list[Message](), 0, time.monotonic() + READ_S_MAX
        while ends < len(partitions) and time.monotonic() < deadline:
            for message in consumer.consume(1_000, 0.5):
                if message.error() is None:
                    found.append(message)
                else:
                    ends += 1
        return found
    finally:
        consumer.close()


def expect_progress(broker: Broker) -> None:
    """Create the topic that a node would create if it were allowed to."""
    if PROGRESS not in broker.topics():
        broker.create_topic(PROGRESS, MARKER_PARTITIONS, exist_ok=True, cleanup_policy="compact")


@contextlib.asynccontextmanager
async def opened(
    broker: Broker, folder: Path, *, file: str = "site.db", clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Site]:
    """A store, under a name of its own if none is given, by the machine's clock if by no other."""
    settings.setdefault("name", f"site-{uuid.uuid4().hex[:8]}")
    if settings.get("topics") == "expect":
        expect_progress(broker)
    kafka = Kafka(**{"servers": broker.bootstrap} | settings)
    name = kafka.name
    config = Config(store=Store(path=str(folder / file)), kafka=kafka)
    clock = clock or SystemClock()
    engine = build_engine(await open_store(config.store.path, config, clock), config, clock)
    join_kafka(engine, config)
    await engine.start()
    try:
        yield Site(engine, broker, name)
    finally:
        await engine.stop()


@pytest.fixture
async def site(broker: Broker, tmp_path: Path) -> AsyncIterator[Site]:
    """A site with default settings."""
    async with opened(broker, tmp_path) as made:
        yield made
