"""Burst and lateness with 1 M pending (or `--pending 10000000`), and the start time and memory of a node with it."""

import contextlib
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from bench.burst import ROWS as BURST_ROWS
from bench.burst import Burst, Pace, burst_on
from bench.engines import engine_on, remove, send, settle, workspace
from bench.engines import run as run_loop
from bench.flows import Lateness
from bench.lateness import in_process
from bench.options import Options
from bench.processes import HOST, Server, memory_mb, node
from bench.report import Bar, Report
from bench.requests import far_batches, lines
from bench.rounds import Rounds
from bench.screen import note
from bench.wire import NDJSON, Wire, post, scheduled
from tidings.clock import SystemClock
from tidings.testing import eventually

TITLE = "burst and lateness held against an empty store (the limit); memory and start of a node"
PENDING = 1_000_000
RATE = 500
SECONDS = 20.0
LINES = 5_000
SETTLE_S_MAX = 600.0
DRAIN_S_MAX = 120.0

BARS = (
    Bar("burst", "ratio", ">=", 1 / 1.2),
    Bar("late_p50_ms", "ratio", "<=", 1.2),
    Bar("late_p99_ms", "ratio", "<=", 1.2),
    Bar("memory_mb", "median", "<=", 200),
    Bar("memory_peak_mb", "median", "<=", 200),
    Bar("start_s", "median", "<=", 2),
)


def run(options: Options) -> Report:
    """Fill a store once; then measure an empty store and the full one in every round."""
    rounds = Rounds("backlog")
    pending, pace = options.backlog(PENDING), Pace()
    with workspace() as folder, _full(options, folder, pending) as full:
        for number in range(1, options.rounds + 1):
            note(f"backlog: round {number} of {options.rounds}")
            empty = folder / "empty.db"
            before = _work(empty, options, pace, number)
            remove(empty)
            after = _work(full, options, pace, number)
            rounds.add(after, before, {name: after[name] / before[name] for name in before})
            rounds.put(_node(full, options, pace, number), {"start_s": _start_empty(folder)})
    rounds.put({"pending": pending})
    return rounds.report()


@contextlib.contextmanager
def _full(options: Options, folder: Path, pending: int) -> Iterator[Path]:
    """The store with the backlog: a kept one if it exists, otherwise filled through the engine."""
    if options.keep is not None:
        folder = Path(options.keep)
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"backlog-{pending}.db"
    run_loop(_fill(path, pending))
    yield path


async def _fill(path: Path, pending: int) -> None:
    """Schedule the missing rows, and wait until none is overdue."""
    async with engine_on(path) as engine:
        missing = pending - (await engine.count()).pending
        if missing > 0:
            note(f"backlog: scheduling {missing:,} to lie pending")
            took = await send(engine, far_batches(missing, engine.clock.now(), with_ids=True, topic="backlog"))
            note(f"backlog: {took.per_s:,.0f} rows/s")
        due = engine.lanes.next_due
        await eventually(lambda: (due() or engine.clock.now()) >= engine.clock.now(), SETTLE_S_MAX)


def _work(path: Path, options: Options, pace: Pace, number: int) -> dict[str, float]:
    """A burst and a flow on a store, each on a topic of its own."""
    settle()
    burst: Burst = run_loop(burst_on(path, options.rows(BURST_ROWS), pace, f"burst-{number}-{time.time_ns()}"))
    settle()
    seconds = options.seconds(SECONDS)
    late: Lateness
    late, _ = run_loop(in_process(path, RATE, seconds, f"lateness-{number}-{time.time_ns()}"))
    return {"burst": burst.per_s, "late_p50_ms": late.p50_ms, "late_p99_ms": late.p99_ms}


# A node with the backlog


def _start_empty(folder: Path) -> float:
    """The start time of a node with an empty store."""
    path = folder / "start.db"
    with node(path) as server:
        started = server.start_s
    remove(path)
    return started


def _node(path: Path, options: Options, pace: Pace, number: int) -> dict[str, float]:
    """The start time of a node, its memory after the start, and its peak memory during a burst."""
    settle()
    with node(path) as server:
        memory, _ = memory_mb(server.process)
        _burst(server, options.rows(BURST_ROWS), pace, f"node-{number}-{time.time_ns()}")
        _, peak = memory_mb(server.process)
        return {"memory_mb": memory, "memory_peak_mb": peak, "start_s": server.start_s}


def _burst(server: Server, rows: int, pace: Pace, topic: str) -> None:
    due = SystemClock().now() + pace.ahead_us(rows)
    wire = Wire(server.port)
    try:
        for start in range(0, rows, LINES):
            size = min(LINES, rows - start)
            scheduled(wire.exchange(post(lines([due] * size, topic), NDJSON)), size)
    finally:
        wire.close()
    deadline = time.monotonic() + DRAIN_S_MAX
    while _released(server, topic) < rows:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{_released(server, topic)} of {rows} were released after {DRAIN_S_MAX} s")
        time.sleep(0.1)


class _Topic(msgspec.Struct):
    name: str
    records: int


class _Topics(msgspec.Struct):
    topics: list[_Topic]


def _released(server: Server, topic: str) -> int:
    """How many records a topic holds."""
    connection = HTTPConnection(HOST, server.port)
    try:
        connection.request("GET", "/v1/topics")
        found = msgspec.json.decode(connection.getresponse().read(), type=_Topics)
    finally:
        connection.close()
    return sum(each.records for each in found.topics if each.name == topic)
