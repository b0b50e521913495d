"""500/s and 2,000/s for a minute, due at random microseconds: followed in process, and over SSE."""

import time
from pathlib import Path

import msgspec

from bench.engines import engine_on, remove, settle, workspace
from bench.engines import run as run_loop
from bench.flows import PATIENCE_S, Flow, Lateness, lateness, run_flow
from bench.options import Options
from bench.processes import answer_of, child, node
from bench.report import Bar, Report
from bench.requests import lines
from bench.rounds import Rounds
from bench.screen import note
from bench.wire import NDJSON, Wire, post, scheduled

TITLE = "how late, in ms, at 500/s and 2,000/s; the limit is a bare timer loop beside it"
RATES = (500, 2_000)
SECONDS = 60.0
TOPIC = "lateness"
BEGIN_US = 2_000_000  # until the first is due: the processes beside this one have started by then

PARTS = ("p50_ms", "p99_ms", "p999_ms")
ABOVE_MOST = {"p50_ms": 1, "p99_ms": 5, "p999_ms": 20}

BARS = (
    *(Bar(f"process_{rate}_{part}_above", "median", "<=", most) for rate in RATES for part, most in ABOVE_MOST.items()),
    *(Bar(f"sse_{rate}_p99_ms", "median", "<=", 10) for rate in RATES),
    Bar("early", "median", "<=", 0),
)


def run(options: Options) -> Report:
    """In process and over SSE at both rates, a timer loop beside each."""
    rounds = Rounds("lateness")
    seconds = options.seconds(SECONDS)
    early = 0
    with workspace() as folder:
        for number in range(1, options.rounds + 1):
            rounds.add({})
            for rate in RATES:
                note(f"lateness: round {number} of {options.rounds}, {rate}/s")
                settle()
                process, bare = run_loop(in_process(folder / "process.db", rate, seconds))
                remove(folder / "process.db")
                _put(rounds, f"process_{rate}", process, bare)
                sse, bare = _over_sse(folder / "sse.db", rate, seconds)
                remove(folder / "sse.db")
                _put(rounds, f"sse_{rate}", sse, bare)
                early += process.early + sse.early
    rounds.put({"early": early})
    return rounds.report()


def _put(rounds: Rounds, name: str, ours: Lateness, bare: Lateness) -> None:
    measured = {part: getattr(ours, part) for part in PARTS}
    limit = {part: getattr(bare, part) for part in PARTS}
    figures = {f"{name}_{part}": value for part, value in measured.items()}
    figures |= {f"{name}_{part}_above": measured[part] - limit[part] for part in PARTS}
    rounds.put(
        figures,
        {f"{name}_{part}": value for part, value in limit.items()},
        {f"{name}_{part}": measured[part] / limit[part] for part in PARTS},
    )


async def in_process(path: Path, rate: int, seconds: float, topic: str = TOPIC) -> tuple[Lateness, Lateness]:
    """Ours, and the timer loop's that ran beside it."""
    async with engine_on(path) as engine:
        flow = Flow(rate, engine.clock.now() + BEGIN_US, seconds, topic)
        with child("-m", "bench.timer", str(rate), str(flow.start), str(seconds)) as timer:
            seen = await run_flow(engine, flow)
            return lateness(seen.late_us), msgspec.convert(answer_of(timer), Lateness)


def _over_sse(path: Path, rate: int, seconds: float) -> tuple[Lateness, Lateness]:
    """The same with a node, its reader, the timer loop and the producer in a process each."""
    with node(path) as server:
        return over_sse(server.port, rate, seconds, TOPIC)


def over_sse(port: int, rate: int, seconds: float, topic: str, begin_us: int = BEGIN_US) -> tuple[Lateness, Lateness]:
    """The same on a node that runs; the topic is a new one."""
    count = Flow(rate, 0, seconds, topic).count
    with child("-m", "bench.sse_reader", str(port), topic, str(count), str(PATIENCE_S)) as reader:
        answer_of(reader)
        flow = Flow(rate, _now() + begin_us, seconds, topic)
        with child("-m", "bench.timer", str(rate), str(flow.start), str(seconds)) as timer:
            _produce(port, flow)
            return msgspec.convert(answer_of(reader), Lateness), msgspec.convert(answer_of(timer), Lateness)


def _produce(port: int, flow: Flow) -> None:
    """Send a flow ahead of its time in small batches of lines."""
    wire = Wire(port)
    try:
        for at, moments in flow.steps():
            time.sleep(max(0, at - _now()) / 1_000_000)
            scheduled(wire.exchange(post(lines(moments, flow.topic), NDJSON)), len(moments))
    finally:
        wire.close()


def _now() -> int:
    return time.time_ns() // 1_000
