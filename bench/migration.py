"""Opening a store of version 0.1 with 1,000,000 users: seconds until it serves, and the longest transaction of that."""

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from bench.engines import run as run_loop
from bench.engines import settle, workspace
from bench.fleet.site import Database, Site, opened
from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note
from tests.timeline.old_documents import OldDocument, old_user, write_file, write_schema
from tidings.clock import SystemClock
from tidings.delivery.people.users import Users
from tidings.domain.notifications.user import User
from tidings.engine import Engine
from tidings.ports import Store
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

TITLE = "seconds from opening a store of version 0.1 with 1,000,000 users until it answers; its longest transaction"
TENANT = "bench"
USERS = 1_000_000
LEASE_US = 3_600_000_000
LOOK_S = 0.01
LOCKED_S = 60.0
SECONDS_MAX = 60.0  # for a million users: seconds, not minutes

BARS = (
    Bar("sqlite_open_s", "median", "<=", SECONDS_MAX),
    Bar("postgres_open_s", "median", "<=", SECONDS_MAX),
)

_LONGEST = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def run(options: Options) -> Report:
    """A new store of each kind in every round."""
    rounds, users = Rounds("migration"), options.rows(USERS)
    with opened() as site:
        for number in range(1, options.rounds + 1):
            note(f"migration: round {number} of {options.rounds}, {users:,} users")
            with workspace() as folder:
                rounds.add(_named("sqlite", users, run_loop(_sqlite(folder / "old.db", users))))
            with site.database("migration") as database:
                rounds.put(_named("postgres", users, run_loop(_postgres(site, database, users))))
    return rounds.report()


class _Opened(NamedTuple):
    """How long it took to open a store, its CPU time (that of the server included), and its longest transaction."""

    seconds: float
    cpu_s: float
    longest_s: float


def _named(store: str, users: int, opened: _Opened) -> dict[str, float]:
    return {
        f"{store}_open_s": opened.seconds,
        f"{store}_open_cpu_s": opened.cpu_s,
        f"{store}_rows_per_s": users / opened.seconds,
        f"{store}_longest_transaction_s": opened.longest_s,
    }


async def _sqlite(path: Path, users: int) -> _Opened:
    write_file(path, _old_users(users))
    settle()
    with _watched(lambda stop: _longest_in_file(path, stop)) as longest_s:
        begun, cpu_s = time.perf_counter(), time.process_time()
        async with _closing(await SqliteStore.open(path)) as store:
            await _serve(store, users)
            seconds, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
    return _Opened(seconds, cpu_s, longest_s())


async def _postgres(site: Site, database: Database, users: int) -> _Opened:
    old = await PostgresStore.open(database.dsn, SystemClock())
    async with _closing(old):
        await write_schema(old, _old_users(users))
    with database.connect() as connection:
        connection.execute("VACUUM ANALYZE")  # as autovacuum has left it long ago
    site.settle()
    with _watched(lambda stop: _longest_in_database(database, stop)) as longest_s:
        begun, cpu_s = time.perf_counter(), time.process_time() + site.cpu_s()
        async with _closing(await PostgresStore.open(database.dsn, SystemClock())) as store:
            await _serve(store, users)
            seconds, cpu_s = time.perf_counter() - begun, time.process_time() + site.cpu_s() - cpu_s
    return _Opened(seconds, cpu_s, longest_s())


async def _serve(store: Store, users: int) -> None:
    """Read and change a user, as the first request after the start."""
    clock = SystemClock()
    assert await store.acquire(clock.elapsed(), LEASE_US)
    service = Users(store.tables, Engine(store, clock), clock)
    last = await service.get(TENANT, _name(users - 1))
    assert last is not None
    assert last.user.email == f"{_name(users - 1)}@example.com"
    await service.patch(TENANT, last.user.id, {"name": "Ann Other"})


@contextlib.asynccontextmanager
async def _closing(store: Store) -> AsyncIterator[Store]:
    try:
        yield store
    finally:
        await store.close()


def _name(number: int) -> str:
    return f"u{number:07}"


def _old_users(count: int) -> Iterator[OldDocument]:
    for number in range(count):
        name, phone = _name(number), f"+1555{number:07}"
        yield old_user(TENANT, User(name, "Ann", email=f"{name}@example.com", phone=phone, zone="Europe/Berlin"))


@contextlib.contextmanager
def _watched(watch: Callable[[threading.Event], float]) -> Iterator[Callable[[], float]]:
    """Watch a store from a thread; what is given back returns the longest transaction in seconds, after the block."""
    stop, found = threading.Event(), list[float]()
    thread = threading.Thread(target=lambda: found.append(watch(stop)), daemon=True)
    thread.start()
    try:
        yield lambda: found[0]
    finally:
        stop.set()
        thread.join()


def _longest_in_file(path: Path, stop: threading.Event) -> float:
    """The longest time between two commits: in one process there is always a transaction during a migration."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(round(LOCKED_S * 1_000))
    longest, changed = 0.0, time.perf_counter()
    version = connection.pragma("data_version")
    while not stop.wait(LOOK_S):
        if (found := connection.pragma("data_version")) != version:
            version, now = found, time.perf_counter()
            longest, changed = max(longest, now - changed), now
    connection.close()
    return longest


def _longest_in_database(database: Database, stop: threading.Event) -> float:
    longest = 0.0
    with database.connect() as connection:
        while not stop.wait(LOOK_S):
            row = connection.execute(_LONGEST).fetchone()
            longest = max(longest, float(str(row[0])) if row else 0.0)
    return longest
