"""The start position of a store that has read nothing from Kafka: earliest or latest."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.kafka.site import READ_S_MAX, Header, Site, opened, read_all
from tests.servers.kafka import Broker
from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Kafka, Store
from tidings.engine import Engine
from tidings.node import build_engine, join_kafka, open_store
from tidings.testing import eventually

pytestmark = pytest.mark.slow

SOON: list[Header] = [("intervals-schedule", b"PT0.1S")]


class Tenant:
    """A unique tenant, with a request topic once it is created."""

    def __init__(self, broker: Broker) -> None:
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        self.requests, self.executions = f"assignments.{self.name}", f"executions.{self.name}"
        self._broker = broker
        self._producer = Producer(broker.client(linger_ms=0))

    def appear(self, partitions: int = 1) -> "Tenant":
        self._broker.create_topic(self.requests, partitions=partitions)
        return self

    def send(self, value: str, partition: int = 0) -> None:
        self._producer.produce(self.requests, value.encode(), headers=SOON, partition=partition)
        assert self._producer.flush(READ_S_MAX) == 0

    @property
    def received(self) -> list[str]:
        return sorted((record.value() or b"").decode() for record in read_all(self._broker, self.executions))


@contextlib.asynccontextmanager
async def begun(broker: Broker, folder: Path, tenants: tuple[str, ...], **settings: Any) -> AsyncIterator[Site]:
    """A site whose start position is set."""
    async with opened(broker, folder, tenants=tenants, start="latest", **settings) as site:

        async def joined() -> bool:
            return ("@joined", 0) in await site.engine.store.positions()

        await eventually(joined, READ_S_MAX)
        yield site


async def test_earliest_reads_all_requests(broker: Broker, tmp_path: Path) -> None:
    tenant = Tenant(broker).appear()
    tenant.send("before")
    async with opened(broker, tmp_path, tenants=(tenant.name,)) as site:
        await site.read(tenant.executions, 1)
        assert tenant.received == ["before"]


async def test_latest_reads_only_later_requests(broker: Broker, tmp_path: Path) -> None:
    tenant = Tenant(broker).appear(partitions=2)
    tenant.send("before")
    async with begun(broker, tmp_path, (tenant.name,)) as site:
        tenant.send("after", partition=0)
        tenant.send("after too", partition=1)
        await site.read(tenant.executions, 2)
        assert tenant.received == ["after", "after too"]


async def test_a_topic_created_later_is_read_from_its_beginning(broker: Broker, tmp_path: Path) -> None:
    async with begun(broker, tmp_path, ("t-*",), wires=("intervals",)) as site:
        tenant = Tenant(broker).appear()
        tenant.send("first")
        await site.read(tenant.executions, 1)
    assert tenant.received == ["first"]


async def test_the_start_position_survives_a_restart(broker: Broker, tmp_path: Path) -> None:
    """Nothing was read before the stop: requests sent meanwhile are accepted, earlier ones are not."""
    old, new = Tenant(broker).appear(), Tenant(broker)
    old.send("before")
    async with begun(broker, tmp_path, (old.name, new.name)):
        pass
    old.send("meanwhile")
    new.appear().send("new")
    async with begun(broker, tmp_path, (old.name, new.name)) as site:
        await site.read(old.executions, 1)
        await site.read(new.executions, 1)
        assert (old.received, new.received) == (["meanwhile"], ["new"])


async def test_a_store_with_positions_ignores_the_setting(broker: Broker, tmp_path: Path) -> None:
    tenant = Tenant(broker).appear()
    tenant.send("one")
    async with opened(broker, tmp_path, tenants=(tenant.name,)) as site:
        await site.read(tenant.executions, 1)
    tenant.send("two")
    async with opened(broker, tmp_path, tenants=(tenant.name,), start="latest") as site:
        await site.read(tenant.executions, 2)
        assert tenant.received == ["one", "two"]


async def test_requests_in_an_open_transaction_are_not_skipped(broker: Broker, tmp_path: Path) -> None:
    tenant = Tenant(broker).appear()
    tenant.send("before")
    producer = Producer(broker.client(transactional_id=f"open-{tenant.name}"))
    await asyncio.to_thread(producer.init_transactions, READ_S_MAX)
    producer.begin_transaction()
    producer.produce(tenant.requests, b"open", headers=SOON)
    assert producer.flush(READ_S_MAX) == 0
    async with begun(broker, tmp_path, (tenant.name,)) as site:
        await asyncio.to_thread(producer.commit_transaction, READ_S_MAX)
        await site.read(tenant.executions, 1)
        assert tenant.received == ["open"]


async def test_it_waits_for_a_broker_that_is_down_and_reports_it(tmp_path: Path) -> None:
    config = Config(store=Store(path=str(tmp_path / "away.db")), kafka=Kafka(servers="127.0.0.1:1", start="latest"))
    clock = SystemClock()
    engine = build_engine(await open_store(config.store.path, config, clock), config, clock)
    join_kafka(engine, config)
    async with engine_at_work(engine):
        (beginning,) = engine._services
        await eventually(lambda: "_TRANSPORT" in (beginning.problem or ""), READ_S_MAX)
        assert beginning.problem in engine.problems()
        assert await engine.store.positions() == {}


@contextlib.asynccontextmanager
async def engine_at_work(engine: Engine) -> AsyncIterator[None]:
    await engine.start()
    try:
        yield
    finally:
        await engine.stop()
