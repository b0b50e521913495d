"""The kill loop of workers: nodes are killed while providers fail, and at the end nothing was lost.

The result of each notification must be known. Through a provider that deduplicates by id nothing is sent twice;
through one that does not, only after a kill between its acceptance and our record, or after a lost answer.
On PostgreSQL other nodes run beside the one that is killed: they are killed too, or suspended beyond their claims, and
connections of all nodes are ended by the server.
`python -m tests.delivery.loop --kills 1000` runs a long one and prints the counts; with `--postgres --nodes 3` on a
PostgreSQL.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import psycopg

from tests.delivery.faulty_providers import REFUSED, SECRETS, Providers, started_providers
from tests.faults.node_process import NodeFactory, NodeProcess, Pace, check_log, node_factory
from tests.servers.postgres import Postgres
from tidings.clock import SystemClock
from tidings.crash import DELIVERY_POINTS
from tidings.delivery.rows import delivery_key, read
from tidings.domain.notifications.delivery import Delivery
from tidings.ports import Store
from tidings.testing import eventually
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

TENANT = "default"
POINT_S = 4.0
RUN_S = (0.05, 1.5)
SETTLED_S = 90.0
STOP_S = 6.0
KILLED_S = 30.0
FOR_EACH_KILL = 12
KILL_S = 1.4  # about as long as a node runs, so that messages are due until the last kill
TRIES = 4
RANDOM = "at random"
OWNER = r"owns (the timeline|lanes)"
BESIDE = "beside another"
LEASES_US = {"sqlite": 300_000, "postgres": 1_000_000}
SUSPENDED_RUNS = (2, 5)  # runs of the other node while one is suspended: up to about twice as long as a claim
TROUBLE = 0.25
TERMINATED = 0.25  # of the runs on PostgreSQL
# At which visit of a point a node is killed at the latest; most points are passed once for a whole batch.
VISITS = {point: 12 if point == "deliver.sent" else 2 for point in DELIVERY_POINTS}
QUICK = {
    "send_timeout": "1s",
    "attempts_max": 200,
    "retry_first": "50ms",
    "retry_longest": "500ms",
    "breaker_failures": 15,
    "breaker_first": "200ms",
    "breaker_longest": "500ms",
}


@dataclass(frozen=True)
class Message:
    """One notification of the load: every second one is mail, and some are always refused."""

    number: int

    @property
    def name(self) -> str:
        return f"n-{self.number}"

    @property
    def is_mail(self) -> bool:
        return self.number % 2 == 1

    @property
    def is_refused(self) -> bool:
        return self.number % 40 == 0

    @property
    def text(self) -> str:
        return f"{REFUSED if self.is_refused else 'wanted'}-{self.number}"


def fault_of(message: Message, delivery: Delivery | None, ids: set[str], mails: int) -> str | None:
    """The fault in the result of one notification, if any; `ids` and `mails` are what the providers accepted of it."""
    if delivery is None or not delivery.is_settled:
        return "has no end"
    if delivery.state != ("failed" if message.is_refused else "sent"):
        return "has another end than it should"
    if not message.is_mail:
        wanted = set() if message.is_refused else {f"{message.name}/1"}
        return None if ids == wanted else f"arrived under the ids {sorted(ids)}"
    unsure = sum(attempt.ended is None or attempt.may_have_arrived for attempt in delivery.attempts)
    return None if 1 <= mails <= 1 + unsure else f"was mailed {mails} times, {unsure} attempts being unsure"


@dataclass
class Outcome:
    """The kills by crash point, and the results of the accepted notifications."""

    kills: Counter[str] = field(default_factory=Counter)
    passed_by: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    suspensions: int = 0
    terminated: int = 0
    cut_off: int = 0
    lost_answers: int = 0
    calls: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    mails: int = 0
    webhooks_sent_twice: int = 0
    mails_sent_twice: int = 0
    wrong: list[str] = field(default_factory=list)

    def count(self, delivery: Delivery) -> None:
        self.states[delivery.state] += 1
        self.attempts += len(delivery.attempts)
        self.cut_off += sum(attempt.ended is None for attempt in delivery.attempts)
        self.lost_answers += sum(attempt.may_have_arrived for attempt in delivery.attempts)

    def __str__(self) -> str:
        kills = "\n".join(f"  {name:<20}{count:>5}" for name, count in sorted(self.kills.items()))
        ended = ", ".join(f"{count:,} {state}" for state, count in sorted(self.states.items()))
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        return (
            f"killed\n{kills}\n  {'in all':<20}{self.kills.total():>5}\n"
            f"  {'stood still':<20}{self.suspensions:>5}\n"
            f"  {'connections ended':<20}{self.terminated:>5}\n"
            f"{self.states.total():,} notifications: {ended}; {self.attempts:,} attempts, {self.cut_off} cut off by a "
            f"kill, {self.lost_answers} without an answer\n"
            f"webhooks, deduplicated by id: {self.calls:,} calls ({faults}); {self.webhooks_sent_twice} sent twice\n"
            f"mail, which knows none: {self.mails:,} taken, {self.mails_sent_twice} of them again, after an attempt "
            f"that was cut off or unanswered\n"
            f"wrong: {len(self.wrong)}" + "".join(f"\n  {each}" for each in self.wrong[:10])
        )


class SecondNode:
    """A second node on the same store: it works, is killed too, or is suspended for a while."""

    def __init__(self, start: Callable[[], Awaitable[NodeProcess]], chance: random.Random) -> None:
        self._start = start
        self._chance = chance
        self._suspended_steps = 0
        self.node: NodeProcess | None = None
        self.suspensions = 0

    async def step(self) -> bool:
        """Act while the other node runs; True if this one was killed."""
        killed = False
        if self._suspended_steps:
            self._suspended_steps -= 1
            if not self._suspended_steps:
                self._send(signal.SIGCONT)
        elif self.node is not None:
            fate = self._chance.random()
            killed = fate < 0.3
            if killed:
                await self.kill()
            elif fate < 0.5:
                self._suspended_steps = self._chance.randint(*SUSPENDED_RUNS)
                self.suspensions += 1
                self._send(signal.SIGSTOP)
        if self.node is None:
            self.node = await self._start()
        return killed

    async def kill(self) -> None:
        """kill -9."""
        self._send(signal.SIGKILL)
        assert self.node is not None
        assert await self.node.ended(KILLED_S)
        check_log(self.node)
        self.node, self._suspended_steps = None, 0

    def _send(self, number: signal.Signals) -> None:
        assert self.node is not None
        self.node.send(number)


class Loop:
    """One store, through many restarts."""

    def __init__(
        self, store: str, file: Path, chance: random.Random, providers: Providers, factories: Sequence[NodeFactory]
    ) -> None:
        self.outcome = Outcome()
        self._chance = chance
        self._providers = providers
        self._factory = factories[0]
        self._second_nodes = [SecondNode(partial(self._start, None, each), chance) for each in factories[1:]]
        self._store = store
        self._file = file
        self._file.write_text(providers.settings(**QUICK), "utf-8")
        self._messages: list[Message] = []

    async def run(self, kills: int) -> None:
        """Accept all, kill this many times while they are due, then let everything finish and check it."""
        await self._accept(kills * FOR_EACH_KILL, kills * KILL_S)
        for name in self._points(kills):
            await self._step_second_nodes()
            await self._run_once(name)
        for second in self._second_nodes:
            self.outcome.suspensions += second.suspensions
            await second.kill()
        for name in DELIVERY_POINTS * TRIES:
            if not self.outcome.kills[name]:  # on a slow machine others took its work, or there was none left
                await self._accept(FOR_EACH_KILL, KILL_S)
                await self._run_once(name)
        self._providers.calm()
        node = await self._start(None, self._factory)
        try:
            self._judge(await self._settled())
        finally:
            await self._stop(node)

    async def _accept(self, count: int, within_s: float) -> None:
        """Webhooks and mail, of all priorities, due one after the other; the receiver always refuses some."""
        node = await self._start(None, self._factory)
        await node.logged(OWNER)
        person = {"email": "ada@example.com", "webhook": self._providers.webhook}
        async with aiohttp.ClientSession(await node.url(), raise_for_status=True) as session:
            async with session.put("/v1/users/ada", json=person):
                pass
            first = len(self._messages)
            for message in map(Message, range(first, first + count)):
                document = {
                    "id": message.name,
                    "user": "ada",
                    "channel": "email" if message.is_mail else "webhook",
                    "words": {"title": "News", "text": message.text},
                    "priority": self._chance.choice(("high", "normal", "low")),
                    "at": f"+{1 + self._chance.random() * within_s:.3f}s",
                }
                async with session.post("/v1/notifications", json=document):
                    self._messages.append(message)
        await self._stop(node)

    def _points(self, kills: int) -> list[str]:
        """Where to kill: every point in turn, and at random moments in between."""
        names = [DELIVERY_POINTS[index % len(DELIVERY_POINTS)] for index in range(kills * 2 // 3)]
        names += [RANDOM] * (kills - len(names))
        self._chance.shuffle(names)
        return names

    async def _step_second_nodes(self) -> None:
        for second in self._second_nodes:
            self.outcome.kills[BESIDE] += await second.step()

    async def _run_once(self, name: str) -> None:
        """Run one node from start to kill."""
        self._providers.trouble_mail(self._chance)
        visits = self._chance.randint(1, VISITS.get(name, 1)) if not self.outcome.passed_by[name] else 1
        node = await self._start(f"{name}:{visits}" if name in VISITS else None, self._factory)
        with contextlib.suppress(AssertionError):  # it may be killed before it logs that
            await node.logged(OWNER)
        if name in VISITS and not await node.ended(POINT_S):
            self.outcome.passed_by[name] += 1
            name = RANDOM
        if name not in VISITS:
            await self._terminate_connections()
            await node.ended(self._chance.uniform(*RUN_S))
        node.send(signal.SIGKILL)
        assert await node.ended(KILLED_S)
        assert node.status == -signal.SIGKILL, f"{name}: ended with {node.status}\n{node.tail}"
        check_log(node)
        self.outcome.kills[name] += 1

    async def _terminate_connections(self) -> None:
        """Let the server end about half of all connections, sometimes."""
        if not self._store.startswith("postgres") or self._chance.random() >= TERMINATED:
            return
        async with await psycopg.AsyncConnection.connect(self._store, autocommit=True) as connection:
            cursor = await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5"
            )
            self.outcome.terminated += len(await cursor.fetchall())

    async def _start(self, crash: str | None, factory: NodeFactory) -> NodeProcess:
        environment = {"TIDINGS_CONFIG": str(self._file), **SECRETS}
        return await factory.start("--store", self._store, crash=crash, environment=environment)

    async def _stop(self, node: NodeProcess) -> None:
        node.send(signal.SIGTERM)
        assert await node.ended(STOP_S), f"did not stop in time\n{node.tail}"
        assert node.status == 0, f"stopped with {node.status}\n{node.tail}"
        check_log(node)
        assert not any(secret in node.log for secret in SECRETS.values())

    async def _settled(self) -> dict[str, Delivery]:
        """All deliveries, once all are settled; those that are not settled in time are faults."""
        clock = SystemClock()
        store = await opened(self._store, clock)
        keys = [delivery_key(TENANT, f"{message.name}/1") for message in self._messages]
        found: list[Delivery] = []

        async def are_settled() -> bool:
            documents = await store.tables.get(keys, clock.now())
            found[:] = [read(document, Delivery) for document in documents if document is not None]
            return len(found) == len(keys) and all(each.is_settled for each in found)

        try:
            with contextlib.suppress(AssertionError):
                await eventually(are_settled, SETTLED_S, poll_s=0.5)
        finally:
            await store.close()
        return {each.notification: each for each in found}

    def _judge(self, found: dict[str, Delivery]) -> None:
        """Compare the stored deliveries with what the providers saw."""
        outcome, receiver, mails = self.outcome, self._providers.receiver, self._providers.mails()
        outcome.calls, outcome.faults = receiver.calls.total(), receiver.faults
        outcome.mails = mails.total()
        for message in self._messages:
            delivery, ids = found.get(message.name), receiver.ids.get(message.text, set())
            if delivery is not None:
                outcome.count(delivery)
            outcome.webhooks_sent_twice += max(0, len(ids) - 1)
            outcome.mails_sent_twice += max(0, mails[message.text] - 1)
            fault = fault_of(message, delivery, ids, mails[message.text])
            if fault is not None:
                outcome.wrong.append(f"{message.name} {fault}: {delivery}")


async def opened(store: str, clock: SystemClock) -> Store:
    """Open the store for reading."""
    if store.startswith("postgres"):
        return await PostgresStore.open(store, clock)
    return await SqliteStore.open(Path(store), created=clock.now())


async def run(kills: int, seed: int, folder: Path, dsn: str | None = None, nodes: int = 2) -> Outcome:
    """Run a loop to its end: on a file in the folder, or with several nodes on a database that is empty."""
    chance = random.Random(seed)
    logging.getLogger("mail.log").setLevel(logging.CRITICAL)  # the mail server logs every connection that breaks
    lease_us = LEASES_US["sqlite" if dsn is None else "postgres"]
    async with contextlib.AsyncExitStack() as stack:
        providers = await stack.enter_async_context(started_providers(folder, chance, TROUBLE))
        factories = [
            await stack.enter_async_context(node_factory(folder, Pace(), lease_us, "tests.delivery.fork_server"))
            for _ in range(1 if dsn is None else nodes)
        ]
        loop = Loop(dsn or str(folder / "tidings.db"), folder / "tidings.toml", chance, providers, factories)
        await loop.run(kills)
        return loop.outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.delivery.loop", description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL that is started for it")
    parser.add_argument("--nodes", type=int, default=2, help="how many nodes share the PostgreSQL")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dsn = stack.enter_context(Postgres.start()).dsn if options.postgres else None
        outcome = asyncio.run(run(options.kills, options.seed, folder, dsn, options.nodes))
    print(outcome)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
