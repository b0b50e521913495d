"""Intake: applies commands in one transaction. Batches of new one-shots take one round trip, column by column."""

import asyncio
from collections import Counter
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
from tidings.timeline.postgres.names import TO_KAFKA
from tidings.timeline.postgres.pool import INTAKE_MAX, Pool, rows, turn
from tidings.timeline.store_rules import is_remembered

TRIES_MAX = 10
IDEMPOTENT_MAX = INTAKE_MAX // 2  # at a time: each needs its own transaction, and other work needs connections too

_PLAIN = Lateness()
_kind = attrgetter("tenant", "topic", "priority")


class Batch:
    """New one-shots as columns. Rows are sorted by lane and due time, as they are released; keys by themselves."""

    def __init__(self, context: StoreContext, given: Sequence[Add], arrivals: Arrivals) -> None:
        self._context = context
        self._reserved = arrivals
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

    @property
    def size(self) -> int:
        return len(self._adds)

    def dues_by_route(self) -> dict[int, int]:
        """The first due time on each route."""
        routes = self._routes
        firsts = np.full(2 * self._context.lanes, np.iinfo(np.int64).max)
        np.minimum.at(firsts, routes, self._dues)  # routes to Kafka are negative: they index from the end
        return {int(route): int(firsts[route]) for route in np.unique(routes)}

    @property
    def is_ours(self) -> bool:
        """Whether its arrival numbers are still certain to be unique."""
        return self._context.are_ours(self._reserved)

    def give_back(self) -> None:
        """Return the arrival numbers: nothing was stored."""
        self._reserved.undo()
        self._context.give_back(self._reserved)

    async def announce(self) -> None:
        """After the commit: update the due times of our own lanes."""
        self._context.rows_added(self.dues_by_route())

    def outcomes(self) -> list[Outcome]:
        return [Outcome(add.id or "", "scheduled", add.due, note=add.note) for add in self._adds]

    def values(self, now: int) -> tuple[object, ...]:
        """The parameters of `tidings.schedule`."""
        return self._context.news(self.dues_by_route(), now), now, *self._columns()

    def _columns(self) -> list[object]:
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
        """The partition of each row."""
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
    """The columns that depend only on tenant, topic and priority; a batch mostly has one combination of them."""

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
        """The keys of ids; `key_of` computes a single one."""
        if not self._numbers:
            (prefix,) = self._prefixes
            return [sha256(prefix + name).digest()[:KEY_BYTES] for name in ids]
        prefixes = self._prefixes
        named = zip(self._numbers, ids, strict=True)
        return [sha256(prefixes[number] + name).digest()[:KEY_BYTES] for number, name in named]


def _bounds(adds: list[Add]) -> tuple[list[int | None], list[int]]:
    """The deadline of each, and the number of the reason for which it is missed after that."""
    if [add.lateness for add in adds].count(_PLAIN) == len(adds):
        return [None] * len(adds), [0] * len(adds)
    bounds = [deadline(add.due, add.lateness) for add in adds]
    return (
        [None if bound is None else bound[0] for bound in bounds],
        [0 if bound is None else REASONS.index(bound[1]) for bound in bounds],
    )


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
_GIVE_UP = "DELETE FROM tidings.receipt WHERE tenant = %s AND key = %s"
_KEEP = "UPDATE tidings.receipt SET outcomes = %s WHERE tenant = %s AND key = %s"


