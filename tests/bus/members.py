"""Fixture of the consumer group tests: a log with records, and shorthands for the calls of a member."""

from collections.abc import Awaitable, Callable

import pytest

from tests.bus.simulation import GROUP, SECOND_US, TENANT, TOPIC, FakeLog, elapse, the_clock
from tidings.bus.consumer_groups import ConsumerGroups, Membership
from tidings.bus.log_reader import LogReader
from tidings.domain.errors import NotAMember
from tidings.domain.schedules.schedule import Record

HERE = (TENANT, TOPIC, GROUP)
NEWS = frozenset({(TENANT, TOPIC)})


class Harness:
    """A log with ten records in each of four partitions, and the groups over it."""

    def __init__(self) -> None:
        self.log = FakeLog()
        for partition in range(4):
            self.log.append(partition, 10)
        self.restart()

    def restart(self) -> None:
        self.following = LogReader(self.log)
        self.groups = ConsumerGroups(self.log, the_clock(), self.following)

    def publish(self, partition: int, count: int = 1) -> None:
        self.log.append(partition, count)
        self.following.notify(NEWS)

    async def join(self, name: str | None = None) -> Membership:
        return await self.groups.join(*HERE, name)

    async def heartbeat(self, m: Membership) -> Membership:
        return await self.groups.heartbeat(*HERE, m.member, m.generation)

    async def fetch(self, m: Membership, limit: int = 100, wait_us: int = 0) -> list[Record]:
        return await self.groups.fetch(*HERE, m.member, m.generation, limit, wait_us)

    async def commit(self, m: Membership, offsets: dict[int, int]) -> None:
        await self.groups.commit(*HERE, m.member, m.generation, offsets)

    async def leave(self, m: Membership) -> None:
        await self.groups.leave(*HERE, m.member, m.generation)

    async def keep_alive(self, m: Membership, us: int) -> Membership:
        """Let time pass while a member sends heartbeats."""
        for _ in range(us // SECOND_US):
            await elapse(SECOND_US)
            m = await self.heartbeat(m)
        return m


def behind(records: list[Record]) -> dict[int, int]:
    """The offsets to commit after these records."""
    return {record.partition: record.offset + 1 for record in records}


def partitions_of(records: list[Record]) -> list[int]:
    return sorted({record.partition for record in records})


async def take_all(harness: Harness, m: Membership) -> Membership:
    await harness.commit(m, behind(await harness.fetch(m)))
    return m


async def refused(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(NotAMember):
        await call()
