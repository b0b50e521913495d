"""200,000 due at one instant, released to Kafka exactly once, read by a reader of what is committed."""

import time
from pathlib import Path

import msgspec

from bench.burst import ATTEMPTS, Leaving, Missed, Pace
from bench.engines import remove, send, settle, workspace
from bench.engines import run as run_loop
from bench.kafka.arrivals import Arrivals
from bench.kafka.bare import Bare
from bench.kafka.records import records_at
from bench.kafka.site import Reading, Site, opened
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import TENANT, instant_batches, request
from bench.rounds import Rounds, divided
from bench.screen import note
from tidings.domain.facts import Fact, Released

TITLE = "200,000 due at one instant, to the last one read, rows/s; the limit is the same in bare transactions of 10,000"
ROWS = 200_000
LIMIT_A_TRANSACTION = 10_000
READ_S_MAX = 60.0

BARS = (
    Bar("burst", "median", ">=", 110_000),
    Bar("burst", "ratio", ">=", 0.35),
    Bar("first_ms", "median", "<=", 50),
    *(Bar(fault, "median", "<=", 0) for fault in ("lost", "twice", "early")),
)

_SECOND_US = 1_000_000


class Burst(msgspec.Struct, frozen=True):
    """From the due instant to the last record read, to its commit, and to the first one read."""

    per_s: float
    committed_per_s: float
    first_ms: float
    rows_a_transaction: int
    faults: dict[str, int]


def run(options: Options) -> Report:
    """The burst and the bare transactions in every round, with the same reader beside each."""
    rounds = Rounds("kafka_burst")
    rows, pace = options.rows(ROWS), Pace()
    faults: dict[str, int] = {}
    with opened(options) as site, workspace() as folder:
        for number in range(1, options.rounds + 1):
            note(f"kafka_burst: round {number} of {options.rounds}")
            limit = _limit(site, rows)
            burst = burst_on(site, folder / "burst.db", rows, pace)
            remove(folder / "burst.db")
            figures = {"burst": burst.per_s, "burst_committed": burst.committed_per_s, "first_ms": burst.first_ms}
            figures["rows_a_transaction"] = float(burst.rows_a_transaction)
            rounds.add(figures, limit, divided(figures, limit))
            faults = {name: faults.get(name, 0) + count for name, count in burst.faults.items()}
    rounds.put(faults)
    return rounds.report()


def _limit(site: Site, rows: int) -> dict[str, float]:
    """The same bytes in transactions of 10,000: to the last one read, and to the last commit."""
    with site.topic("bare") as topic, site.reading(topic, rows + 1, READ_S_MAX) as reading:
        records = records_at([_now()] * (rows + 1), topic)
        bare = Bare(site.broker.client())
        bare.transact(records[:1], topic, 1)  # as with ours, the topic is in use already
        settle()
        started = _now()
        took = bare.transact(records[1:], topic, LIMIT_A_TRANSACTION)
        read = reading.arrivals()
    if len(read.due) != rows + 1:
        raise RuntimeError(f"{len(read.due)} of {rows + 1} arrived")
    return {"burst": rows / ((read.at[-1] - started) / _SECOND_US), "burst_committed": took.per_s}


def burst_on(site: Site, path: Path, rows: int, pace: Pace) -> Burst:
    """One burst on a store; again, from further ahead, where scheduling it took too long."""
    for _ in range(ATTEMPTS):
        try:
            with site.topic("burst") as topic, site.reading(topic, rows + 1, READ_S_MAX) as reading:
                return run_loop(_burst(site, path, rows, pace, topic, reading))
        except Missed:
            note("kafka_burst: the machine was too slow to schedule it in time, once more")
    raise RuntimeError(f"{rows:,} rows could not be scheduled before they were due, {ATTEMPTS} times")


async def _burst(site: Site, path: Path, rows: int, pace: Pace, topic: str, reading: Reading) -> Burst:
    async with site.engine_on(path) as engine:
        await engine.submit([engine.admit(TENANT, request(engine.clock.now(), topic=topic))])  # the topic is in use
        due = engine.clock.now() + pace.ahead_us(rows)
        took = await send(engine, instant_batches(rows, due, topic=topic))
        pace.learn(rows, took.seconds)
        settle()
        if engine.clock.now() > due - _SECOND_US // 10:
            raise Missed
        leaving = _Leaving(due)
        engine.listen(leaving)
        read = await reading.beside(engine)
    return _measured(read, due, rows, leaving)


def _measured(read: Arrivals, due: int, rows: int, leaving: "_Leaving") -> Burst:
    burst = read.since(due)
    if not burst.due:
        raise RuntimeError("nothing of the burst arrived")
    return Burst(
        len(burst.due) / ((burst.at[-1] - due) / _SECOND_US),
        leaving.rows / ((leaving.last - due) / _SECOND_US),
        (burst.at[0] - due) / 1_000,
        leaving.rows_a_commit,
        burst.faults(rows),
    )


class _Leaving(Leaving):
    """Listens to releases from a moment on: when the last was committed."""

    def __init__(self, since: int) -> None:
        super().__init__()
        self._since = since
        self.last = since

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, Released) and fact.at >= self._since:
            super().__call__(fact)
            self.last = fact.at


def _now() -> int:
    return time.time_ns() // 1_000
