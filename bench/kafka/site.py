"""A real broker on the same cores, and an engine in this process, connected to it as a node is."""

import asyncio
import contextlib
import itertools
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
from confluent_kafka.admin import AdminClient

from bench.kafka.arrivals import Arrivals
from bench.kafka.bare import Bare
from bench.kafka.records import records_at
from bench.options import Options
from bench.processes import answer_of, child
from bench.screen import note
from tests.servers.kafka import FAST_JAVA, Broker
from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Guarantee, Kafka, Store
from tidings.engine import Engine
from tidings.node import build_engine, join_kafka, open_store
from tidings.testing import eventually

READY_S_MAX = 60.0
TOPIC_S_MAX = 30.0
WARM_UP = 100_000
WARM_UP_A_TRANSACTION = (25, 1_000)

# A topic that was deleted takes no room while the next round runs.
_PROPERTIES = {"file.delete.delay.ms": "1000"}


class Site:
    """One broker for a whole benchmark; every topic and every engine has a name of its own."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def topic(self, name: str) -> Iterator[str]:
        """A new topic of one partition, deleted at the end."""
        unique = f"{name}-{next(self._numbers)}"
        self.broker.create_topic(unique)
        yield unique
        self.delete(unique)

    def delete(self, *topics: str) -> None:
        """Delete topics that are there."""
        there = [topic for topic in topics if topic in self.broker.topics()]
        admin = AdminClient(self.broker.client() | {"log_level": 0})  # needed until the answers are there
        for deleted in admin.delete_topics(there).values() if there else ():
            deleted.result(TOPIC_S_MAX)

    @contextlib.contextmanager
    def reading(self, topic: str, count: int, patience_s: float) -> Iterator["Reading"]:
        """A reader of a topic in another process, at its end. It gives up when nothing comes for so long."""
        arguments = (self.broker.bootstrap, topic, str(count), str(patience_s))
        with child("-m", "bench.kafka.reader", *arguments) as process:
            answer_of(process)
            yield Reading(process)

    @contextlib.asynccontextmanager
    async def engine_on(
        self, path: Path, *, connected: bool = True, release: Guarantee = "exactly_once"
    ) -> AsyncIterator[Engine]:
        """An engine at work on a file, which releases to Kafka."""
        kafka = Kafka(servers=self.broker.bootstrap, name=f"bench-{uuid.uuid4().hex[:8]}", release=release)
        config = Config(store=Store(path=str(path)), kafka=kafka)
        clock = SystemClock()
        engine = build_engine(await open_store(config.store.path, config, clock), config, clock)
        join_kafka(engine, config)
        await engine.start()
        try:
            if connected:
                await eventually(lambda: not engine.problems(), READY_S_MAX)
            yield engine
        finally:
            await engine.stop()


class Reading:
    """A reader that waits for its records."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def arrivals(self) -> Arrivals:
        """What came, once it has ended; blocks until then."""
        return msgspec.convert(answer_of(self._process), Arrivals)

    async def beside(self, engine: Engine) -> Arrivals:
        """The same while an engine runs; raises the error that ends the engine."""
        reading = asyncio.create_task(asyncio.to_thread(self.arrivals))
        working = asyncio.create_task(engine.wait())
        await asyncio.wait({reading, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        working.cancel()
        return await reading


@contextlib.contextmanager
def opened(options: Options) -> Iterator[Site]:
    """A broker that has served some transactions already; raises `Missing` where it cannot run."""
    note("kafka: starting a broker")
    with Broker.start(java_options=FAST_JAVA, properties=_PROPERTIES) as broker:
        site = Site(broker)
        _warm_up(site, options.rows(WARM_UP, len(WARM_UP_A_TRANSACTION)))
        yield site


def _warm_up(site: Site, rows: int) -> None:
    """Java compiles what it runs often: not at the expense of the first round."""
    with site.topic("warm-up") as topic, site.reading(topic, rows, READY_S_MAX) as reading:
        records = records_at([SystemClock().now()] * rows, topic)
        bare, part = Bare(site.broker.client()), rows // len(WARM_UP_A_TRANSACTION)
        for number, size in enumerate(WARM_UP_A_TRANSACTION):
            bare.transact(records[number * part : (number + 1) * part], topic, size)
        reading.arrivals()
