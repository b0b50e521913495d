"""An engine behind a proxy that cuts and delays requests, and the fate of its batches."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.kafka.faults.nodes import PARTITIONS
from tests.kafka.site import read_all
from tests.servers.frames import Api
from tests.servers.kafka import Broker
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule, When
from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Kafka, Store
from tidings.domain.schedules.schedule import Request
from tidings.engine import Engine
from tidings.node import build_engine, join_kafka, open_store
from tidings.testing import eventually

ARRIVE_S_MAX = 60.0
TENANT = "default"
ROUNDS_MAX = 500
NO_ERROR = 0

AT_RANDOM: list[tuple[Api, When]] = [
    (Api.END_TXN, "after"),
    (Api.PRODUCE, "before"),
    (Api.PRODUCE, "after"),
    (Api.ADD_PARTITIONS_TO_TXN, "after"),
]


@dataclass
class Harm:
    """Records that a reader of committed records missed, or got more than once."""

    sent: int
    cuts: int
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.cuts} cuts over {self.sent} messages: {len(self.lost)} lost, {len(self.twice)} twice"


class Line:
    """One engine, one proxy, one topic."""

    def __init__(self, engine: Engine, proxy: Proxy, broker: Broker, topic: str) -> None:
        self.engine = engine
        self.proxy = proxy
        self.broker = broker
        self.topic = topic
        self.sent: list[str] = []
        self.rules: list[Rule] = []

    async def send(self, count: int) -> None:
        """Schedule this many messages, due now; durable on return."""
        tokens = [f"m{len(self.sent) + number}" for number in range(count)]
        requests = [Request(self.topic, token.encode(), token.encode(), id=token) for token in tokens]
        outcomes = await self.engine.submit([self.engine.admit(TENANT, request) for request in requests])
        assert all(outcome.outcome in {"scheduled", "released"} for outcome in outcomes)
        self.sent += tokens

    async def arrived(self) -> None:
        """Wait until nothing is missing."""
        await eventually(self._is_all_there, timeout_s=ARRIVE_S_MAX)

    async def _is_all_there(self) -> bool:
        for task in self.engine._tasks:
            if task.done():
                task.result()
        return not (await self.harm()).lost

    async def harm(self) -> Harm:
        """The present faults."""
        found = await asyncio.to_thread(read_all, self.broker, self.topic)
        seen = Counter((message.value() or b"").decode() for message in found)
        cuts = sum(rule.strikes for rule in self.rules)
        lost = [token for token in self.sent if not seen[token]]
        return Harm(len(self.sent), cuts, lost, [token for token in self.sent if seen[token] > 1])

    async def finish(self) -> Harm:
        """Let everything arrive, and nothing after it."""
        self.proxy.clear()
        with contextlib.suppress(TimeoutError, AssertionError):
            await self.arrived()
        await asyncio.sleep(1.0)
        return await self.harm()

    # What goes wrong

    async def cut_at(self, api: Api, when: When, *, begins_anew: bool) -> None:
        """Cut at one request, in a take-over if it belongs there, and see a batch through."""
        rule = self.proxy.cut(api, when)
        self.rules.append(rule)
        if begins_anew:
            self.proxy.cut_all()
        await self.send(40)
        await asyncio.to_thread(rule.wait_for_strikes)
        await self.arrived()

    async def cut_at_random(self, cuts: int, seed: int) -> None:
        """Batches while connections are cut now here, now there, and commits arrive late."""
        late = self.proxy.hold(Api.END_TXN, 0.2, times=None, chance=0.25, seed=seed)
        self.rules.append(late)
        for number, (api, when) in enumerate(AT_RANDOM):
            rule = self.proxy.cut(api, when, times=None, chance=0.06, seed=seed + number)
            self.rules.append(rule)
        for _ in range(ROUNDS_MAX):
            if sum(rule.strikes for rule in self.rules) >= cuts:
                return
            await self.send(120)
            await asyncio.sleep(0.15)

    async def commit_late(self) -> int:
        """A commit is held up, its client cut off, and arrives in the middle of the next batch; the broker's answer."""
        late = self.proxy.hold(Api.END_TXN)
        self.rules.append(late)
        await self.send(50)
        await asyncio.to_thread(late.wait_for_strikes)
        await self.arrived()
        taken, slow = self.proxy.hold(Api.PRODUCE, 0.0, cuts=False), self.proxy.hold(Api.PRODUCE, cuts=False)
        await self.send(400)
        await asyncio.to_thread(taken.wait_for_answers)
        await asyncio.to_thread(slow.wait_for_strikes)
        late.release()
        answers = await asyncio.to_thread(late.wait_for_answers)
        slow.release()
        await self.arrived()
        return answers[0].error


@contextlib.asynccontextmanager
async def line(broker: Broker, proxy: Proxy, folder: Path) -> AsyncIterator[Line]:
    """A new store, under a name of its own, joined to the broker through the proxy."""
    name = f"line-{uuid.uuid4().hex[:8]}"
    await asyncio.to_thread(broker.create_topic, name, PARTITIONS)
    config = Config(store=Store(path=str(folder / f"{name}.db")), kafka=Kafka(servers=proxy.bootstrap, name=name))
    clock = SystemClock()
    engine = build_engine(await open_store(config.store.path, config, clock), config, clock)
    join_kafka(engine, config)
    await engine.start()
    try:
        yield Line(engine, proxy, broker, name)
    finally:
        proxy.clear()
        await engine.stop()
