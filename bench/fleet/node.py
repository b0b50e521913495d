"""A node in a process of its own: `python -m bench.fleet.node OPTIONS`, with its options as JSON.

Says `ready` once it works, and at its end, which comes with SIGTERM, what it has released and what a reader got.
"""

import asyncio
import contextlib
import signal
import sys
import time

import msgspec

from bench.engines import run
from bench.processes import say
from bench.requests import TENANT
from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Kafka, Store
from tidings.domain.facts import Fact, Released
from tidings.engine import Engine
from tidings.node import build_engine, join_kafka, open_store


class NodeOptions(msgspec.Struct, frozen=True):
    """Where its data is, the Kafka that it is joined to, and the topic that a reader on it follows."""

    dsn: str
    kafka: str | None = None
    name: str = "bench"
    follow: str | None = None


class Report(msgspec.Struct):
    """The releases of a node with the time at which each commit was known, and what its reader got, and when."""

    rows: int = 0
    commits: int = 0
    first: int = 0
    last: int = 0
    cpu_s: float = 0.0
    late_us: list[int] = []
    read_late_us: list[int] = []
    read_first: int = 0
    read_last: int = 0


def config_of(options: NodeOptions) -> Config:
    """The settings of a node."""
    store = Store(path=options.dsn)
    if options.kafka is None:
        return Config(store=store)
    return Config(store=store, kafka=Kafka(servers=options.kafka, name=options.name))


class _Listener:
    """Notes releases once they are committed."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._clock = SystemClock()

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, Released) and fact.lateness_us:
            now, report = self._clock.now(), self._report
            took = now - fact.at
            report.rows += len(fact.lateness_us)
            report.commits += 1
            report.first = report.first or now
            report.last = now
            report.late_us += [late + took for late in fact.lateness_us]


async def main(options: NodeOptions) -> None:
    """Work until stopped."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config, clock, report = config_of(options), SystemClock(), Report()
    engine = build_engine(await open_store(config.store.path, config, clock), config, clock, [_Listener(report)])
    if options.kafka is not None:
        join_kafka(engine, config)
    await engine.start()
    reading = None if options.follow is None else asyncio.create_task(_read(engine, options.follow, report))
    say("ready")
    begun_s = time.process_time()
    await stop.wait()
    report.cpu_s = time.process_time() - begun_s
    await engine.stop()
    if reading is not None:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    say(report)


async def _read(engine: Engine, topic: str, report: Report) -> None:
    """Follow a topic."""
    async with engine.follow(TENANT, topic) as batches:
        async for records, _ in batches:
            now = engine.clock.now()
            report.read_first = report.read_first or now
            report.read_last = now
            report.read_late_us += [now - record.due for record in records]


if __name__ == "__main__":
    run(main(msgspec.json.decode(sys.argv[1], type=NodeOptions)))
