"""The memory store: the reference implementation of the store protocols. Every method is atomic."""

import secrets
from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

from tidings.clock import Clock
from tidings.domain import errors
from tidings.domain.changes import (
    Begin,
    Continue,
    Current,
    Effect,
    Finish,
    FireExtra,
    FireOnce,
    Hold,
    Remove,
    decide,
    history,
    refusal,
)
from tidings.domain.errors import Invalid, KeyReused
from tidings.domain.fleet import Fleet, Node, Predecessor, Report, one_fleet, one_node
from tidings.domain.notifications.tables import DELIVERIES_BY_NOTIFICATION
from tidings.domain.schedules.command import Add, Command, Outcome, Replace, address
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.recurrence_state import single
from tidings.domain.schedules.reschedule import CalendarChange, Revise, Slice, calendar_of
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
from tidings.ports import ApiKey, Count, IdempotencyKey, NotificationTrace, Release, SourceBatch, SourcePosition
from tidings.ports.tables import RowKey
from tidings.timeline import store_rules
from tidings.timeline.memory.log import MemoryLog
from tidings.timeline.memory.release import Releaser
from tidings.timeline.memory.rows import Calendars, Row, Rows, forecast, page, view
from tidings.timeline.memory.tables import MemoryTables
from tidings.timeline.store_rules import (
    OUTBOX_BYTES_MAX,
    OUTBOX_ROWS_MAX,
    OutboxCapacity,
    SingleProcess,
    is_remembered,
    topic_refusal,
)

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


