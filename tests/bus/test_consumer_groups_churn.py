"""Groups under churn: members join, leave and crash in random interleavings, and every record is done."""

import asyncio
import random
from collections import Counter

import pytest

from tests.bus.simulation import GROUP, SECOND_US, TENANT, TOPIC, FakeLog, elapse, simulated, the_clock
from tidings.bus.consumer_groups import ConsumerGroups, Membership
from tidings.bus.log_reader import LogReader
from tidings.domain.errors import NotAMember

HERE = (TENANT, TOPIC, GROUP)
NEWS = frozenset({(TENANT, TOPIC)})
RECORDS = 300
# Ten seeds run in the quick part.
SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 40))]


class Churn:
    """Consumers over one topic. Each commits what it fetched; `deadly` ones may crash before they do."""

    def __init__(self, seed: int, *, deadly: bool) -> None:
        self.chance = random.Random(seed)
        self.log = FakeLog(self.chance)
        self.following = LogReader(self.log)
        self.groups = ConsumerGroups(self.log, the_clock(), self.following)
        self.deadly = deadly
        self.done: Counter[tuple[int, int]] = Counter()

    async def produce(self) -> None:
        for _ in range(RECORDS):
            self.log.append(self.chance.randrange(4))
            self.following.notify(NEWS)
            await elapse(self.chance.choice((0, 0, 1_000, 50_000)))

    async def consume(self) -> None:
        """One consumer after the other, each for a while, until all records are done."""
        while len(self.done) < RECORDS:
            m = await self.groups.join(*HERE)
            for _ in range(self.chance.randrange(1, 8)):
                m = await self.step(m)
                if self.deadly and self.chance.random() < 0.1:
                    break
            else:
                await self.groups.leave(*HERE, m.member, m.generation)
            await elapse(self.chance.choice((0, 100_000)))

    async def step(self, m: Membership) -> Membership:
        limit, wait_us = self.chance.choice((1, 7, 100)), self.chance.choice((0, SECOND_US))
        try:
            records = await self.groups.fetch(*HERE, m.member, m.generation, limit, wait_us)
        except NotAMember:
            return await self.groups.heartbeat(*HERE, m.member, m.generation)
        if self.chance.random() < 0.3:
            m = await self.groups.heartbeat(*HERE, m.member, m.generation)
        await elapse(self.chance.choice((0, 1_000, 500_000)))
        if self.deadly and self.chance.random() < 0.05:
            await elapse(6 * SECOND_US)  # a long pause: it is out, and does not know
            return await self.groups.join(*HERE)
        if records:
            await self.groups.commit(*HERE, m.member, m.generation, {r.partition: r.offset + 1 for r in records})
        self.done.update((record.partition, record.offset) for record in records)
        return m

    async def run(self, consumers: int) -> None:
        await asyncio.gather(self.produce(), *(self.consume() for _ in range(consumers)))


def never_back(commits: list[dict[int, int]]) -> bool:
    stands: dict[int, int] = {}
    for offsets in commits:
        if any(offset < stands.get(partition, 0) for partition, offset in offsets.items()):
            return False
        stands.update(offsets)
    return True


@pytest.mark.parametrize("seed", SEEDS)
@simulated
async def test_when_all_commit_every_record_is_done_exactly_once(seed: int) -> None:
    churn = Churn(seed, deadly=False)
    await churn.run(consumers=2 + seed % 3)
    assert sorted(churn.done) == all_places(churn.log)
    assert set(churn.done.values()) == {1}
    assert never_back(churn.log.commits)


@pytest.mark.parametrize("seed", SEEDS)
@simulated
async def test_when_some_crash_every_record_is_done_and_no_offset_goes_back(seed: int) -> None:
    churn = Churn(seed, deadly=True)
    await churn.run(consumers=2 + seed % 3)
    assert sorted(churn.done) == all_places(churn.log)
    assert never_back(churn.log.commits)


def all_places(log: FakeLog) -> list[tuple[int, int]]:
    return [(p, offset) for p in range(4) for offset in range(len(log.records[TENANT, TOPIC][p]))]
