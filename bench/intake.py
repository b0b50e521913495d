"""Intake in process: batches of 1,000, due at random over 30 days, with generated ids and with the caller's ids."""

from pathlib import Path

from bench import limits
from bench.engines import IN_FLIGHT, engine_on, remove, send, settle, workspace
from bench.engines import run as run_loop
from bench.limits import Took
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import BATCH_ROWS, far_batches
from bench.rounds import Rounds, divided
from bench.screen import note
from tidings.clock import SystemClock
from tidings.domain.facts import Changed, Fact
from tidings.domain.schedules.schedule import Request

TITLE = "batches of 1,000, due at random over 30 days, rows/s"
ROWS = 100_000
PENDING = 3_000_000
WARM_UP = 3  # batches that are not timed: the topic is made, statements are prepared

BARS = (
    Bar("made_ids", "ratio", ">=", 0.45),
    Bar("callers_ids", "ratio", ">=", 0.35),
    Bar("made_ids_full", "ratio", ">=", 0.85),
    Bar("callers_ids_full", "ratio", ">=", 0.85),
    Bar("longest_batch_ms", "median", "<=", 50),
)
KINDS = {"made_ids": False, "callers_ids": True}

Batches = list[list[Request]]


def run(options: Options) -> Report:
    """Measure the limit, generated ids and callers' ids in every round, on empty stores and with 3 M pending."""
    with workspace() as folder:
        return run_loop(_measure(options, folder))


async def _measure(options: Options, folder: Path) -> Report:
    rounds = Rounds("intake")
    full, pending = folder / "full.db", options.backlog(PENDING)
    longest, bare_longest = [await _fill(full, pending)], [0.0]
    for number in range(1, options.rounds + 1):
        note(f"intake: round {number} of {options.rounds}")
        figures: dict[str, float] = {}
        bare: dict[str, float] = {}
        for kind, with_ids in KINDS.items():
            batches = _prepare(options, with_ids=with_ids)
            limit = _limit(folder, batches)
            bare[kind] = limit.per_s
            bare_longest.append(limit.longest_ms)
            figures |= await _empty(folder, kind, batches)
            if pending:
                took, _ = await _leg(full, batches)
                figures[f"{kind}_full"] = took.per_s
                longest.append(took.longest_ms)
        rounds.add(figures, bare, divided(figures, bare | {f"{kind}_full": figures[kind] for kind in KINDS}))
    if pending:
        rounds.put({"pending": pending, "longest_batch_ms": max(longest)}, {"longest_batch_ms": max(bare_longest)})
    return rounds.report()


async def _fill(path: Path, rows: int) -> float:
    """Fill through the engine itself, with callers' ids, maps being merged meanwhile; the longest batch in ms."""
    if not rows:
        return 0.0
    note(f"intake: scheduling {rows:,} to lie pending")
    async with engine_on(path) as engine:
        took = await send(engine, far_batches(rows, engine.clock.now(), with_ids=True))
    note(f"intake: {took.per_s:,.0f} rows/s, longest batch {took.longest_ms:.0f} ms")
    return took.longest_ms


def _prepare(options: Options, *, with_ids: bool) -> Batches:
    rows = options.rows(ROWS, BATCH_ROWS) + WARM_UP * BATCH_ROWS
    return list(far_batches(rows, SystemClock().now(), with_ids=with_ids))


def _limit(folder: Path, batches: Batches) -> Took:
    """The same rows in the same transactions, one plain table."""
    path = folder / "plain.db"
    rows = limits.rows_of(batches)
    settle()
    took = limits.append(path, rows, WARM_UP)
    remove(path)
    return took


async def _empty(folder: Path, kind: str, batches: Batches) -> dict[str, float]:
    """Into empty stores: as a bulk producer sends, and one batch strictly after the other."""
    path = folder / "empty.db"
    took, rows_a_commit = await _leg(path, batches)
    remove(path)
    in_turn, _ = await _leg(path, batches, in_flight=1)
    remove(path)
    return {kind: took.per_s, f"{kind}_in_turn": in_turn.per_s, f"{kind}_rows_a_commit": rows_a_commit}


async def _leg(path: Path, batches: Batches, in_flight: int = IN_FLIGHT) -> tuple[Took, float]:
    """What the batches took, and how many rows a transaction held: with more than the limit's it would be unfair."""
    async with engine_on(path) as engine:
        await send(engine, batches[:WARM_UP])
        settle()
        commits = _Commits()
        engine.listen(commits)
        took = await send(engine, batches[WARM_UP:], in_flight=in_flight)
        return took, took.rows / commits.count


class _Commits:
    """Counts the transactions of intake."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, fact: Fact) -> None:
        self.count += isinstance(fact, Changed)


# What `http_batch` is held against


def prepared(options: Options) -> Batches:
    """Batches whose ids Tidings makes."""
    return _prepare(options, with_ids=False)


async def made_ids_rate(path: Path, batches: Batches) -> float:
    """Rows/s into an empty store."""
    took, _ = await _leg(path, batches)
    remove(path)
    return took.per_s