class Intake:
    """Applies batches of commands."""

    def __init__(self, pool: Pool, context: StoreContext, dates: Calendars) -> None:
        self._pool = pool
        self._context = context
        self._calendars = dates
        self._idempotent = asyncio.Semaphore(IDEMPOTENT_MAX)
        self.schedule_call = context.sql["schedule"].encode()  # for a `Batch`

    async def apply(
        self, commands: Sequence[Command], now: int, idempotency: IdempotencyKey | None, source: SourceBatch | None
    ) -> list[Outcome]:
        """Commit all commands in order in one transaction."""
        all_made = await self.make_names(commands, now)
        crash.point("intake.begun")
        if all_made and idempotency is None and source is None and are_new(commands):
            outcomes = await self._schedule(commands, now)
            if outcomes is not None:
                return outcomes
        if idempotency is None:
            return await self._retry(commands, now, idempotency, source)
        async with turn(self._idempotent):
            return await self._retry(commands, now, idempotency, source)

    async def _retry(
        self, commands: Sequence[Command], now: int, idempotency: IdempotencyKey | None, source: SourceBatch | None
    ) -> list[Outcome]:
        """Run one transaction, again if it conflicts with another; the steps after the commit are done once."""
        for _ in range(TRIES_MAX):
            try:
                run, outcomes = await self._transact(commands, now, idempotency, source)
                break
            except (IdTaken, Contended):
                continue
        else:
            run, outcomes = await self._transact(commands, now, idempotency, source)
        if run is not None:
            crash.point("intake.committed")
            await run.announce()
        return outcomes

    async def make_names(self, commands: Sequence[Command], now: int) -> bool:
        """Create new tenants, topics and time zones in transactions of their own; False if not all can be created."""
        await self._calendars.keep_zones(commands, now)
        adds = (command.add if isinstance(command, Replace) else command for command in commands)
        wanted = {(add.tenant, add.topic): None for add in adds if isinstance(add, Add)}
        storable = [names for names in wanted if all(map(is_storable, names))]
        refused = await self._context.names.make_all(storable)
        return not refused and len(storable) == len(wanted)

    async def _schedule(self, adds: "Sequence[Command]", now: int) -> list[Outcome] | None:
        """Add new one-shots in one round trip; None, and nothing is done, if an id is known."""
        batch = await self.batch(adds)
        values = batch.values(now)
        async with self._pool.connection() as connection:
            if not batch.is_ours:
                return None
            try:
                await rows(connection, self._context.sql["schedule"], values)
            except psycopg.errors.UniqueViolation:
                batch.give_back()
                return None
        crash.point("intake.committed")
        await batch.announce()
        return batch.outcomes()

    async def batch(self, adds: "Sequence[Command]") -> Batch:
        """New one-shots, with arrival numbers."""
        arrivals = await self._context.arrivals(len(adds))
        return Batch(self._context, [add for add in adds if isinstance(add, Add)], arrivals)

    def run(self, connection: Connection, now: int) -> "Run":
        """Commands inside the caller's transaction."""
        return Run(self._context, self._calendars, connection, now)

    async def _transact(
        self, commands: Sequence[Command], now: int, idempotency: IdempotencyKey | None, source: SourceBatch | None
    ) -> tuple["Run | None", list[Outcome]]:
        """One transaction: the run and its outcomes, or None and the stored outcomes for a known idempotency key."""
        async with self._pool.transaction() as connection:
            if source is not None:
                await self._advance_positions(connection, source.parts)
            if idempotency is not None and not await self._claim(connection, idempotency, now):
                return None, await self._kept(connection, idempotency, now)
            run = self.run(connection, now)
            outcomes = await run.commands(commands)
            if source is not None:
                following = source.on_outcomes(outcomes)
                await self.make_names(following, now)
                await run.commands(following)
            await run.save()
            if idempotency is not None:
                await self._keep(connection, idempotency, outcomes)
            crash.point("intake.written")
        return run, outcomes

    async def inside(self, connection: Connection, commands: Sequence[Command], now: int) -> "Run":
        """Apply commands inside the caller's transaction; the caller calls `announce` after the commit."""
        run = self.run(connection, now)
        await self.make_names(commands, now)
        await run.commands(commands)
        await run.save()
        return run

    async def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        """Recompute one slice of recurring schedules in one transaction."""
        for _ in range(TRIES_MAX):
            try:
                return await self._revise(cursor, limit, revise, cause, now)
            except (IdTaken, Contended):
                continue
        return await self._revise(cursor, limit, revise, cause, now)

    async def _revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        async with self._pool.transaction() as connection:
            seen = await self._calendars.after(connection, cursor, limit)
            run = self.run(connection, now)
            days = await self._calendars.days_now(connection, seen)
            moved = await run.revise(Revision(revise, days, cause, now), seen)
            await run.save()
        await run.announce()
        return result(moved, seen, limit)

    async def _advance_positions(self, connection: Connection, parts: Sequence[SourcePosition]) -> None:
        """Advance the positions of request topics; `Moved` if one is unexpected."""
        inside = self._context.inside
        partitions = (
            database.texts([part.topic.encode() for part in parts]),
            database.int4s([part.partition for part in parts]),
        )
        await rows(connection, inside(_BEGIN), partitions)
        stored = {(topic, partition): at for topic, partition, at in await rows(connection, inside(_TAKE), partitions)}
        for part in parts:
            if (found := stored[part.topic, part.partition]) != part.expected:
                raise errors.Moved(f"{part.topic}/{part.partition} is at position {found}, not at {part.expected}")
        await rows(connection, inside(_MOVE), (*partitions, database.int8s([part.next for part in parts])))

    async def _claim(self, connection: Connection, idempotency: IdempotencyKey, now: int) -> bool:
        """Claim an idempotency key; False if it is known. A concurrent request with the same key waits for us."""
        since = now - self._context.options.idempotency_retention_us
        claim = (idempotency.tenant, idempotency.key, idempotency.body, now, since)
        return bool(await rows(connection, self._context.inside(_CLAIM), claim))

    async def _keep(self, connection: Connection, idempotency: IdempotencyKey, outcomes: list[Outcome]) -> None:
        """Store the outcomes for an idempotency key that is claimed, or give the key up."""
        key = idempotency.tenant, idempotency.key
        if is_remembered(outcomes):
            await rows(connection, self._context.inside(_KEEP), (_encode_outcomes(outcomes), *key))
        else:
            await rows(connection, self._context.inside(_GIVE_UP), key)

    async def _kept(self, connection: Connection, idempotency: IdempotencyKey, now: int) -> list[Outcome]:
        """The outcomes stored for an idempotency key."""
        since = now - self._context.options.idempotency_retention_us
        ((body, outcomes),) = await rows(
            connection, self._context.inside(_KEPT), (idempotency.tenant, idempotency.key, since)
        )
        if body != idempotency.body:
            raise KeyReused
        return _decode_outcomes(outcomes)


