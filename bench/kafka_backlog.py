"""Burst and lateness on Kafka with 1 M pending, held against an empty store."""

from pathlib import Path

from bench.burst import Pace
from bench.engines import remove, send, settle, workspace
from bench.engines import run as run_loop
from bench.kafka.site import Site, opened
from bench.kafka_burst import ROWS as BURST_ROWS
from bench.kafka_burst import burst_on
from bench.kafka_lateness import FAULTS, flow_on
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import far_batches
from bench.rounds import Rounds, divided
from bench.screen import note
from tidings.testing import eventually

TITLE = "burst and lateness on Kafka with 1 M pending; the limit is an empty store"
PENDING = 1_000_000
RATE = 500
SECONDS = 20.0
SETTLE_S_MAX = 600.0
WITHIN = 1.2

BARS = (
    Bar("burst", "ratio", ">=", 1 / WITHIN),
    Bar("late_p50_ms", "ratio", "<=", WITHIN),
    Bar("late_p99_ms", "ratio", "<=", WITHIN),
    *(Bar(fault, "median", "<=", 0) for fault in FAULTS),
)


def run(options: Options) -> Report:
    """Fill a store once; then in every round the same on an empty one and on the full one."""
    rounds = Rounds("kafka_backlog")
    pending, pace = options.backlog(PENDING), Pace()
    faults = dict.fromkeys(FAULTS, 0)
    with opened(options) as site, workspace() as folder:
        full = _full(site, options, folder, pending)
        for number in range(1, options.rounds + 1):
            note(f"kafka_backlog: round {number} of {options.rounds}")
            before, wrong = _work(site, folder / "empty.db", options, pace)
            remove(folder / "empty.db")
            after, wrong_too = _work(site, full, options, pace)
            rounds.add(after, before, divided(after, before))
            faults = {name: faults[name] + wrong[name] + wrong_too[name] for name in FAULTS}
    rounds.put({"pending": pending, **faults})
    return rounds.report()


def _full(site: Site, options: Options, folder: Path, pending: int) -> Path:
    """The store with the backlog: a kept one if there is one, else filled through the engine."""
    if options.keep is not None:
        folder = Path(options.keep)
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"kafka-backlog-{pending}.db"
    run_loop(_fill(site, path, pending))
    return path


async def _fill(site: Site, path: Path, pending: int) -> None:
    """Schedule what is missing, for Kafka, and wait until nothing of it is overdue."""
    async with site.engine_on(path) as engine:
        missing = pending - (await engine.count()).pending
        if missing > 0:
            note(f"kafka_backlog: scheduling {missing:,} to lie pending")
            took = await send(engine, far_batches(missing, engine.clock.now(), with_ids=True, topic="backlog"))
            note(f"kafka_backlog: {took.per_s:,.0f} rows/s")
        due = engine.lanes.next_due
        await eventually(lambda: (due() or engine.clock.now()) >= engine.clock.now(), SETTLE_S_MAX)


def _work(site: Site, path: Path, options: Options, pace: Pace) -> tuple[dict[str, float], dict[str, int]]:
    """A burst and a flow on a store, each on a topic of its own; and what was wrong with them."""
    settle()
    burst = burst_on(site, path, options.rows(BURST_ROWS), pace)
    read, sent = flow_on(site, path, RATE, options.seconds(SECONDS))
    late, faults = read.lateness(), read.faults(sent)
    figures = {"burst": burst.per_s, "late_p50_ms": late.p50_ms, "late_p99_ms": late.p99_ms}
    return figures, {name: faults[name] + burst.faults[name] for name in FAULTS}
