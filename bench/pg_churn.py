"""5 M rows through intake, replace, cancel and release at full speed: the size on disk and the durations."""

import asyncio
import random
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from bench.engines import run as run_loop
from bench.engines import settle
from bench.fleet.site import Database, Site, opened
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import BATCH_ROWS, TENANT, random_id, request
from bench.rounds import Rounds
from bench.screen import note
from tidings.domain.facts import Fact, Released
from tidings.domain.schedules.command import Cancel, Command, Replace
from tidings.engine import Engine
from tidings.testing import eventually

TITLE = "5 M rows in, a tenth replaced, a tenth cancelled, the rest released; MB at the end, ms for a call of 1,000"
ROWS = 5_000_000
AHEAD_US = 2_000_000  # when a row is due, at random within this
CHANGED = 10  # one in so many is replaced, and one cancelled
KEPT_S = 20.0  # records and ids are forgotten after this, so that a row goes its whole way
PENDING_MAX = 100_000  # a producer that is faster than the release waits
IN_FLIGHT = 2
DRAIN_S_MAX = 120.0
SPARE_MB = 100.0
TOPIC = "churn"

BARS = (
    Bar("size_mb", "ratio", "<=", 2),
    Bar("p99_ms", "ratio", "<=", 1.3),
)

_MB = 1_000_000
_SIZE = """
SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'tidings' AND c.relkind = 'r'
"""


class Churn(msgspec.Struct):
    """What it took: the time of each call in order, and the sizes on the disk, at its end and packed."""

    took_ms: list[float] = []
    per_s: float = 0.0
    size_mb: float = 0.0
    live_mb: float = 0.0


def run(options: Options) -> Report:
    """One store a round."""
    rounds = Rounds("pg_churn")
    rows = options.rows(ROWS, BATCH_ROWS)
    with opened() as site:
        for number in range(1, options.rounds + 1):
            note(f"pg_churn: round {number} of {options.rounds}")
            with site.database("churn") as database:
                churn = _churn(site, database, rows, options.seconds(KEPT_S))
            tenth = max(1, len(churn.took_ms) // 10)
            first, last = (float(np.percentile(part, 99)) for part in (churn.took_ms[:tenth], churn.took_ms[-tenth:]))
            figures = {"rows_per_s": churn.per_s, "size_mb": churn.size_mb, "p99_ms": last}
            limit = {"size_mb": churn.live_mb, "p99_ms": first}
            ratios = {"size_mb": max(0.0, churn.size_mb - SPARE_MB) / churn.live_mb, "p99_ms": last / first}
            rounds.add(figures, limit, ratios)
    return rounds.report()


def _churn(site: Site, database: Database, rows: int, kept_s: float) -> Churn:
    site.settle()
    settle()
    churn = run_loop(_run(database, rows, kept_s))
    churn.size_mb = database.number(_SIZE) / _MB
    with database.connect() as connection:
        connection.execute("VACUUM FULL")  # what is live, and nothing else
    churn.live_mb = database.number(_SIZE) / _MB
    return churn


async def _run(database: Database, rows: int, kept_s: float) -> Churn:
    churn = Churn()
    async with database.engine(round(kept_s * 1_000_000)) as engine:
        producer = _Producer(engine, churn.took_ms)
        engine.listen(producer)
        started = time.perf_counter()
        await producer.produce(rows)
        churn.per_s = rows / (time.perf_counter() - started)
        await eventually(lambda: producer.pending <= 0, DRAIN_S_MAX)
    return churn


class _Producer:
    """Adds batches, changes some of the batch before, and knows how much has not left yet."""

    def __init__(self, engine: Engine, took_ms: list[float]) -> None:
        self._engine = engine
        self._took_ms = took_ms
        self.pending = 0

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, Released):
            self.pending -= len(fact.lateness_us)

    async def produce(self, rows: int) -> None:
        """Two streams of calls, each one after the other."""
        await asyncio.gather(*(self._stream(rows // IN_FLIGHT) for _ in range(IN_FLIGHT)))

    async def _stream(self, rows: int) -> None:
        before: list[str] = []
        for _ in range(0, rows, BATCH_ROWS):
            await eventually(lambda: self.pending <= PENDING_MAX, DRAIN_S_MAX)
            ids = [random_id() for _ in range(BATCH_ROWS)]
            await self._submit(self._adds(ids))
            if before:
                await self._submit(self._changes(before))
            before = ids

    def _adds(self, ids: Sequence[str]) -> list[Command]:
        return [self._engine.admit(TENANT, request(self._moment(), topic=TOPIC, schedule_id=name)) for name in ids]

    def _changes(self, ids: Sequence[str]) -> list[Command]:
        """Some are replaced and some cancelled; what has left already stays as it is."""
        count = len(ids) // CHANGED
        new = [request(self._moment(), topic=TOPIC, schedule_id=name) for name in ids[:count]]
        replaced: list[Command] = [Replace(self._engine.admit(TENANT, each, new=False)) for each in new]
        return [*replaced, *(Cancel(TENANT, name) for name in ids[count : 2 * count])]

    def _moment(self) -> int:
        return self._engine.clock.now() + int(random.random() * AHEAD_US)

    async def _submit(self, commands: list[Command]) -> None:
        started = time.perf_counter()
        outcomes = await self._engine.submit(commands)
        self._took_ms.append((time.perf_counter() - started) * 1_000)
        words = [outcome.outcome for outcome in outcomes]
        self.pending += words.count("scheduled") + words.count("released") - words.count("cancelled")
