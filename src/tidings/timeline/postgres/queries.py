"""Reads: schedules, histories, lists, forecasts, counts, and the log."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from tidings.domain.changes import history
from tidings.domain.names import BUSES
from tidings.domain.notifications.tables import DELIVERIES_BY_NOTIFICATION
from tidings.domain.schedules.command import FINISHED
from tidings.domain.schedules.schedule import (
    Event,
    ListPosition,
    Page,
    Query,
    Record,
    Schedule,
    Topic,
    decode_cursor,
    encode_cursor,
    is_kafka,
    join,
)
from tidings.ports import Count, NotificationTrace
from tidings.ports.tables import Row as TableRow
from tidings.ports.tables import RowKey
from tidings.timeline.postgres import database
from tidings.timeline.postgres.apply.unit_of_work import (
    STATES,
    Found,
    Loader,
    ScheduleRow,
    finished_row,
    key_of,
    present,
    recurring_row,
    timeline_row,
)
from tidings.timeline.postgres.context import StoreContext
from tidings.timeline.postgres.database import Connection, Lost
from tidings.timeline.postgres.names import SLOTS, STREAMS
from tidings.timeline.postgres.pool import Row, turn
from tidings.timeline.postgres.tables import IN_INDEX_ORDER, find_statement

STEPS_MAX = 10_000
COUNTED_MAX = 100_000
LISTS_PER_TENANT_MAX = 2  # at a time: lists are slow, and all tenants share the connections
_END = 1 << 61


def _table_rows(table: str, tenant: str, found: Sequence[Row]) -> list[TableRow]:
    return [
        TableRow(RowKey(table, tenant, name), body, version, until, order)
        for name, body, version, until, order in found
    ]


class Queries:
    """Reads that wait for no lock."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._listing: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def find(self, tenant: str, schedule_id: str, now: int) -> Schedule | None:
        """A schedule; None if it is unknown."""
        key = key_of(tenant, schedule_id)
        async with self._context.pools.reads.connection() as connection:
            loader = Loader(connection, self._context.sql, self._context.lanes, "registered")
            entry = (await loader.entries([key]))[key]
            found = entry.now
            if found is None or self._is_forgotten(found, now):
                return None
            self._context.update_in_flight([entry])
            if found.table == "finished" and found.position is not None:
                await self._fetch(connection, found)
        await self._context.names.know({found.topic}, {found.stream})
        return present(self._context.names, found, now)

    def _is_forgotten(self, found: Found, now: int) -> bool:
        return found.at is not None and found.at + self._context.options.id_retention_us <= now

    async def _fetch(self, connection: Connection, found: Found) -> None:
        """Read the message of a released one-shot from its record."""
        name = "message" if found.part >= 0 else "message_out"
        row_id = (found.topic, found.part, found.position) if found.part >= 0 else (found.lane, found.position)
        cursor = await connection.execute(self._context.sql[name].encode(), row_id, binary=True)
        row: Any = await cursor.fetchone()
        found.message = None if row is None else row[0]

    async def history(self, tenant: str, schedule_id: str, now: int) -> list[Event]:
        """What happened to a schedule, oldest first."""
        schedule = await self.find(tenant, schedule_id, now)
        if schedule is None:
            return []
        lines = [Event(*line) for line in await self._read("history", key_of(tenant, schedule_id).hex())]
        return history(schedule, lines, now - self._context.options.id_retention_us)

    async def trace(self, tenant: str, notification_id: str, now: int, deliveries_max: int) -> NotificationTrace:
        """Everything about a notification, from one snapshot and in one round trip."""
        try:
            found = await self._trace(tenant, notification_id, now, deliveries_max)
        except Lost:
            found = await self._trace(tenant, notification_id, now, deliveries_max)
        notifications, deliveries, pending, recurring, finished, lines = found
        entry = ScheduleRow(b"", 0)
        for build, several in ((timeline_row, pending), (recurring_row, recurring), (finished_row, finished)):
            if several and entry.now is None:
                entry.now = build(several[0])
        schedule, row = None, entry.now
        if row is not None and not self._is_forgotten(row, now):
            self._context.update_in_flight([entry])
            await self._context.names.know({row.topic}, {row.stream})
            schedule = present(self._context.names, row, now)
        past = now - self._context.options.id_retention_us
        return NotificationTrace(
            next(iter(_table_rows("notification", tenant, notifications)), None),
            _table_rows("delivery", tenant, deliveries),
            schedule,
            [] if schedule is None else history(schedule, [Event(*line) for line in lines], past),
        )

    async def _trace(self, tenant: str, notification_id: str, now: int, deliveries_max: int) -> list[list[Row]]:
        sql, key = self._context.sql, key_of(tenant, notification_id)
        which = key.hex()
        statement, given = find_statement(DELIVERIES_BY_NOTIFICATION, tenant, (notification_id,), None, newest=True)
        asked: list[tuple[str, Sequence[object]]] = [
            (sql["trace_notification"], (tenant, notification_id, now)),
            (database.inside(self._context.options.schema, statement), (*given, now, deliveries_max)),
            (sql["trace_timeline"], (key[0] & (self._context.lanes - 1), SLOTS, which)),
            (sql["trace_recurring"], (which,)),
            (sql["trace_finished"], (which,)),
            (sql["history"], (which,)),
        ]
        async with self._context.pools.reads.connection() as connection:
            async with connection.pipeline():
                await connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                await connection.execute(IN_INDEX_ORDER)
                cursors = [await connection.execute(text.encode(), values, binary=True) for text, values in asked]
                await connection.execute(b"COMMIT")
            return [await cursor.fetchall() for cursor in cursors]

    async def page(self, tenant: str, query: Query, now: int) -> Page:
        """Schedules of a tenant that match a query, pending ones first, by due time, then finished ones."""
        names = self._context.names
        if tenant not in names.tenants:
            await names.load()
        listing = _Listing(self._context, tenant, query, now)
        if tenant not in names.tenants:
            return Page((), None)
        async with self._turn(tenant), self._context.pools.reads.transaction() as connection:
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            found = [row async for row in listing.rows(connection)]
        await names.know({row.topic for row in found}, {row.stream for row in found})
        found.sort(key=lambda row: _list_position(row).order())
        shown = found[: query.limit]
        cursor = encode_cursor(_list_position(shown[-1])) if len(found) > len(shown) else None
        return Page(tuple(present(names, row) for row in shown), cursor)

    async def forecast(self, tenant: str, start: int, end: int, width_us: int) -> tuple[list[tuple[int, int]], bool]:
        """Pending occurrences by step of time; cut short after `STEPS_MAX` steps."""
        values = {
            "streams": await self._streams(tenant),
            "lanes": self._context.lanes,
            "start": start,
            "end": end,
            "width": width_us,
            "limit": STEPS_MAX + 1,
        }
        async with self._turn(tenant):
            steps = await self._context.pools.reads.read(self._context.sql["forecast"], values)
        shown = [(step * width_us, count) for step, count in steps[:STEPS_MAX]]
        return shown, len(steps) > STEPS_MAX

    def _turn(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Limit the concurrent lists and forecasts of a tenant."""
        return turn(self._listing.setdefault(tenant, asyncio.Semaphore(LISTS_PER_TENANT_MAX)))

    async def count(self, now: int) -> Count:
        """The size of the store; a large number of pending schedules is estimated."""
        ((counted, estimated),) = await self._read("pending", COUNTED_MAX)
        pending = counted if counted < COUNTED_MAX - 1 else max(counted, estimated)
        ((overdue,),) = await self._read("overdue", self._context.lanes, now, COUNTED_MAX)
        ((size,),) = await self._read("size", self._context.options.schema)
        return Count(pending, overdue, size)

    # Log

    async def topics(self, tenant: str, name: str | None = None) -> list[Topic]:
        """The topics of a tenant, by name; or one topic."""
        found = await self._read("topics", tenant, name, name)
        return [Topic(each, tuple(first), tuple(following), size) for each, first, following, size in found]

    async def topics_by_prefix(self, prefix: str) -> list[tuple[str, Topic]]:
        """The topics of all tenants that start with a prefix and ever had a record."""
        found = await self._read("prefixed", prefix)
        topics = [(tenant, Topic(name, tuple(first), tuple(end), size)) for tenant, name, first, end, size in found]
        return [(tenant, topic) for tenant, topic in topics if any(topic.next)]

    async def read(
        self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
    ) -> list[Record]:
        """Records of one partition from an offset on; `bytes_max` limits their total size, to one record at least."""
        number = await self._topic(tenant, topic)
        if number is None or not 0 <= partition < self._context.partitions:
            return []
        if bytes_max is None:
            found = await self._read("read", number, partition, offset, limit)
        else:
            found = await self._read("read_fitting", number, partition, offset, limit, bytes_max)
        return [Record(topic, *row) for row in found]

    async def committed(self, tenant: str, topic: str, group: str) -> dict[int, int]:
        """The committed offset of each partition."""
        number = await self._topic(tenant, topic)
        return {} if number is None else dict(await self._read("committed", number, group))

    async def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Store the committed offsets of a group."""
        if await self._topic(tenant, topic) is None:
            await self._context.names.make(tenant, topic)
        number = self._context.names.topic(tenant, topic)
        parts, following = database.int2s(list(offsets)), database.int8s(list(offsets.values()))
        await self._context.pools.reads.write(self._context.sql["commit"], (number, group, parts, following))

    async def _topic(self, tenant: str, topic: str) -> int | None:
        names = self._context.names
        if names.missing(tenant, topic):
            await names.load()
        return None if names.missing(tenant, topic) else names.topic(tenant, topic)

    async def _streams(self, tenant: str) -> list[int]:
        if tenant not in self._context.names.tenants:
            await self._context.names.load()
        return streams_of(self._context, tenant)

    async def _read(self, name: str, *values: object) -> list[Row]:
        return await self._context.pools.reads.read(self._context.sql[name], values)


def streams_of(context: StoreContext, tenant: str) -> list[int]:
    """The streams of a tenant; none if it is unknown."""
    number = context.names.tenants.get(tenant)
    return [] if number is None else list(range(number * STREAMS, (number + 1) * STREAMS))


class _Listing:
    """One page of a list."""

    def __init__(self, context: StoreContext, tenant: str, query: Query, now: int) -> None:
        self._context = context
        self._query = query
        cursor = None if query.after is None else decode_cursor(query.after)
        self._is_finished = cursor is not None and cursor.finished
        after = (-1, 0) if cursor is None or cursor.finished else (cursor.due, cursor.arrival)
        if query.due_from is not None:
            after = max(after, (query.due_from - 1, _END))
        state = "released" if query.state == "in_flight" else query.state
        number = context.names.tenants.get(tenant, -1)
        topics = [context.names.topics.get((number, join(bus, query.topic or "")), -1) for bus in BUSES]
        until = _END if query.due_to is None else query.due_to
        self._values: dict[str, object] = {
            "streams": streams_of(context, tenant),
            "lanes": context.lanes,
            "due": after[0],
            "arrival": after[1],
            "until": until,
            "from": 0 if query.due_from is None else query.due_from,
            "before": until,
            "before_arrival": -1,
            "topics": None if query.topic is None else topics,
            "prefix": query.prefix,
            "label": None if query.label is None else query.label[0],
            "value": None if query.label is None else query.label[1],
            "state": STATES.index(state) if state in FINISHED else None,
            "flying": {"in_flight": True, "released": False}.get(query.state or ""),
            "arrived": [context.next_due.arrived(lane) for lane in range(context.lanes)],
            "limit": query.limit + 1,
            "remembered": now - context.options.id_retention_us,
        }
        if cursor is not None and cursor.finished and cursor.due < until:
            self._values |= {"before": cursor.due, "before_arrival": cursor.arrival}

    async def rows(self, connection: Connection) -> Any:
        """The matching rows, each table in its order; finished ones only if the others do not fill the page."""
        state, count = self._query.state, 0
        if state in {None, "pending"} and not self._is_finished:
            for found in await self._pending(connection):
                count += 1
                yield found
        if state in {None, "paused"} and not self._is_finished:
            for row in await self._run(connection, "page_paused"):
                count += 1
                yield recurring_row(row)
        if count > self._query.limit:
            return
        if state is None or state in FINISHED or state == "in_flight":
            for found in self._finished(await self._run(connection, "page_finished")):
                yield found

    async def _pending(self, connection: Connection) -> list[Found]:
        plain = [timeline_row(row) for row in await self._run(connection, "page_pending")]
        arrivals = [found.arrival for found in plain if found.n == 0]
        if not arrivals:
            return plain
        cursor = await connection.execute(
            self._context.sql["recurring"].encode(), (database.int8s(arrivals),), binary=True
        )
        recurring = {found.arrival: found for found in map(recurring_row, await cursor.fetchall())}
        found = [recurring[each.arrival] if each.n == 0 else each for each in plain]
        return [each for each in found if self._has_label(each)]

    def _has_label(self, found: Found) -> bool:
        if self._query.label is None or found.table == "timeline":
            return True
        return found.labels is not None and _label(found.labels, self._query.label)

    def _finished(self, answer: Sequence[Row]) -> Iterator[Found]:
        for row in answer:
            entry = ScheduleRow(b"", 0)
            entry.now = finished_row(row)
            self._context.update_in_flight([entry])
            yield entry.now

    async def _run(self, connection: Connection, name: str) -> list[Row]:
        cursor = await connection.execute(self._context.sql[name].encode(), self._values, binary=True)
        return await cursor.fetchall()


def _label(labels: str, wanted: tuple[str, str]) -> bool:
    return msgspec.json.decode(labels, type=dict[str, str]).get(wanted[0]) == wanted[1]


def _list_position(found: Found) -> ListPosition:
    return ListPosition(found.table == "finished", found.due, found.arrival)


def on_log(topics: list[Topic]) -> list[Topic]:
    """The topics of the log that ever had a record."""
    return [topic for topic in topics if not is_kafka(topic.name) and any(topic.next)]
