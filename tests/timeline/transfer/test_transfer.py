"""Everything in one store moves to another: pending and finished schedules, keys, positions; nothing twice."""

import contextlib
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from tests.contract.factories import (
    ACME,
    DAY,
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    add,
    answer,
    applied,
    drain,
    every,
    found,
    left,
    numbers,
    records,
    words,
)
from tests.contract.stores import Served
from tests.contract.test_rules import scheduled
from tidings.clock import SystemClock
from tidings.domain.errors import KeyReused, NotOwner, StoreError
from tidings.domain.fleet import Predecessor
from tidings.domain.recurrence.request_fields import Terms, read_rule
from tidings.domain.schedules.command import Cancel, Fire, Pause, Priority, Replace, Resume
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import Calendar
from tidings.ports import ApiKey, IdempotencyKey, Lane, SourceBatch, SourcePosition
from tidings.testing import eventually
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore
from tidings.timeline.transfer import run
from tidings.timeline.transfer.protocol import Check, HasMoved, Move, Progress, Status
from tidings.timeline.transfer.run import Refused, Transfer, TransferResult, reopen

LEASE_US = 60 * SECOND
WAYS = [("sqlite", "postgres"), ("sqlite", "sqlite"), ("postgres", "sqlite"), ("postgres", "postgres")]
KEY = ApiKey("deploy", ACME, b"d" * 32, True, NOW)

# A transfer writes to these tables of a closed store; `meta` has the version of its layout.
UNFENCED = {"lane", "copier", "moved", "meta"}
FENCED = {
    "timeline",
    "registry",
    "standing",
    "outbox",
    "held",
    "log",
    "finished",
    "receipt",
    "source",
}

AnyStore = SqliteStore | PostgresStore
_numbers = iter(range(1, 1_000))


