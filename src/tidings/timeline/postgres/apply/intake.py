"""One-shots on their route into the tables, column by column."""

import asyncio
from collections.abc import Sequence, Set
from hashlib import sha256
from operator import attrgetter
from zlib import crc32

import msgspec
import numpy as np
import psycopg

from tidings import crash
from tidings.domain import errors
from tidings.domain.changes import latest_in_flight
from tidings.domain.errors import KeyReused
from tidings.domain.names import first_unstorable_id, is_storable
from tidings.domain.schedules.command import Add, Command, Outcome, Replace, address
from tidings.domain.schedules.lateness import Lateness, deadline
from tidings.domain.schedules.reschedule import Revise, Slice
from tidings.domain.schedules.schedule import Moved, is_kafka
from tidings.domain.schedules.when import Once
from tidings.ports import IdempotencyKey, SourceBatch, SourcePosition
from tidings.timeline.postgres import database
from tidings.timeline.postgres.apply.changes import Changes, new_id, refusal_of
from tidings.timeline.postgres.apply.unit_of_work import (
    KEY_BYTES,
    REASONS,
    ArrivalReused,
    Found,
    IdTaken,
    Loader,
    Saver,
    ScheduleRow,
    key_of,
    route_of,
)
from tidings.timeline.postgres.calendars import Calendars, Revision, result
from tidings.timeline.postgres.context import Arrivals, StoreContext
from tidings.timeline.postgres.database import Connection, Contended
from tidings.timeline.postgres.names import STREAMS, TO_KAFKA
from tidings.timeline.postgres.pool import INTAKE_MAX, Pool, rows, turn

_PLAIN = Lateness()
_kind = attrgetter("tenant", "topic", "priority")


class Batch:
    """Rows are sorted by lane and due time: what leaves together lies together. Keys are sorted by themselves."""

    def __init__(self, context: StoreContext, given: Sequence[Add], arrivals: Arrivals) -> None:
        self._context = context
        numbers = [arrivals.take() for _ in given]
        adds = [new_id(number, add) if add.id is None else add for number, add in zip(numbers, given, strict=True)]
        self._adds = adds
        self._kinds = _Kinds(context, adds)
        self._ids = [add.id.encode() for add in adds if add.id is not None]
        self._keys = self._kinds.keys(self._ids)
        words = np.frombuffer(b"".join(self._keys), dtype=">u8").reshape(-1, 2)
        self._lanes = (words[:, 0] >> np.uint64(56)).astype(np.int64) & (context.lanes - 1)
        self._routes = np.where(self._kinds.to_kafka, ~self._lanes, self._lanes)
        self._dues = np.array([add.due for add in adds], dtype=np.int64)
        self._arrivals = np.array(numbers, dtype=np.int64)
        self._by_key = np.argsort(words[:, 0])
        self._order = np.lexsort((self._arrivals, self._dues, self._lanes))

    def dues_by_route(self) -> dict[int, int]:
        """The first due time on each lane, for the log and for Kafka."""
        routes = self._routes
        firsts = np.full(2 * self._context.lanes, np.iinfo(np.int64).max)
        np.minimum.at(firsts, routes, self._dues)  # those of Kafka count from the end
        return {int(route): int(firsts[route]) for route in np.unique(routes)}

    def outcomes(self) -> list[Outcome]:
        return [Outcome(add.id or "", "scheduled", add.due) for add in self._adds]

    def columns(self) -> list[object]:
        """What `tidings.schedule` takes after the time."""
        streams, topics, parts = self._kinds.streams, self._kinds.topics, self._parts()
        by_key, order = self._by_key, self._order
        adds = [self._adds[index] for index in order]
        deadlines, reasons = _bounds(adds)
        return [
            database.uuids([self._keys[index] for index in by_key]),
            database.int8s(self._dues[by_key]),
            database.int8s(self._arrivals[by_key]),
            database.int4s(streams[by_key]),
            database.int8s(self._dues[order]),
            database.int8s(self._arrivals[order]),
            database.uuids([add.content for add in adds]),
            database.int4s(streams[order]),
            database.int4s(topics[order]),
            database.int2s(self._lanes[order]),
            database.int2s(parts[order]),
            database.int2s(reasons),
            database.texts([self._ids[index] for index in order]),
            database.byteas([add.message for add in adds]),
            database.maybe_int8s(deadlines),
            database.maybe_texts([add.labels for add in adds]),
        ]

    def _parts(self) -> database.Numbers:
        """Partitions."""
        each = self._context.parts
        parts = self._lanes * each
        if each > 1:
            hashes = [
                crc32(name) if add.key_hash is None else add.key_hash
                for add, name in zip(self._adds, self._ids, strict=True)
            ]
            parts = parts + np.array(hashes, dtype=np.int64) % each
        return np.where(self._kinds.to_kafka, TO_KAFKA, parts)


