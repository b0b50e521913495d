"""Progress markers on Kafka, and stores that do not match them."""

import asyncio
import shutil
import time
import uuid
from pathlib import Path
from typing import cast

import pytest

from tests.kafka.site import Site, opened
from tests.servers.frames import Api
from tests.servers.kafka import Broker
from tests.servers.proxy import Proxy
from tidings import ports
from tidings.bus.kafka.forwarder import Forwarder, PublishLimit
from tidings.bus.kafka.producers import Marker, ProgressMismatch, TransactionalProducer
from tidings.bus.kafka.topics import Cluster
from tidings.clock import SystemClock
from tidings.domain.errors import NotOwner
from tidings.domain.facts import Fact, Released
from tidings.domain.schedules.schedule import Message, Outgoing, Request, pack
from tidings.testing import eventually

pytestmark = pytest.mark.slow

SOON_S = 3.0


async def schedule(site: Site, topic: str, *values: str, at: str | None = None) -> None:
    requests = [Request(topic, value.encode(), id=f"{topic} {value}", at=at) for value in values]
    await site.engine.submit([site.engine.admit("acme", request) for request in requests])


async def ends_estranged(site: Site) -> None:
    with pytest.raises(ProgressMismatch):
        await asyncio.wait_for(site.engine.wait(), 30)


async def test_a_restored_store_is_refused_although_it_has_as_many_records(broker: Broker, tmp_path: Path) -> None:
    """Other records fill its outbox at the same offsets."""
    async with opened(broker, tmp_path) as site:
        name, topic = site.name, f"{site.name}-out"
        await schedule(site, topic, "before")
        await site.read(topic, 1)
        await schedule(site, topic, *(f"overdue {number}" for number in range(20)), at="+3s")
        due = time.time() + 3
        await eventually(lambda: not site.engine.problems())
    shutil.copytree(tmp_path, tmp_path / "backup", ignore=shutil.ignore_patterns("backup"))
    async with opened(broker, tmp_path, name=name) as site:
        await schedule(site, topic, *(f"after {number}" for number in range(5)))
        await site.read(topic, 6)
    await eventually(lambda: time.time() > due, timeout_s=20)
    async with opened(broker, tmp_path / "backup", name=name) as site:
        await ends_estranged(site)


async def test_the_name_of_another_store_is_refused_and_its_owner_continues(broker: Broker, tmp_path: Path) -> None:
    async with opened(broker, tmp_path) as site:
        topic = f"{site.name}-out"
        await schedule(site, topic, "one")
        await site.read(topic, 1)
        async with opened(broker, tmp_path, file="other.db", name=site.name) as other:
            await schedule(other, topic, "of another")
            await ends_estranged(other)
        begun = time.monotonic()
        await schedule(site, topic, "two")
        records = await site.read(topic, 2)
        assert time.monotonic() - begun < SOON_S
        assert [record.value() for record in records] == [b"one", b"two"]


def test_a_marker_for_parked_records_of_another_store_is_refused(broker: Broker) -> None:
    """Its marker of parked topics says nothing about our records."""
    cluster = Cluster(broker.bootstrap, f"lane-{uuid.uuid4().hex[:8]}")
    lane, other = (
        TransactionalProducer(cluster, "store", "held", one_by_one=True),
        TransactionalProducer(cluster, "other", "held", one_by_one=True),
    )
    lane.take_over()
    record = Outgoing(4, "acme", cluster.name, "one", 1, 1, 1, 1, pack(Message(None, b"x")), final=True)
    lane.publish([record], f"{lane.key}/topic")
    assert lane.marker(f"{lane.key}/topic") == Marker("store", 5, record.occurrence)
    other.take_over()
    with pytest.raises(ProgressMismatch):
        other.marker(f"{other.key}/topic")
    for one in (lane, other):
        one.close()


class TakenMeanwhile:
    """An outbox whose lane is lost between two reads: the next owner has removed the records of the first."""

    number = 0

    def __init__(self, published: Outgoing) -> None:
        self.looks = 0
        self._following = published.offset + 1

    async def confirm(self) -> None:
        self.looks += 1
        if self.looks % 2 == 0:
            raise NotOwner("another node owns this lane")

    async def outbox(self) -> tuple[int, int]:
        return 0, self._following

    async def outgoing(self, offset: int, limit: int) -> list[Outgoing]:
        return []

    async def held_topics(self) -> set[str]:
        return set()

    def shut(self, is_shut: bool) -> None:
        """Nothing is released here."""


