"""The PostgreSQL store: the store protocols over one schema, whose lanes are shared by a fleet of nodes."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from tidings.clock import Clock, StoreClock, SystemClock
from tidings.domain.errors import Invalid, StoreError
from tidings.domain.fleet import Fleet, LaneState, Node, Predecessor, Report
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.schedules.command import Command, Outcome
from tidings.domain.schedules.reschedule import CalendarChange, Revise, Slice
from tidings.domain.schedules.schedule import Calendar, Event, KeptZone, Moved, Page, Query, Record, Schedule, Topic
from tidings.ports import ApiKey, Count, IdempotencyKey, NotificationTrace, SourceBatch
from tidings.timeline.migrations import Layouts, Plan, log_migration
from tidings.timeline.postgres import queries
from tidings.timeline.postgres.apply.intake import Intake
from tidings.timeline.postgres.calendars import Calendars
from tidings.timeline.postgres.context import Options, StoreContext
from tidings.timeline.postgres.database import check_schema, check_version, inside
from tidings.timeline.postgres.fleet import PartitionAssignment, Watch
from tidings.timeline.postgres.lane import PostgresLane
from tidings.timeline.postgres.migration import LAYOUTS, DocumentMigration, prepare
from tidings.timeline.postgres.pool import Pools, rows
from tidings.timeline.postgres.queries import Queries
from tidings.timeline.postgres.retention import Retention, Vacuum
from tidings.timeline.postgres.tables import PostgresTables
from tidings.timeline.postgres.transfer import PostgresEndpoint
from tidings.timeline.transfer.protocol import HasMoved, decode_move, predecessors_of

_META = "SELECT lanes, partitions, created, identity FROM tidings.meta"
_ADD_KEY = "INSERT INTO tidings.api_key VALUES (%s, %s, %s, %s, %s) ON CONFLICT (name) DO NOTHING RETURNING 1"
_CONNECTIONS_ALLOWED = (
    "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
)
_KEYS = "SELECT name, tenant, digest, admin, created FROM tidings.api_key ORDER BY name"
_REVOKE_KEY = "DELETE FROM tidings.api_key WHERE name = %s RETURNING 1"


class PostgresStore:
    """One schema of a database. Any node accepts changes and answers reads; a lane is released by its owner."""

    intakes_max = 3

    def __init__(self, pools: Pools, context: StoreContext, clock: Clock) -> None:
        self._pools = pools
        self._pool = pools.work
        self._context = context
        self.clock = StoreClock(clock)
        self._calendars = Calendars(context)
        self._intake = Intake(pools.intake, context, self._calendars)
        self._queries = Queries(context)
        self.tables = PostgresTables(pools.tables, self._intake, context.options.schema)
        self._retention = Retention(context, self.tables)
        self._lanes: dict[int, PostgresLane] = {}
        self._node = uuid4()
        self._free: Callable[[], None] = _no_listener
        self._watch = Watch(context, self.clock, self._node, self._lanes_are_free)
        self._vacuum = Vacuum(context, lambda: any(lane.number == 0 for lane in self.lanes()))
        channels: tuple[ChannelName | None, ...] = (None, *CHANNEL_NAMES)  # None: the requests of intake
        self._assignments = {channel: PartitionAssignment(self._node, self.clock.elapsed) for channel in channels}
        self._acquiring = asyncio.Lock()
        self._has_joined = False
        self.partitions = context.partitions
        self.lanes_total = context.lanes
        self.group_membership = self._watch.group_membership

    @classmethod
    async def open(
        cls,
        dsn: str,
        clock: Clock | None = None,
        *,
        layouts: Path = LAYOUTS,
        moved_too: bool = False,
        **options: Any,
    ) -> "PostgresStore":
        """Open a store, or create it. Options are those of `Options`.

        `OldLayout` if it must be migrated first, `HasMoved` if the store was moved elsewhere.
        """
        chosen = msgspec.convert(options, Options)
        schema = check_schema(chosen.schema)
        pools = Pools(dsn, chosen.processes)
        try:
            async with pools.first.connection() as connection:
                check_version(connection.info.server_version)
                await prepare(connection, schema, Layouts(layouts), chosen.lanes, chosen.partitions, chosen.created)
                moved = await rows(connection, inside(schema, "SELECT move FROM tidings.moved"))
                if moved and not moved_too:
                    raise HasMoved(decode_move(moved[0][0]))
                ((lanes, partitions, created, identity),) = await rows(connection, inside(schema, _META))
                transfers = await rows(connection, inside(schema, "SELECT progress FROM tidings.carried"))
            context = StoreContext(
                pools,
                chosen,
                lanes=lanes,
                partitions=partitions,
                created=created,
                identity=identity,
                predecessors=predecessors_of(transfers),
            )
            await context.names.load()
            store = cls(pools, context, clock or SystemClock())
            await store._measure()
            await store._move_documents(schema, Layouts(layouts).known)
        except BaseException:
            await pools.close()
            raise
        store._watch.start()
        store._vacuum.start()
        return store

    async def _move_documents(self, schema: str, layout: int) -> None:
        """Move the documents of version 0.1 to tables, if there are any."""
        started = self.clock.elapsed()
        if await DocumentMigration(self._pools.work, self.tables, schema).run(self.clock.now()):
            log_migration(f"the schema {schema}", Plan(layout, layout), self.clock.elapsed() - started)

    async def close(self) -> None:
        """Give up our lanes and close all connections."""
        await self._watch.stop()
        await self._vacuum.stop()
        await self._watch.subscriptions.close()
        if self._has_joined:
            with contextlib.suppress(StoreError):  # then the leases expire
                await self.resign()
        await self._pools.close()

    @property
    def connections_max(self) -> int:
        """How many connections all processes of this node open at most."""
        return self._pools.connections_max

    async def connections_allowed(self) -> int:
        """How many connections the server accepts; behind a pooler nothing is known, and the answer is our own need."""
        ((allowed,),) = await self._pools.first.read(_CONNECTIONS_ALLOWED)
        return int(allowed) if self._pools.first.is_direct else self.connections_max

    @property
    def identity(self) -> str:
        return self._context.identity

    @property
    def predecessors(self) -> Sequence[Predecessor]:
        return self._context.predecessors

    def transfer_endpoint(self) -> PostgresEndpoint:
        """This store as the source or target of a transfer."""
        return PostgresEndpoint(self._context, self.tables)

    # Timeline

    def apply(
        self,
        commands: Sequence[Command],
        now: int,
        idempotency: IdempotencyKey | None = None,
        source: SourceBatch | None = None,
    ) -> Awaitable[list[Outcome]]:
        return asyncio.ensure_future(self._intake.apply(commands, now, idempotency, source))

    async def positions(self) -> dict[tuple[str, int], int]:
        return await self._context.positions()

    async def tend(self, now: int) -> bool:
        return await self._retention.trim(self.lanes(), now)

    # Calendars and time zones

    async def calendars(self, tenant: str) -> list[Calendar]:
        return await self._calendars.calendars(tenant)

    async def calendar(self, tenant: str, name: str) -> Calendar | None:
        return await self._calendars.calendar(tenant, name)

    async def put_calendar(self, tenant: str, calendar: Calendar) -> CalendarChange:
        return await self._calendars.put(tenant, calendar)

    async def drop_calendar(self, tenant: str, name: str) -> CalendarChange | None:
        return await self._calendars.drop(tenant, name)

    async def unsettled(self) -> list[CalendarChange]:
        return await self._calendars.unsettled()

    async def settle_calendars(self, changes: Sequence[CalendarChange]) -> None:
        await self._calendars.settle(changes)

    async def zones(self) -> list[KeptZone]:
        return await self._calendars.zones()

    async def keep_zone(self, zone: KeptZone, now: int) -> None:
        await self._calendars.keep(zone, now)

    async def forget_zone(self, zone: KeptZone, now: int) -> None:
        await self._calendars.forget(zone, now)

    async def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        return await self._intake.revise(cursor, limit, revise, cause, now)

    async def moved(self, tenant: str, limit: int) -> list[Moved]:
        return await self._calendars.moved(tenant, limit)

    # Reading

    async def find(self, tenant: str, schedule_id: str, now: int) -> Schedule | None:
        return await self._queries.find(tenant, schedule_id, now)

    async def history(self, tenant: str, schedule_id: str, now: int) -> list[Event]:
        return await self._queries.history(tenant, schedule_id, now)

    async def trace(self, tenant: str, notification_id: str, now: int, deliveries_max: int) -> NotificationTrace:
        return await self._queries.trace(tenant, notification_id, now, deliveries_max)

    async def page(self, tenant: str, query: Query, now: int) -> Page:
        return await self._queries.page(tenant, query, now)

    async def forecast(self, tenant: str, start: int, end: int, width_us: int) -> tuple[list[tuple[int, int]], bool]:
        return await self._queries.forecast(tenant, start, end, width_us)

    async def count(self, now: int) -> Count:
        return await self._queries.count(now)

    # Log

    async def topics(self, tenant: str) -> list[Topic]:
        return queries.on_log(await self._queries.topics(tenant))

    async def topic(self, tenant: str, name: str) -> Topic | None:
        found = await self._queries.topics(tenant, name)
        return found[0] if found else None

    async def topics_by_prefix(self, prefix: str) -> list[tuple[str, Topic]]:
        return await self._queries.topics_by_prefix(prefix)

    async def read(
        self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
    ) -> list[Record]:
        return await self._queries.read(tenant, topic, partition, offset, limit, bytes_max)

    async def committed(self, tenant: str, topic: str, group: str) -> dict[int, int]:
        return await self._queries.committed(tenant, topic, group)

    async def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        await self._queries.commit(tenant, topic, group, offsets)

    async def subscribe(self, tenant: str, topic: str) -> None:
        await self._watch.subscriptions.subscribe((tenant, topic))

    def unsubscribe(self, tenant: str, topic: str) -> None:
        self._watch.subscriptions.unsubscribe((tenant, topic))

    def on_records(self, listener: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        self._watch.subscriptions.listeners.append(listener)

    # Keys

    async def keys(self) -> list[ApiKey]:
        return [ApiKey(*row) for row in await self._pools.reads.read(self._context.inside(_KEYS))]

    async def add_key(self, key: ApiKey) -> None:
        row = (key.name, key.tenant, key.digest, key.admin, key.created)
        if not await self._pools.reads.call(self._context.inside(_ADD_KEY), row):
            raise Invalid("name", f"there is a key named {key.name} already: revoke it or use another name")

    async def revoke_key(self, name: str) -> bool:
        return bool(await self._pools.reads.call(self._context.inside(_REVOKE_KEY), (name,)))

    # Ownership

    async def acquire(self, elapsed: int, lease_us: int, report: Report = Report()) -> bool:  # noqa: B008 - frozen
        """Renew our leases and take our share of lanes. Any node accepts changes, with or without a lane."""
        self._watch.check()
        async with self._acquiring:
            await self._measure()
            report = msgspec.structs.replace(report, ahead_us=self.clock.ahead_us())
            values = (self._node, lease_us, list(report.roles), msgspec.json.encode(report).decode())
            self._has_joined = True  # set before the call, whose result may be lost
            owned = await self._pools.first.call(self._context.sql["acquire"], values)
            readers = await self._pools.first.read(self._context.sql["readers"])
            reports = [(node, msgspec.json.decode(each, type=Report)) for node, each in readers]
            for channel, assignment in self._assignments.items():
                assignment.update([node for node, each in reports if _reads(each, channel)], elapsed + lease_us)
            new = self._own(owned, elapsed + lease_us)
            if new:
                await self._context.look([route for number in new for route in (number, ~number)], whole=True)
        return True

    async def _measure(self) -> None:
        """Measure the clock of the store in a separate call: a call that also writes takes too long."""
        sent = self.clock.elapsed()
        ((store_now,),) = await self._pools.first.read(self._context.sql["now"])
        self.clock.measure(sent, store_now, self.clock.elapsed())

    async def nodes(self, now: int) -> Fleet:
        """The nodes that renewed their leases recently, and the lanes as the store knows them."""
        found = await self._pools.reads.read(self._context.sql["nodes"])
        lanes = await self._pools.reads.read(self._context.sql["lanes"])
        return Fleet(
            [
                Node(node.hex, since, until, is_alive, msgspec.json.decode(report, type=Report))
                for node, since, until, is_alive, report in found
            ],
            [
                LaneState(lane, node and node.hex, node and since, 0 if due is None else max(0, now - due))
                for lane, node, since, due in lanes
            ],
        )

    def _own(self, owned: list[tuple[Any, ...]], until: int) -> list[int]:
        """Update the lanes that we own and the end of their leases; returns the new ones."""
        new = []
        for number in self._lanes.keys() - {number for number, *_ in owned}:
            self._disown(number)
        for number, token, first in owned:
            lane = self._lanes.get(number)
            if lane is None or lane.token != token:
                self._disown(number)
                lane = PostgresLane(self._context, self._intake, number, token, self.clock.elapsed)
                lane.arrived(first)
                self._lanes[number] = lane
                new.append(number)
            lane.renew(until)
        return new

    def _disown(self, number: int) -> None:
        self._lanes.pop(number, None)
        self._context.next_due.disown(number)

    def lanes(self) -> Sequence[PostgresLane]:
        """The lanes whose lease is valid by our own clock, counted from before it was requested."""
        return [lane for _, lane in sorted(self._lanes.items()) if lane.is_ours]

    def reads(self, source: str, partition: int, channel: ChannelName | None = None) -> bool:
        return self._assignments[channel].reads(source, partition)

    def on_free(self, listener: Callable[[], None]) -> None:
        """Call the listener when another node has given up lanes."""
        self._free = listener

    def _lanes_are_free(self) -> None:
        self._free()

    async def resign(self) -> None:
        async with self._acquiring:  # an acquire in progress would take them again
            for assignment in self._assignments.values():
                assignment.update((), 0)
            for number in list(self._lanes):
                self._disown(number)
            await self._pools.first.call(self._context.sql["resign"], (self._node,))
            self._has_joined = False


def _no_listener() -> None:
    """The listener until `on_free` is called."""


def _reads(report: Report, channel: ChannelName | None) -> bool:
    """Whether a node reads partitions of a channel, or those of requests."""
    return "intake" in report.roles if channel is None else report.delivers(channel)
