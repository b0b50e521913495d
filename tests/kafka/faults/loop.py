"""The kill loop over Kafka: nodes, and sometimes the broker, are killed under load; every message still arrives once.

`python -m tests.kafka.faults.loop --kills 1000` runs a long one and prints the counts.
"""

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.faults.node_process import NodeFactory, NodeProcess, Pace, check_log, start_plain
from tests.faults.requests import Requests
from tests.faults.zombie import stop_between_transactions
from tests.kafka.faults.judge import Verdict, judge
from tests.kafka.faults.load import ASSIGNMENTS, EXECUTIONS, OUT, REJECTIONS, REQUESTS, SHUT, Load
from tests.kafka.faults.nodes import OWNER, STANDBY, environment, node_factory
from tests.kafka.site import expect_progress
from tests.servers.kafka import Broker
from tidings.crash import KAFKA_POINTS
from tidings.testing import eventually

POINTS = (
    *KAFKA_POINTS,
    *("intake.begun", "intake.written", "intake.committed", "change.written"),
    *("release.begun", "release.logged", "release.settled", "release.committed"),
)
# How often a point is passed before the kill, at most.
VISITS = dict.fromkeys(POINTS, 12) | {"kafka.initialised": 1, "kafka.taken": 1, "kafka.settled": 1, "change.written": 4}
POINT_S = 6.0
RUN_S = (0.1, 2.0)
STOP_S = 10.0
SEND_S_MAX = 600.0
DRAIN_S = 90.0
POLL_S = 1.0
ZOMBIE_S = (0.2, 1.0)
TRIES = 3
LEASE_US = 500_000

RANDOM = "at random"
PLAIN = "plain command"
ZOMBIE = "beside a zombie"
BROKER = "with the broker"


@dataclass
class Plan:
    """The amounts of a run."""

    kills: int = 60
    zombies: int = 6
    broker_kills: int = 2
    plain: int = 3
    rate: int = 200
    messages: int = 0  # at least, if need be after the last kill
    seed: int = 0
    without: str = ""
    points: tuple[str, ...] = POINTS


@dataclass
class Counts:
    """Kills by place."""

    kills: Counter[str] = field(default_factory=Counter)
    passed_by: Counter[str] = field(default_factory=Counter)
    zombies: int = 0
    brokers: int = 0

    def table(self) -> str:
        lines = [f"{name:<20}{self.kills[name]:>6}" for name in sorted(self.kills)]
        ends = f"{'kills in all':<20}{self.kills.total():>6}\n{'zombies':<20}{self.zombies:>6}"
        return "\n".join([*lines, ends, f"{'broker kills':<20}{self.brokers:>6}"])


