"""The tables of notifications: acceptance, claims and results of deliveries in batches, and reads, with 1 M users."""

import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from zlib import crc32

from bench.engines import run as run_loop
from bench.engines import settle, workspace
from bench.fleet.site import opened
from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note
from tidings.clock import SystemClock
from tidings.domain.notifications.tables import TABLES, Value
from tidings.domain.schedules.command import Add, Priority
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import Message, pack
from tidings.domain.schedules.when import Once
from tidings.ports import Store
from tidings.ports.tables import ChangeGroup, Put, RowKey, Tables, Unchanged
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

TITLE = "groups a second: 1,000 accepted together, 500 deliveries claimed or settled; microseconds to read 500 users"
TENANT = "bench"
ACCEPTED = 1_000
BATCH = 500
USERS = 1_000_000
FEW_USERS = 20_000
MEASURED = 40 * ACCEPTED
READS = 100
LEASE_US = 3_600_000_000
DUE = 4_000_000_000_000_000
KEPT_US = 30 * 86_400_000_000
BODY = b"{" + b" " * 398 + b"}"
MESSAGE = pack(Message(None, b"x" * 60, ()))

BARS = (
    Bar("sqlite_accept", "median", ">=", 40_000),
    Bar("sqlite_claim", "median", ">=", 50_000),
    Bar("sqlite_settle", "median", ">=", 50_000),
    Bar("postgres_accept", "median", ">=", 30_000),
    Bar("postgres_claim", "median", ">=", 15_000),
    Bar("postgres_settle", "median", ">=", 15_000),
    Bar("sqlite_get_us", "ratio", "<=", 2.0),
    Bar("postgres_get_us", "ratio", "<=", 2.0),
)

OpenStore = Callable[[], "contextlib.AbstractAsyncContextManager[Store]"]


def run(options: Options) -> Report:
    """Fill a new store of each kind in every round."""
    rounds = Rounds("tables")
    with opened() as site:
        for number in range(1, options.rounds + 1):
            note(f"tables: round {number} of {options.rounds}")
            with site.database("tables") as database, workspace() as folder:
                for name, store in (("sqlite", _sqlite(folder)), ("postgres", _postgres(database.dsn))):
                    figures, limits = run_loop(_measure(store, options))
                    named = {f"{name}_{figure}": value for figure, value in figures.items()}
                    ratios = {f"{name}_get_us": figures["get_us"] / limits["get_us"]}
                    rounds.put(named, {f"{name}_get_us": limits["get_us"]}, ratios)
            rounds.done += 1
    return rounds.report()


def _sqlite(folder: Path) -> OpenStore:
    @contextlib.asynccontextmanager
    async def open_it() -> AsyncIterator[Store]:
        store = await SqliteStore.open(folder / "tables.db")
        try:
            yield store
        finally:
            await store.close()

    return open_it


def _postgres(dsn: str) -> OpenStore:
    @contextlib.asynccontextmanager
    async def open_it() -> AsyncIterator[Store]:
        store = await PostgresStore.open(dsn, SystemClock())
        try:
            yield store
        finally:
            await store.close()

    return open_it


async def _measure(open_store: OpenStore, options: Options) -> tuple[dict[str, float], dict[str, float]]:
    """The figures with many users; the limit is the time of a read with few."""
    few, many = options.rows(FEW_USERS, ACCEPTED), options.rows(USERS, ACCEPTED)
    measured, clock = options.rows(MEASURED, ACCEPTED), SystemClock()
    async with open_store() as store:
        assert await store.acquire(clock.elapsed(), LEASE_US)
        tables = store.tables
        await _commit(tables, _new_users(0, few))
        limits = {"get_us": await _read(tables, few)}
        await _commit(tables, _new_users(few, many))
        settle()
        chosen = random.Random(1).choices(range(many), k=measured)
        users = await _unchanged(tables, chosen)
        figures = {"accept": (await _commit(tables, _accepted(users, clock.now())))[0]}
        rate, versions = await _commit(tables, _claims(users))
        figures["claim"] = rate
        figures["settle"] = (await _commit(tables, _results(users, versions)))[0]
        figures["get_us"] = await _read(tables, many)
    return figures, limits


def _values(table: str, **given: Value) -> tuple[Value, ...]:
    return tuple(given.get(column.name) for column in TABLES[table].columns)


