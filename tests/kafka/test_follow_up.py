"""After the release of an etf1 schedule: one copy on the history topic, and one tombstone for its key."""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from tests.kafka.site import READ_S_MAX, Header, Site, expect_progress, headers_of, opened, read_all
from tests.servers.kafka import Broker
from tidings.bus.kafka.follow_up import BATCH_ROWS_MAX, FollowUp
from tidings.bus.kafka.forwarder import Forwarder
from tidings.bus.kafka.producers import MARKER_PARTITIONS, PROGRESS, Marker, ProducerFailed, encode, partition_of
from tidings.domain.schedules.schedule import Request
from tidings.testing import eventually

pytestmark = pytest.mark.slow

FAR = int(time.time()) + 86_400


class Topics:
    """Unique topic names on a shared broker."""

    def __init__(self, broker: Broker) -> None:
        name = uuid.uuid4().hex[:8]
        self.broker = broker
        self.requests, self.out, self.history = f"{name}-schedules", f"{name}-out", f"{name}-history"
        self.settings: dict[str, Any] = {
            "name": f"site-{name}",
            "wires": ("etf1",),
            "schedules": {self.requests: "default"},
            "history": self.history,
        }
        self._producer = Producer(broker.client(linger_ms=0))

    def make(self, partitions: int = 1) -> None:
        self.broker.create_topic(self.requests, partitions, cleanup_policy="compact")

    def send(
        self, key: bytes, value: bytes | None, epoch: int = 1, to: str = "", *more: Header, partition: int = 0
    ) -> None:
        headers: list[Header] = [("scheduler-epoch", str(epoch)), ("scheduler-target-topic", to or self.out)]
        self._producer.produce(self.requests, value, key, partition, headers=[*headers, *more])
        assert self._producer.flush(READ_S_MAX) == 0

    def send_many(self, count: int) -> list[bytes]:
        """Send requests that are due, each with a key of its own; returns the keys."""
        keys = [b"k%d" % number for number in range(count)]
        headers: list[Header] = [("scheduler-epoch", "1"), ("scheduler-target-topic", self.out)]
        for key in keys:
            self._producer.produce(self.requests, b"v", key, 0, headers=headers)
        assert self._producer.flush(READ_S_MAX) == 0
        return keys

    async def tombstones(self, count: int) -> list[Message]:
        """The tombstones, once there are this many."""
        found: list[Message] = await eventually(lambda: self._tombstones(count), READ_S_MAX, poll_s=0.1)
        return found

    def _tombstones(self, count: int) -> list[Message]:
        found = [message for message in read_all(self.broker, self.requests) if message.value() is None]
        return found if len(found) >= count else []


@pytest.fixture
def topics(broker: Broker) -> Topics:
    return Topics(broker)


