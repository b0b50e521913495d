"""Readers on one node see releases of another within milliseconds, and only waiting nodes are notified."""

import asyncio
import functools
from collections.abc import AsyncIterator

import pytest

from tests.contract.factories import ACME, SECOND, TOPIC, add, every
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.bus.log_reader import LATEST
from tidings.clock import SystemClock
from tidings.domain.schedules.schedule import Record
from tidings.engine import Engine
from tidings.testing import eventually
from tidings.timeline.postgres import fleet
from tidings.timeline.postgres.store import PostgresStore

SOON_US = 1_000_000  # on a machine that has other work too; the look that hints save comes after 2 s


class Pair:
    """A node that releases, and one that owns nothing and is only read from."""

    def __init__(self, owner: Engine, reader: Engine) -> None:
        self.owner = owner
        self.reader = reader
        self.clock = SystemClock()
        self._unresolved = 0  # readers that do not know yet where the topic ends

    async def delays(self, count: int, topic: str = TOPIC) -> list[int]:
        """The delay between each release and its arrival at the reader."""
        self._unresolved += 1
        _, cursor = await self.reader.read(ACME, topic, LATEST, 10, 0)
        self._unresolved -= 1
        found: list[int] = []
        while len(found) < count:
            records, cursor = await self.reader.read(ACME, topic, cursor, 10, 10 * SECOND)
            assert records, "nothing came at all"
            found += [self.clock.now() - record.released for record in records]
        return found

    async def release(self, count: int, name: str = "one", topic: str = TOPIC) -> None:
        """One after the other."""
        ends = await self.owner.store.topic(ACME, topic)

        async def released(wanted: int) -> bool:
            found = await self.owner.store.topic(ACME, topic)
            return sum(found.next if found else ()) >= wanted

        before = sum(ends.next if ends else ())
        for number in range(1, count + 1):
            await self.owner.submit([add(f"{name}-{number}", self.clock.now(), topic=topic)])
            await eventually(functools.partial(released, before + number))

    async def at_rest(self) -> None:
        """Wait until all readers know the end of the topic, and the first poll after their subscription is over."""
        store = self.reader.store
        assert isinstance(store, PostgresStore)
        following = store._watch.subscriptions
        await eventually(lambda: following._waits and not self._unresolved and not following._is_unsure())


@pytest.fixture
async def pair(open_store: OpenStore) -> AsyncIterator[Pair]:
    clock = SystemClock()
    owner = Engine(await open_store(clock, lanes=2), clock)
    await owner.start()
    assert len(owner.store.lanes()) == 2
    reader = Engine(await open_store(clock), clock)  # not started: it owns nothing
    yield Pair(owner, reader)
    await reader.stop()
    await owner.stop()


def middle(delays: list[int]) -> int:
    return sorted(delays)[len(delays) // 2]


async def test_a_reader_sees_records_released_by_another_node(pair: Pair) -> None:
    await pair.release(1)
    await eventually(lambda: pair.owner.store.topic(ACME, TOPIC))
    reading = asyncio.create_task(pair.delays(20))
    await pair.at_rest()
    await pair.release(20, "more")
    assert middle(await reading) < SOON_US


async def test_a_reader_may_subscribe_before_the_topic_exists(pair: Pair) -> None:
    for number in range(5):
        topic = f"later-{number}"
        reading = asyncio.create_task(pair.delays(1, topic))
        await pair.at_rest()
        await pair.release(1, topic, topic)
        assert max(await reading) < SOON_US


async def test_a_reader_sees_recurring_schedules(pair: Pair) -> None:
    await pair.release(1)
    start = pair.clock.now() + SECOND
    reading = asyncio.create_task(pair.delays(4))
    await pair.at_rest()
    await pair.owner.submit([every("each", start, count=4)])
    assert middle(await reading) < SOON_US


async def test_readers_of_both_kinds_share_notifications(pair: Pair) -> None:
    """A stream and ten polls, on the node that does not release."""
    seen: list[Record] = []

    async def stream() -> None:
        async with pair.reader.follow(ACME, TOPIC) as batches:
            async for records, _ in batches:
                seen.extend(records)
                if len(seen) >= 10:
                    return

    streaming = asyncio.create_task(stream())
    polls = [asyncio.create_task(pair.delays(10)) for _ in range(10)]
    await pair.at_rest()
    await pair.release(10)
    await asyncio.wait_for(streaming, 10)
    assert len({record.id for record in seen}) == 10
    for poll in polls:
        assert middle(await asyncio.wait_for(poll, 10)) < SOON_US


async def test_without_notifications_topics_are_polled_often(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet.Watch, "is_listening", False)
    monkeypatch.setattr(fleet.TopicSubscriptions, "on_notification", lambda *_: None)
    reading = asyncio.create_task(pair.delays(20))
    await pair.release(20)
    assert middle(await reading) < SOON_US


async def test_only_subscribers_on_other_nodes_are_notified(pair: Pair, postgres: Postgres, schema: str) -> None:
    store = pair.owner.store
    assert isinstance(store, PostgresStore)
    with postgres.connect() as listener:
        listener.execute(f"LISTEN {schema}".encode())

        def notifications() -> list[str]:
            heard = [note.payload for note in listener.notifies(timeout=0.3)]
            return [payload for payload in heard if payload.startswith("new")]

        async def release(name: str) -> None:
            ends = await store.topic(ACME, TOPIC)
            await pair.owner.submit([add(name, pair.clock.now())])

            async def released() -> bool:
                return await store.topic(ACME, TOPIC) != ends

            await eventually(released)

        await release("no reader waits")
        assert await asyncio.to_thread(notifications) == []
        await store.subscribe(ACME, TOPIC)
        await release("only its owner waits")
        assert await asyncio.to_thread(notifications) == []
        await pair.reader.store.subscribe(ACME, TOPIC)
        await release("another waits")
        assert await asyncio.to_thread(notifications) == ["new 0"]
        pair.reader.store.unsubscribe(ACME, TOPIC)
        await pair.reader.stop()
        await release("gone")
        assert await asyncio.to_thread(notifications) == []