def _user(number: int) -> RowKey:
    return RowKey("app_user", TENANT, f"u{number:07}")


def _new_users(first: int, end: int) -> list[list[ChangeGroup]]:
    """Users in an order that is not that of their e-mail keys, as digests have none."""

    def group(number: int) -> ChangeGroup:
        email = f"u{number}@example.com"
        key = f"{crc32(email.encode()):032x}"
        values = _values("app_user", name="Ann", email=email, zone="Europe/Berlin", email_key=key)
        return ChangeGroup((Put(_user(number), BODY, 0, values),))

    return [
        [group(number) for number in range(begin, min(begin + ACCEPTED, end))] for begin in range(first, end, ACCEPTED)
    ]


async def _unchanged(tables: Tables, chosen: Sequence[int]) -> list[Unchanged]:
    """The users that a group rests on."""
    users: list[Unchanged] = []
    for begin in range(0, len(chosen), BATCH):
        found = await tables.get([_user(number) for number in chosen[begin : begin + BATCH]], 0)
        users += [Unchanged(row.key, row.version) for row in found if row is not None]
    return users


def _accepted(users: Sequence[Unchanged], now: int) -> list[list[ChangeGroup]]:
    """Notifications, each with its schedule."""

    def group(number: int, user: Unchanged) -> ChangeGroup:
        name = f"n{number:015x}"
        values = _values(
            "notification",
            user_id=user.key.name,
            channels="webhook",
            template="welcome",
            category="news",
            priority="normal",
            created=now,
        )
        put = Put(RowKey("notification", TENANT, name), BODY, 0, values)
        command = Add(TENANT, name, "notify.webhook", Once(DUE), MESSAGE, b"c" * 16, DUE, Priority.NORMAL, _LATENESS)
        return ChangeGroup((user, put), command)

    return _batches([group(number, user) for number, user in enumerate(users)], ACCEPTED)


_LATENESS = Lateness()


def _delivery(number: int, user: Unchanged, version: int, *, is_sent: bool) -> Put:
    values = _values(
        "delivery",
        notification=f"n{number:015x}",
        user_id=user.key.name,
        channel="webhook",
        state="sent" if is_sent else "processing",
        due=DUE + number,
        turn=1,
        attempts=1,
        claim_worker=None if is_sent else "w1",
        claim_until=None if is_sent else DUE,
        provider="webhook" if is_sent else None,
        sent=DUE if is_sent else None,
        changed=DUE,
    )
    until = DUE + KEPT_US if is_sent else None
    return Put(RowKey("delivery", TENANT, f"n{number:015x}/1"), BODY, version, values, until)


def _claims(users: Sequence[Unchanged]) -> list[list[ChangeGroup]]:
    """New deliveries, claimed while their user is unchanged."""
    groups = [ChangeGroup((user, _delivery(n, user, 0, is_sent=False))) for n, user in enumerate(users)]
    return _batches(groups, BATCH)


def _results(users: Sequence[Unchanged], versions: Sequence[int]) -> list[list[ChangeGroup]]:
    """The results of these deliveries."""
    numbered = enumerate(zip(users, versions, strict=True))
    groups = [ChangeGroup((_delivery(n, user, version, is_sent=True),)) for n, (user, version) in numbered]
    return _batches(groups, BATCH)


def _batches(groups: list[ChangeGroup], size: int) -> list[list[ChangeGroup]]:
    return [groups[begin : begin + size] for begin in range(0, len(groups), size)]


async def _commit(tables: Tables, batches: Sequence[Sequence[ChangeGroup]]) -> tuple[float, list[int]]:
    """Groups a second with two batches in flight, and the versions that they got."""
    before, versions = time.perf_counter(), list[int]()
    waiting = None
    for batch in batches:
        started = tables.commit(batch, 0)
        if waiting is not None:
            versions += [result.version for result in await waiting]
        waiting = started
    if waiting is not None:
        versions += [result.version for result in await waiting]
    assert all(versions)
    return len(versions) / (time.perf_counter() - before), versions


async def _read(tables: Tables, users: int) -> float:
    dice, took = random.Random(2), []
    for _ in range(READS):
        keys = [_user(number) for number in dice.choices(range(users), k=BATCH)]
        before = time.perf_counter()
        found = await tables.get(keys, 0)
        took.append(time.perf_counter() - before)
        assert all(found)
    return statistics.median(took) * 1_000_000
