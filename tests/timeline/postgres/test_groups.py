"""Consumer groups over one PostgreSQL: members call any node, nodes are killed, and no record is done twice."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.contract.factories import ACME, SECOND, TOPIC, add
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore, abandon
from tidings.bus.consumer_groups import Membership
from tidings.clock import SystemClock
from tidings.domain.errors import Invalid, NotAMember, StoreError
from tidings.domain.schedules.schedule import Record
from tidings.engine import Engine, Settings
from tidings.ports import GroupUpdate
from tidings.testing import eventually
from tidings.timeline.postgres import fleet

HERE = (ACME, TOPIC, "workers")
SESSION_US = 1_500_000
NODES = 3
PARTITIONS = 4
RECORDS = 400


class Nodes:
    """Engines over one database; each call goes to the one that is named."""

    def __init__(self, engines: list[Engine], chance: random.Random) -> None:
        self.engines = engines
        self.chance = chance
        self._released = 0

    async def release(self, count: int) -> None:
        """Release this many more records."""
        names = [f"record-{number}" for number in range(self._released, self._released + count)]
        self._released += count
        await self.engines[0].submit([add(name, self.engines[0].clock.now()) for name in names])

    async def on_the_log(self) -> None:
        async def all_there() -> bool:
            topic = await self.engines[0].store.topic(ACME, TOPIC)
            return topic is not None and sum(topic.next) == self._released

        await eventually(all_there, 20)

    def any(self) -> Engine:
        return self.chance.choice(self.engines)

    async def kill(self, number: int) -> None:
        """End it as a crash would: its connections end, and nothing is handed over."""
        await abandon(self.engines.pop(number))


@pytest.fixture
async def nodes(open_store: OpenStore) -> AsyncIterator[Nodes]:
    clock = SystemClock()
    stores = [await open_store(clock, lanes=2, partitions=PARTITIONS) for _ in range(NODES)]
    engines = [Engine(store, clock, Settings(session_us=SESSION_US)) for store in stores]
    for engine in engines:
        await engine.start()
    made = Nodes(engines, random.Random(7))
    yield made
    for engine in made.engines:
        await engine.stop()


async def fetch(engine: Engine, m: Membership, limit: int = 1_000, wait_us: int = 0) -> list[Record]:
    return await engine.groups.fetch(*HERE, m.member, m.generation, limit, wait_us)


async def commit(engine: Engine, m: Membership, records: list[Record]) -> None:
    offsets = {record.partition: record.offset + 1 for record in records}
    await engine.groups.commit(*HERE, m.member, m.generation, offsets)


def places(records: list[Record]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


async def test_a_member_continues_at_another_node_when_its_own_is_killed(nodes: Nodes) -> None:
    await nodes.release(30)
    await nodes.on_the_log()
    first, second = nodes.engines[1], nodes.engines[2]
    m = await first.groups.join(*HERE)
    some = await fetch(first, m, 10)
    more = await fetch(second, m, 10)
    await commit(first, m, some + more)
    await nodes.kill(1)
    with pytest.raises(StoreError):
        await fetch(first, m)
    rest = await fetch(second, m)
    await commit(second, m, rest)
    assert len(set(places(some + more + rest))) == 30
    assert sum((await second.store.committed(*HERE)).values()) == 30
    assert (await second.groups.heartbeat(*HERE, m.member, m.generation)).generation == m.generation


async def test_an_expired_member_cannot_commit_on_any_node(nodes: Nodes) -> None:
    await nodes.release(30)
    await nodes.on_the_log()
    first, second, third = nodes.engines
    zombie = await first.groups.join(*HERE)
    held = await fetch(first, zombie)
    heir = await second.groups.join(*HERE)
    assert await fetch(second, heir) == [], "what is owed stays with its holder"

    async def heir_has_all() -> bool:
        nonlocal heir
        heir = await second.groups.heartbeat(*HERE, heir.member, heir.generation)
        return len(heir.partitions) == PARTITIONS

    await eventually(heir_has_all)
    again = await fetch(second, heir)
    assert places(again) == places(held)
    for engine in (first, third):
        with pytest.raises(NotAMember):
            await commit(engine, zombie, held[:1])
    await commit(third, heir, again)
    assert sum((await first.store.committed(*HERE)).values()) == 30


@pytest.mark.parametrize("hears", [True, False])
async def test_a_waiting_member_is_woken_when_partitions_move(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, hears: bool
) -> None:
    if not hears:
        monkeypatch.setattr(fleet.Watch, "is_listening", False)
        monkeypatch.setattr(fleet.Watch, "_handle", lambda *_: None)
    first, second, _ = nodes.engines
    m = await first.groups.join(*HERE)
    waiting = asyncio.create_task(fetch(first, m, wait_us=SECOND))
    await eventually(lambda: first.groups._signals)
    begun = first.clock.elapsed()
    await second.groups.join(*HERE)
    assert await waiting == []
    assert first.clock.elapsed() - begun < SECOND // 3
    assert len((await first.groups.heartbeat(*HERE, m.member, m.generation)).partitions) == PARTITIONS // 2


async def test_a_waiting_member_gets_records_released_by_another_node(nodes: Nodes) -> None:
    m = await nodes.engines[2].groups.join(*HERE)
    await nodes.release(1)
    await nodes.on_the_log()
    (first,) = await fetch(nodes.engines[2], m)
    waiting = asyncio.create_task(fetch(nodes.engines[2], m, wait_us=SECOND))
    await nodes.release(1)
    (second,) = await waiting
    assert {first.id, second.id} == {"record-0", "record-1"}


async def test_empty_fetches_rarely_write(nodes: Nodes, postgres: Postgres, schema: str) -> None:
    m = await nodes.engines[0].groups.join(*HERE)

    def version() -> int:
        with postgres.connect() as connection:
            ((found,),) = connection.execute(f"SELECT version FROM {schema}.roster".encode()).fetchall()
        assert isinstance(found, int)
        return found

    before, begun = version(), nodes.engines[0].clock.elapsed()
    for _ in range(300):
        assert await fetch(nodes.any(), m) == []
    took = nodes.engines[0].clock.elapsed() - begun
    assert version() - before <= 1 + took // (SESSION_US // 4)


async def test_names_that_the_database_cannot_hold_are_refused(nodes: Nodes) -> None:
    with pytest.raises(Invalid, match="NUL"):
        await nodes.engines[0].groups.join(ACME, TOPIC, "a\0b")


async def test_a_tenant_has_a_maximum_of_groups(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.bus.consumer_groups.GROUPS_PER_TENANT_MAX", 3)
    for number in range(3):
        await nodes.any().groups.join(ACME, TOPIC, f"group-{number}")
    with pytest.raises(Invalid, match="this tenant has 3 groups"):
        await nodes.any().groups.join(ACME, TOPIC, "one-more")
    await nodes.any().groups.join("globex", TOPIC, "one-more")


class Consumer:
    """Joins and leaves, calls any node, and commits what it does; if it crashes, uncommitted records are not done."""

    def __init__(self, nodes: Nodes, done: Counter[tuple[int, int]]) -> None:
        self._nodes = nodes
        self._done = done

    async def run(self) -> None:
        while len(self._done) < RECORDS:
            m = await self._nodes.any().groups.join(*HERE)
            for _ in range(self._nodes.chance.randrange(2, 10)):
                m = await self._turn(m)
            if self._nodes.chance.random() < 0.8:  # otherwise it crashes
                await self._leave(m)

    async def _turn(self, m: Membership) -> Membership:
        try:
            records = await fetch(self._nodes.any(), m, self._nodes.chance.choice((1, 10, 100)), SECOND // 10)
            if self._nodes.chance.random() < 0.3:
                m = await self._nodes.any().groups.heartbeat(*HERE, m.member, m.generation)
            if records:
                await commit(self._nodes.any(), m, records)
            self._done.update(places(records))
        except NotAMember:
            try:
                return await self._nodes.any().groups.heartbeat(*HERE, m.member, m.generation)
            except NotAMember:
                return await self._nodes.any().groups.join(*HERE)
        return m

    async def _leave(self, m: Membership) -> None:
        try:
            await self._nodes.any().groups.leave(*HERE, m.member, m.generation)
        except NotAMember:
            return


async def test_every_record_is_done_once_on_any_node(nodes: Nodes) -> None:
    done: Counter[tuple[int, int]] = Counter()
    consumers = [asyncio.create_task(Consumer(nodes, done).run()) for _ in range(4)]
    for _ in range(RECORDS // 20):
        await nodes.release(20)
    await asyncio.wait_for(asyncio.gather(*consumers), 60)
    assert len(done) == RECORDS
    assert set(done.values()) == {1}, "all that was fetched was committed, or never done"


async def test_a_recreated_group_is_not_confused_with_the_former_one(open_store: OpenStore, postgres: Postgres) -> None:
    """A node that read the former group and writes only now must see the change."""
    store = await open_store(SystemClock(), lanes=1)
    rosters = store.group_membership

    async def make() -> int:
        await rosters.change(HERE, lambda kept: GroupUpdate(b"", kept.now + SECOND, {}, moved=False))
        return (await rosters._load(HERE))[0]

    former = await make()
    with postgres.connect() as connection:
        connection.execute(store._context.inside("DELETE FROM tidings.roster").encode())
    assert await make() != former