class Loop:
    """One store and one name on Kafka, through many restarts."""

    def __init__(
        self, plan: Plan, folder: Path, broker: Broker, requests: Requests, factories: tuple[NodeFactory, NodeFactory]
    ) -> None:
        self.counts = Counts()
        self.verdict = Verdict()
        self.load = Load(broker, requests, plan.seed, plan.rate)
        self._plan = plan
        self._folder = folder
        self._broker = broker
        self._requests = requests
        self._one, self._other = factories
        self._random = random.Random(plan.seed)
        self._environment = environment(folder, broker.bootstrap, "loop") | {"TIDINGS_KAFKA_TOPICS": "expect"}

    async def run(self) -> None:
        """Kill as planned, let everything finish, and compare."""
        await asyncio.to_thread(expect_progress, self._broker)
        for topic in (ASSIGNMENTS, REQUESTS, EXECUTIONS, OUT, *REJECTIONS):
            await asyncio.to_thread(self._broker.create_topic, topic, 2)
        names = self._names()
        async with self.load.running():
            for index, name in enumerate(names):
                if index == len(names) // 2:
                    await asyncio.to_thread(self._broker.create_topic, SHUT, 2)
                await self._run_once(name)
            for name in self._plan.points * TRIES:
                if not self.counts.kills[name]:
                    await self._run_once(name)
            node = await self._one.start(environment=self._environment)
            self._requests.open(await node.url())
            await eventually(lambda: len(self.load.accounts) >= self._plan.messages, SEND_S_MAX)
            await self.load.finish()
        await self._drain()
        node.send(signal.SIGTERM)
        assert await node.ended(STOP_S), "did not stop in time"
        assert node.status == 0, f"stopped with {node.status}\n{node.tail}"

    def _names(self) -> list[str]:
        """Where to kill: every point in turn, at random times in between, and rare cases."""
        plan = self._plan
        names = [ZOMBIE] * plan.zombies + [BROKER] * plan.broker_kills + [PLAIN] * plan.plain
        left = max(0, plan.kills - len(names))
        names += [plan.points[index % len(plan.points)] for index in range(left * 3 // 4)]
        names += [RANDOM] * (left - left * 3 // 4)
        self._random.shuffle(names)
        return names

    async def _run_once(self, name: str) -> None:
        """Run one node from start to kill."""
        if name == ZOMBIE:
            await self._run_with_a_zombie()
            return
        if name == PLAIN:
            node = await start_plain(self._folder, **self._environment)
        else:
            visits = self._random.randint(1, VISITS[name]) if name in VISITS and not self.counts.passed_by[name] else 1
            crash = f"{name}:{visits}" if name in VISITS else None
            node = await self._one.start(crash=crash, environment=self._environment)
        with contextlib.suppress(AssertionError):  # it may be killed before it listens
            self._requests.open(await node.url())
            await node.logged(OWNER)
        if name in VISITS and not await node.ended(POINT_S):
            self.counts.passed_by[name] += 1
            name = RANDOM
        if name not in VISITS:
            await node.ended(self._random.uniform(*RUN_S))
        if name == BROKER:
            self.counts.brokers += 1
            self._broker.kill()
            await node.ended(self._random.uniform(0, 1))
        await self._kill(node, name)
        if name == BROKER:
            await asyncio.to_thread(self._broker.restart)

    async def _run_with_a_zombie(self) -> None:
        """The owner sleeps past its lease, another takes over, the sleeper wakes up; then one of them is killed."""
        first = await self._one.start(environment=self._environment)
        self._requests.open(await first.url())
        await first.logged(OWNER)
        second = await self._other.start(environment=self._environment)
        await second.logged(STANDBY)
        await asyncio.sleep(self._random.uniform(*ZOMBIE_S))
        await stop_between_transactions(first, self._environment["TIDINGS_STORE_PATH"])
        await second.logged(OWNER)
        self._requests.open(await second.url())
        await asyncio.sleep(self._random.uniform(*ZOMBIE_S))
        first.send(signal.SIGCONT)
        await asyncio.sleep(self._random.uniform(*ZOMBIE_S))
        self.counts.zombies += 1
        owner_is_killed = self._random.random() < 0.5
        await self._kill(second if owner_is_killed else first, ZOMBIE)
        left = first if owner_is_killed else second
        self._requests.open(await left.url())
        await asyncio.sleep(self._random.uniform(*ZOMBIE_S))
        await self._kill(left, RANDOM)

    async def _kill(self, node: NodeProcess, name: str) -> None:
        node.send(signal.SIGKILL)
        assert await node.ended(STOP_S)
        self._requests.shut()
        assert node.status == -signal.SIGKILL, f"{name}: ended with {node.status}\n{node.tail}"
        check_log(node)
        self.counts.kills[name] += 1

    async def _drain(self) -> None:
        """Wait until nothing is owed any more; a moment later nothing may have been added."""
        await self.load.ask_states()
        deadline = time.monotonic() + DRAIN_S
        while True:
            self.verdict = await asyncio.to_thread(judge, self._broker, self.load.accounts)
            if not self.verdict.lost or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        await self.load.ask_states()
        self.verdict = await asyncio.to_thread(judge, self._broker, self.load.accounts)

    def report(self) -> str:
        words = ", ".join(f"{word} {number}" for word, number in sorted(self.load.words.items()))
        return f"{self.counts.table()}\n{self.verdict}\nover HTTP: {words}"


async def run(plan: Plan, folder: Path | None = None) -> Loop:
    """Run a loop to its end, with a broker of its own, in a folder of its own if none is given."""
    with tempfile.TemporaryDirectory() as made:
        place = folder or Path(made)
        with await asyncio.to_thread(Broker.start) as broker:
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
                node_factory(place, LEASE_US, plan.without) as one,
                node_factory(place, LEASE_US, plan.without) as other,
            ):
                loop = Loop(plan, place, broker, Requests(session, Pace()), (one, other))
                await loop.run()
                return loop


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.faults.loop", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--zombies", type=int, help="one for ten kills if not given")
    parser.add_argument("--brokers", type=int, help="kills of the broker, one for fifty if not given")
    parser.add_argument("--plain", type=int, help="nodes started by the plain command, one for twenty if not given")
    parser.add_argument("--rate", type=int, default=200, help="messages a second")
    parser.add_argument("--messages", type=int, default=0, help="the minimum number")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--without", choices=("marker", "watch"), default="", help="leave a guard out")
    options = parser.parse_args()
    kills = options.kills
    plan = Plan(
        kills,
        kills // 10 if options.zombies is None else options.zombies,
        kills // 50 if options.brokers is None else options.brokers,
        kills // 20 if options.plain is None else options.plain,
        options.rate,
        options.messages,
        options.seed,
        options.without,
    )
    print(f"seed {plan.seed}", flush=True)
    begun = time.monotonic()
    loop = asyncio.run(run(plan))
    print(f"{loop.report()}\n{time.monotonic() - begun:.0f} s")
    return 0 if loop.verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
