"""100,000 schedules due at one instant, released to the log, read by a follower in the same process."""

import asyncio
from pathlib import Path

import msgspec

from bench import limits
from bench.engines import engine_on, remove, send, settle, workspace
from bench.engines import run as run_loop
from bench.options import Options
from bench.report import Bar, Report
from bench.requests import BATCH_ROWS, TENANT, instant_batches
from bench.rounds import Rounds
from bench.screen import note
from tidings.domain.facts import Fact, Released
from tidings.engine import Engine

TITLE = "100,000 due at one instant, from then to the last one read, rows/s; the limit is the bare move in SQL"
ROWS = 100_000
READ_S_MAX = 60.0
ATTEMPTS = 4

BARS = (
    Bar("burst", "median", ">=", 110_000),
    Bar("burst", "ratio", ">=", 0.3),
    Bar("burst_by_1000", "ratio", ">=", 0.3),
    Bar("first_ms", "median", "<=", 20),
)

_SECOND_US = 1_000_000


class Burst(msgspec.Struct, frozen=True):
    """The time from the due instant to the first and last record read, and the rows in one transaction."""

    per_s: float
    first_ms: float
    rows_a_commit: int


class Missed(Exception):
    """Not everything was scheduled before it was due."""


class Pace:
    """How far ahead a burst must be scheduled so that all of it is stored before it is due."""

    def __init__(self, rows_per_s: float = 40_000) -> None:
        self._rows_per_s = rows_per_s

    def ahead_us(self, rows: int) -> int:
        return round((1.0 + 1.5 * rows / self._rows_per_s) * _SECOND_US)

    def learn(self, rows: int, seconds: float) -> None:
        self._rows_per_s = rows / seconds


def run(options: Options) -> Report:
    """Measure the burst and a plain move between tables in every round."""
    with workspace() as folder:
        return run_loop(_measure(options, folder))


async def _measure(options: Options, folder: Path) -> Report:
    rounds = Rounds("burst")
    rows, pace = options.rows(ROWS), Pace()
    for number in range(1, options.rounds + 1):
        note(f"burst: round {number} of {options.rounds}")
        burst = await burst_on(folder / "burst.db", rows, pace, "burst")
        remove(folder / "burst.db")
        figures = {"burst": burst.per_s, "first_ms": burst.first_ms, "rows_a_commit": float(burst.rows_a_commit)}
        bare = {"burst": burst.rows_a_commit, "burst_by_1000": BATCH_ROWS}
        limit = {name: _limit(folder / "plain.db", rows, size) for name, size in bare.items()}
        rounds.add(figures, limit, {name: burst.per_s / rate for name, rate in limit.items()})
    return rounds.report()


def _limit(path: Path, rows: int, rows_a_commit: int) -> float:
    """Move the same rows between plain tables, with as many rows a transaction as ours had, and with 1,000."""
    batches = limits.rows_of(list(instant_batches(rows, 0)))
    settle()
    took = limits.move(path, batches, rows_a_commit)
    remove(path)
    return took.per_s


async def burst_on(path: Path, rows: int, pace: Pace, topic: str) -> Burst:
    """One burst on a store; repeated from further ahead if scheduling it took too long."""
    for attempt in range(ATTEMPTS):
        try:
            async with engine_on(path) as engine:
                return await _burst(engine, rows, pace, f"{topic}-{attempt}")
        except Missed:
            note("burst: the machine was too slow to schedule it in time, once more")
    raise RuntimeError(f"{rows:,} rows could not be scheduled before they were due, {ATTEMPTS} times")


async def _burst(engine: Engine, rows: int, pace: Pace, topic: str) -> Burst:
    due = engine.clock.now() + pace.ahead_us(rows)
    took = await send(engine, instant_batches(rows, due, topic=topic))
    pace.learn(rows, took.seconds)
    settle()
    if engine.clock.now() > due - _SECOND_US // 10:
        raise Missed
    leaving = Leaving()
    engine.listen(leaving)
    first, last = await asyncio.wait_for(read(engine, rows, topic), READ_S_MAX)
    return Burst(rows / ((last - due) / _SECOND_US), (first - due) / 1_000, leaving.rows_a_commit)


async def read(engine: Engine, rows: int, topic: str) -> tuple[int, int]:
    """When the first and the last were read."""
    first = now = read = 0
    async with engine.follow(TENANT, topic) as batches:
        async for records, _ in batches:
            now = engine.clock.now()
            first = first or now
            read += len(records)
            if read >= rows:
                break
    return first, now


class Leaving:
    """Counts released rows and their transactions."""

    def __init__(self) -> None:
        self.rows = 0
        self._commits = 0

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, Released):
            self.rows += len(fact.lateness_us)
            self._commits += 1

    @property
    def rows_a_commit(self) -> int:
        return max(1, round(self.rows / max(1, self._commits)))