def values(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


async def test_a_release_is_followed_by_a_copy_and_a_tombstone(topics: Topics, broker: Broker, tmp_path: Path) -> None:
    topics.make(partitions=3)
    async with opened(broker, tmp_path, **topics.settings) as site:
        topics.send(b"k", b"v", 1, "", ("scheduler-target-key", b"to-k"), ("trace", b"1"), partition=2)
        (released,) = await site.read(topics.out, 1)
        (copy,) = await site.read(topics.history, 1)
        assert (copy.key(), copy.value(), headers_of(copy)) == (b"to-k", b"v", headers_of(released))
        (tombstone,) = await topics.tombstones(1)
        # Compaction looks within a partition, and clients of the original choose it by another hash than ours.
        assert (tombstone.key(), tombstone.partition()) == (b"k", 2)
        assert headers_of(tombstone) == [*headers_of(released), ("tidings-origin", b"2/0")]
        assert "tidings-origin" not in {name for name, _ in headers_of(released)}


async def test_our_own_tombstone_cancels_nothing(topics: Topics, broker: Broker, tmp_path: Path) -> None:
    """It may be written after a newer request for the same key that is not read yet."""
    topics.make()
    async with opened(broker, tmp_path, **topics.settings) as site:
        topics.send(b"k", b"first")
        (tombstone,) = await topics.tombstones(1)
        topics.send(b"k", b"second", FAR)
        topics.send(b"k", None, FAR, "", *headers_of(tombstone))
        topics.send(b"marker", b"marker")
        await site.read(topics.out, 2)
        found = await site.engine.find("default", "k")
        assert found is not None
        assert (found.state, found.generation) == ("pending", 2)
        topics.send(b"k", None)
        topics.send(b"marker", b"marker")
        await site.read(topics.out, 3)
        found = await site.engine.find("default", "k")
        assert found is not None
        assert found.state == "cancelled"


async def test_the_request_of_a_newer_schedule_is_not_deleted(topics: Topics, broker: Broker, tmp_path: Path) -> None:
    """The release of the first schedule waits for its topic while the second is accepted."""
    topics.make()
    expect_progress(broker)
    for name in (topics.out, topics.history):
        broker.create_topic(name)
    late = f"{topics.out}-late"
    async with opened(broker, tmp_path, topics="expect", **topics.settings) as site:
        topics.send(b"k", b"first", 1, late)
        await eventually(lambda: _held(site, late), READ_S_MAX)
        topics.send(b"k", b"second", FAR)
        await eventually(lambda: _generation(site, "k", 2), READ_S_MAX)
        broker.create_topic(late)
        assert values(await site.read(late, 1)) == [b"first"]
        assert values(await site.read(topics.history, 1)) == [b"first"]
        topics.send(b"other", b"other")
        (tombstone,) = await topics.tombstones(1)
        assert tombstone.key() == b"other"
        topics.send(b"k", b"third")
        assert [one.key() for one in await topics.tombstones(2)] == [b"other", b"k"]
        assert sorted(values(await site.read(topics.history, 3)), key=str) == [b"first", b"other", b"third"]


async def _held(site: Site, topic: str) -> bool:
    (lane,) = site.engine.store.lanes()
    return topic in await lane.held_topics()


async def _generation(site: Site, schedule_id: str, generation: int) -> bool:
    found = await site.engine.find("default", schedule_id)
    return found is not None and found.generation == generation


async def _refuse(_: FollowUp) -> None:
    raise ProducerFailed("not in this life")


async def test_the_next_node_writes_what_a_dead_node_did_not(
    topics: Topics, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.make()
    with monkeypatch.context() as patched:
        patched.setattr(FollowUp, "_tick", _refuse)
        async with opened(broker, tmp_path, **topics.settings) as site:
            topics.send(b"k", b"v")
            await site.read(topics.out, 1)
    assert topics._tombstones(1) == []
    async with opened(broker, tmp_path, **topics.settings) as site:
        assert [one.key() for one in await topics.tombstones(1)] == [b"k"]
        assert values(await site.read(topics.history, 1)) == [b"v"]
        assert values(read_all(broker, topics.out)) == [b"v"]


async def test_a_backlog_of_many_batches_is_written_completely(
    topics: Topics, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases that get neither a copy nor a tombstone are among them, and others follow."""
    topics.make()
    with monkeypatch.context() as patched:
        patched.setattr(FollowUp, "_tick", _refuse)
        async with opened(broker, tmp_path, **topics.settings) as site:
            keys = topics.send_many(3 * BATCH_ROWS_MAX + 1)
            await site.read(topics.out, len(keys))
            await site.engine.schedule("default", Request(topics.out, b"own"))
            await site.read(topics.out, len(keys) + 1)
    assert topics._tombstones(1) == []
    async with opened(broker, tmp_path, **topics.settings) as site:
        topics.send(b"last", b"last")
        found = await topics.tombstones(len(keys) + 1)
        assert sorted(one.key() or b"" for one in found) == sorted([*keys, b"last"])
        assert len(await site.read(topics.history, len(keys) + 1)) == len(keys) + 1
        await eventually(lambda: _is_settled(site), READ_S_MAX)


async def _is_settled(site: Site) -> bool:
    (lane,) = site.engine.store.lanes()
    first, following = await lane.outbox()
    return first == following


async def _write_nothing(_: FollowUp, __: object, ___: str) -> None:
    raise ProducerFailed("the history topic is away")


async def test_a_failure_does_not_delay_a_release_to_a_parked_topic(
    topics: Topics, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topics.make()
    monkeypatch.setattr(FollowUp, "_write", _write_nothing)
    async with opened(broker, tmp_path, topics="expect", **topics.settings) as site:
        topics.send(b"k", b"first")
        await eventually(lambda: _held(site, topics.out), READ_S_MAX)
        broker.create_topic(topics.out)
        assert values(await site.read(topics.out, 1)) == [b"first"]
        await eventually(lambda: _is_free(site, topics.out), READ_S_MAX)
        topics.send(b"k", b"second")
        assert values(await site.read(topics.out, 2)) == [b"first", b"second"]
    assert f"up to 1 releases to {topics.out} get no history copy and no tombstone" in caplog.text


async def _is_free(site: Site, topic: str) -> bool:
    return not await _held(site, topic)


async def test_the_progress_of_another_store_does_not_stop_releases(
    topics: Topics, broker: Broker, tmp_path: Path
) -> None:
    topics.make()
    expect_progress(broker)
    key = f"{topics.settings['name']}/0-follow-up"
    marker = encode(Marker("another", 5, "k"))
    topics._producer.produce(PROGRESS, marker, key, partition_of(key, MARKER_PARTITIONS))
    assert topics._producer.flush(READ_S_MAX) == 0
    async with opened(broker, tmp_path, **topics.settings) as site:
        topics.send(b"k", b"first")
        await eventually(lambda: "belongs to another store" in str(site.engine.problems()), READ_S_MAX)
        topics.send(b"k", b"second")
        assert values(await site.read(topics.out, 2)) == [b"first", b"second"]
        await eventually(lambda: _is_settled(site), READ_S_MAX)
        assert topics._tombstones(1) == []


async def test_a_record_that_is_too_large_for_the_history_topic_costs_no_other_copy(
    topics: Topics, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics.make()
    broker.create_topic(topics.history, max_message_bytes="2000")
    async with opened(broker, tmp_path, **topics.settings) as site:
        for number in range(4):
            topics.send(b"k%d" % number, b"x" * 5_000 if number == 2 else b"v")
        assert values(await site.read(topics.history, 3)) == [b"v"] * 3
        assert {one.key() for one in await topics.tombstones(4)} == {b"k0", b"k1", b"k2", b"k3"}
    assert f"{topics.history} gets no history copy or tombstone of k2" in caplog.text


async def _not_now(_: Forwarder) -> None:
    """As if the node always crashed before the outbox is cleaned up."""


async def test_copies_and_tombstones_are_written_once(
    topics: Topics, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.make()
    with monkeypatch.context() as patched:
        patched.setattr(Forwarder, "_settle", _not_now)
        async with opened(broker, tmp_path, **topics.settings):
            topics.send(b"k", b"v")
            await topics.tombstones(1)
    async with opened(broker, tmp_path, **topics.settings) as site:
        topics.send(b"next", b"next")
        assert [one.key() for one in await topics.tombstones(2)] == [b"k", b"next"]
        assert values(await site.read(topics.history, 2)) == [b"v", b"next"]


async def test_there_are_none_without_transactions(
    topics: Topics, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics.make()
    caplog.set_level("INFO", "tidings.kafka")
    async with opened(broker, tmp_path, release="at_least_once", **topics.settings) as site:
        topics.send(b"k", b"v")
        await site.read(topics.out, 1)
        await eventually(lambda: _is_settled(site), READ_S_MAX)
    assert topics._tombstones(1) == []
    assert topics.history not in broker.topics()
    assert "etf1 schedules get no history copies and no tombstones" in caplog.text


async def test_a_missing_history_topic_delays_nothing(
    topics: Topics, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics.make()
    expect_progress(broker)
    broker.create_topic(topics.out)
    async with opened(broker, tmp_path, topics="expect", **topics.settings) as site:
        topics.send(b"k", b"v")
        await site.read(topics.out, 1)
        assert [one.key() for one in await topics.tombstones(1)] == [b"k"]
        assert topics.history not in broker.topics()
    assert f"{topics.history} gets no history copies or tombstones for 30 s" in caplog.text


async def test_both_can_be_switched_off(topics: Topics, broker: Broker, tmp_path: Path) -> None:
    topics.make()
    settings = topics.settings | {"history": None, "tombstones": "off"}
    async with opened(broker, tmp_path, **settings) as site:
        topics.send(b"k", b"v")
        await site.read(topics.out, 1)
    async with opened(broker, tmp_path, **topics.settings) as site:
        topics.send(b"next", b"next")
        assert [one.key() for one in await topics.tombstones(1)] == [b"next"]
        assert values(await site.read(topics.history, 1)) == [b"next"]
