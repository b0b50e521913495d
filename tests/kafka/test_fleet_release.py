"""Release to Kafka from a fleet: lanes move, nodes are killed, and a read_committed reader gets each record once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.kafka.fleet import Fleet, fleet_on
from tests.kafka.site import Site, read_all
from tests.servers.fixtures import postgres
from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres
from tidings.domain.schedules.command import Cancel
from tidings.domain.schedules.schedule import Request
from tidings.testing import eventually

__all__ = ["postgres"]

pytestmark = pytest.mark.slow

LANES = 4
CHUNK = 500
READ_S_MAX = 60.0


@pytest.fixture
async def fleet(broker: Broker, postgres: Postgres) -> AsyncIterator[Fleet]:
    async with fleet_on(broker, postgres, lanes=LANES, stats="off", facts="off") as made:
        yield made


class Burst:
    """A burst of schedules for one topic with several partitions."""

    def __init__(self, fleet: Fleet) -> None:
        self.topic = f"{fleet.name}-out"
        self._broker = fleet.broker
        self._broker.create_topic(self.topic, 3)
        self.sent: list[str] = []

    async def schedule(self, site: Site, count: int, in_us: int = 0) -> None:
        engine = site.engine
        due = engine.clock.now() + in_us
        for first in range(0, count, CHUNK):
            names = [f"row-{len(self.sent) + number}" for number in range(min(CHUNK, count - first))]
            requests = [Request(self.topic, name.encode(), id=name, at=due) for name in names]
            outcomes = await engine.submit([engine.admit("acme", request) for request in requests])
            assert {outcome.outcome for outcome in outcomes} <= {"scheduled", "released"}
            self.sent += names

    async def seen(self) -> Counter[str]:
        records = await asyncio.to_thread(read_all, self._broker, self.topic)
        return Counter((record.value() or b"").decode() for record in records)

    async def some_seen(self, count: int) -> None:
        async def enough() -> bool:
            return (await self.seen()).total() >= count

        await eventually(enough, READ_S_MAX)

    async def all_seen_once(self) -> None:
        await self.some_seen(len(self.sent))
        assert await self.seen() == Counter(self.sent)


async def lanes_of(*counts: tuple[Site, int], timeout_s: float = 20.0) -> None:
    """Wait until each node releases this many lanes."""

    def so_many() -> bool:
        return all(len(site.engine.store.lanes()) == count and not site.engine.problems() for site, count in counts)

    await eventually(so_many, timeout_s)


async def test_a_burst_while_lanes_are_handed_over(fleet: Fleet) -> None:
    burst = Burst(fleet)
    first = await fleet.start()
    await lanes_of((first, LANES))
    await burst.schedule(first, 6_000, in_us=2_000_000)
    await burst.some_seen(500)
    second = await fleet.start()
    await burst.schedule(second, 2_000)
    await lanes_of((first, LANES // 2), (second, LANES // 2))
    await burst.schedule(first, 4_000)
    await burst.some_seen(8_500)
    await fleet.stop(first)
    await burst.schedule(second, 2_000)
    await lanes_of((second, LANES))
    await burst.all_seen_once()


async def test_a_burst_while_nodes_are_killed(fleet: Fleet) -> None:
    burst = Burst(fleet)
    nodes = [await fleet.start(), await fleet.start()]
    await lanes_of(*((node, LANES // 2) for node in nodes))
    for number in range(3):
        await burst.schedule(nodes[0], 3_000, in_us=1_000_000)
        await burst.some_seen(len(burst.sent) - 2_500)
        await fleet.kill(nodes.pop(0))
        nodes.append(await fleet.start())
        await burst.schedule(nodes[number % 2], 500)
    await burst.all_seen_once()


async def test_in_flight_schedules_are_in_flight_for_every_node(fleet: Fleet) -> None:
    burst = Burst(fleet)
    nodes = [await fleet.start(), await fleet.start()]
    await lanes_of(*((node, LANES // 2) for node in nodes))
    await burst.schedule(nodes[0], 8)
    await burst.all_seen_once()
    fleet.broker.pause()
    try:
        await burst.schedule(nodes[0], 8)

        async def all_fly() -> bool:
            found = [await node.engine.find("acme", name) for node in nodes for name in burst.sent[8:]]
            return all(schedule is not None and schedule.state == "in_flight" for schedule in found)

        await eventually(all_fly)
        for node in nodes:
            outcomes = await node.engine.submit([Cancel("acme", name) for name in burst.sent[8:]])
            assert {outcome.outcome for outcome in outcomes} == {"in_flight"}
    finally:
        fleet.broker.resume()

    async def all_landed() -> bool:
        found = [await node.engine.find("acme", name) for node in nodes for name in burst.sent]
        return all(schedule is not None and schedule.state == "released" for schedule in found)

    await eventually(all_landed, READ_S_MAX)
    await burst.all_seen_once()


async def test_the_log_says_which_lanes_release_to_kafka(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidings.kafka")
    await fleet.start()
    prefix = "releases to Kafka, lanes "

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith(prefix)]

    await eventually(lambda: f"{prefix}0-{LANES - 1}" in lines(), timeout_s=READ_S_MAX)
    assert len(lines()) == 1, "once for the node, not for each lane"
