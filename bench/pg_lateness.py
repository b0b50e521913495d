"""500/s and 2,000/s for a minute through two nodes on PostgreSQL, empty and with 1 M pending."""

import contextlib

from bench.engines import run as run_loop
from bench.engines import send, settle
from bench.fleet.site import Database, Site, opened
from bench.flows import PATIENCE_S, Flow, Lateness, lateness, produce
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import far_batches
from bench.rounds import Rounds, divided
from bench.screen import note

TITLE = "how late, in ms, at 500/s and 2,000/s over two nodes: on the log, and at a reader; full: with 1 M pending"
RATES = (500, 2_000)
SECONDS = 60.0
PENDING = 1_000_000
BEGIN_US = 2_000_000  # until the first is due

PARTS = ("p50_ms", "p99_ms", "p999_ms")
MOST = {"p50_ms": 5, "p99_ms": 25}
RATIO_MOST = 1.2

BARS = (
    *(
        Bar(f"{store}_{rate}_{part}", "median", "<=", most)
        for store in ("empty", "full")
        for rate in RATES
        for part, most in MOST.items()
    ),
    *(Bar(f"read_{rate}_{part}", "median", "<=", most) for rate in RATES for part, most in MOST.items()),
    *(Bar(f"full_{rate}_{part}", "ratio", "<=", RATIO_MOST) for rate in RATES for part in MOST),
    Bar("early", "median", "<=", 0),
)


def run(options: Options) -> Report:
    """Both rates on an empty store and on the full one, in every round."""
    rounds = Rounds("pg_lateness")
    seconds, pending = options.seconds(SECONDS), options.backlog(PENDING)
    early = 0
    with opened() as site, site.database("full") as full:
        run_loop(_fill(full, pending))
        for number in range(1, options.rounds + 1):
            rounds.add({})
            for rate in RATES:
                note(f"pg_lateness: round {number} of {options.rounds}, {rate}/s")
                with site.database("empty") as empty:
                    before, read = flow_on(site, empty, rate, seconds, f"late-{number}-{rate}")
                after, _ = flow_on(site, full, rate, seconds, f"late-{number}-{rate}")
                limit = {f"full_{rate}_{part}": getattr(before, part) for part in PARTS}
                figures = {f"empty_{rate}_{part}": getattr(before, part) for part in PARTS}
                figures |= {f"full_{rate}_{part}": getattr(after, part) for part in PARTS}
                figures |= {f"read_{rate}_{part}": getattr(read, part) for part in PARTS}
                rounds.put(figures, limit, divided(figures, limit))
                early += before.early + after.early + read.early
    rounds.put({"pending": pending, "early": early})
    return rounds.report()


def flow_on(site: Site, database: Database, rate: int, seconds: float, topic: str) -> tuple[Lateness, Lateness]:
    """A flow through two nodes: when it was on the log, and when a reader on the first node had it."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(database.node(follow=follow)) for follow in (topic, None)]
        database.share(len(nodes))
        site.settle()
        settle()
        sent = run_loop(_flow(database, rate, seconds, topic))
        database.until(lambda: database.released(topic) >= sent, PATIENCE_S)
        reports = [node.end() for node in nodes]
    late_us = [late for report in reports for late in report.late_us]
    if len(late_us) < sent:  # a few of those that lay pending have left as well
        raise RuntimeError(f"{len(late_us)} of {sent} were released")
    return lateness(late_us), lateness(reports[0].read_late_us)


async def _flow(database: Database, rate: int, seconds: float, topic: str) -> int:
    async with database.producer() as engine:
        return await produce(engine, Flow(rate, engine.clock.now() + BEGIN_US, seconds, topic))


async def _fill(full: Database, rows: int) -> None:
    if rows:
        note(f"pg_lateness: scheduling {rows:,} to lie pending")
        async with full.producer() as engine:
            await send(engine, far_batches(rows, engine.clock.now(), with_ids=True, topic="backlog"))
