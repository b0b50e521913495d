"""Request topics in a fleet: each partition has one reader, and each request is accepted once."""

import asyncio
import functools
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer

from tests.kafka.fleet import Fleet, fleet_on
from tests.kafka.site import READ_S_MAX, Header, Site, read_all
from tests.servers.fixtures import postgres
from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres
from tidings.edges.kafka.intake import KafkaIntake
from tidings.edges.kafka.request_reader import Reader
from tidings.edges.kafka.start_position import StartPosition
from tidings.testing import eventually
from tidings.timeline.postgres.fleet import PartitionAssignment
from tidings.timeline.postgres.store import PostgresStore

__all__ = ["postgres"]

pytestmark = pytest.mark.slow

PARTITIONS = 8
HANDED_OVER_S_MAX = 2.0
TAKEN_OVER_S_MAX = 5.0


class Requests:
    """A request topic, and the requests sent to it."""

    def __init__(self, fleet: Fleet) -> None:
        self.topic = f"assignments.{fleet.name}"
        self.answers = f"executions.{fleet.name}"
        self._broker = fleet.broker
        self._broker.create_topic(self.topic, PARTITIONS)
        self._producer = Producer(fleet.broker.client(linger_ms=1))
        self._numbers = itertools.count()
        self.sent: list[bytes] = []

    def send(self, count: int) -> None:
        """Send to all partitions in turn."""
        for number in itertools.islice(self._numbers, count):
            value = b"request-%d" % number
            headers: list[Header] = [("intervals-schedule", b"PT0.1S")]
            self._producer.produce(self.topic, value, partition=number % PARTITIONS, headers=headers)
            self.sent.append(value)
        assert self._producer.flush(READ_S_MAX) == 0

    async def all_released_once(self) -> None:
        async def found() -> bool:
            records = await asyncio.to_thread(read_all, self._broker, self.answers)
            return len(records) >= len(self.sent)

        await eventually(found, READ_S_MAX)
        records = await asyncio.to_thread(read_all, self._broker, self.answers)
        assert Counter(record.value() for record in records) == Counter(self.sent)


def intake_of(site: Site) -> KafkaIntake:
    return next(service for service in site.engine._services if isinstance(service, StartPosition))._intake


class Watched:
    """The open readers, by their thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.readers: dict[KafkaIntake, Reader] = {}
        opening = KafkaIntake._open

        def opened(intake: KafkaIntake) -> Reader:
            reader = self.readers[intake] = opening(intake)
            return reader

        monkeypatch.setattr(KafkaIntake, "_open", opened)

    def parts(self, site: Site) -> set[int]:
        reader = self.readers.get(intake_of(site))
        topic = f"assignments.{site.name}"  # there are those of other tests too
        return set() if reader is None else {partition for name, partition in reader._assigned if name == topic}

    async def shared(self, *sites: Site, timeout_s: float = 20.0) -> None:
        """Wait until these readers share all partitions evenly."""

        def even() -> bool:
            parts = [self.parts(site) for site in sites]
            sizes = {len(each) for each in parts}
            return sum(map(len, parts)) == PARTITIONS == len(set().union(*parts)) and max(sizes) - min(sizes) <= 1

        await eventually(even, timeout_s)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.fixture
async def fleet(broker: Broker, postgres: Postgres) -> AsyncIterator[Fleet]:
    async with fleet_on(broker, postgres, stats="off") as made:
        yield made


async def test_nodes_share_the_partitions_and_hand_them_over(fleet: Fleet, watched: Watched) -> None:
    requests = Requests(fleet)
    first = await fleet.start()
    await watched.shared(first)
    requests.send(500)
    second = await fleet.start()
    await watched.shared(first, second)
    requests.send(500)
    third = await fleet.start(("api", "intake"))
    await watched.shared(first, second, third)
    requests.send(500)
    aside = await fleet.start(("api", "dispatch"))
    await watched.shared(first, second, third)
    requests.send(500)
    await fleet.stop(first)
    await watched.shared(second, third, timeout_s=HANDED_OVER_S_MAX)
    requests.send(500)
    await requests.all_released_once()
    assert aside.engine.store.lanes()


async def test_the_partitions_of_a_killed_node_are_read_by_another_at_once(fleet: Fleet, watched: Watched) -> None:
    requests = Requests(fleet)
    first, second = await fleet.start(), await fleet.start()
    await watched.shared(first, second)
    sending = asyncio.create_task(asyncio.to_thread(requests.send, 4_000))
    await eventually(lambda: intake_of(first)._committed_at and len(requests.sent) > 1_000)
    await fleet.kill(first)
    await watched.shared(second, timeout_s=TAKEN_OVER_S_MAX)
    await sending
    requests.send(200)
    await requests.all_released_once()


async def test_two_readers_of_the_same_partitions_accept_each_request_once(
    fleet: Fleet, watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Like nodes that do not know of each other yet: the stored positions decide all races."""
    monkeypatch.setattr(PartitionAssignment, "reads", lambda *_: True)
    caplog.set_level(logging.INFO, "tidings.kafka")
    requests = Requests(fleet)
    first, second = await fleet.start(), await fleet.start()
    await eventually(lambda: len(watched.parts(first)) == len(watched.parts(second)) == PARTITIONS, 20)
    for _ in range(40):
        await asyncio.to_thread(requests.send, 100)
    await requests.all_released_once()
    assert "another node has taken these partitions" in caplog.text, "they never met"


async def test_regained_partitions_are_read_from_the_stored_positions(
    fleet: Fleet, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes read all partitions in turn; the positions that a node remembers are stale when it regains one."""
    nodes: list[Site] = []
    turn = [0]

    def is_its_turn(sharing: PartitionAssignment, *_: object) -> bool:
        store = nodes[turn[0]].engine.store if nodes else None
        return isinstance(store, PostgresStore) and store._assignments[None] is sharing

    monkeypatch.setattr(PartitionAssignment, "reads", is_its_turn)
    requests = Requests(fleet)
    nodes += [await fleet.start(), await fleet.start()]
    for number in range(6):
        turn[0] = number % 2
        await eventually(lambda: len(watched.parts(nodes[turn[0]])) == PARTITIONS, 20)
        await eventually(lambda: not watched.parts(nodes[1 - turn[0]]), 20)
        requests.send(100)
        await requests.all_released_once()
        reader, other = (watched.readers[intake_of(nodes[place])] for place in (turn[0], 1 - turn[0]))
        await eventually(functools.partial(stands_at, reader, requests))
        assert not other.done(), "it knows nothing of what is not its own"
        assert not other._next


def stands_at(reader: Reader, requests: Requests) -> bool:
    positions = {place: at for place, at in reader.done().items() if place[0] == requests.topic}
    return sum(positions.values()) == len(requests.sent)
