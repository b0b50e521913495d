"""Factories and readers for the tests: commands, schedules in every state, and released records."""

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from zlib import crc32

import msgspec

from tidings.domain.schedules.command import Add, Cancel, Command, Outcome, Pause, Priority, State
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import Headers, Message, Page, Query, Record, Schedule, pack
from tidings.domain.schedules.when import Every, Once, Period
from tidings.ports import Lane, Release, Store

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOW = 1_795_165_200_000_000  # 2026-11-20T09:00:00Z

ACME = "acme"
TOPIC = "greetings"
FIRE_ALL = Lateness("fire_all")
ROUNDS_MAX = 20_000


def add(
    schedule_id: str | None = None,
    due: int = NOW,
    *,
    tenant: str = ACME,
    topic: str = TOPIC,
    key: bytes | None = None,
    value: bytes | None = b"hello",
    headers: Headers = (),
    priority: Priority = Priority.NORMAL,
    lateness: Lateness | None = None,
    labels: str | None = None,
    content: str | None = None,
    reuse: bool = False,
) -> Add:
    """A one-shot; `content` names what the caller sent, by default it follows from time and value."""
    return Add(
        tenant,
        schedule_id,
        topic,
        Once(due),
        pack(Message(key, value, headers)),
        digest(f"{due} {value!r}" if content is None else content),
        due,
        priority,
        lateness or Lateness(),
        labels,
        key_hash=None if key is None else crc32(key),
        reuse=reuse,
    )


def every(
    schedule_id: str | None = None,
    start: int = NOW,
    *,
    period: Period | int = SECOND,
    count: int | None = None,
    end: int | None = None,
    tenant: str = ACME,
    topic: str = TOPIC,
    key: bytes | None = None,
    value: bytes | None = b"again",
    priority: Priority = Priority.NORMAL,
    lateness: Lateness = FIRE_ALL,
    jitter_us: int = 0,
    content: str | None = None,
) -> Add:
    """A recurring schedule that by default releases every occurrence, however late."""
    when = Every(start, period if isinstance(period, Period) else Period(0, period), end, count)
    return Add(
        tenant,
        schedule_id,
        topic,
        when,
        pack(Message(key, value)),
        digest(f"{when} {value!r}" if content is None else content),
        start + jitter_us,
        priority,
        lateness,
        None,
        jitter_us,
        None if key is None else crc32(key),
    )


def digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()


async def applied(store: Store, *commands: Command, now: int = NOW) -> list[Outcome]:
    """The outcomes of commands that were committed together."""
    outcomes = await store.apply(list(commands), now)
    assert len(outcomes) == len(commands)
    return outcomes


async def answer(store: Store, command: Command, now: int = NOW) -> Outcome:
    """The outcome of one command."""
    return (await applied(store, command, now=now))[0]


async def words(store: Store, *commands: Command, now: int = NOW) -> list[str]:
    """The outcomes' words of commands that were committed together."""
    return [outcome.outcome for outcome in await applied(store, *commands, now=now)]


@dataclass
class Drained:
    """The result of releasing until nothing is due."""

    lateness_us: list[int] = field(default_factory=list)
    topics: set[tuple[str, str]] = field(default_factory=set)
    missed: Counter[str] = field(default_factory=Counter)
    handed: int = 0


def lane_of(store: Store) -> Lane:
    """The one lane of a store that has one."""
    (lane,) = store.lanes()
    return lane


def next_due(store: Store) -> int | None:
    """When the first of all lanes has work to do."""
    dues = (lane.next_due() for lane in store.lanes())
    return min((due for due in dues if due is not None), default=None)


async def release(store: Store, now: int = NOW, rows_max: int = 1000) -> Release:
    """One batch of every lane, as one."""
    releases = [await lane.release(now, rows_max) for lane in store.lanes()]
    missed: Counter[str] = Counter()
    for each in releases:
        assert len(each.lateness_us) <= rows_max
        missed.update(each.missed)
    return Release(
        [late for each in releases for late in each.lateness_us],
        frozenset(topic for each in releases for topic in each.topics),
        dict(missed),
        any(each.more for each in releases),
        sum(each.bytes for each in releases),
        sum(each.handed for each in releases),
    )


