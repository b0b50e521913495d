"""200,000 requests of Intervals clients that wait on Kafka, until each is stored together with how far was read."""

import asyncio
import time
from pathlib import Path

from confluent_kafka import Producer

from bench.engines import remove, settle, workspace
from bench.engines import run as run_loop
from bench.intake import made_ids_rate, prepared
from bench.kafka.site import Site, opened
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import HEADERS, far_moment, request
from bench.rounds import Rounds, divided
from bench.screen import note
from tidings.clock import SystemClock
from tidings.domain.facts import Changed, Fact
from tidings.domain.schedules.iso8601 import format_instant
from tidings.wires.intervals import SCHEDULE
from tidings.wires.wire import INTERVALS_EXECUTIONS, INTERVALS_REQUESTS, REJECTIONS

TITLE = "requests on a full topic to stored schedules, offsets with them, rows/s; the limit is `intake` with made ids"
ROWS = 200_000
ROWS_LEAST = 3_000  # more than one transaction holds
FILL_S_MAX = 120.0
STORE_S_MAX = 120.0
QUEUE_RECORDS_MAX = 100_000
SOON_US = 3_600_000_000

BARS = (Bar("kafka_intake", "ratio", ">=", 0.5), Bar("lost", "median", "<=", 0))


def run(options: Options) -> Report:
    """Intake in process and from Kafka, one after the other in every round."""
    rounds = Rounds("kafka_intake")
    rows = max(ROWS_LEAST, options.rows(ROWS))
    lost = 0
    with opened(options) as site, workspace() as folder:
        for number in range(1, options.rounds + 1):
            note(f"kafka_intake: round {number} of {options.rounds}")
            limit = {"kafka_intake": run_loop(made_ids_rate(folder / "made.db", prepared(options)))}
            tenant = f"bench-{number}"
            _fill(site, INTERVALS_REQUESTS + tenant, rows)
            stored = run_loop(_take(site, folder / "intake.db", rows, INTERVALS_REQUESTS + tenant))
            remove(folder / "intake.db")
            site.delete(*(prefix + tenant for prefix in (INTERVALS_REQUESTS, INTERVALS_EXECUTIONS, REJECTIONS)))
            figures = {"kafka_intake": stored.per_s, "rows_a_commit": stored.rows_a_commit}
            rounds.add(figures, limit, divided(figures, limit))
            lost += rows - stored.pending
    rounds.put({"lost": lost})
    return rounds.report()


def _fill(site: Site, topic: str, rows: int) -> None:
    """Requests as a client of Intervals sends them: two headers, no key, due at random over 30 days, none soon."""
    site.broker.create_topic(topic)
    producer = Producer(site.broker.client(linger_ms=20, queue_buffering_max_messages=QUEUE_RECORDS_MAX))
    start = SystemClock().now() + SOON_US
    for _ in range(rows):
        at = far_moment(start)
        headers: list[tuple[str, str | bytes | None]] = [(SCHEDULE, format_instant(at)), HEADERS[0]]
        while True:
            try:
                producer.produce(topic, request(at).value, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(FILL_S_MAX):
        raise RuntimeError("the requests could not be put onto Kafka")


async def _take(site: Site, path: Path, rows: int, topic: str) -> "_Stored":
    """From the first position that is stored to the last."""
    settle()
    stored = _Stored(rows)
    async with site.engine_on(path, connected=False) as engine:
        engine.listen(stored)
        working = asyncio.create_task(engine.wait())
        all_there = asyncio.create_task(stored.over.wait())
        await asyncio.wait({working, all_there}, timeout=STORE_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        working.cancel()
        stored.pending = (await engine.count()).pending
        positions = await engine.store.positions()
        position = next((at for (source, _), at in positions.items() if source.startswith(topic)), 0)
        if position != rows or not all_there.done():
            raise RuntimeError(f"{stored.rows:,} of {rows:,} were stored, up to {position}, in {STORE_S_MAX} s")
    return stored


class _Stored:
    """Listens to what was stored. The first transaction starts the watch and does not count."""

    def __init__(self, rows: int) -> None:
        self._expected = rows
        self._first = 0
        self._begun = self._last = 0.0
        self._commits = 0
        self.rows = 0
        self.pending = 0
        self.over = asyncio.Event()

    def __call__(self, fact: Fact) -> None:
        if not isinstance(fact, Changed):
            return
        self._last = time.perf_counter()
        self.rows += len(fact.commands)
        self._commits += 1
        if self._commits == 1:
            self._begun, self._first = self._last, self.rows
        if self.rows >= self._expected:
            self.over.set()

    @property
    def per_s(self) -> float:
        return (self.rows - self._first) / (self._last - self._begun)

    @property
    def rows_a_commit(self) -> float:
        return self.rows / self._commits
