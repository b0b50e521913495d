"""100,000 due at one instant in PostgreSQL, into the log, by one node and by two; beside the peers."""

import contextlib

import msgspec

from bench.burst import ATTEMPTS, Missed, Pace
from bench.engines import run as run_loop
from bench.engines import send, settle
from bench.fleet import peers
from bench.fleet.node import Report as NodeReport
from bench.fleet.site import Database, Site, opened
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import instant_batches
from bench.rounds import Rounds
from bench.screen import note
from tidings.clock import SystemClock

TITLE = "100,000 due at one instant, to the last commit into the log, rows/s; read: to the last one read by a follower"
ROWS = 100_000
PEER_ROWS = 10_000  # at a peer's pace, so that a round ends; the fewer, the better for them
TOPIC = "burst"
RELEASE_S_MAX = 120.0

BARS = (
    Bar("one_node", "median", ">=", 110_000),
    Bar("two_nodes", "median", ">=", 110_000),
    Bar("best_peer", "ratio", ">=", 3),
)

_SECOND_US = 1_000_000


class Burst(msgspec.Struct, frozen=True):
    """From the due instant to the last commit, and to the last record read where somebody read."""

    per_s: float
    read_per_s: float
    first_ms: float
    rows_a_commit: float
    server_us: float
    nodes_us: float


def run(options: Options) -> Report:
    """One node, two nodes, one node with a reader, and the peers, in every round."""
    rounds = Rounds("pg_burst")
    rows, there = options.rows(ROWS), peers.there()
    pace, paces = Pace(), {peer: Pace(2_000) for peer in there}
    with opened() as site:
        for number in range(1, options.rounds + 1):
            note(f"pg_burst: round {number} of {options.rounds}")
            figures: dict[str, float] = {}
            for name, nodes in (("one_node", 1), ("two_nodes", 2)):
                burst = burst_on(site, rows, nodes, pace)
                figures |= {name: burst.per_s, f"{name}_first_ms": burst.first_ms}
                figures |= {f"{name}_rows_a_commit": burst.rows_a_commit, f"{name}_server_us": burst.server_us}
                figures[f"{name}_us"] = burst.nodes_us
            figures["one_node_read"] = burst_on(site, rows, 1, pace, read=True).read_per_s
            for peer in there:
                site.settle()
                figures[f"{peer}_burst"] = peers.burst(site, peer, options.rows(PEER_ROWS), paces[peer])
            best = peers.best(figures, "burst")
            rounds.add(figures, None, {} if best is None else {"best_peer": figures["one_node_read"] / best})
    return rounds.report()


def burst_on(site: Site, rows: int, nodes: int, pace: Pace, *, read: bool = False) -> Burst:
    """One burst; again, from further ahead, where scheduling it took too long."""
    for _ in range(ATTEMPTS):
        with site.database("burst") as database:
            try:
                return _burst(site, database, rows, nodes, pace, TOPIC if read else None)
            except Missed:
                note("pg_burst: the machine was too slow to schedule it in time, once more")
    raise RuntimeError(f"{rows:,} rows could not be scheduled before they were due, {ATTEMPTS} times")


def _burst(site: Site, database: Database, rows: int, nodes: int, pace: Pace, follow: str | None) -> Burst:
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(database.node(follow=follow)) for _ in range(nodes)]
        database.share(nodes)
        due = run_loop(_fill(database, rows, pace))
        site.settle()
        settle()
        if SystemClock().now() > due - _SECOND_US // 10:
            raise Missed
        before = site.cpu_s()
        database.until(lambda: database.released(TOPIC) == rows, RELEASE_S_MAX)
        server_s = site.cpu_s() - before
        reports = [node.end() for node in started]
    return _measured(reports, due, rows, server_s)


async def _fill(database: Database, rows: int, pace: Pace) -> int:
    async with database.producer() as engine:
        due = engine.clock.now() + pace.ahead_us(rows)
        took = await send(engine, instant_batches(rows, due, topic=TOPIC))
    pace.learn(rows, took.seconds)
    return due


def _measured(reports: list[NodeReport], due: int, rows: int, server_s: float) -> Burst:
    released = sum(report.rows for report in reports)
    if released != rows:
        raise RuntimeError(f"{released} of {rows} were released")
    read = max(report.read_last for report in reports)
    return Burst(
        rows / ((max(report.last for report in reports) - due) / _SECOND_US),
        rows / ((read - due) / _SECOND_US) if read else 0.0,
        (min(report.first for report in reports if report.rows) - due) / 1_000,
        rows / sum(report.commits for report in reports),
        server_s / rows * 1_000_000,
        sum(report.cpu_s for report in reports) / rows * 1_000_000,
    )