class Run:
    """Commands inside a transaction: their rows are loaded first, and changed rows are saved at the end."""

    def __init__(self, context: StoreContext, dates: Calendars, connection: Connection, now: int) -> None:
        self._context = context
        self._calendars = dates
        self._connection = connection
        self._now = now
        self._entries: dict[bytes, ScheduleRow] = {}

    async def commands(self, commands: Sequence[Command]) -> list[Outcome]:
        """Apply commands in order; returns an outcome for each."""
        context = self._context
        refused = [refusal_of(command, context.names) for command in commands]
        accepted = [command for command, no in zip(commands, refused, strict=True) if no is None]
        arrivals = await context.arrivals(len(accepted))
        days = await self._calendars.days(self._connection, accepted)
        changes = Changes(
            context.names,
            parts=context.parts,
            arrive=arrivals.take,
            now=self._now,
            remembered=self._now - context.options.id_retention_us,
            created=context.created,
            days=days,
        )
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
        """Find out which of the schedules for Kafka have a record in flight."""
        context, asked = self._context, dict[tuple[int, str, int], ScheduleRow]()
        often = Counter(keys)
        for command, key in zip(commands, keys, strict=True):
            if key is None:
                continue
            entry, (tenant, name) = self._entries[key], address(command)
            is_known = entry.before is not None or often[key] > 1
            if is_known and name is not None and _goes_to_kafka(command, entry.before):
                asked[entry.lane, name, context.names.tenants.get(tenant, -1)] = entry
        if not asked:
            return
        ids = database.int2s([lane for lane, _, _ in asked]), database.texts([name.encode() for _, name, _ in asked])
        leaving: dict[tuple[int, str, int], list[tuple[int, int]]] = {schedule: [] for schedule in asked}
        for lane, name, tenant, offset, *number, held in await rows(self._connection, context.sql["in_flight"], ids):
            if (lane, name, tenant) in leaving and (held or offset >= context.next_due.arrived(lane)):
                leaving[lane, name, tenant].append((number[0], number[1]))
        for schedule, entry in asked.items():
            entry.in_flight = latest_in_flight(leaving[schedule])

    async def revise(self, revision: Revision, seen: Sequence[tuple[str, Found]]) -> list[Moved]:
        """Change the recurring schedules that a revision affects; returns the moves."""
        tenants = {key: tenant for tenant, found in seen if (key := revision.wanted(tenant, found)) is not None}
        entries = await self.load(tenants.keys())
        changed = [revision.change(tenants[key], entry) for key, entry in entries.items()]
        moved = [one for one in changed if one is not None]
        await self._calendars.remember(self._connection, moved)
        return moved

    async def load(self, keys: Set[bytes]) -> dict[bytes, ScheduleRow]:
        """Load and lock the rows of some keys; returns all loaded rows."""
        new = keys - self._entries.keys()
        if new:
            loader = Loader(self._connection, self._context.sql, self._context.lanes, "lock")
            entries = await loader.entries(new)
            self._context.update_in_flight(entries.values())
            await self._context.names.know({entry.now.topic for entry in entries.values() if entry.now is not None})
            self._entries |= entries
        return self._entries

    def _enter(self, add: Add) -> ScheduleRow:
        """A row for a new id."""
        key = key_of(add.tenant, add.id or "")
        self._entries[key] = entry = ScheduleRow(key, key[0] & (self._context.lanes - 1))
        return entry

    async def save(self) -> None:
        """Write the changes, and notify the owners of other lanes of what is due soon."""
        entries = list(self._entries.values())
        try:
            await Saver(self._connection, self._context.sql).save(entries)
        except ArrivalReused:
            self._context.abandon_block()
            raise
        notification = self._context.news(self._dues(), self._now)
        if notification is not None:
            await rows(self._connection, self._context.inside("SELECT pg_notify('tidings', %s)"), (notification,))

    async def announce(self) -> None:
        """After the commit: update the due times of our own lanes."""
        self._context.rows_added(self._dues())
        gone: dict[int, int] = {}
        for entry in self._entries.values():
            if entry.before is not None and entry.now is not entry.before and entry.before.table != "finished":
                route = route_of(entry.before)
                gone[route] = min(gone.get(route, entry.before.due), entry.before.due)
        await self._context.rows_removed(gone)

    def _dues(self) -> dict[int, int]:
        """The first due time of the rows that were put onto each route."""
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


def _goes_to_kafka(command: Command, before: Found | None) -> bool:
    add = command.add if isinstance(command, Replace) else command
    was_there = before is not None and before.part == TO_KAFKA
    return was_there or (isinstance(add, Add) and is_kafka(add.topic))


def are_new(commands: Sequence[Command]) -> bool:
    """Whether all commands add one-shots that may begin, with distinct ids that can be stored."""
    ids, nameless = set(), 0
    for command in commands:
        if type(command) is not Add or type(command.when) is not Once or command.past_refusal is not None:
            return False
        if command.id is None:
            nameless += 1
        else:
            ids.add((command.tenant, command.id))
    if len(ids) + nameless != len(commands) or not commands:
        return False
    return first_unstorable_id([schedule_id for _, schedule_id in ids]) is None
