"""500/s and 2,000/s for a minute, due at random microseconds, released to Kafka exactly once, and at least once.

Lateness is the reader's clock when a record was there, less its header `tidings-due-at`.
"""

import time
from pathlib import Path

from bench.engines import remove, settle, workspace
from bench.engines import run as run_loop
from bench.flows import PATIENCE_S, Flow, Lateness, produce
from bench.kafka.arrivals import Arrivals
from bench.kafka.bare import Bare
from bench.kafka.records import Record, records_at
from bench.kafka.site import Reading, Site, opened
from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note
from tidings.config.settings import Guarantee

TITLE = "how late, in ms, at 500/s and 2,000/s; the limit is a bare loop, one transaction of what is due after another"
RATES = (500, 2_000)
SECONDS = 60.0
BEGIN_US = 2_000_000  # until the first is due
BARE_S_MAX = 60.0

PARTS = ("p50_ms", "p99_ms", "p999_ms")
MOST = {"p50_ms": 10, "p99_ms": 30}
MOST_PLAIN = {"p50_ms": 4, "p99_ms": 15}
RATIO_MOST = 2.5
FAULTS = ("lost", "twice", "early")

BARS = (
    *(Bar(f"late_{rate}_{part}", "median", "<=", most) for rate in RATES for part, most in MOST.items()),
    *(Bar(f"late_{rate}_{part}", "ratio", "<=", RATIO_MOST) for rate in RATES for part in MOST),
    *(Bar(f"plain_{rate}_{part}", "median", "<=", most) for rate in RATES for part, most in MOST_PLAIN.items()),
    *(Bar(fault, "median", "<=", 0) for fault in FAULTS),
)


def run(options: Options) -> Report:
    """The bare loop, ours, and ours without transactions, at both rates in every round."""
    rounds = Rounds("kafka_lateness")
    seconds = options.seconds(SECONDS)
    faults = dict.fromkeys(FAULTS, 0)
    with opened(options) as site, workspace() as folder:
        for number in range(1, options.rounds + 1):
            rounds.add({})
            for rate in RATES:
                note(f"kafka_lateness: round {number} of {options.rounds}, {rate}/s")
                bare = _limit(site, rate, seconds)
                read, sent = flow_on(site, folder / "lateness.db", rate, seconds)
                plain, _ = flow_on(site, folder / "plain.db", rate, seconds, "at_least_once")
                for name in ("lateness.db", "plain.db"):
                    remove(folder / name)
                _put(rounds, f"late_{rate}", read.lateness(), bare)
                late = plain.lateness()
                rounds.put({f"plain_{rate}_{part}": getattr(late, part) for part in PARTS})
                for wrong in (read.faults(sent), plain.faults(sent)):
                    faults = {name: count + faults[name] for name, count in wrong.items()}
    rounds.put(faults)
    return rounds.report()


def _put(rounds: Rounds, name: str, ours: Lateness, bare: Lateness) -> None:
    measured = {part: getattr(ours, part) for part in PARTS}
    limit = {part: getattr(bare, part) for part in PARTS}
    rounds.put(
        {f"{name}_{part}": value for part, value in measured.items()},
        {f"{name}_{part}": value for part, value in limit.items()},
        {f"{name}_{part}": measured[part] / limit[part] for part in PARTS},
    )


def _limit(site: Site, rate: int, seconds: float) -> Lateness:
    """The same flow, known beforehand, from a loop that does nothing else."""
    settle()
    count = Flow(rate, 0, seconds, "").count
    with site.topic("bare") as topic, site.reading(topic, count, BARE_S_MAX) as reading:
        bare = Bare(site.broker.client())
        records, moments = _made_in_time(rate, seconds, topic)
        bare.on_time(records, topic, moments)
        read = reading.arrivals()
    if len(read.due) != count:
        raise RuntimeError(f"{len(read.due)} of {count} arrived")
    return read.lateness()


def _made_in_time(rate: int, seconds: float, topic: str) -> tuple[list[Record], list[int]]:
    """The records of a flow, made before the first of them is due."""
    ahead = BEGIN_US
    while True:
        flow = Flow(rate, _now() + ahead, seconds, topic)
        moments = sorted(moment for _, step in flow.steps() for moment in step)
        records = records_at(moments, topic)
        if _now() < flow.start:
            return records, moments
        ahead *= 2


def flow_on(
    site: Site, path: Path, rate: int, seconds: float, release: Guarantee = "exactly_once"
) -> tuple[Arrivals, int]:
    """A flow through an engine on a store, and how many were sent."""
    settle()
    count = Flow(rate, 0, seconds, "").count
    with site.topic("lateness") as topic, site.reading(topic, count, PATIENCE_S) as reading:
        read = run_loop(_flow(site, path, Flow(rate, 0, seconds, topic), reading, release))
    if not read.due:
        raise RuntimeError("nothing arrived")
    return read, count


async def _flow(site: Site, path: Path, flow: Flow, reading: Reading, release: Guarantee) -> Arrivals:
    async with site.engine_on(path, release=release) as engine:
        await produce(engine, Flow(flow.rate, engine.clock.now() + BEGIN_US, flow.seconds, flow.topic))
        return await reading.beside(engine)


def _now() -> int:
    return time.time_ns() // 1_000
