"""The document store: puts, compare-and-set changes in batches of 256 groups, and reads of 256, with 1 M stored."""

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from bench.engines import run as run_loop
from bench.engines import settle, workspace
from bench.fleet.site import opened
from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note
from tidings.clock import SystemClock
from tidings.ports import DocumentStore, Key, Put, Store
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

TITLE = "documents a second in batches of 256 groups of one; microseconds for 256 of them, with few and with 1 M kept"
BATCH = 256
FEW = 20_480
MANY = 1_000_000
MEASURED = 40 * BATCH
READS = 200
IN_FLIGHT = 2
LEASE_US = 3_600_000_000
BODY = b"{" + b"x" * 298 + b"}"

BARS = (
    Bar("sqlite_put", "median", ">=", 30_000),
    Bar("sqlite_change", "median", ">=", 30_000),
    Bar("postgres_put", "median", ">=", 15_000),
    Bar("postgres_change", "median", ">=", 15_000),
    Bar("sqlite_get_us", "ratio", "<=", 2.0),
    Bar("postgres_get_us", "ratio", "<=", 2.0),
)

OpenStore = Callable[[], "contextlib.AbstractAsyncContextManager[Store]"]


def run(options: Options) -> Report:
    """Fill a new store of each kind in every round."""
    rounds = Rounds("cabinet")
    with opened() as site:
        for number in range(1, options.rounds + 1):
            note(f"cabinet: round {number} of {options.rounds}")
            with site.database("cabinet") as database, workspace() as folder:
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
        store = await SqliteStore.open(folder / "cabinet.db")
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
    """The figures with many documents; the limit is the time of a read with few."""
    few, many = options.rows(FEW, BATCH), options.rows(MANY, BATCH)
    measured, clock = options.rows(MEASURED, BATCH), SystemClock()
    async with open_store() as store:
        assert await store.acquire(clock.elapsed(), LEASE_US)
        cabinet = store.documents
        await _put(cabinet, 0, few)
        limits = {"get_us": await _read(cabinet, few)}
        await _put(cabinet, few, many)
        settle()
        figures = {"put": await _put(cabinet, many, many + measured)}
        figures["change"] = await _change(cabinet, many, measured)
        figures["get_us"] = await _read(cabinet, many)
    return figures, limits


def _key(number: int) -> Key:
    return Key("bench", "delivery", f"{number:016x}/1")


def _new(number: int, version: int = 0) -> list[Put]:
    return [Put(_key(number), BODY, version, (f"notification:{number:016x}",), number)]


async def _put(cabinet: DocumentStore, first: int, end: int) -> float:
    return await _send(cabinet, [[_new(n) for n in range(begin, begin + BATCH)] for begin in range(first, end, BATCH)])


async def _change(cabinet: DocumentStore, kept: int, count: int) -> float:
    """Random documents, read before they are changed, as compare-and-set requires."""
    chosen = random.Random(1).sample(range(kept), count)
    batches = []
    for begin in range(0, count, BATCH):
        some = chosen[begin : begin + BATCH]
        found = await cabinet.get([_key(number) for number in some], 0)
        versions = [document.version for document in found if document is not None]
        batches.append([_new(number, version) for number, version in zip(some, versions, strict=True)])
    return await _send(cabinet, batches)


async def _send(cabinet: DocumentStore, batches: Sequence[Sequence[Sequence[Put]]]) -> float:
    """Documents a second, with two batches in flight."""
    waiting, before = iter(batches), time.perf_counter()

    async def send() -> None:
        for batch in waiting:
            assert all(await cabinet.change(batch, 0))

    await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
    return sum(map(len, batches)) / (time.perf_counter() - before)


async def _read(cabinet: DocumentStore, kept: int) -> float:
    dice, took = random.Random(2), []
    for _ in range(READS):
        keys = [_key(number) for number in dice.sample(range(kept), BATCH)]
        before = time.perf_counter()
        found = await cabinet.get(keys, 0)
        took.append(time.perf_counter() - before)
        assert all(found)
    return statistics.median(took) * 1_000_000
