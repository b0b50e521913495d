"""1 M due at once for tenant A while tenant B has 100/s: how late B's are, beside B alone."""

import asyncio
from pathlib import Path

from bench.burst import ATTEMPTS, Leaving, Missed, Pace
from bench.engines import engine_on, remove, send, settle, workspace
from bench.engines import run as run_loop
from bench.flows import Flow, Seen, lateness, produce, run_flow, watch
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import instant_batches
from bench.rounds import Rounds
from bench.screen import note
from tidings.domain.facts import Fact
from tidings.domain.schedules.command import Priority
from tidings.engine import Engine
from tidings.testing import eventually

TITLE = "B's p99 in ms while A's 1 M leave; the limit is 1.5 x B alone + 10 ms"
ROWS = 1_000_000
RATE = 100
ALONE_S = 10.0
DRAIN_S_MAX = 300.0

PRIORITIES = {"beside_normal": Priority.NORMAL, "beside_high": Priority.HIGH}
BARS = tuple(Bar(f"{name}_p99_ms", "ratio", "<=", 1) for name in PRIORITIES)

_SECOND_US = 1_000_000


def run(options: Options) -> Report:
    """B alone, beside A of the same priority, and beside A of high priority, in every round."""
    with workspace() as folder:
        return run_loop(_measure(options, folder))


async def _measure(options: Options, folder: Path) -> Report:
    rounds = Rounds("tenants")
    rows, pace = options.rows(ROWS), Pace()
    path = folder / "tenants.db"
    for number in range(1, options.rounds + 1):
        note(f"tenants: round {number} of {options.rounds}")
        alone = await _alone(path, options.seconds(ALONE_S))
        bound = 1.5 * alone + 10
        figures = {"alone_p99_ms": alone}
        for name, priority in PRIORITIES.items():
            figures |= await _beside(path, rows, priority, pace, name)
        bars = {bar.figure: bound for bar in BARS}
        rounds.add(figures, bars, {name: figures[name] / bound for name in bars})
    return rounds.report()


async def _alone(path: Path, seconds: float) -> float:
    settle()
    async with engine_on(path) as engine:
        flow = Flow(RATE, engine.clock.now() + 2 * _SECOND_US, seconds, "b", "b")
        seen = await run_flow(engine, flow)
    remove(path)
    return lateness(seen.late_us).p99_ms


async def _beside(path: Path, rows: int, priority: Priority, pace: Pace, name: str) -> dict[str, float]:
    for _ in range(ATTEMPTS):
        try:
            settle()
            async with engine_on(path) as engine:
                return await _drain(engine, rows, priority, pace, name)
        except Missed:
            note("tenants: the machine was too slow to schedule A's in time, once more")
        finally:
            remove(path)
    raise RuntimeError(f"{rows:,} rows could not be scheduled before they were due, {ATTEMPTS} times")


async def _drain(engine: Engine, rows: int, priority: Priority, pace: Pace, name: str) -> dict[str, float]:
    """A's fall due at one instant; B's count from then until A's are gone."""
    due = engine.clock.now() + pace.ahead_us(rows) + _SECOND_US
    took = await send(engine, instant_batches(rows, due, topic="a", priority=priority), tenant="a")
    pace.learn(rows, took.seconds)
    if engine.clock.now() > due - 2 * _SECOND_US:
        raise Missed
    flow = Flow(RATE, due - _SECOND_US // 2, DRAIN_S_MAX, "b", "b")
    seen = Seen()
    drain = _Drain(engine, rows, seen)
    engine.listen(drain)
    watching = asyncio.create_task(watch(engine, flow, seen))
    try:
        sent = await produce(engine, flow, drain.over)
        await eventually(lambda: len(seen.due) >= sent, DRAIN_S_MAX)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    beside = [late for at, late in zip(seen.due, seen.late_us, strict=True) if due <= at <= drain.ended]
    late = lateness(beside or seen.late_us)
    seconds = (drain.ended - due) / _SECOND_US
    return {f"{name}_p50_ms": late.p50_ms, f"{name}_p99_ms": late.p99_ms, f"{name}_a_per_s": rows / seconds}


class _Drain(Leaving):
    """Notices when all of A's have left."""

    def __init__(self, engine: Engine, rows: int, seen: Seen) -> None:
        super().__init__()
        self._engine = engine
        self._rows = rows
        self._seen = seen
        self.over = asyncio.Event()
        self.ended = 0

    def __call__(self, fact: Fact) -> None:
        super().__call__(fact)
        if not self.over.is_set() and self.rows - len(self._seen.due) >= self._rows:
            self.ended = self._engine.clock.now()
            self.over.set()
