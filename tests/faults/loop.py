"""The kill loop: a node under load is killed again and again, and at the end every answer it gave must hold.

`python -m tests.faults.loop --kills 1000` runs a long one and prints the counts.
"""

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from tests.faults.node_process import NodeFactory, NodeProcess, Pace, check_log, node_factory, start_plain
from tests.faults.trial import Trial
from tests.faults.trial import trial as begun_trial
from tidings.crash import POINTS
from tidings.timeline.sqlite.pending import packed_reads
from tidings.timeline.sqlite.writer import OFFSET_BITS

POINT_S = 2.5  # a node passes a point in this time; on a slow machine later, so that each further try waits longer
RUN_S = (0.02, 0.6)
OWNERS = 0.8  # this share of random kills waits until the node owns the timeline
OWNER = "owns the timeline"
STOP_S = 5.0
RETENTION_S = 30
TRIES = 5  # for a point that was never passed in time
RANDOM = "at random"
PLAIN = "plain command"

# How often a point is passed before the kill, at most.
VISITS = {
    "intake.begun": 40,
    "intake.written": 40,
    "intake.committed": 40,
    "change.written": 20,
    "release.begun": 25,
    "release.logged": 25,
    "release.settled": 25,
    "release.committed": 25,
    "refine.written": 4,
    "refine.committed": 4,
    "map.flushed": 2,
    "map.merging": 4,
    "map.merged": 1,
    "trim.written": 3,
    "checkpoint.done": 2,
}
FAST_POINTS = ("refine.written", "refine.committed")  # rows move from far to near only as quarters of an hour pass


@dataclass
class Kills:
    """The kills by place, and how much was in flight at that time."""

    hits: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    owed: Counter[str] = field(default_factory=Counter)
    passed_by: Counter[str] = field(default_factory=Counter)

    def count(self, name: str, asked: int, owed: int) -> None:
        self.hits[name] += 1
        self.asked[name] = max(self.asked[name], asked)
        self.owed[name] = max(self.owed[name], owed)

    def is_covered(self, name: str) -> bool:
        """Whether a kill hit this place with requests in progress, and one with records still pending."""
        return bool(self.hits[name] and self.asked[name] and self.owed[name])

    @property
    def total(self) -> int:
        return self.hits.total()

    def table(self) -> str:
        lines = [f"{'killed':<20}{'times':>6}{'requests open':>16}{'records owed':>15}   (most at one kill)"]
        lines += [
            f"{name:<20}{self.hits[name]:>6}{self.asked[name]:>16}{self.owed[name]:>15}" for name in sorted(self.hits)
        ]
        return "\n".join([*lines, f"{'in all':<20}{self.total:>6}"])


class Loop:
    """One store, through many restarts."""

    def __init__(self, folder: Path, pace: Pace, seed: int, trial: Trial, factory: NodeFactory) -> None:
        self.kills = Kills()
        self.trial = trial
        self._folder = folder
        self._random = random.Random(seed)
        self._factory = factory
        self._points = [point for point in POINTS if pace.speed > 1 or point not in FAST_POINTS]
        self._environment = {
            "TIDINGS_STORE_PATH": str(folder / "tidings.db"),
            "TIDINGS_LOG_RETENTION": f"{RETENTION_S * pace.speed}s",
            "TIDINGS_IDS_RETENTION": "3000d",
        }

    async def run(self, kills: int, plain: int) -> None:
        """Kill this many times, then let everything finish and check it."""
        async with self.trial.running():
            for name in self._names(kills, plain):
                await self._run_once(name)
            for name in self._points * TRIES:
                if not self.kills.is_covered(name):
                    await self._run_once(name)
            node = await self._start(None)
            await self.trial.finish()
        await self._stop(node)
        check_file(self._environment["TIDINGS_STORE_PATH"])

    def _names(self, kills: int, plain: int) -> list[str]:
        """Where to kill: every point in turn, at random moments in between, and some nodes in the usual way."""
        names = [self._points[index % len(self._points)] for index in range(kills * 2 // 3)]
        names += [RANDOM] * (kills - len(names) - plain) + [PLAIN] * plain
        self._random.shuffle(names)
        return names

    async def _run_once(self, name: str) -> None:
        """Run one node from start to kill."""
        if name == PLAIN:
            node = await start_plain(self._folder, **self._environment)
        else:
            visits = self._random.randint(1, VISITS[name]) if name in VISITS and not self.kills.passed_by[name] else 1
            node = await self._start(f"{name}:{visits}" if name in VISITS else None)
        with contextlib.suppress(AssertionError):  # it may be killed before it listens
            self.trial.requests.open(await node.url())
            if name != RANDOM or self._random.random() < OWNERS:
                await node.logged(OWNER)
        if name in VISITS and not await node.ended(POINT_S * (1 + self.kills.passed_by[name])):
            self.kills.passed_by[name] += 1
            name = RANDOM
        if name not in VISITS:
            await node.ended(self._random.uniform(*RUN_S))
        asked, owed = self.trial.requests.asked, self.trial.owed()
        node.send(signal.SIGKILL)
        assert await node.ended(STOP_S)
        self.trial.requests.shut()
        assert node.status == -signal.SIGKILL, f"{name}: ended with {node.status}\n{node.tail}"
        check_log(node)
        self.kills.count(name, asked, owed)

    async def _start(self, crash: str | None) -> NodeProcess:
        node = await self._factory.start(crash=crash, environment=self._environment)
        if crash is None:
            self.trial.requests.open(await node.url())
        return node

    async def _stop(self, node: NodeProcess) -> None:
        node.send(signal.SIGTERM)
        assert await node.ended(STOP_S), "did not stop in time"
        assert node.status == 0, f"stopped with {node.status}\n{node.tail}"
        check_log(node)

    def report(self) -> str:
        return f"{self.kills.table()}\n{self.trial.report()}"


def check_file(path: str) -> None:
    """Check the integrity of the file and its counters."""
    with contextlib.closing(apsw.Connection(path)) as connection:
        assert connection.pragma("integrity_check") == "ok"
        pending = sum(connection.execute(f"SELECT count(*) FROM {table} WHERE n >= 0").get for table in ("near", "far"))
        pending += packed_reads.overdue(connection, 1 << 60, 1 << 60)
        assert connection.execute("SELECT pending FROM tally").get == pending
        ends = connection.execute("SELECT partition, first, next FROM partition").fetchall()
        for partition, first, following in ends:
            span = (partition << OFFSET_BITS, (partition + 1) << OFFSET_BITS)
            kept = connection.execute("SELECT count(*) FROM log WHERE position >= ? AND position < ?", span).get
            assert kept == following - first, f"partition {partition} holds {kept} of {first} to {following}"


async def run(kills: int, plain: int, seed: int, speed: int, folder: Path | None = None) -> Loop:
    """Run a loop to its end, in a folder of its own if none is given."""
    pace = Pace(speed)
    with tempfile.TemporaryDirectory() as made:
        place = folder or Path(made)
        async with begun_trial(seed, pace) as trial, node_factory(place, pace) as factory:
            loop = Loop(place, pace, seed, trial, factory)
            await loop.run(kills, plain)
            return loop


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.loop", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--plain", type=int, help="of them nodes started by the plain command, 4 s each")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--speed", type=int, default=1, help="how fast the nodes' clock runs")
    options = parser.parse_args()
    plain = options.kills // 50 if options.plain is None else options.plain
    print(f"seed {options.seed}", flush=True)
    loop = asyncio.run(run(options.kills, plain if options.speed == 1 else 0, options.seed, options.speed))
    print(loop.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
