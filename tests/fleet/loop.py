"""The fault loop of a fleet: nodes, their network and the server fail under load, and every answer must hold.

`python -m tests.fleet.loop --faults 200 --messages 100000 --bus kafka --seed 7` runs a long one and prints the counts.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp

from tests.faults.node_process import wall_us
from tests.fleet.clients import Clients
from tests.fleet.faults import Faults, ignore
from tests.fleet.fleet import Fleet, fleet
from tests.fleet.judge import WAITING, Verdict, ask_ends, judge
from tests.fleet.load import TOPICS, Load
from tests.fleet.readers import KafkaReader, LogReader, Reader
from tests.kafka.site import expect_progress
from tests.servers.kafka import Broker
from tests.servers.postgres import Postgres
from tidings.testing import eventually

CLIENTS = 10
BULK_CLIENTS = 2
DRAIN_S = 60.0
SEND_S_MAX = 3_600.0
QUIET_S = 1.0
STOP_S = 60.0
PARTITIONS = 3


@dataclass
class Plan:
    """The amounts of a run."""

    faults: int = 40
    stops: int = 4
    messages: int = 10_000  # at least
    bus: Literal["log", "kafka"] = "log"
    nodes: int = 4
    rate: int = 150
    seed: int = 0

    def __str__(self) -> str:
        return (
            f"python -m tests.fleet.loop --faults {self.faults} --stops {self.stops} --messages {self.messages}"
            f" --bus {self.bus} --nodes {self.nodes} --rate {self.rate} --seed {self.seed}"
        )


class Trial:
    """A fleet under load, read and checked in the end."""

    def __init__(self, fleet: Fleet, clients: Clients, load: Load, reader: Reader) -> None:
        self.fleet = fleet
        self.clients = clients
        self.load = load
        self.verdict = Verdict()
        self._reader = reader
        self._clients: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self, clients: int = CLIENTS, bulk_clients: int = BULK_CLIENTS) -> AsyncIterator[None]:
        """Run the load and a reader of its records. Ends with the verdict."""
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._reader.run())
            self._clients = [tasks.create_task(self.load.run_programs()) for _ in range(clients)]
            self._clients += [tasks.create_task(self.load.run_bulk()) for _ in range(bulk_clients)]
            yield
            await self._finish()
            reading.cancel()

    async def sent(self, messages: int) -> None:
        """Wait until this many schedules were sent."""
        await eventually(lambda: self.load.schedules >= messages, SEND_S_MAX)

    async def _finish(self) -> None:
        """Let everything finish; then nothing may follow."""
        self.load.stop()
        _, late = await asyncio.wait(self._clients, timeout=STOP_S)
        assert not late, "calls are not answered"
        with contextlib.suppress(AssertionError, TimeoutError):  # then the verdict lists what still waits
            await eventually(self._is_over, DRAIN_S)
        await asyncio.sleep(QUIET_S)
        ends = await ask_ends(self.clients)
        await self._reader.finish()
        self.verdict = judge(self.clients.steps, self._reader.records, ends, wall_us())

    async def _is_over(self) -> bool:
        for tenant in {name.tenant for name in self.clients.steps}:
            for state in WAITING:
                answer = await self.clients.get(f"/v1/schedules?state={state}&limit=1", tenant)
                if answer.document["schedules"]:
                    return False
        return True

    def report(self) -> str:
        calls = ", ".join(f"{number} {word}" for word, number in sorted(self.clients.counts.items()))
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(self.load.counts.items()))
        return f"{kinds}\nrequests: {calls}\n{self.verdict}"


@contextlib.asynccontextmanager
async def trial(
    plan: Plan, folder: Path, postgres: Postgres, broker: Broker | None = None, programs: Sequence[str] = ()
) -> AsyncIterator[Trial]:
    """A fleet on new servers, with clients of its own, and its lanes shared evenly."""
    environment = {}
    if broker is not None:
        await asyncio.to_thread(expect_progress, broker)
        for topic in TOPICS:
            await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
        environment = {"TIDINGS_KAFKA_SERVERS": broker.bootstrap, "TIDINGS_KAFKA_TOPICS": "expect"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = Clients(session, plan.seed)
        reader = LogReader(clients) if broker is None else KafkaReader(broker)
        async with fleet(postgres, plan.nodes, folder, clients, environment) as started:
            await started.monitor.shared_evenly(lambda: plan.nodes)
            yield Trial(started, clients, Load(clients, plan.seed, plan.rate, programs), reader)


@dataclass
class Outcome:
    """The result of a plan."""

    plan: Plan
    trial: Trial
    faults: Faults
    shares: list[int]
    zombie_writes: int
    writes: int
    refusals: int

    def __str__(self) -> str:
        return (
            f"{self.plan}\n{self.faults.table()}\n{self.trial.report()}\n"
            f"{self.writes} writes of lanes, {self.zombie_writes} of them by a node that did not own its lane;"
            f" {self.refusals} were refused; lanes in the end: {self.shares}"
        )


async def run(plan: Plan, folder: Path | None = None, report: Callable[[str], None] = ignore) -> Outcome:
    """Run a loop to its end, with servers of its own, in a folder of its own if none is given."""
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(await asyncio.to_thread(Postgres.start))
        broker = stack.enter_context(await asyncio.to_thread(Broker.start)) if plan.bus == "kafka" else None
        async with trial(plan, place, postgres, broker) as begun:
            monitor, faults = begun.fleet.monitor, Faults(begun.fleet, plan.seed, report)
            async with begun.running():
                report("the load begins")
                await faults.inject(plan.faults, plan.stops)
                report("the last fault is over")
                await begun.sent(plan.messages)
                shares = await monitor.shared_evenly(lambda: plan.nodes)
                report("everything was sent")
            report("everything was judged")
            zombies = await monitor.zombie_writes()
            return Outcome(plan, begun, faults, shares, len(zombies), await monitor.writes(), monitor.refusals())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fleet.loop", description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--stops", type=int, help="clean stops besides, one for ten faults if not given")
    parser.add_argument("--messages", type=int, default=20_000, help="the minimum number")
    parser.add_argument("--bus", choices=("log", "kafka"), default="log")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rate", type=int, default=150, help="messages a second that each of two bulk clients sends")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    stops = options.faults // 10 if options.stops is None else options.stops
    plan = Plan(options.faults, stops, options.messages, options.bus, options.nodes, options.rate, options.seed)
    print(f"seed {plan.seed}", flush=True)
    begun = time.monotonic()
    outcome = asyncio.run(run(plan, None, lambda text: print(f"{wall_us()}  {text}", flush=True)))
    print(f"{outcome}\n{time.monotonic() - begun:.0f} s")
    return 0 if outcome.trial.verdict.is_clean and not outcome.zombie_writes else 1


if __name__ == "__main__":
    sys.exit(main())
