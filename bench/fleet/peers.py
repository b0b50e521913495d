"""What a user would pick instead on the same PostgreSQL: pgqueuer and procrastinate, on the same work."""

import asyncio
import contextlib
import importlib
import time
from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from bench.burst import ATTEMPTS, Missed, Pace
from bench.engines import IN_FLIGHT, settle
from bench.engines import run as run_loop
from bench.fleet.site import Database, Site
from bench.limits import Took
from bench.processes import answer_of, child
from bench.requests import instant_batches
from bench.screen import note
from tidings.clock import SystemClock
from tidings.domain.schedules.schedule import Request

MODULES = {"pgqueuer": "pgqueuer_postgres", "procrastinate": "procrastinate_postgres"}
NEEDS = {"pgqueuer": ("pgqueuer", "asyncpg"), "procrastinate": ("procrastinate",)}
WORKERS = 2  # one for each core
RUN_S_MAX = 300.0

_SECOND_US = 1_000_000


class _Ran(msgspec.Struct):
    rows: int
    last: int


def there() -> list[str]:
    """Those that are installed."""
    found = []
    for peer, names in NEEDS.items():
        if all(find_spec(name) is not None for name in names):
            found.append(peer)
        else:
            note(f"{peer} is not installed, left out (`make bench` installs it)")
    return found


def best(figures: dict[str, float], work: str) -> float | None:
    """The figure of the best of them."""
    return max((figures[f"{peer}_{work}"] for peer in MODULES if f"{peer}_{work}" in figures), default=None)


def intake(site: Site, peer: str, batches: Sequence[Sequence[Request]], warm_up: int) -> Took:
    """Batches into an empty table, as many in flight as ours."""
    with site.database(peer) as database:
        return run_loop(_intake(database, peer, batches, warm_up))


async def _intake(database: Database, peer: str, batches: Sequence[Sequence[Request]], warm_up: int) -> Took:
    async with importlib.import_module(f"bench.rivals.{MODULES[peer]}").Peer(database.dsn) as producer:
        await producer.install()
        for batch in batches[:warm_up]:
            await producer.schedule(batch)
        settle()
        under_way: deque[asyncio.Task[None]] = deque()
        started = time.perf_counter()
        for batch in batches[warm_up:]:
            if len(under_way) == IN_FLIGHT:
                await under_way.popleft()
            under_way.append(asyncio.create_task(producer.schedule(batch)))
        for task in under_way:
            await task
        return Took(sum(map(len, batches[warm_up:])), time.perf_counter() - started, 0.0)


def burst(site: Site, peer: str, rows: int, pace: Pace) -> float:
    """Rows a second from the instant at which all are due until the last has run."""
    for _ in range(ATTEMPTS):
        with site.database(peer) as database:
            try:
                return _burst(database, peer, rows, pace)
            except Missed:
                note(f"{peer} was too slow to take the burst before it was due, once more")
    raise RuntimeError(f"{peer} could not take {rows:,} rows before they were due, {ATTEMPTS} times")


def _burst(database: Database, peer: str, rows: int, pace: Pace) -> float:
    module = importlib.import_module(f"bench.rivals.{MODULES[peer]}")
    run_loop(_install(module, database))
    with contextlib.ExitStack() as stack:
        command = ("-W", "ignore", "-m", "bench.rivals.worker", MODULES[peer], database.dsn)
        workers = [stack.enter_context(child(*command)) for _ in range(WORKERS)]
        for worker in workers:
            answer_of(worker)
        due = run_loop(_fill(module, database, rows, pace))
        with database.connect() as connection:
            connection.execute("ANALYZE")  # as the server does by itself a minute later
        settle()
        if SystemClock().now() > due - _SECOND_US // 10:
            raise Missed
        database.until(lambda: database.number(module.LEFT) == 0, RUN_S_MAX)
        for worker in workers:
            worker.terminate()
        ran = [msgspec.convert(answer_of(worker), _Ran) for worker in workers]
    if sum(each.rows for each in ran) < rows:
        raise RuntimeError(f"{peer} ran {sum(each.rows for each in ran)} of {rows}")
    return rows / ((max(each.last for each in ran) - due) / _SECOND_US)


async def _install(module: Any, database: Database) -> None:
    async with module.Peer(database.dsn) as peer:
        await peer.install()


async def _fill(module: Any, database: Database, rows: int, pace: Pace) -> int:
    async with module.Peer(database.dsn) as producer:
        started = time.perf_counter()
        due = SystemClock().now() + pace.ahead_us(rows)
        for batch in instant_batches(rows, due):
            await producer.schedule(batch)
        pace.learn(rows, time.perf_counter() - started)
    return due
