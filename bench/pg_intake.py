"""Into PostgreSQL: batches of 1,000 with the caller's ids, due at random over 30 days; beside a COPY and the peers."""

from bench.engines import IN_FLIGHT, send, settle
from bench.engines import run as run_loop
from bench.fleet import bare, peers
from bench.fleet.site import Database, Site, opened
from bench.limits import Took
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import BATCH_ROWS, far_batches
from bench.rounds import Rounds, divided
from bench.screen import note
from tidings.clock import SystemClock
from tidings.domain.schedules.schedule import Request

TITLE = "batches of 1,000, caller's ids, due at random over 30 days, rows/s; the limit is a COPY of the same rows"
ROWS = 100_000
PENDING = 3_000_000
WARM_UP = 3  # batches that are not timed: the topic is made, plans are made

BARS = (
    Bar("callers_ids", "ratio", ">=", 0.35),
    Bar("callers_ids_full", "ratio", ">=", 0.8),
    Bar("best_peer", "ratio", ">=", 2),
)

Batches = list[list[Request]]


def run(options: Options) -> Report:
    """COPY, ours and the peers in every round; ours on an empty store and on one with 3 M pending."""
    rounds = Rounds("pg_intake")
    pending, there = options.backlog(PENDING), peers.there()
    with opened() as site, site.database("full") as full:
        _fill(full, pending)
        for number in range(1, options.rounds + 1):
            note(f"pg_intake: round {number} of {options.rounds}")
            batches = _prepare(options)
            limit = {"callers_ids": _limit(site, batches), "callers_ids_in_turn": 0.0}
            limit["callers_ids_in_turn"] = limit["callers_ids"]
            figures = _ours(site, full if pending else None, batches)
            for peer in there:
                site.settle()
                figures[f"{peer}_intake"] = peers.intake(site, peer, batches, WARM_UP).per_s
            ratios = divided(figures, limit)
            if pending:
                ratios["callers_ids_full"] = figures["callers_ids_full"] / figures["callers_ids"]
            best = peers.best(figures, "intake")
            if best is not None:
                ratios["best_peer"] = figures["callers_ids"] / best
            rounds.add(figures, limit, ratios)
    rounds.put({"pending": pending})
    return rounds.report()


def _prepare(options: Options) -> Batches:
    rows = options.rows(ROWS, BATCH_ROWS) + WARM_UP * BATCH_ROWS
    return list(far_batches(rows, SystemClock().now(), with_ids=True))


def _limit(site: Site, batches: Batches) -> float:
    """The same rows in the same transactions, one plain table, one after the other."""
    blocks = bare.blocks_of(batches)
    with site.database("plain") as database:
        site.settle()
        settle()
        return bare.copy(database, blocks, BATCH_ROWS, WARM_UP).per_s


def _ours(site: Site, full: Database | None, batches: Batches) -> dict[str, float]:
    """As a bulk producer sends, and one batch strictly after the other; then where much is pending."""
    figures = {}
    for name, in_flight in (("callers_ids", IN_FLIGHT), ("callers_ids_in_turn", 1)):
        with site.database("empty") as database:
            took, cpu_s = _leg(site, database, batches, in_flight)
        figures[name] = took.per_s
        figures[f"{name}_server_us"] = cpu_s / took.rows * 1_000_000
    if full is not None:
        # the ids of the round are new to this store: each round has its own
        took, _ = _leg(site, full, batches, IN_FLIGHT)
        figures["callers_ids_full"] = took.per_s
    return figures


def _leg(site: Site, database: Database, batches: Batches, in_flight: int) -> tuple[Took, float]:
    """What the batches took, and the time of the server's processes."""
    return run_loop(_send(site, database, batches, in_flight))


async def _send(site: Site, database: Database, batches: Batches, in_flight: int) -> tuple[Took, float]:
    async with database.engine() as engine:
        await send(engine, batches[:WARM_UP])
        site.settle()
        settle()
        before = site.cpu_s()
        took = await send(engine, batches[WARM_UP:], in_flight=in_flight)
        return took, site.cpu_s() - before


def _fill(full: Database, rows: int) -> None:
    """Through the engine itself, with callers' ids."""
    if rows:
        note(f"pg_intake: scheduling {rows:,} to lie pending")
        took = run_loop(_send_all(full, rows))
        note(f"pg_intake: {took.per_s:,.0f} rows/s")


async def _send_all(full: Database, rows: int) -> Took:
    async with full.engine() as engine:
        return await send(engine, far_batches(rows, engine.clock.now(), with_ids=True))
