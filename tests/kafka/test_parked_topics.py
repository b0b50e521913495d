"""A topic that refuses its records does not block others."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.kafka.site import Site, headers_of, opened
from tests.servers.kafka import Broker
from tidings.domain.schedules.schedule import Request
from tidings.testing import eventually

pytestmark = pytest.mark.slow

HELD_UP_S_MAX = 5.0


async def test_a_missing_topic_is_parked_and_others_are_released(broker: Broker, tmp_path: Path) -> None:
    async with opened(broker, tmp_path, topics="expect") as site:
        await site.joined()
        missing, there = f"{site.name}-missing", f"{site.name}-there"
        broker.create_topic(there)
        for number in range(20):
            await site.engine.schedule("acme", Request(missing, b"%d" % number, id=f"missing-{number}"))
            await site.engine.schedule("acme", Request(there, b"%d" % number))
        begun = time.monotonic()
        assert len(await site.read(there, 20)) == 20
        assert time.monotonic() - begun < 15
        found = await site.engine.find("acme", "missing-0")
        assert found is not None
        assert found.state == "in_flight"
        assert "topic" in (found.reason or "")
        broker.create_topic(missing)
        records = await site.read(missing, 20)
        assert [record.value() for record in records] == [b"%d" % number for number in range(20)]

        async def is_released() -> bool:
            schedule = await site.engine.find("acme", "missing-0")
            return schedule is not None and schedule.state == "released"

        assert await eventually(is_released, timeout_s=10)


async def test_a_too_large_record_is_rejected_and_its_topic_continues(site: Site) -> None:
    topic = f"{site.name}-small"
    site.broker.create_topic(topic, max_message_bytes="2000")
    for number in range(6):
        value = b"x" * (5_000 if number == 3 else 10)
        await site.engine.schedule(site.name, Request(topic, value, id=f"row-{number}"))
    records = await site.read(topic, 5)
    assert len(records) == 5
    (rejection,) = await site.read(f"tidings.rejections.{site.name}", 1)
    headers = dict(headers_of(rejection))
    assert headers["tidings-source-id"] == b"row-3"
    found = await site.engine.find(site.name, "row-3")
    assert found is not None
    assert (found.state, found.reason) == ("missed", "too_large")


async def test_a_refused_record_is_rejected_and_others_are_released(site: Site) -> None:
    """A compacted topic refuses records without a key."""
    await site.joined()
    topic = f"{site.name}-compacted"
    site.broker.create_topic(topic, cleanup_policy="compact")
    for number in range(200):
        key = None if number == 77 else b"key"
        await site.engine.schedule(site.name, Request(topic, b"%d" % number, key, id=f"row-{number}"))
    records = await site.read(topic, 199)
    assert [record.value() for record in records] == [b"%d" % number for number in range(200) if number != 77]
    (rejection,) = await site.read(f"tidings.rejections.{site.name}", 1)
    assert dict(headers_of(rejection))["tidings-source-id"] == b"row-77"
    found = await site.engine.find(site.name, "row-77")
    assert found is not None
    assert (found.state, found.reason) == ("missed", "invalid_record")


async def test_parked_records_are_released_before_new_ones_of_their_topic(broker: Broker, tmp_path: Path) -> None:
    """Records keep arriving while the topic is unparked; their order is kept."""
    async with opened(broker, tmp_path, topics="expect") as site:
        await site.joined()
        topic = f"{site.name}-missing"
        sent = 0
        while sent < 3_000:
            if sent == 600:
                broker.create_topic(topic)
            adds = [site.engine.admit("acme", Request(topic, b"%d" % (sent + number))) for number in range(20)]
            await site.engine.submit(adds)
            sent += len(adds)
        records = await site.read(topic, sent)
        assert [record.value() for record in records] == [b"%d" % number for number in range(sent)]


async def test_a_topic_on_a_broker_that_is_down_delays_others_only_once(tmp_path: Path) -> None:
    """The rest of the cluster continues; records for the broker that is down follow in order when it is back.

    If it is killed in the middle of a transaction, Kafka cannot end that before the broker is back, and nor can we.
    """
    with Broker.start() as broker:
        async with opened(broker, tmp_path) as site:
            there = f"{site.name}-there"
            await send(site, "alone", there)  # what Kafka and the lane keep for themselves is on the first one
            await site.read(there, 20)
            with await asyncio.to_thread(Broker.start, beside=broker) as second:
                await one_is_away(site, second, there)


async def one_is_away(site: Site, second: Broker, there: str) -> None:
    away = f"{site.name}-away"
    site.broker.create_topic(away, on=2)
    await send(site, "first", there, away)
    await site.read(away, 20)
    await asyncio.to_thread(second.stop)
    await send(site, "second", there, away)
    await site.read(there, 60)
    begun = time.monotonic()
    await send(site, "third", there, away)
    await site.read(there, 80)
    assert time.monotonic() - begun < HELD_UP_S_MAX
    found = await site.engine.find("acme", f"{away} second 0")
    assert found is not None
    assert found.state == "in_flight"
    assert found.reason
    await asyncio.to_thread(second.restart)
    records = await site.read(away, 60)
    expected = [f"{word} {number}" for word in ("first", "second", "third") for number in range(20)]
    assert [(record.value() or b"").decode() for record in records] == expected


async def send(site: Site, word: str, *topics: str) -> None:
    """Twenty records for each topic."""
    for number in range(20):
        for topic in topics:
            value = f"{word} {number}"
            await site.engine.schedule("acme", Request(topic, value.encode(), id=f"{topic} {value}"))