async def drain(store: Store, now: int = NOW, rows_max: int = 1000) -> Drained:
    """Release until nothing is due."""
    drained = Drained()
    for _ in range(ROUNDS_MAX):
        done = await release(store, now, rows_max)
        drained.lateness_us += done.lateness_us
        drained.topics |= done.topics
        drained.missed.update(done.missed)
        drained.handed += done.handed
        if not done.more:
            return drained
    raise AssertionError("there is always more")


async def tend(store: Store, now: int = NOW) -> None:
    """Do all the housekeeping that is waiting."""
    for _ in range(ROUNDS_MAX):
        if not await store.tend(now):
            return
    raise AssertionError("there is always more to tend")


async def records(store: Store, topic: str = TOPIC, tenant: str = ACME) -> list[Record]:
    """Everything that a topic keeps, partition after partition; its offsets are checked on the way."""
    known = await store.topic(tenant, topic)
    if known is None:
        return []
    found: list[Record] = []
    for partition in range(store.partitions):
        kept = await store.read(tenant, topic, partition, 0, 1_000_000)
        first, following = known.first[partition], known.next[partition]
        # An engine at work may have released more since the topic was read.
        assert [record.offset for record in kept] == list(range(first, max(following, first + len(kept))))
        assert {(record.topic, record.partition) for record in kept} <= {(topic, partition)}
        found += kept
    return found


async def left(store: Store, topic: str = TOPIC, tenant: str = ACME) -> list[str]:
    """The ids of all records of a topic, sorted; an id occurs once for each release."""
    return sorted(record.id for record in await records(store, topic, tenant))


async def numbers(store: Store, schedule_id: str, topic: str = TOPIC) -> list[int]:
    """The occurrences of a schedule in the order of the log."""
    return [record.number for record in await records(store, topic) if record.id == schedule_id]


async def found(store: Store, schedule_id: str, now: int = NOW, tenant: str = ACME) -> Schedule:
    """A schedule that must be known."""
    schedule = await store.find(tenant, schedule_id, now)
    assert schedule is not None, f"{schedule_id} is not known"
    return schedule


async def state(store: Store, schedule_id: str, now: int = NOW, tenant: str = ACME) -> State | None:
    """The state of a schedule, None if it is not known."""
    schedule = await store.find(tenant, schedule_id, now)
    return None if schedule is None else schedule.state


async def listed(store: Store, query: Query, now: int = NOW, tenant: str = ACME) -> list[Schedule]:
    """Every schedule that fits, over all pages."""
    schedules: list[Schedule] = []
    seen: set[str] = set()
    while True:
        page: Page = await store.page(tenant, query, now)
        assert len(page.schedules) <= query.limit
        schedules += page.schedules
        if page.cursor is None:
            return schedules
        assert page.cursor not in seen, "the cursor does not move"
        seen.add(page.cursor)
        query = msgspec.structs.replace(query, after=page.cursor)


async def bring(store: Store, target: State, schedule_id: str = "one") -> Add:
    """Create a schedule in a state at NOW; pending and paused ones are due a minute later."""
    command = add(schedule_id, NOW + MINUTE)
    match target:
        case "pending":
            await applied(store, command)
        case "paused":
            await applied(store, command, Pause(ACME, schedule_id))
        case "cancelled":
            await applied(store, command, Cancel(ACME, schedule_id))
        case "released":
            command = add(schedule_id)
        case "ended":
            command = every(schedule_id, NOW - SECOND, count=2)
        case "missed":
            command = add(schedule_id, NOW - MINUTE, lateness=Lateness(expires_after_us=SECOND))
        case "in_flight":
            raise AssertionError("nothing is in flight in a store that holds the log")
    if target in {"released", "ended", "missed"}:
        await applied(store, command)
        await drain(store)
    assert await state(store, schedule_id) == target
    return command