class _Kinds:
    """What rows of one tenant, topic and priority have in common; mostly a batch has only one kind of them."""

    def __init__(self, context: StoreContext, adds: Sequence[Add]) -> None:
        names = context.names
        kinds = list(map(_kind, adds))
        distinct = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        self._prefixes = [f"{tenant}\0".encode() for tenant, _, _ in distinct]
        self._numbers = [] if len(distinct) == 1 else [distinct[kind] for kind in kinds]
        which = np.array(self._numbers, dtype=np.int64) if self._numbers else np.zeros(len(kinds), dtype=np.int64)
        self.streams = np.array([names.stream(tenant, priority, topic) for tenant, topic, priority in distinct])[which]
        self.topics = np.array([names.topic(tenant, topic) for tenant, topic, _ in distinct])[which]
        self.to_kafka = np.array([is_kafka(topic) for _, topic, _ in distinct])[which]

    def keys(self, ids: Sequence[bytes]) -> list[bytes]:
        """Under which keys ids are known; `rows.key_of` says the same of one."""
        if not self._numbers:
            (prefix,) = self._prefixes
            return [sha256(prefix + name).digest()[:KEY_BYTES] for name in ids]
        prefixes = self._prefixes
        named = zip(self._numbers, ids, strict=True)
        return [sha256(prefixes[number] + name).digest()[:KEY_BYTES] for number, name in named]


def _bounds(adds: list[Add]) -> tuple[list[int | None], list[int]]:
    """When each may leave at the latest, and the number of the reason for which it is missed then."""
    if [add.lateness for add in adds].count(_PLAIN) == len(adds):
        return [None] * len(adds), [0] * len(adds)
    bounds = [deadline(add.due, add.lateness) for add in adds]
    return (
        [None if bound is None else bound[0] for bound in bounds],
        [0 if bound is None else REASONS.index(bound[1]) for bound in bounds],
    )


TRIES_MAX = 10
RECEIPTS_MAX = INTAKE_MAX // 2  # at a time: each has a transaction of its own, and the rest needs some too

_encode_outcomes = msgspec.msgpack.Encoder().encode
_decode_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode

_BEGIN = """
INSERT INTO tidings.source SELECT topic, partition, 0 FROM unnest(%s, %s) AS p(topic, partition) ORDER BY 1, 2
ON CONFLICT DO NOTHING
"""
_TAKE = """
SELECT s.topic, s.partition, s.next FROM tidings.source s JOIN unnest(%s, %s) AS p(topic, partition)
ON s.topic = p.topic AND s.partition = p.partition ORDER BY 1, 2 FOR UPDATE OF s
"""
_MOVE = """
UPDATE tidings.source s SET next = p.next FROM unnest(%s, %s, %s) AS p(topic, partition, next)
WHERE s.topic = p.topic AND s.partition = p.partition
"""
_KEPT = "SELECT body, outcomes FROM tidings.receipt WHERE tenant = %s AND key = %s AND at > %s"
_CLAIM = """
INSERT INTO tidings.receipt AS r VALUES (%s, %s, %s, '', %s) ON CONFLICT (tenant, key)
DO UPDATE SET body = excluded.body, outcomes = excluded.outcomes, at = excluded.at WHERE r.at <= %s RETURNING 1
"""
_KEEP = "UPDATE tidings.receipt SET outcomes = %s WHERE tenant = %s AND key = %s"


