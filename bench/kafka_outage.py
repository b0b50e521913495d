"""The broker is killed under 500/s and returns after a minute: nothing is lost or duplicated; the time to recover."""

import asyncio
import logging
from pathlib import Path

import msgspec

from bench.engines import remove, settle, workspace
from bench.engines import run as run_loop
from bench.flows import Flow, produce
from bench.kafka.arrivals import Arrivals
from bench.kafka.site import Reading, Site, opened
from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds, divided
from bench.screen import note
from tidings.engine import Engine

TITLE = "the broker away for 60 s under 500/s; seconds after its return, lateness in ms (the limit: before the outage)"
RATE = 500
BEFORE_S = 20.0
AWAY_S = 60.0
AFTER_S = 30.0
BEFORE_S_LEAST = 2.0
AFTER_S_LEAST = 12.0  # longer than it may take, whatever the scale
RETURN_S = 20.0  # for the broker to start; what is left of it is added to the time after
WITHIN_S = 10.0
WINDOW_US = 1_000_000
BEGIN_US = 2_000_000
PATIENCE_S = 60.0

# Back to normal is a second of messages whose p99 is at most twice that of before; at least what lateness allows.
NORMAL_TIMES = 2.0
NORMAL_MS_LEAST = 30.0

BARS = (
    *(Bar(fault, "median", "<=", 0) for fault in ("lost", "twice", "early")),
    Bar("drained_s", "median", "<=", WITHIN_S),
    Bar("normal_s", "median", "<=", WITHIN_S),
)

_SECOND_US = 1_000_000


class Outage(msgspec.Struct, frozen=True):
    """When the broker was killed and when it answered again."""

    killed: int
    back: int


def run(options: Options) -> Report:
    """One outage of the same broker in each round."""
    rounds = Rounds("kafka_outage")
    faults: dict[str, int] = {}
    logging.getLogger("tidings.kafka").setLevel(logging.CRITICAL)  # that the broker is away is known
    with opened(options) as site, workspace() as folder:
        for number in range(1, options.rounds + 1):
            note(f"kafka_outage: round {number} of {options.rounds}")
            outage, read, sent = _round(site, folder / "outage.db", options)
            remove(folder / "outage.db")
            figures, before = figures_of(outage, read)
            rounds.add(figures, before, divided(figures, before))
            faults = {name: faults.get(name, 0) + count for name, count in read.faults(sent).items()}
    rounds.put(faults)
    return rounds.report()


def _round(site: Site, path: Path, options: Options) -> tuple[Outage, Arrivals, int]:
    """What happened, what the reader saw of it, and how many were sent."""
    settle()
    before_s, away_s = max(BEFORE_S_LEAST, options.seconds(BEFORE_S)), options.seconds(AWAY_S)
    seconds = before_s + away_s + RETURN_S + max(AFTER_S_LEAST, options.seconds(AFTER_S))
    count = Flow(RATE, 0, seconds, "").count
    with site.topic("outage") as topic, site.reading(topic, count, away_s + PATIENCE_S) as reading:
        flow = Flow(RATE, 0, seconds, topic)
        outage, read = run_loop(_outage(site, path, flow, (before_s, away_s), reading))
    return outage, read, count


async def _outage(
    site: Site, path: Path, flow: Flow, spans_s: tuple[float, float], reading: Reading
) -> tuple[Outage, Arrivals]:
    async with site.engine_on(path) as engine:
        flow = Flow(flow.rate, engine.clock.now() + BEGIN_US, flow.seconds, flow.topic)
        producing = asyncio.create_task(produce(engine, flow))
        outage = await _break(site, engine, flow.start, *spans_s)
        await producing
        return outage, await reading.beside(engine)


async def _break(site: Site, engine: Engine, start: int, before_s: float, away_s: float) -> Outage:
    """Kill the broker some time into the flow, and let it come back."""
    await asyncio.sleep((start - engine.clock.now()) / _SECOND_US + before_s)
    killed = engine.clock.now()
    await asyncio.to_thread(site.broker.kill)
    note(f"kafka_outage: the broker is away for {away_s:.0f} s")
    await asyncio.sleep(away_s)
    await asyncio.to_thread(site.broker.restart)
    back = engine.clock.now()
    note(f"kafka_outage: it answers, {(back - killed) / _SECOND_US:.1f} s after it was killed")
    return Outage(killed, back)


def figures_of(outage: Outage, read: Arrivals) -> tuple[dict[str, float], dict[str, float]]:
    """How soon all is well, and the lateness of fresh messages from then on beside that of before."""
    cut_off = outage.killed - WINDOW_US  # what fell due since may have been on its way
    before = read.since(0, cut_off).lateness()
    waited = read.since(cut_off, outage.back)
    fresh = read.since(outage.back)
    if not fresh.due:
        raise RuntimeError("nothing arrived that fell due after the broker was back")
    normal_ms = max(NORMAL_MS_LEAST, NORMAL_TIMES * before.p99_ms)
    normal_s = _normal_after_s(fresh, outage.back, normal_ms)
    after = fresh.since(outage.back + round(normal_s * _SECOND_US))
    late = (after if after.due else fresh).lateness()
    figures = {
        "away_s": (outage.back - outage.killed) / _SECOND_US,
        "waiting": float(sum(at > outage.killed for at in waited.at)),
        "drained_s": max(0, max(waited.at, default=0) - outage.back) / _SECOND_US,
        "normal_s": normal_s,
        "late_p50_ms": late.p50_ms,
        "late_p99_ms": late.p99_ms,
    }
    return figures, {"late_p50_ms": before.p50_ms, "late_p99_ms": before.p99_ms}


def _normal_after_s(fresh: Arrivals, back: int, normal_ms: float) -> float:
    """When the first second of messages begins that are as late as usual; if there is none, the whole time."""
    end = max(fresh.due)
    for start in range(back, end, WINDOW_US):
        window = fresh.since(start, start + WINDOW_US)
        if window.due and window.lateness().p99_ms <= normal_ms:
            return (start - back) / _SECOND_US
    return max(WITHIN_S * 2, (end - back) / _SECOND_US)
