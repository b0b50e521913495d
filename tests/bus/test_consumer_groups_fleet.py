"""Groups served by several nodes over one store: members call any node, and nodes start and stop."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.bus.simulation import GROUP, SECOND_US, TENANT, TOPIC, FakeLog, elapse, simulated, the_clock
from tests.bus.test_consumer_groups_churn import all_places, never_back
from tidings.bus.consumer_groups import ConsumerGroups, Membership
from tidings.bus.log_reader import LogReader
from tidings.domain.errors import NotAMember
from tidings.domain.schedules.schedule import Record
from tidings.ports import Group, GroupState, GroupUpdate

HERE = (TENANT, TOPIC, GROUP)
NEWS = frozenset({(TENANT, TOPIC)})
RECORDS = 200
# Ten seeds run in the quick part.
SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 30))]


class FakeMembership:
    """Membership shared by all nodes: updates overlap as in a database, and hints may be lost."""

    poll_us = 2 * SECOND_US

    def __init__(self, log: FakeLog) -> None:
        self._log = log
        self._kept: dict[Group, tuple[int, bytes]] = {}
        self._calls: list[Callable[[Group], None]] = []
        self.writes = self.lost = 0

    def on_moved(self, listener: Callable[[Group], None]) -> None:
        self._calls.append(listener)

    async def change(self, group: Group, decide: Callable[[GroupState], GroupUpdate | None]) -> None:
        while True:
            await self._log.pause()
            version, roster = self._kept.get(group, (0, None))
            kept = GroupState(roster, dict(self._log.offsets[group]), the_clock().elapsed())
            await self._log.pause()
            step = decide(kept)
            if self._log.chance is not None:
                await elapse(self._log.chance.choice((0, 1_000, 5_000)))
            if step is None:
                return
            if self._kept.get(group, (0, None))[0] == version:
                break
            self.lost += 1
        self.writes += 1
        self._kept[group] = version + 1, step.roster
        self._log.offsets[group].update(step.offsets)
        if step.offsets:
            self._log.commits.append(step.offsets)
        if step.moved and (self._log.chance is None or self._log.chance.random() < 0.5):
            for call in self._calls:
                call(group)


class FleetLog(FakeLog):
    """A log whose groups are served by any node."""

    group_membership: FakeMembership

    def __init__(self, chance: random.Random | None = None) -> None:
        super().__init__(chance)
        self.group_membership = FakeMembership(self)


class Nodes:
    """Several nodes over one log; each call goes to one of them."""

    def __init__(self, count: int, chance: random.Random | None = None) -> None:
        self.log = FleetLog(chance)
        self._chance = chance or random.Random(0)
        self._following = [LogReader(self.log) for _ in range(count)]
        self._groups = [ConsumerGroups(self.log, the_clock(), following) for following in self._following]

    def any(self) -> ConsumerGroups:
        return self._chance.choice(self._groups)

    def __getitem__(self, number: int) -> ConsumerGroups:
        return self._groups[number]

    def kill(self, number: int) -> None:
        """Drop the memory of a node."""
        self._groups[number] = ConsumerGroups(self.log, the_clock(), self._following[number])

    def publish(self, partition: int, count: int = 1) -> None:
        self.log.append(partition, count)
        for following in self._following:
            following.notify(NEWS)


async def fetch(groups: ConsumerGroups, m: Membership, limit: int = 100, wait_us: int = 0) -> list[Record]:
    return await groups.fetch(*HERE, m.member, m.generation, limit, wait_us)


async def commit(groups: ConsumerGroups, m: Membership, records: list[Record]) -> None:
    offsets = {record.partition: record.offset + 1 for record in records}
    await groups.commit(*HERE, m.member, m.generation, offsets)


def places(records: list[Record]) -> set[tuple[int, int]]:
    return {(record.partition, record.offset) for record in records}


@simulated
async def test_a_member_may_continue_on_another_node() -> None:
    nodes = Nodes(2)
    nodes.publish(0, 10)
    m = await nodes[0].join(*HERE)
    first = await fetch(nodes[0], m, 4)
    second = await fetch(nodes[1], m, 4)
    assert places(first) | places(second) == {(0, offset) for offset in range(8)}
    await commit(nodes[1], m, second)
    nodes.kill(0)
    third = await fetch(nodes[0], await nodes[0].heartbeat(*HERE, m.member, m.generation))
    assert places(third) == {(0, 8), (0, 9)}


@simulated
async def test_a_waiting_member_is_woken_when_another_node_moves_its_partitions() -> None:
    nodes = Nodes(2)
    m = await nodes[0].join(*HERE)
    waiting = asyncio.create_task(fetch(nodes[0], m, wait_us=2 * SECOND_US))
    await elapse()
    await nodes[1].join(*HERE)
    assert await waiting == []
    assert the_clock().elapsed() < SECOND_US
    assert len((await nodes[0].heartbeat(*HERE, m.member, m.generation)).partitions) == 2


@simulated
async def test_an_expired_member_cannot_commit_on_any_node() -> None:
    nodes = Nodes(2)
    nodes.publish(0, 10)
    zombie = await nodes[0].join(*HERE)
    held = await fetch(nodes[0], zombie)
    await elapse(6 * SECOND_US)
    heir = await nodes[1].join(*HERE)
    again = await fetch(nodes[1], heir)
    assert places(again) == places(held), "they were not committed"
    await commit(nodes[1], heir, again)
    for groups in (nodes[0], nodes[1]):
        with pytest.raises(NotAMember):
            await commit(groups, zombie, held[:1])
    assert nodes.log.offsets[HERE] == {0: 10}


@simulated
async def test_every_call_renews_the_whole_session() -> None:
    nodes = Nodes(2)
    m = await nodes[0].join(*HERE)
    for number in range(20):
        await elapse(4 * SECOND_US - 1)
        m = await nodes[number % 2].heartbeat(*HERE, m.member, m.generation)
    await elapse(5 * SECOND_US)
    with pytest.raises(NotAMember):
        await nodes[0].heartbeat(*HERE, m.member, m.generation)


@simulated
async def test_empty_fetches_rarely_write() -> None:
    nodes = Nodes(2)
    m = await nodes[0].join(*HERE)
    before = nodes.log.group_membership.writes
    for _ in range(100):
        assert await fetch(nodes.any(), m, wait_us=100_000) == []
    assert nodes.log.group_membership.writes - before <= 11, "once in a quarter of a session"


class Churn:
    """Consumers that join, leave, crash and call any node, while nodes crash too."""

    def __init__(self, seed: int, *, deadly: bool) -> None:
        self.chance = random.Random(seed)
        self.nodes = Nodes(3, self.chance)
        self.deadly = deadly
        self.done: Counter[tuple[int, int]] = Counter()

    async def produce(self) -> None:
        for _ in range(RECORDS):
            self.nodes.publish(self.chance.randrange(4))
            if self.chance.random() < 0.02:
                self.nodes.kill(self.chance.randrange(3))
            await elapse(self.chance.choice((0, 0, 1_000, 50_000)))

    async def consume(self) -> None:
        while len(self.done) < RECORDS:
            m = await self.nodes.any().join(*HERE)
            for _ in range(self.chance.randrange(1, 8)):
                m = await self.step(m)
                if self.deadly and self.chance.random() < 0.1:
                    break
            else:
                await self.nodes.any().leave(*HERE, m.member, m.generation)
            await elapse(self.chance.choice((0, 100_000)))

    async def step(self, m: Membership) -> Membership:
        limit, wait_us = self.chance.choice((1, 7, 100)), self.chance.choice((0, SECOND_US))
        try:
            records = await fetch(self.nodes.any(), m, limit, wait_us)
        except NotAMember:
            return await self.nodes.any().heartbeat(*HERE, m.member, m.generation)
        if self.chance.random() < 0.3:
            m = await self.nodes.any().heartbeat(*HERE, m.member, m.generation)
        await elapse(self.chance.choice((0, 1_000, 500_000)))
        if self.deadly and self.chance.random() < 0.05:
            await elapse(6 * SECOND_US)  # it is out, and tries to commit all the same
            with pytest.raises(NotAMember):
                await commit(self.nodes.any(), m, records)
            return await self.nodes.any().join(*HERE)
        if records:
            await commit(self.nodes.any(), m, records)
        self.done.update((record.partition, record.offset) for record in records)
        return m


@pytest.mark.parametrize("deadly", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
@simulated
async def test_every_record_is_done_on_any_node(seed: int, deadly: bool) -> None:
    churn = Churn(seed, deadly=deadly)
    consumers = (churn.consume() for _ in range(2 + seed % 3))
    await asyncio.gather(churn.produce(), *consumers)
    assert sorted(churn.done) == all_places(churn.nodes.log)
    assert deadly or set(churn.done.values()) == {1}
    assert never_back(churn.nodes.log.commits)
    assert churn.nodes.log.group_membership.lost, "the nodes never met"