class Intake:
    """Commands in, outcomes out."""

    def __init__(self, pool: Pool, context: StoreContext, dates: Calendars) -> None:
        self._pool = pool
        self._context = context
        self._calendars = dates
        self._receipts = asyncio.Semaphore(RECEIPTS_MAX)

    async def apply(
        self, commands: Sequence[Command], now: int, receipt: IdempotencyKey | None, taken: SourceBatch | None
    ) -> list[Outcome]:
        """Commit all commands in order in one transaction."""
        all_made = await self._make_names(commands, now)
        crash.point("intake.begun")
        if all_made and receipt is None and taken is None and are_new(commands):
            outcomes = await self._schedule(commands, now)
            if outcomes is not None:
                return outcomes
        if receipt is None:
            return await self._insist(commands, now, receipt, taken)
        async with turn(self._receipts):
            return await self._insist(commands, now, receipt, taken)

    async def _insist(
        self, commands: Sequence[Command], now: int, receipt: IdempotencyKey | None, taken: SourceBatch | None
    ) -> list[Outcome]:
        """One transaction, made again if another was in its route; what follows its commit is done once."""
        for _ in range(TRIES_MAX):
            try:
                run, outcomes = await self._transact(commands, now, receipt, taken)
                break
            except (IdTaken, Contended):
                continue
        else:
            run, outcomes = await self._transact(commands, now, receipt, taken)
        if run is not None:
            crash.point("intake.committed")
            await run.announce()
        return outcomes

    async def _make_names(self, commands: Sequence[Command], now: int) -> bool:
        """Make new tenants, topics and zones before, in a transaction of their own; False if not all can be."""
        await self._calendars.keep_zones(commands, now)
        adds = (command.add if isinstance(command, Replace) else command for command in commands)
        wanted = {(add.tenant, add.topic): None for add in adds if isinstance(add, Add)}
        storable = [place for place in wanted if all(map(is_storable, place))]
        refused = await self._context.names.make_all(storable)
        return not refused and len(storable) == len(wanted)

    async def _schedule(self, adds: "Sequence[Command]", now: int) -> list[Outcome] | None:
        """New one-shots; None if an id is known, and nothing was done."""
        arrivals = await self._context.arrivals(len(adds))
        batch = Batch(self._context, [add for add in adds if isinstance(add, Add)], arrivals)
        told = self._context.news(batch.dues_by_route(), now)
        async with self._pool.connection() as connection:
            if not self._context.are_ours(arrivals):
                return None
            try:
                await rows(connection, self._context.sql["schedule"], (told, now, *batch.columns()))
            except psycopg.errors.UniqueViolation:
                arrivals.undo()
                self._context.give_back(arrivals)
                return None
        crash.point("intake.committed")
        self._context.arrived(batch.dues_by_route())
        return batch.outcomes()

    async def _transact(
        self, commands: Sequence[Command], now: int, receipt: IdempotencyKey | None, taken: SourceBatch | None
    ) -> tuple["Run | None", list[Outcome]]:
        """What was done, and what to answer; nothing is done for a receipt that came before."""
        async with self._pool.transaction() as connection:
            if taken is not None:
                await self._take(connection, taken.parts)
            if receipt is not None and not await self._claim(connection, receipt, now):
                return None, await self._kept(connection, receipt, now)
            run = Run(self._context, self._calendars, connection, now)
            outcomes = await run.commands(commands)
            if taken is not None:
                follow = taken.on_outcomes(outcomes)
                await self._make_names(follow, now)
                await run.commands(follow)
            await run.save()
            if receipt is not None:
                kept = (_encode_outcomes(outcomes), receipt.tenant, receipt.key)
                await rows(connection, self._context.inside(_KEEP), kept)
            crash.point("intake.written")
        return run, outcomes

    async def inside(self, connection: Connection, commands: Sequence[Command], now: int) -> "Run":
        """Apply commands inside a transaction of the caller's, who announces them after its commit."""
        run = Run(self._context, self._calendars, connection, now)
        await self._make_names(commands, now)
        await run.commands(commands)
        await run.save()
        return run

    async def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        """One slice of a revision, in one transaction."""
        for _ in range(TRIES_MAX):
            try:
                return await self._revise(cursor, limit, revise, cause, now)
            except (IdTaken, Contended):
                continue
        return await self._revise(cursor, limit, revise, cause, now)

    async def _revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        async with self._pool.transaction() as connection:
            seen = await self._calendars.some(connection, cursor, limit)
            run = Run(self._context, self._calendars, connection, now)
            days = await self._calendars.days_now(connection, seen)
            moved = await run.revise(Revision(revise, days, cause, now), seen)
            await run.save()
        await run.announce()
        return result(moved, seen, limit)

    async def _take(self, connection: Connection, parts: Sequence[SourcePosition]) -> None:
        """Move the positions of sources; `Moved` if one is not as expected."""
        inside = self._context.inside
        places = (
            database.texts([part.topic.encode() for part in parts]),
            database.int4s([part.partition for part in parts]),
        )
        await rows(connection, inside(_BEGIN), places)
        stored = {(topic, partition): at for topic, partition, at in await rows(connection, inside(_TAKE), places)}
        for part in parts:
            if (found := stored[part.topic, part.partition]) != part.expected:
                raise errors.Moved(f"{part.topic}/{part.partition} stands at {found}, not at {part.expected}")
        await rows(connection, inside(_MOVE), (*places, database.int8s([part.next for part in parts])))

    async def _claim(self, connection: Connection, receipt: IdempotencyKey, now: int) -> bool:
        """Whether an idempotency key is new, or was kept too long ago; whoever brings it again waits for us."""
        since = now - self._context.options.receipt_retention_us
        claim = (receipt.tenant, receipt.key, receipt.body, now, since)
        return bool(await rows(connection, self._context.inside(_CLAIM), claim))

    async def _kept(self, connection: Connection, receipt: IdempotencyKey, now: int) -> list[Outcome]:
        """What was answered to an idempotency key before."""
        since = now - self._context.options.receipt_retention_us
        ((body, outcomes),) = await rows(connection, self._context.inside(_KEPT), (receipt.tenant, receipt.key, since))
        if body != receipt.body:
            raise KeyReused("this Idempotency-Key came before with another body: use a new key for a new request")
        return _decode_outcomes(outcomes)


