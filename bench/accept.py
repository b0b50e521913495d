"""Acceptance of notifications: single POSTs over 64 connections, lists of 1,000 users, and one NDJSON request.

And how late messages are released beside it: 500/s over SSE, while eight lists of 1,000 users are sent at once, every
second.
"""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import msgspec

from bench.delivery.content import user_id
from bench.delivery.site import BATCH, HOUR_US, Teller, ask_for, now_us, opened
from bench.lateness import over_sse
from bench.options import Options
from bench.processes import answer_of, child
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note

TITLE = "notifications accepted a second: single POSTs, lists of 1,000 users, NDJSON; the limit is http_single's load"
PEOPLE = 20_000
LINES = 100_000
CONNECTIONS = 64
SECONDS = 4.0
LISTS = 8
BESIDE_RATE = 500
BESIDE_S = 20.0
BEGIN_US = 5_000_000  # until the first is due: the processes beside it take longer to start

BARS = (
    Bar("single", "ratio", ">=", 0.7),
    Bar("list", "median", ">=", 30_000),
    Bar("ndjson", "median", ">=", 30_000),
    Bar("beside_p99_ms", "median", "<=", 20),
)


def run(options: Options) -> Report:
    """All three on one node, and single schedules beside them."""
    rounds, people, lines = Rounds("accept"), range(options.rows(PEOPLE, 1_000)), options.rows(LINES)
    seconds = options.seconds(SECONDS)
    with opened() as site:
        site.fill(site.folder / "people.db", len(people))
        with site.node(site.folder / "people.db") as teller:
            for number in range(1, options.rounds + 1):
                note(f"accept: round {number} of {options.rounds}")
                limit = _load(teller, "schedule", seconds)
                figures = {
                    "single": _load(teller, "notification", seconds),
                    "list": _lists(teller, people),
                    "ndjson": _ndjson(teller, lines, len(people)),
                }
                with _lists_at_once(teller, people):
                    beside_s = options.seconds(BESIDE_S)
                    late, bare = over_sse(teller.port, BESIDE_RATE, beside_s, f"beside.{number}", BEGIN_US)
                figures["beside_p99_ms"] = late.p99_ms
                limits = {"single": limit, "beside_p99_ms": bare.p99_ms}
                rounds.add(figures, limits, {"single": figures["single"] / limit})
    return rounds.report()


def _load(teller: Teller, kind: str, seconds: float) -> float:
    """Single requests of a client in a process of its own."""
    arguments = (str(teller.port), str(CONNECTIONS), str(seconds), kind)
    with child("-m", "bench.http_client", *arguments) as client:
        figures: dict[str, float] = answer_of(client)
        return figures["per_s"]


def _lists(teller: Teller, people: range) -> float:
    started = time.perf_counter()
    teller.tell("webhook", people, now_us() + HOUR_US)
    return len(people) / (time.perf_counter() - started)


@contextlib.contextmanager
def _lists_at_once(teller: Teller, people: range) -> Iterator[None]:
    """Send eight lists at the same moment, again every second, until the end of the block."""
    over = Event()
    with ThreadPoolExecutor(LISTS) as pool:
        sending = [pool.submit(_send_lists, teller.port, people[:BATCH], over) for _ in range(LISTS)]
        try:
            yield
        finally:
            over.set()
        for each in sending:
            each.result()


def _send_lists(port: int, people: range, over: Event) -> None:
    own = Teller(port, 0)
    try:
        while not over.wait(1 - time.time() % 1):
            own.tell("webhook", people, now_us() + HOUR_US)
    finally:
        own.close()


def _ndjson(teller: Teller, lines: int, people: int) -> float:
    ask = ask_for("webhook", now_us() + HOUR_US, "normal")
    body = b"".join(msgspec.json.encode(ask | {"user": user_id(number % people)}) + b"\n" for number in range(lines))
    started = time.perf_counter()
    answer = teller.post_lines("/v1/notifications", body)
    took_s = time.perf_counter() - started
    count = answer.count(b'"outcome":"scheduled"')
    if count != lines:
        raise RuntimeError(f"{count:,} of {lines:,} lines were scheduled: {answer[:1_000]!r}")
    return lines / took_s