class Places:
    """Stores by address; each is opened as often as a test wants, and closed with it."""

    def __init__(self, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def new(self, kind: str) -> tuple[str, str]:
        number = next(_numbers)
        return kind, str(self._folder / f"{number}.db") if kind == "sqlite" else f"transfer_{number}"

    async def open(self, place: tuple[str, str], **options: Any) -> AnyStore:
        kind, name = place
        store: AnyStore
        if kind == "sqlite":
            store = await SqliteStore.open(name, **options)
        else:
            store = await PostgresStore.open(Served.dsn(), SystemClock(), schema=name, lanes=4, **options)
        self._stack.push_async_callback(store.close)
        return store


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[Places]:
    async with contextlib.AsyncExitStack() as stack:
        yield Places(tmp_path, stack)


pytestmark = [pytest.mark.slow]


async def live(store: AnyStore) -> AnyStore:
    """Own it, as a server does."""
    assert await store.acquire(SystemClock().elapsed(), LEASE_US)
    return store


def quiet(_progress: Progress, _counts: object) -> None:
    """Ignore the progress."""


def transfer(source: AnyStore, target: AnyStore, on_progress: Callable[..., None] = quiet) -> Transfer:
    begin, end = source.transfer_endpoint(), target.transfer_endpoint()
    return Transfer(begin, end, to="there", clock=SystemClock(), on_progress=on_progress)


async def copied(source: AnyStore, target: AnyStore, **options: bool) -> TransferResult:
    return await transfer(source, target).run(**options)


async def moved(places: Places, origin: tuple[str, str], goal: tuple[str, str]) -> tuple[AnyStore, TransferResult]:
    """Copy from one place to another; returns the new store, which we own."""
    source = await places.open(origin, moved_too=True)
    target = await places.open(goal)
    done = await copied(source, target)
    await source.close()
    return await live(target), done


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_every_kind_of_schedule_is_copied(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source = await live(await places.open(begin))
    later = NOW + HOUR
    await applied(
        source,
        add("far", NOW + 40 * DAY, key=b"k", headers=(("a", b"1"), ("a", None)), labels='{"x":"1"}'),
        add("soon", NOW + SECOND, priority=Priority.HIGH, lateness=Lateness(expires_after_us=5 * SECOND)),
        add("kafka", later, topic="kafka:orders", tenant="globex", priority=Priority.LOW),
        add("held", later),
        Pause(ACME, "held"),
        add("gone", later),
        Cancel(ACME, "gone"),
        add("twice", later),
        Replace(add("twice", later + SECOND, value=b"second")),
        every("again", NOW - 2 * SECOND, period=SECOND, count=9, jitter_us=7),
        every("still", NOW - 2 * SECOND, count=5),
        Pause(ACME, "still"),
        every("rung", NOW + DAY),
        every("spent", NOW - 2 * SECOND, count=5, lateness=Lateness("fire_all", expires_after_us=SECOND // 2)),
        add("late", NOW - MINUTE, lateness=Lateness(expires_after_us=SECOND)),
        add("left", NOW),
    )
    made = await answer(source, add(None, later, value=b"made"))
    await drain(source)
    await applied(source, Fire(ACME, "rung"), Fire(ACME, "rung"), now=NOW + 1)
    receipt = IdempotencyKey(ACME, "k1", b"body")
    outcomes = await source.apply([add("once", later)], NOW, receipt)
    await source.apply([], NOW, None, SourceBatch([SourcePosition("requests", 3, 0, 17)], lambda _: []))
    await source.add_key(KEY)
    names = ["far", "soon", "held", "gone", "twice", "again", "still", "rung", "spent", "late", "left", made.id, "once"]
    before = {name: await found(source, name) for name in names}
    histories = {name: await source.history(ACME, name, NOW + 2) for name in names}
    await source.close()

    target, done = await moved(places, begin, end)
    assert done.progress.moved == {kind: count for kind, count in done.counts.items() if count}
    assert done.counts == {
        "positions": 1,
        "keys": 1,
        "receipts": 1,
        "one_shots": 6,
        "recurring": 3,
        "paused": 2,
        "finished": 3,
        "rows": 0,
    }
    assert done.progress.fired == 2
    assert not done.progress.existing
    assert not done.progress.conflicts
    for name, schedule in before.items():
        came = await found(target, name)
        at_rest = {"message": None, "partition": None, "offset": None}  # released records stay on the old log
        if schedule.finished is not None:
            schedule = msgspec.structs.replace(schedule, **at_rest)
        assert came == schedule
        assert await target.history(ACME, name, NOW + 2) == histories[name]
    assert (await found(target, "kafka", tenant="globex")).topic == "kafka:orders"
    assert await target.keys() == [KEY]
    assert await target.positions() == {("requests", 3): 17}
    assert await target.apply([add("once", later)], NOW, receipt) == outcomes
    with pytest.raises(KeyReused):
        await target.apply([add("other", later)], NOW, IdempotencyKey(ACME, "k1", b"another"))
    await check_copy(target, made.id)


async def check_copy(target: AnyStore, made: str) -> None:
    """Everything that was copied continues as if nothing had happened."""
    later = NOW + HOUR
    assert await words(target, add("left", NOW)) == ["unchanged"]
    assert await words(target, Cancel(ACME, "left"), Cancel(ACME, "gone")) == ["already_released", "cancelled"]
    assert await words(target, add("far", NOW + 40 * DAY, key=b"k")) == ["unchanged"]
    assert await words(target, Replace(add(made, later, value=b"new"))) == ["replaced"]
    assert (await found(target, made)).generation == 2
    await drain(target, NOW + 2)
    assert sorted(await numbers(target, "rung")) == [-2, -1]
    assert await numbers(target, "again") == []
    await drain(target, NOW + 20 * SECOND)
    assert await numbers(target, "again") == [3, 4, 5, 6, 7, 8, 9], "two had left"
    assert "soon" not in await left(target), "it expired"
    assert (await found(target, "spent", NOW + 20 * SECOND)).state == "ended", "one had left, the last were missed"
    assert (await found(target, "soon", NOW + 20 * SECOND)).reason == "expired"
    await applied(target, Resume(ACME, "held"), Resume(ACME, "still"), now=NOW + 20 * SECOND)
    await drain(target, later + MINUTE)
    assert await numbers(target, "still") == [1, 2, 3, 4, 5]
    assert {"held", "twice", "once", made} <= set(await left(target))
    values = {record.id: record for record in await records(target)}
    assert values["twice"].generation == 2


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_a_second_run_finds_everything_there(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source = await live(await places.open(begin))
    await applied(source, *(add(f"s{number}", NOW + number) for number in range(50)))
    await source.close()
    target, first = await moved(places, begin, end)
    assert first.progress.moved == {"one_shots": 50}
    await drain(target, NOW + 10)
    await applied(target, Cancel(ACME, "s40"), now=NOW + 10)
    await target.close()

    target, second = await moved(places, begin, end)
    assert second.progress == first.progress
    await drain(target, NOW + MINUTE)
    assert await left(target) == sorted(f"s{number}" for number in range(50) if number != 40)


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_existing_data_is_never_overwritten(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source, target = await live(await places.open(begin)), await live(await places.open(end))
    await applied(source, add("same", NOW + 1), add("other", NOW + 2), add("mine", NOW + 3), add("old", NOW + 4))
    await source.add_key(KEY)
    await applied(target, add("same", NOW + 1), add("other", NOW + 2, value=b"theirs"))
    await applied(target, add("old", NOW - HOUR, value=b"an earlier life"), now=NOW - HOUR)
    await drain(target, NOW - HOUR)
    await target.add_key(msgspec.structs.replace(KEY, digest=b"e" * 32))
    await source.close()
    await target.close()

    target, done = await moved(places, begin, end)
    assert done.progress.moved == {"one_shots": 2}
    assert done.progress.existing == {"one_shots": 1}
    assert done.progress.conflicts == {"one_shots": 1, "keys": 1}
    assert set(done.progress.named) == {"schedule acme/other", "API key deploy"}
    assert (await found(target, "old")).generation == 2, "records of two generations do not share ids"
    await drain(target, NOW + MINUTE)
    values = [record.message for record in await records(target) if record.id == "other"]
    assert len(values) == 1
    assert b"theirs" in values[0]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_that_has_moved_cannot_be_used(places: Places, kind: str) -> None:
    begin = places.new(kind)
    source = await live(await places.open(begin))
    await applied(source, add("one", NOW))
    with pytest.raises(Refused, match=r"run.? on the store to copy from"):
        await copied(await places.open(begin), await places.open(places.new("sqlite")))
    stands_by = await places.open(begin)
    await source.close()
    target = await places.open(places.new("sqlite"))
    source = await places.open(begin)
    await copied(source, target)
    await source.close()
    with pytest.raises(HasMoved, match="has moved to there"):
        await places.open(begin)
    with pytest.raises(StoreError, match="has moved to"):
        await stands_by.acquire(SystemClock().elapsed(), LEASE_US)
    with pytest.raises((StoreError, NotOwner), match=r"has moved to|owns this store"):
        await stands_by.apply([add("one", NOW + 1)], NOW)
    source = await places.open(begin, moved_too=True)
    with pytest.raises(Refused, match="is moving to there already"):
        await copied(source, await places.open(places.new("sqlite")))
    assert (await reopen(source.transfer_endpoint(), SystemClock())).to == "there"
    await source.close()
    await live(await places.open(begin))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_data_that_cannot_be_copied_is_reported_before_the_copy_starts(places: Places, kind: str) -> None:
    begin, end = places.new(kind), places.new("sqlite")
    source = await live(await places.open(begin))
    await applied(source, add("out", NOW, topic="kafka:orders"), add("logged", NOW))
    await drain(source)
    partition = (await found(source, "logged")).partition
    assert partition is not None
    await source.commit(ACME, "greetings", "readers", {partition: 0})
    await check_refused(source, places, end, "not confirmed by Kafka, .*: 1 record\\. ")
    (await on_its_way(source)).arrived(1)  # the outbox keeps it until its history copy and tombstone are written
    await check_refused(source, places, end, "still without the history copy and the tombstone .*: 1 record\\. ")
    await (await on_its_way(source)).hold([0], "no such topic")
    await check_refused(source, places, end, "held back because .*: 1 record\\. ")
    flying = await on_its_way(source)
    await flying.free([0])
    await flying.settle(1)
    await check_refused(source, places, end, "readers on acme/greetings: 1 record\n")
    await source.close()
    source, target = await places.open(begin), await places.open(end)
    done = await copied(source, target, leave_log=True)
    assert done.remainder.records == 1


async def on_its_way(store: AnyStore) -> Lane:
    """The lane that has something in its outbox."""
    (flying,) = [lane for lane in store.lanes() if (await lane.outbox())[1]]
    return flying


async def check_refused(source: AnyStore, places: Places, end: tuple[str, str], text: str) -> None:
    """Try while its server is suspended; afterwards the server continues, as nothing was changed."""
    target = await places.open(end)
    await source.resign()
    with pytest.raises(Refused, match=text):
        await copied(source, target)
    assert (await source.transfer_endpoint().status()).move is None
    await live(source)
    await target.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_records_released_while_the_copy_was_suspended_are_not_left_behind(
    places: Places, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of the copy expires after its first read; a node starts, releases a record to Kafka and is killed."""
    begin, end = places.new(kind), places.new("sqlite")
    source = await live(await places.open(begin))
    await applied(source, add("out", NOW, topic="kafka:orders"))
    await source.close()
    source, target = await places.open(begin), await places.open(end)
    begin_at, end_at, node = source.transfer_endpoint(), target.transfer_endpoint(), await places.open(begin)
    look = end_at.status

    async def suspended() -> Status:
        await eventually(node_owns)
        await drain(node)
        return await look()

    async def node_owns() -> bool:
        return await node.acquire(SystemClock().elapsed(), LEASE_US) and bool(node.lanes())

    monkeypatch.setattr(run, "LEASE_US", 1)
    monkeypatch.setattr(end_at, "status", suspended)  # which is asked for once the source is acquired
    with pytest.raises(Refused, match="a server has started to run"):
        await Transfer(begin_at, end_at, to="there", clock=SystemClock(), on_progress=quiet).run()
    assert (await begin_at.status()).move is None
    assert await (await on_its_way(node)).outbox() == (0, 1)


async def test_a_store_knows_all_its_predecessors(places: Places) -> None:
    """And where their outboxes ended: the markers on Kafka have their names."""
    way = [places.new(kind) for kind in ("sqlite", "postgres", "sqlite")]
    stores = [await live(await places.open(place)) for place in way]
    ends = []
    for source, target in pairwise(stores):
        await applied(source, add(f"of {source.identity}", NOW, topic="kafka:orders"))
        await drain(source)
        await (await on_its_way(source)).settle(1)
        ends.append(Predecessor(source.identity, tuple([(await lane.outbox())[1] for lane in source.lanes()])))
        for store in (source, target):
            await store.resign()
        await copied(source, target)
        await live(target)
    assert [sorted(each.outboxes) for each in ends] == [[1], [0, 0, 0, 1]]
    assert list((await places.open(way[2])).predecessors) == ends
    assert list((await places.open(way[1], moved_too=True)).predecessors) == ends[:1]


async def test_every_table_of_a_moved_database_rejects_writes(places: Places) -> None:
    begin, end = places.new("postgres"), places.new("sqlite")
    source = await places.open(begin)
    await copied(source, await places.open(end))
    with psycopg.connect(Served.dsn(), autocommit=True) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (begin[1],)).fetchall()
        tables = {table for (table,) in found} - UNFENCED
        assert tables >= FENCED
        for table in sorted(tables):
            for statement in (f"DELETE FROM {begin[1]}.{table}", f"TRUNCATE {begin[1]}.{table}"):
                with pytest.raises(psycopg.Error, match="has moved"):
                    connection.execute(statement.encode())


async def test_nodes_that_would_read_requests_twice_must_not_run(places: Places) -> None:
    """The target knows the positions of the source in Kafka before any node reads there."""
    begin, end = places.new("sqlite"), places.new("postgres")
    source = await live(await places.open(begin))
    await source.apply([], NOW, None, SourceBatch([SourcePosition("requests", 0, 0, 17)], lambda _: []))
    await source.close()
    source, node = await places.open(begin), await live(await places.open(end))
    with pytest.raises(Refused, match="has read requests from Kafka"):
        await copied(source, node)
    assert await node.positions() == {}
    await node.close()
    done = await copied(source, await places.open(end))
    assert done.progress.moved == {"positions": 1}
    node = await live(await places.open(end))
    assert await node.positions() == {("requests", 0): 17}
    again = await copied(await places.open(begin, moved_too=True), node)
    assert again.progress == done.progress, "nodes may run once it is known"


async def test_nodes_that_would_read_requests_twice_must_not_run_when_a_copy_resumes(places: Places) -> None:
    begin, end = places.new("sqlite"), places.new("postgres")
    source = await live(await places.open(begin))
    await source.apply([], NOW, None, SourceBatch([SourcePosition("requests", 0, 0, 17)], lambda _: []))
    await source.close()
    source, node = await places.open(begin), await places.open(end)
    with pytest.raises(Interrupted):
        await transfer(source, node, interrupt).run()
    await live(node)
    with pytest.raises(Refused, match="has read requests from Kafka"):
        await copied(source, node)
    assert await node.positions() == {}
    await node.close()
    await copied(source, await places.open(end))
    assert await (await places.open(end)).positions() == {("requests", 0): 17}


class Interrupted(Exception):
    """The copy was interrupted."""


def interrupt(_progress: Progress, _counts: object) -> None:
    """Stop the copy, when the source is closed and nothing has left it yet."""
    raise Interrupted


async def test_arrival_numbers_of_the_target_are_above_all_of_the_source(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process accepts schedules until the source is closed."""
    begin, end = places.new("postgres"), places.new("sqlite")
    source, target = await places.open(begin), await places.open(end)
    await applied(source, add("early", NOW + DAY))
    begin_at, end_at, node = source.transfer_endpoint(), target.transfer_endpoint(), await places.open(begin)
    close = begin_at.close

    async def close_late(move: Move, check: Check) -> Move:
        await applied(node, add("late", NOW + DAY))
        return await close(move, check)

    monkeypatch.setattr(begin_at, "close", close_late)
    await Transfer(begin_at, end_at, to="there", clock=SystemClock(), on_progress=quiet).run()
    assert (await end_at.status()).arrival >= (await begin_at.status()).arrival


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_a_copy_that_0_1_started_is_completed(places: Places, origin: str, goal: str) -> None:
    """Its mark has no counts, and its cursor covers neither calendars nor time zones."""
    begin, end = places.new(origin), places.new(goal)
    source = await live(await places.open(begin))
    calendar = Calendar("off", (NOW // DAY + 1,), NOW)
    await source.put_calendar(ACME, calendar)
    await source.add_key(KEY)
    rule = read_rule("FREQ=DAILY", NOW, Terms("2026-11-20T09:00", "Europe/Berlin", calendar="off"))
    await applied(source, scheduled(rule), add("two", NOW + DAY))
    await source.close()
    source, target = await places.open(begin), await places.open(end)
    begin_at, end_at = source.transfer_endpoint(), target.transfer_endpoint()
    assert await begin_at.acquire("source", SystemClock().elapsed(), LEASE_US)
    assert await end_at.acquire("target", SystemClock().elapsed(), LEASE_US)
    mark = Move(transfer="of-0.1", to="there", identity=end_at.identity, at=NOW)
    move = await begin_at.close(mark, lambda _: None)
    await begin_at.mark(msgspec.structs.replace(move, counts={}))
    progress, after = await end_at.begin(move, 0), None
    while (chunk := await begin_at.export(after)) is not None:
        after = chunk.after
        if not chunk.has_rules:
            progress = await end_at.load(move, progress, chunk, NOW)
        if "two" in [getattr(item, "id", None) for item in chunk.items]:
            break
    for endpoint in (begin_at, end_at):
        await endpoint.release()
    done = await copied(source, target)
    assert done.counts == move.counts
    assert done.progress.moved == {"keys": 1, "recurring": 1, "one_shots": 1}
    assert await target.calendars(ACME) == [calendar]
    assert [zone.name for zone in await target.zones()] == ["Europe/Berlin"]


async def test_positions_in_request_topics_never_go_back(places: Places) -> None:
    begin, end = places.new("sqlite"), places.new("postgres")
    source, target = await live(await places.open(begin)), await live(await places.open(end))
    for store, following in ((source, 17), (target, 40)):
        await store.apply([], NOW, None, SourceBatch([SourcePosition("requests", 0, 0, following)], lambda _: []))
    await source.close()
    done = await copied(await places.open(begin), target)
    assert done.progress.conflicts == {"positions": 1}
    assert await target.positions() == {("requests", 0): 40}


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_calendars_and_time_zones_arrive_too(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source = await live(await places.open(begin))
    calendar = Calendar("off", (NOW // DAY + 1,), NOW)
    await source.put_calendar(ACME, calendar)
    rule = read_rule("FREQ=DAILY", NOW, Terms("2026-11-20T09:00", "Europe/Berlin", calendar="off"))
    await applied(source, scheduled(rule))
    await drain(source)
    await source.close()
    target, _ = await moved(places, begin, end)
    assert await target.calendars(ACME) == [calendar]
    assert [zone.name for zone in await target.zones()] == ["Europe/Berlin"]
    schedule = await found(target, "one")
    assert (schedule.due, schedule.occurrence) == (NOW - HOUR + 2 * DAY, 2)
    assert (await drain(target, NOW + 2 * DAY)).lateness_us == [HOUR]
    assert (await answer(target, scheduled(rule, "two"))).outcome == "scheduled"