class Run:
    """Commands inside a transaction: what they need is loaded, what they change is saved in the end."""

    def __init__(self, context: StoreContext, dates: Calendars, connection: Connection, now: int) -> None:
        self._context = context
        self._calendars = dates
        self._connection = connection
        self._now = now
        self._entries: dict[bytes, ScheduleRow] = {}

    async def commands(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry them out, in order."""
        context = self._context
        refused = [refusal_of(command, context.names) for command in commands]
        taken = [command for command, no in zip(commands, refused, strict=True) if no is None]
        arrivals = await context.arrivals(len(taken))
        days = await self._calendars.days(self._connection, taken)
        remembered = self._now - context.options.id_retention_us
        changes = Changes(context.names, context.parts, arrivals.take, self._now, remembered, context.created, days)
        keys = [None if no else _key(command) for command, no in zip(commands, refused, strict=True)]
        await self.load({key for key in keys if key is not None})
        await self._load_in_flight(commands, keys)
        outcomes: list[Outcome] = []
        for command, key, no in zip(commands, keys, refused, strict=True):
            if no is not None:
                outcomes.append(no)
            elif key is not None:
                outcomes.append(changes.run(command, self._entries[key]))
            elif isinstance(command, Add):
                outcomes.append(changes.make(command, self._enter))
        context.give_back(arrivals)
        return outcomes

    async def _load_in_flight(self, commands: Sequence[Command], keys: Sequence[bytes | None]) -> None:
        """Which schedules have a record on its route to Kafka; of those alone that go there."""
        context, asked = self._context, dict[tuple[int, str, int], ScheduleRow]()
        for command, key in zip(commands, keys, strict=True):
            entry = None if key is None else self._entries[key]
            if entry is not None and entry.before is not None and _goes_to_kafka(command, entry.before):
                asked[entry.lane, entry.before.id, entry.before.stream // STREAMS] = entry
        if not asked:
            return
        places = database.int2s([lane for lane, _, _ in asked]), database.texts([name.encode() for _, name, _ in asked])
        leaving: dict[tuple[int, str, int], list[tuple[int, int]]] = {place: [] for place in asked}
        for lane, name, tenant, offset, *number, held in await rows(self._connection, context.sql["in_flight"], places):
            if (lane, name, tenant) in leaving and (held or offset >= context.next_due.arrived(lane)):
                leaving[lane, name, tenant].append((number[0], number[1]))
        for place, entry in asked.items():
            entry.in_flight = latest_in_flight(leaving[place])

    async def revise(self, revision: Revision, seen: Sequence[tuple[str, Found]]) -> list[Moved]:
        """Change those of some standing schedules that a revision speaks of; answers what moved."""
        tenants = {key: tenant for tenant, found in seen if (key := revision.wanted(tenant, found)) is not None}
        entries = await self.load(tenants.keys())
        changed = [revision.change(tenants[key], entry) for key, entry in entries.items()]
        moved = [one for one in changed if one is not None]
        await self._calendars.remember(self._connection, moved)
        return moved

    async def load(self, keys: Set[bytes]) -> dict[bytes, ScheduleRow]:
        """The ids of some keys, locked; answers all that are loaded."""
        new = keys - self._entries.keys()
        if new:
            loader = Loader(self._connection, self._context.sql, self._context.lanes, "lock")
            entries = await loader.entries(new)
            self._context.land(entries.values())
            self._entries |= entries
        return self._entries

    def _enter(self, add: Add) -> ScheduleRow:
        """The entry of an id that is new."""
        key = key_of(add.tenant, add.id or "")
        self._entries[key] = entry = ScheduleRow(key, key[0] & (self._context.lanes - 1))
        return entry

    async def save(self) -> None:
        """Write what has changed, and tell the owners of other lanes what is due soon."""
        entries = list(self._entries.values())
        try:
            await Saver(self._connection, self._context.sql).save(entries)
        except ArrivalReused:
            self._context.give_up()
            raise
        told = self._context.news(self._dues(), self._now)
        if told is not None:
            await rows(self._connection, self._context.inside("SELECT pg_notify('tidings', %s)"), (told,))

    async def announce(self) -> None:
        """Once it is committed: our own lanes learn what is due, and what is no longer."""
        self._context.arrived(self._dues())
        gone: dict[int, int] = {}
        for entry in self._entries.values():
            if entry.before is not None and entry.now is not entry.before and entry.before.table != "finished":
                route = route_of(entry.before)
                gone[route] = min(gone.get(route, entry.before.due), entry.before.due)
        await self._context.left(gone)

    def _dues(self) -> dict[int, int]:
        """The first due time of what was put onto each lane, for the log and for Kafka."""
        dues: dict[int, int] = {}
        for entry in self._entries.values():
            waiting = list(entry.fired)
            if entry.now is not None and entry.now is not entry.before and entry.now.state == "pending":
                waiting.append(entry.now)
            for found in waiting:
                route = route_of(found)
                dues[route] = min(dues.get(route, found.due), found.due)
        return dues


def _key(command: Command) -> bytes | None:
    tenant, schedule_id = address(command)
    return None if schedule_id is None else key_of(tenant, schedule_id)


def _goes_to_kafka(command: Command, before: Found) -> bool:
    add = command.add if isinstance(command, Replace) else command
    return before.part == TO_KAFKA or (isinstance(add, Add) and is_kafka(add.topic))


def are_new(commands: Sequence[Command]) -> bool:
    """Whether all of them may be new one-shots, each with an id of its own that can be stored."""
    ids, nameless = set(), 0
    for command in commands:
        if type(command) is not Add or type(command.when) is not Once:
            return False
        if command.id is None:
            nameless += 1
        else:
            ids.add((command.tenant, command.id))
    if len(ids) + nameless != len(commands) or not commands:
        return False
    return first_unstorable_id([schedule_id for _, schedule_id in ids]) is None
