"""NDJSON of 5,000 lines to a node in a process of its own, over one connection that is kept."""

import time

from bench.engines import run as run_loop
from bench.engines import settle, workspace
from bench.intake import made_ids_rate, prepared
from bench.options import Options
from bench.processes import Server, node
from bench.report import Bar, Report
from bench.requests import far_moment, lines
from bench.rounds import Rounds
from bench.screen import note
from bench.wire import NDJSON, Wire, post, scheduled
from tidings.clock import SystemClock

TITLE = "NDJSON of 5,000 lines, client in another process, rows/s; the limit is `intake`"
LINES = 5_000
ROWS = 100_000

BARS = (Bar("http_batch", "ratio", ">=", 0.5),)


def run(options: Options) -> Report:
    """In every round `intake` in process, then the same rows over HTTP."""
    rounds = Rounds("http_batch")
    size = options.rows(LINES)
    posts = _posts(max(2, options.rows(ROWS) // size), size)
    batches = prepared(options)
    with workspace() as folder, node(folder / "http.db") as server:
        _send(server, posts[:1], size)
        for number in range(1, options.rounds + 1):
            note(f"http_batch: round {number} of {options.rounds}")
            intake = run_loop(made_ids_rate(folder / "intake.db", batches))
            settle()
            rate = _send(server, posts, size)
            rounds.add({"http_batch": rate}, {"http_batch": intake}, {"http_batch": rate / intake})
    return rounds.report()


def _posts(count: int, size: int) -> list[bytes]:
    now = SystemClock().now()
    return [post(lines([far_moment(now) for _ in range(size)]), NDJSON) for _ in range(count)]


def _send(server: Server, posts: list[bytes], size: int) -> float:
    """Rows/s from the first byte sent to the last answer read."""
    wire = Wire(server.port)
    try:
        started = time.perf_counter()
        answers = [wire.exchange(request) for request in posts]
        seconds = time.perf_counter() - started
    finally:
        wire.close()
    for answer in answers:
        scheduled(answer, size)
    return size * len(posts) / seconds