class MemoryStore(SingleProcess):
    """Keeps everything in this process. Its only lane is the store itself."""

    number = 0
    intakes_max = 1
    clock = None

    def __init__(
        self,
        *,
        partitions: int = 4,
        id_retention_us: int = 7 * DAY_US,
        retention_us: int = 7 * DAY_US,
        retention_bytes: int | None = None,
        idempotency_retention_us: int = 24 * HOUR_US,
        created: int = 0,
        outbox_rows_max: int = OUTBOX_ROWS_MAX,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
    ) -> None:
        self.partitions = partitions
        self._room = OutboxCapacity(outbox_rows_max, outbox_bytes_max)
        self._log = MemoryLog(partitions, retention_us, retention_bytes)
        self._rows = Rows(created, id_retention_us, self._room, held=self._log.held, leaving=self._log.leaving)
        self._calendars = Calendars(self._rows)
        self._changes = Changes(self._rows, self._calendars.days_of)
        self._idempotency_retention_us = idempotency_retention_us
        self._idempotency_keys: dict[tuple[str, str], tuple[int, bytes, list[Outcome]]] = {}
        self._keys: dict[str, ApiKey] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self.identity = secrets.token_hex(8)
        self.predecessors: Sequence[Predecessor] = ()
        self._wake: Callable[[], None] = _no_listener
        self._node: Node | None = None
        self.tables = MemoryTables(self._apply_one)

    # Timeline

    async def apply(
        self,
        commands: Sequence[Command],
        now: int,
        idempotency: IdempotencyKey | None = None,
        source: SourceBatch | None = None,
    ) -> list[Outcome]:
        """Apply all commands in order; returns an outcome for each."""
        if source is not None:
            self._advance(source.parts)
        if idempotency is not None and (outcomes := self._answered(idempotency, now)) is not None:
            return outcomes
        outcomes = [self._changes.apply(command, now) for command in commands]
        self._calendars.keep_zones(commands)
        for command in source.on_outcomes(outcomes) if source is not None else ():
            self._changes.apply(command, now)
        if idempotency is not None and is_remembered(outcomes):
            self._idempotency_keys[idempotency.tenant, idempotency.key] = (now, idempotency.body, list(outcomes))
        return outcomes

    def _apply_one(self, command: Command, now: int) -> Outcome:
        outcome = self._changes.apply(command, now)
        self._calendars.keep_zones([command])
        return outcome

    def _advance(self, parts: Sequence[SourcePosition]) -> None:
        for part in parts:
            found = self._positions.get((part.topic, part.partition), 0)
            if found != part.expected:
                raise errors.Moved(f"{part.topic}/{part.partition} is at position {found}, not at {part.expected}")
        self._positions |= {(part.topic, part.partition): part.next for part in parts}

    async def positions(self) -> dict[tuple[str, int], int]:
        """The next position to read, by request topic and partition."""
        return dict(self._positions)

    async def release(self, now: int, rows_max: int, clock: Clock | None = None) -> Release:
        """Release what is due at `now`: to the log, to the outbox, or as missed."""
        now = now if clock is None else clock.now()
        return Releaser(self._rows, self._log, now).run(rows_max)

    def next_due(self) -> int | None:
        """When the next release has work to do."""
        return self._rows.next_due()

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` when there is room in the outbox again."""
        self._wake = wake

    async def tend(self, now: int) -> bool:
        """Delete everything that is past its retention."""
        self._rows.forget(now)
        self._log.trim(now)
        self.tables.tend(now)
        since = now - self._idempotency_retention_us
        self._idempotency_keys = {key: kept for key, kept in self._idempotency_keys.items() if kept[0] > since}
        return False

    def _answered(self, idempotency: IdempotencyKey, now: int) -> list[Outcome] | None:
        """The outcomes stored for an idempotency key, unless they are past their retention."""
        kept = self._idempotency_keys.get((idempotency.tenant, idempotency.key))
        if kept is None or kept[0] <= now - self._idempotency_retention_us:
            return None
        _, body, outcomes = kept
        if body != idempotency.body:
            raise KeyReused
        return list(outcomes)

    # Calendars and time zones

    async def calendars(self, tenant: str) -> list[Calendar]:
        """All calendars of a tenant, ordered by name."""
        return self._calendars.of_tenant(tenant)

    async def calendar(self, tenant: str, name: str) -> Calendar | None:
        """One calendar; None if there is none of this name."""
        return self._calendars.calendar(tenant, name)

    async def put_calendar(self, tenant: str, calendar: Calendar) -> CalendarChange:
        """Create or replace a calendar."""
        return self._calendars.put(tenant, calendar)

    async def drop_calendar(self, tenant: str, name: str) -> CalendarChange | None:
        """Delete a calendar."""
        return self._calendars.drop(tenant, name)

    async def unsettled(self) -> list[CalendarChange]:
        """Changes that are not applied to pending occurrences yet."""
        return self._calendars.unsettled()

    async def settle_calendars(self, changes: Sequence[CalendarChange]) -> None:
        """Mark changes as applied."""
        self._calendars.settle(changes)

    async def zones(self) -> list[KeptZone]:
        """The time zone rules by which pending occurrences were computed."""
        return list(self._calendars.zones.values())

    async def keep_zone(self, zone: KeptZone, now: int) -> None:  # noqa: ARG002 - one process, one set of rules
        """Store the rules of a time zone."""
        self._calendars.keep(zone)

    async def forget_zone(self, zone: KeptZone, now: int) -> None:  # noqa: ARG002 - no other process uses them
        """Delete the rules of a time zone."""
        self._calendars.forget(zone)

    async def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        """Recompute one slice of recurring schedules after a cursor."""
        return self._calendars.revise(cursor, limit, revise, cause, now)

    async def moved(self, tenant: str, limit: int) -> list[Moved]:
        """The occurrences that were moved most recently, newest first."""
        return self._calendars.moved(tenant, limit)

    # Reading

    async def find(self, tenant: str, schedule_id: str, now: int) -> Schedule | None:
        """A schedule; None if it is unknown."""
        row = self._rows.known(tenant, schedule_id, now)
        if row is None:
            return None
        schedule = view(row, now, in_flight=self._rows.in_flight(row), held=self._held(row))
        return msgspec.structs.replace(schedule, message=self._log.message(row)) if row.is_finished else schedule

    def _held(self, row: Row) -> str | None:
        """Why its record is held back, if it is."""
        return self._log.held.get(row.offset or 0) if self._rows.in_flight(row) else None

    async def history(self, tenant: str, schedule_id: str, now: int) -> list[Event]:
        """What happened to a schedule, oldest first."""
        schedule, row = await self.find(tenant, schedule_id, now), self._rows.known(tenant, schedule_id, now)
        if schedule is None or row is None:
            return []
        return history(schedule, row.events, self._rows.forgotten_until(now))

    async def trace(self, tenant: str, notification_id: str, now: int, deliveries_max: int) -> NotificationTrace:
        """Everything about a notification."""
        [row] = await self.tables.get([RowKey("notification", tenant, notification_id)], now)
        deliveries = await self.tables.find(
            DELIVERIES_BY_NOTIFICATION, tenant, (notification_id,), now, limit=deliveries_max, newest=True
        )
        schedule = await self.find(tenant, notification_id, now)
        return NotificationTrace(row, deliveries, schedule, await self.history(tenant, notification_id, now))

    async def page(self, tenant: str, query: Query, now: int) -> Page:
        """Schedules of a tenant that match a query, pending ones first."""
        return page(self._rows.of_tenant(tenant, now), query, self._rows.in_flight, self._held)

    async def forecast(self, tenant: str, start: int, end: int, width_us: int) -> tuple[list[tuple[int, int]], bool]:
        """Pending occurrences by time; never cut short."""
        rows = [row for row in self._rows.pending() if row.add.tenant == tenant]
        return forecast(rows, start, end, width_us), False

    async def count(self, now: int) -> Count:
        """The size of the store; nothing is on disk."""
        pending = self._rows.pending()
        return Count(len(pending), sum(row.due <= now for row in pending), 0)

    # Log

    async def topics(self, tenant: str) -> list[Topic]:
        """Every topic of a tenant, by name."""
        return self._log.topics(tenant)

    async def topic(self, tenant: str, name: str) -> Topic | None:
        """One topic, None if nothing was ever released to it."""
        return self._log.topic(tenant, name)

    async def topics_by_prefix(self, prefix: str) -> list[tuple[str, Topic]]:
        """The topics of all tenants whose names start with a prefix."""
        return self._log.topics_by_prefix(prefix)

    async def read(
        self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
    ) -> list[Record]:
        """Records of one partition from an offset on, or from the first one still stored."""
        return self._log.read(tenant, topic, partition, offset, limit, bytes_max)

    async def committed(self, tenant: str, topic: str, group: str) -> dict[int, int]:
        """The committed offset of each partition."""
        return self._log.committed(tenant, topic, group)

    async def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Store the committed offsets of a group."""
        self._log.commit(tenant, topic, group, offsets)

    # Outbox

    async def outgoing(self, offset: int, limit: int) -> list[Outgoing]:
        """Records from an offset on."""
        return self._log.outgoing(offset, limit)

    async def outbox(self) -> tuple[int, int]:
        """The first stored offset, and the next offset to be assigned."""
        return self._log.outbox()

    def shut(self, is_shut: bool) -> None:
        """Stop or resume accepting records for Kafka."""
        if self._room.shut(is_shut):
            self._wake()

    def arrived(self, offset: int) -> None:
        """Everything before this offset is on Kafka."""
        if self._room.arrive(offset):
            self._wake()

    async def settle(self, offset: int) -> None:
        """The same, and delete those records."""
        self.arrived(min(offset, self._log.outbox()[1]))
        self._log.settle(offset)

    async def hold(self, offsets: Sequence[int], reason: str) -> None:
        """Hold records back."""
        self._log.hold(offsets, reason)
        self._room.leave(offsets)
        self._wake()

    async def held_topics(self) -> set[str]:
        """The topics that have records held back."""
        return self._log.held_topics()

    async def held(self, topic: str, limit: int = 1_000) -> list[Outgoing]:
        """Records of a topic that are held back."""
        return self._log.held_records(topic, limit)

    async def free(self, offsets: Sequence[int]) -> None:
        """Delete records that were held back and are on Kafka now."""
        self._log.free(offsets)

    async def drop(self, offset: int, reason: str, instead: Sequence[Command], now: int) -> None:
        """Count a record that was held back as missed."""
        self._rows.drop(offset, reason, now)
        self._log.free([offset])
        for command in instead:
            self._changes.apply(command, now)

    async def expire(self, offsets: Sequence[int], now: int) -> None:
        """Count records as missed, because they expired in the outbox."""
        for offset in offsets:
            await self.drop(offset, "expired", (), now)
        self._room.leave(offsets)

    async def left(self, offsets: Sequence[int], at: int) -> None:
        """Store when records left that had waited in the outbox."""
        for offset in offsets:
            self._rows.left(offset, at)

    # Keys

    async def keys(self) -> list[ApiKey]:
        """Every API key, by name."""
        return [self._keys[name] for name in sorted(self._keys)]

    async def add_key(self, key: ApiKey) -> None:
        """Add a key; its name must be new."""
        if key.name in self._keys:
            raise Invalid("name", f"there is a key named {key.name!r}: choose another name, or revoke that key")
        self._keys[key.name] = key

    async def revoke_key(self, name: str) -> bool:
        """Delete a key; False if there is none of this name."""
        return self._keys.pop(name, None) is not None

    # Ownership

    async def acquire(self, elapsed: int, lease_us: int, report: Report = Report()) -> bool:  # noqa: B008 - frozen
        """No other process can reach this memory, so the lane is always ours."""
        del elapsed
        self._node = one_node(self._node, report, lease_us)
        return True

    async def nodes(self, now: int) -> Fleet:
        """The one node, with the one lane."""
        return one_fleet(self._node, now, self.next_due())

    def lanes(self) -> "Sequence[MemoryStore]":
        """The one lane."""
        return (self,)

    async def confirm(self) -> None:
        """Always ours."""

    def on_free(self, listener: Callable[[], None]) -> None:
        """Nothing to do: there is no other process."""

    async def resign(self) -> None:
        """Nothing to do: there is no other process."""

    async def close(self) -> None:
        """Nothing to do."""


def _no_listener() -> None:
    """The listener until `watch` is called."""


class Changes:
    """Applies commands to the schedules, one by one."""

    def __init__(self, rows: Rows, days_of: Callable[[str, str], tuple[int, ...] | None]) -> None:
        self._rows = rows
        self._days_of = days_of
        self._topics: dict[str, set[str]] = {}  # of each tenant, for ever: other stores do not delete topics either

    def apply(self, command: Command, now: int) -> Outcome:
        """Apply one command; returns its outcome."""
        if (refused := refusal(command) or topic_refusal(command, self._may_open)) is not None:
            return refused
        tenant, schedule_id = address(command)
        row = None if schedule_id is None else self._rows.known(tenant, schedule_id, now)
        change = decide(
            command,
            None if row is None else self._current(row),
            now,
            days=self._days(command),
            remembered_since=self._rows.remembered_since(now),
        )
        outcome = change.outcome
        for effect in change.effects:
            if isinstance(effect, Begin):
                self._topics.setdefault(effect.add.tenant, set()).add(effect.add.topic)
                row = self._rows.begin(effect, now, row)
                outcome = msgspec.structs.replace(outcome, id=row.id)
            else:
                assert row is not None, "only a schedule that is known can change"
                self._apply(effect, row, now)
        return outcome

    def _may_open(self, tenant: str, topic: str) -> bool:
        """Whether a topic exists, or the tenant may have one more."""
        topics = self._topics.get(tenant, ())
        return topic in topics or len(topics) < store_rules.TOPICS_PER_TENANT_MAX

    def _days(self, command: Command) -> tuple[int, ...] | None:
        add = command.add if isinstance(command, Replace) else command
        calendar = calendar_of(add.when) if isinstance(add, Add) else None
        return None if calendar is None else self._days_of(add.tenant, calendar)

    def _current(self, row: Row) -> Current:
        return Current(
            id=row.id,
            state=row.state,
            content=row.add.content,
            generation=row.generation,
            n=row.number,
            due=row.due,
            accepted=row.accepted,
            terms=None if row.is_finished else row.terms,
            topic=row.add.topic,
            message=row.add.message,
            finished=row.finished,
            reason=row.reason,
            leaving=self._rows.in_flight(row),
            in_flight=self._rows.latest_in_flight(row),
        )

    def _apply(self, effect: Effect, row: Row, now: int) -> None:
        match effect:
            case Event():
                row.note(effect)
            case Remove():
                self._rows.withdraw(row, fires=True)
            case Finish():
                self._rows.withdraw(row, fires=True)
                self._rows.finish(row, effect.state, now)
            case Hold():
                self._rows.withdraw(row, fires=False)
                row.state, row.terms = "paused", effect.terms
            case Continue():
                row.state, row.terms = "pending", effect.terms
                self._rows.hold(row)
            case FireOnce():
                self._rows.withdraw(row, fires=False)
                row.terms, row.state, row.number, row.due = single(now, Lateness()), "pending", 1, now
                self._rows.arrive(row)
                self._rows.hold(row)
            case FireExtra():
                self._rows.hold_fire(row, now)
            case Begin():
                raise AssertionError("`apply` handles it")
            case _:
                assert_never(effect)