async def test_losing_a_lane_during_the_check_is_no_mismatch(broker: Broker) -> None:
    cluster = Cluster(broker.bootstrap, f"lane-{uuid.uuid4().hex[:8]}")
    former = TransactionalProducer(cluster, "store")
    record = Outgoing(4, "acme", cluster.name, "one", 1, 1, 1, 1, pack(Message(None, b"x")), final=True)
    await asyncio.to_thread(former.take_over)
    await asyncio.to_thread(former.publish, [record])
    former.close()
    taken = TakenMeanwhile(record)
    lane = TransactionalProducer(cluster, "store")
    forwarder = Forwarder(
        outbox=cast(ports.Lane, taken),
        producer=lane,
        clock=SystemClock(),
        on_fact=lambda _: None,
        owns=lambda: True,
        limit=PublishLimit(),
    )
    running = asyncio.create_task(forwarder.run())
    await eventually(lambda: taken.looks >= 4 or running.done(), timeout_s=30)
    forwarder.stop()
    await asyncio.wait_for(running, 30)


async def test_the_release_mode_may_be_changed_and_changed_back(broker: Broker, tmp_path: Path) -> None:
    sent: list[str] = []
    name = f"changing-{tmp_path.name}"
    for release in ("exactly_once", "at_least_once", "exactly_once"):
        async with opened(broker, tmp_path, name=name, release=release) as site:
            values = [f"{len(sent) + number}" for number in range(5)]
            await schedule(site, name, *values)
            sent += values
            await site.read(name, len(sent))
            await eventually(lambda: is_settled(site), timeout_s=20)
            records = await site.read(name, len(sent))
            assert [(record.value() or b"").decode() for record in records] == sent


async def is_settled(site: Site) -> bool:
    first, following = await site.engine.store.lanes()[0].outbox()
    return first == following


async def test_parked_records_are_released_although_nothing_follows(broker: Broker, tmp_path: Path) -> None:
    async with opened(broker, tmp_path, topics="expect") as site:
        topic = f"{site.name}-late"
        await schedule(site, topic, "only")
        await eventually(site.engine.store.lanes()[0].held_topics, timeout_s=20)
        broker.create_topic(topic)
        await site.read(topic, 1)

        async def is_released() -> bool:
            found = await site.engine.find("acme", f"{topic} only")
            return found is not None and found.state == "released"

        assert await eventually(is_released, timeout_s=20)


async def test_a_commit_without_an_answer_is_reported_as_released(broker: Broker, tmp_path: Path) -> None:
    facts: list[Fact] = []
    with Proxy(broker) as proxy:
        async with opened(broker, tmp_path, servers=proxy.bootstrap) as site:
            topic = f"{site.name}-out"
            await schedule(site, topic, "first")
            await site.read(topic, 1)
            site.engine.listen(facts.append)
            cut = proxy.cut(Api.END_TXN, "after")
            await schedule(site, topic, *(f"{number}" for number in range(10)))
            await asyncio.to_thread(cut.wait_for_strikes)
            await site.read(topic, 11)
            await eventually(lambda: _released(facts) == 10, timeout_s=20)


def _released(facts: list[Fact]) -> int:
    return sum(len(fact.lateness_us) for fact in facts if isinstance(fact, Released))


async def test_a_connection_lost_while_idle_is_replaced_at_once(broker: Broker, tmp_path: Path) -> None:
    with Proxy(broker) as proxy:
        async with opened(broker, tmp_path, servers=proxy.bootstrap) as site:
            topic = f"{site.name}-out"
            await schedule(site, topic, "first")
            await site.read(topic, 1)
            before = proxy.requests[Api.INIT_PRODUCER_ID]
            proxy.cut_all()
            await eventually(lambda: proxy.requests[Api.INIT_PRODUCER_ID] > before, timeout_s=20)
