"""The SQLite store: each method of the store protocols, run on the thread that may run it."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from tidings.clock import Clock, SystemClock
from tidings.domain.errors import Invalid, NotOwner, StoreError
from tidings.domain.fleet import Fleet, Predecessor, Report, one_fleet
from tidings.domain.notifications.tables import DELIVERIES_BY_NOTIFICATION
from tidings.domain.schedules.command import Command, Outcome
from tidings.domain.schedules.reschedule import CalendarChange, Revise, Slice
from tidings.domain.schedules.schedule import (
    Calendar,
    Event,
    KeptZone,
    Moved,
    Outgoing,
    Page,
    Query,
    Record,
    Schedule,
    Topic,
)
from tidings.ports import ApiKey, Count, NotificationTrace, Release
from tidings.ports.tables import RowKey
from tidings.timeline.migrations import log_migration
from tidings.timeline.sqlite import calendars, id_lookup, queries, tables, writer
from tidings.timeline.sqlite.calendars import Calendars
from tidings.timeline.sqlite.database import LAYOUTS, Checkpointer, connect, explain, file_bytes, prepare, translated
from tidings.timeline.sqlite.document_migration import migrate_file
from tidings.timeline.sqlite.intake import Intake
from tidings.timeline.sqlite.maintenance import Maintenance
from tidings.timeline.sqlite.pending.wheel import Wheel
from tidings.timeline.sqlite.release import log, outbox
from tidings.timeline.sqlite.release.release import Releaser
from tidings.timeline.sqlite.tables import SqliteTables
from tidings.timeline.sqlite.transfer import SqliteEndpoint
from tidings.timeline.sqlite.writer import PARTITIONS_MAX, DatabaseThread, Lease, Options, Writer, owner
from tidings.timeline.store_rules import SingleProcess
from tidings.timeline.transfer.protocol import HasMoved

READ_TRIES_MAX = 20


@contextlib.contextmanager
def _known_names() -> Iterator[None]:
    """An unknown topic was created by another process, so this process does not own the store any more."""
    try:
        yield
    except KeyError:
        raise NotOwner("another process owns this store") from None


def _no_listener() -> None:
    """The listener until `watch` is called."""


class SqliteStore(SingleProcess):
    """One file, with one lane: the store itself.

    Short reads run on the event loop. One thread writes, one scans, and one reads the outbox.
    """

    number = 0
    intakes_max = 1
    clock = None

    def __init__(self, path: str, options: Options) -> None:
        self.path = path
        self._connection = connect(path)
        self._writer = Writer(self._connection, options)
        self.partitions = self._writer.partitions
        self.next_due = self._writer.next_due
        self._version = 0
        self._wake: Callable[[], None] = _no_listener
        self._reader = connect(path, reader=True)
        self._scanner = connect(path, reader=True)
        self._forwarder = connect(path, reader=True)
        wheel = Wheel(self._writer)
        self._intake = Intake(self._writer)
        self._calendars = Calendars(self._writer)
        self._releaser = Releaser(self._writer, wheel)
        self._maintenance = Maintenance(self._writer, wheel)
        self._lease = Lease(self._writer)
        self._writer_thread = DatabaseThread("tidings-writer")
        self._scanner_thread = DatabaseThread("tidings-scanner")
        self._forwarder_thread = DatabaseThread("tidings-outbox")  # not delayed by long lists
        self.apply: Callable[..., Awaitable[list[Outcome]]] = partial(self._writer_thread.start, self._intake.apply)
        self.release: Callable[..., Awaitable[Release]] = partial(
            self._writer_thread.start_next, self._releaser.release
        )
        self.tables = SqliteTables(
            path, self._writer, self._intake, writer_thread=self._writer_thread, reader=self._reader
        )
        self._checkpointer = Checkpointer(path, self._finish_checkpoint)
        self._writer.on_long_log(self._checkpointer.wake)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        clock: Clock | None = None,
        *,
        layouts: Path = LAYOUTS,
        moved_too: bool = False,
        **options: Any,
    ) -> "SqliteStore":
        """Open the file; create or migrate it first if necessary. Options are those of `Options`.

        `HasMoved` if the store was moved elsewhere.
        """
        chosen = msgspec.convert(options, Options)
        if not 1 <= chosen.partitions <= PARTITIONS_MAX:
            raise Invalid("partitions", f"must be between 1 and {PARTITIONS_MAX}")
        timer = clock or SystemClock()
        started = timer.elapsed()
        plan = prepare(str(path), layouts)
        try:
            had_documents = migrate_file(str(path))
            if plan.version and (plan.steps or had_documents):
                log_migration(str(path), plan, timer.elapsed() - started)
            store = cls(str(path), chosen)
        except apsw.Error as error:
            raise StoreError(f"{path}: {explain(error)}") from error
        if not moved_too and (move := writer.moved(store._reader)) is not None:
            await store.close()
            raise HasMoved(move)
        return store

    def transfer_endpoint(self) -> SqliteEndpoint:
        """This store as the source or target of a transfer."""
        return SqliteEndpoint(
            self._writer,
            self._lease,
            self._maintenance,
            writer_thread=self._writer_thread,
            scanner=self._scanner,
            scanner_thread=self._scanner_thread,
        )

    async def close(self) -> None:
        """Finish the calls in progress, give up the lease, and close the file without a write-ahead log."""
        with contextlib.suppress(StoreError):  # then the lease expires
            await self._writer_thread.run(self._lease.resign)
        self._checkpointer.close()
        await self._writer_thread.close()
        await self._scanner_thread.close()
        await self._forwarder_thread.close()
        await self.tables.close()
        for connection in (self._reader, self._scanner, self._forwarder, self._connection):
            connection.close()

    def _finish_checkpoint(self) -> None:
        """Do the rest of a checkpoint between two transactions of the writer, before others make it longer."""
        self._writer_thread.post_next(self._connection.wal_checkpoint)

    @property
    def identity(self) -> str:
        return self._writer.identity

    @property
    def predecessors(self) -> Sequence[Predecessor]:
        return self._writer.predecessors

    # Timeline

    @translated
    async def positions(self) -> dict[tuple[str, int], int]:
        return outbox.positions(self._reader)

    def watch(self, wake: Callable[[], None]) -> None:
        """No other process can change what is due; `wake` is called when there is room in the outbox again."""
        self._wake = wake

    async def tend(self, now: int) -> bool:
        return await self._writer_thread.run(self._maintenance.tend, now)

    # Calendars and time zones

    @translated
    async def calendars(self, tenant: str) -> list[Calendar]:
        return calendars.calendars(self._reader, tenant)

    @translated
    async def calendar(self, tenant: str, name: str) -> Calendar | None:
        return calendars.calendar(self._reader, tenant, name)

    async def put_calendar(self, tenant: str, calendar: Calendar) -> CalendarChange:
        return await self._writer_thread.run(self._calendars.put, tenant, calendar)

    async def drop_calendar(self, tenant: str, name: str) -> CalendarChange | None:
        return await self._writer_thread.run(self._calendars.drop, tenant, name)

    @translated
    async def unsettled(self) -> list[CalendarChange]:
        return calendars.unsettled(self._reader)

    async def settle_calendars(self, changes: Sequence[CalendarChange]) -> None:
        await self._writer_thread.run(self._calendars.settle, changes)

    @translated
    async def zones(self) -> list[KeptZone]:
        return calendars.kept_zones(self._reader)

    async def keep_zone(self, zone: KeptZone, now: int) -> None:  # noqa: ARG002 - one process, one set of rules
        await self._writer_thread.run(self._calendars.keep, zone)

    async def forget_zone(self, zone: KeptZone, now: int) -> None:  # noqa: ARG002 - no other process uses them
        await self._writer_thread.run(self._calendars.forget, zone)

    async def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        return await self._writer_thread.run(self._calendars.revise, cursor, limit, revise, cause, now)

    @translated
    async def moved(self, tenant: str, limit: int) -> list[Moved]:
        return calendars.recent_moves(self._reader, tenant, limit)

    # Reading

    @translated
    async def find(self, tenant: str, schedule_id: str, now: int) -> Schedule | None:
        for _ in range(READ_TRIES_MAX):
            await self._refresh()
            with contextlib.suppress(KeyError):  # a name that this standby does not know yet
                found = self._find(tenant, schedule_id, now)
                if found is not None:
                    return id_lookup.present(self._writer, found, now)
            if not await self._is_outdated():
                return None
        return None

    def _find(self, tenant: str, schedule_id: str, now: int) -> id_lookup.Found | None:
        """Search all tables; again if a commit may have moved the row between two of them."""
        for _ in range(READ_TRIES_MAX):
            version = self._reader.pragma("data_version")
            found = id_lookup.find(self._reader, self._writer, tenant, schedule_id, now)
            if found is not None and found.message is None and found.position is not None:
                found.message = outbox.message_at(self._reader, found.position)
            if found is not None or version == self._reader.pragma("data_version"):
                return found
        return None

    @translated
    async def history(self, tenant: str, schedule_id: str, now: int) -> list[Event]:
        schedule = await self.find(tenant, schedule_id, now)
        return [] if schedule is None else queries.history(self._reader, self._writer, schedule, now)

    @translated
    async def trace(self, tenant: str, notification_id: str, now: int, deliveries_max: int) -> NotificationTrace:
        for _ in range(READ_TRIES_MAX):
            await self._refresh()
            version = self._reader.pragma("data_version")
            with contextlib.suppress(KeyError):
                found = self._trace(tenant, notification_id, now, deliveries_max)
                is_current = version == self._reader.pragma("data_version")
                if found.schedule is not None or (is_current and not await self._is_outdated()):
                    return found
        return self._trace(tenant, notification_id, now, deliveries_max)

    def _trace(self, tenant: str, notification_id: str, now: int, deliveries_max: int) -> NotificationTrace:
        with self._reader:  # one snapshot
            [row] = tables.get(self._reader, [RowKey("notification", tenant, notification_id)], now)
            values = (tenant, notification_id, now, deliveries_max)
            deliveries = tables.find(self._reader, DELIVERIES_BY_NOTIFICATION, values, newest=True)
            found = id_lookup.find(self._reader, self._writer, tenant, notification_id, now)
            schedule = None if found is None else id_lookup.present(self._writer, found, now)
            events = [] if schedule is None else queries.history(self._reader, self._writer, schedule, now)
        return NotificationTrace(row, deliveries, schedule, events)

    async def page(self, tenant: str, query: Query, now: int) -> Page:
        for _ in range(READ_TRIES_MAX):
            await self._refresh()
            with contextlib.suppress(KeyError):
                return await self._scanner_thread.run(
                    queries.Pages(self._scanner, self._writer, tenant, query, now).page
                )
        raise StoreError("the store changes faster than this standby can read it: ask the active node, or try again")

    async def forecast(self, tenant: str, start: int, end: int, width_us: int) -> tuple[list[tuple[int, int]], bool]:
        return await self._scanner_thread.run(queries.forecast, self._scanner, tenant, start, end, width_us)

    async def count(self, now: int) -> Count:
        await self._refresh()
        overdue = await self._scanner_thread.run(queries.overdue, self._scanner, self._writer, now)
        return Count(self._writer.pending, overdue, await self._scanner_thread.run(file_bytes, self.path))

    async def _refresh(self) -> None:
        """Load the in-memory state again if another process owns the file, or a transaction failed."""
        if self._writer.token is None:
            await self._writer_thread.run(self._reload)
        elif self._writer.stale:
            await self._writer_thread.run(self._writer.refresh)

    async def _is_outdated(self) -> bool:
        """Whether another process has changed the file since we loaded it."""
        return self._writer.token is None and await self._writer_thread.run(
            lambda: self._connection.pragma("data_version") != self._version
        )

    def _reload(self) -> None:
        version = self._connection.pragma("data_version")
        if version != self._version:
            with self._connection:  # one snapshot
                self._writer.load()
            self._version = version

    # Log

    async def topics(self, tenant: str) -> list[Topic]:
        return await self._scanner_thread.run(log.topics, self._scanner, tenant)

    async def topics_by_prefix(self, prefix: str) -> list[tuple[str, Topic]]:
        return await self._scanner_thread.run(log.topics_by_prefix, self._scanner, prefix)

    @translated
    async def topic(self, tenant: str, name: str) -> Topic | None:
        return log.topic(self._reader, tenant, name)

    @translated
    async def read(
        self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
    ) -> list[Record]:
        return log.read(self._reader, tenant, topic, partition, offset, limit, bytes_max)

    @translated
    async def committed(self, tenant: str, topic: str, group: str) -> dict[int, int]:
        return log.committed(self._reader, tenant, topic, group)

    async def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        await self._writer_thread.run(self._commit, tenant, topic, group, offsets)

    def _commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        with self._writer.transaction() as connection:
            log.commit(connection, self._writer.topic_of(tenant, topic), group, offsets)

    # Outbox

    async def outgoing(self, offset: int, limit: int) -> list[Outgoing]:
        with _known_names():
            return await self._forwarder_thread.run(outbox.outgoing, self._forwarder, self._writer, offset, limit)

    @translated
    async def outbox(self) -> tuple[int, int]:
        return outbox.span(self._reader)

    def shut(self, is_shut: bool) -> None:
        if self._writer.room.shut(is_shut):
            self._wake()

    def arrived(self, offset: int) -> None:
        if self._writer.room.arrive(offset):
            self._wake()

    async def settle(self, offset: int) -> None:
        while await self._writer_thread.run(outbox.settle, self._writer, offset):
            pass
        self._wake()

    async def hold(self, offsets: Sequence[int], reason: str) -> None:
        await self._writer_thread.run(outbox.hold, self._writer, offsets, reason)
        self._wake()

    @translated
    async def held_topics(self) -> set[str]:
        with _known_names():
            return outbox.held_topics(self._reader, self._writer)

    async def held(self, topic: str, limit: int = 1_000) -> list[Outgoing]:
        with _known_names():
            return await self._forwarder_thread.run(outbox.held, self._forwarder, self._writer, topic, limit)

    async def free(self, offsets: Sequence[int]) -> None:
        await self._writer_thread.run(outbox.free, self._writer, offsets)

    async def drop(self, offset: int, reason: str, instead: Sequence[Command], now: int) -> None:
        await self._writer_thread.run(self._intake.drop, offset, reason, instead, now)

    async def expire(self, offsets: Sequence[int], now: int) -> None:
        await self._writer_thread.run(outbox.expire, self._writer, offsets, now)

    async def left(self, offsets: Sequence[int], at: int) -> None:
        await self._writer_thread.run(outbox.left, self._writer, offsets, at)

    # Keys

    @translated
    async def keys(self) -> list[ApiKey]:
        rows = self._reader.execute("SELECT name, tenant, digest, admin, created FROM api_key ORDER BY name")
        return [ApiKey(name, tenant, digest, admin == 1, created) for name, tenant, digest, admin, created in rows]

    async def add_key(self, key: ApiKey) -> None:
        await self._writer_thread.run(self._add_key, key)

    def _add_key(self, key: ApiKey) -> None:
        row = (key.name, key.tenant, key.digest, key.admin, key.created)
        try:
            self._connection.execute("INSERT INTO api_key VALUES (?, ?, ?, ?, ?)", row)
        except apsw.ConstraintError:
            raise Invalid("name", f"there is a key named {key.name} already: revoke it or use another name") from None

    async def revoke_key(self, name: str) -> bool:
        return await self._writer_thread.run(self._revoke_key, name)

    def _revoke_key(self, name: str) -> bool:
        self._connection.execute("DELETE FROM api_key WHERE name = ?", (name,))
        return int(self._connection.changes()) == 1

    # Ownership

    async def acquire(self, elapsed: int, lease_us: int, report: Report = Report()) -> bool:  # noqa: B008 - frozen
        return await self._writer_thread.run(self._acquire, elapsed, lease_us, report)

    def _acquire(self, elapsed: int, lease_us: int, report: Report) -> bool:
        owns, new = self._lease.acquire(elapsed, lease_us, report)
        if new:
            self._maintenance.begin()
        self._writer.refresh()
        return owns

    @translated
    async def nodes(self, now: int) -> Fleet:
        """The owner of the file; a standby knows it too."""
        await self._refresh()
        due = await self._scanner_thread.run(queries.first_overdue, self._scanner, self._writer, now)
        return one_fleet(owner(self._reader), now, due)

    def lanes(self) -> "Sequence[SqliteStore]":
        return (self,) if self._writer.token is not None else ()

    async def confirm(self) -> None:
        await self._writer_thread.run(self._confirm)

    def _confirm(self) -> None:
        with self._writer.transaction():
            pass

    def on_free(self, listener: Callable[[], None]) -> None:
        """Nothing to do: a standby polls."""

    async def resign(self) -> None:
        await self._writer_thread.run(self._lease.resign)
