"""Calendars and time zone rules, and the recurring schedules that a change of them moves."""

from collections.abc import Iterable, Sequence

import msgspec

from tidings.domain.recurrence import timezone
from tidings.domain.schedules.command import Add, Command, Replace
from tidings.domain.schedules.recurrence_state import revised
from tidings.domain.schedules.reschedule import CalendarChange, Pending, Revise, Seen, Slice, calendar_of, zone_of
from tidings.domain.schedules.schedule import Calendar, Event, KeptZone, Moved
from tidings.domain.schedules.when import DAY_US, When
from tidings.timeline import store_rules
from tidings.timeline.postgres import database
from tidings.timeline.postgres.apply.unit_of_work import Found, ScheduleRow, key_of, recurring_row
from tidings.timeline.postgres.context import StoreContext
from tidings.timeline.postgres.database import Connection
from tidings.timeline.postgres.pool import rows

Days = dict[tuple[str, str], tuple[int, ...]]

MIXED_US = 7 * DAY_US  # how long nodes of a fleet may differ in their time zone rules

_COLUMNS = "name, days, changed FROM tidings.calendar WHERE NOT dropped"
_CALENDARS = f"SELECT {_COLUMNS} AND tenant = %s ORDER BY name"
_CALENDAR = f"SELECT {_COLUMNS} AND tenant = %s AND name = %s"
_USED = """
SELECT c.tenant, c.name, c.days FROM tidings.calendar c JOIN unnest(%s, %s) AS used(tenant, name)
ON c.tenant = used.tenant AND c.name = used.name WHERE NOT c.dropped ORDER BY 1, 2 FOR SHARE OF c
"""
_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_COUNT = """
SELECT count(*), coalesce(bool_or(name = %s), false) FROM tidings.calendar WHERE tenant = %s AND NOT dropped
"""
_PUT = """
INSERT INTO tidings.calendar AS c (tenant, name, days, changed, turn) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (tenant, name) DO UPDATE SET days = excluded.days, changed = excluded.changed,
turn = greatest(excluded.turn, c.turn + 1), settled = false, dropped = false RETURNING turn
"""
_DROP = """
UPDATE tidings.calendar SET days = %s, turn = turn + 1, settled = false, dropped = true
WHERE tenant = %s AND name = %s AND NOT dropped RETURNING turn
"""
_UNSETTLED = "SELECT tenant, name, turn FROM tidings.calendar WHERE NOT settled ORDER BY tenant, name"
_SETTLE = "UPDATE tidings.calendar SET settled = true WHERE tenant = %s AND name = %s AND turn = %s AND NOT dropped"
_SETTLE_DROPPED = "DELETE FROM tidings.calendar WHERE tenant = %s AND name = %s AND turn = %s AND dropped"
_ZONES = "SELECT name, version, content FROM tidings.zone ORDER BY name, digest"
_KEEP = "INSERT INTO tidings.zone VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
_FORGET = """
DELETE FROM tidings.zone WHERE name = %s AND digest = %s
AND EXISTS (SELECT 1 FROM tidings.zone WHERE name = %s AND digest = %s AND kept < %s)
"""
_AFTER = "SELECT arrival FROM tidings.standing WHERE arrival > %s ORDER BY arrival LIMIT %s"
_REMEMBER = """
INSERT INTO tidings.movement (at, cause, tenant, id, occurrence, before, after)
SELECT * FROM unnest(%s, %s, %s, %s, %s, %s, %s)
"""
_TRIM = """
DELETE FROM tidings.movement WHERE tenant = %s AND entry <=
(SELECT entry FROM tidings.movement WHERE tenant = %s ORDER BY entry DESC LIMIT 1 OFFSET %s)
"""
_MOVED = """
SELECT at, cause, tenant, id, occurrence, before, after FROM tidings.movement
WHERE tenant = %s ORDER BY entry DESC LIMIT %s
"""


class Calendars:
    """The calendars and time zone rules of one schema."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._kept: set[str] = set()

    async def calendars(self, tenant: str) -> list[Calendar]:
        """All calendars of a tenant, ordered by name."""
        found = await self._context.pool.read(self._context.inside(_CALENDARS), (tenant,))
        return [_calendar(*row) for row in found]

    async def calendar(self, tenant: str, name: str) -> Calendar | None:
        """One calendar; None if there is none of this name."""
        found = await self._context.pool.read(self._context.inside(_CALENDAR), (tenant, name))
        return _calendar(*found[0]) if found else None

    async def put(self, tenant: str, calendar: Calendar) -> CalendarChange:
        """Create or replace a calendar; waits for transactions that use the old one."""
        inside = self._context.inside
        async with self._context.pool.transaction() as connection:
            await rows(connection, _ALONE, (f"tidings calendars {self._context.identity} {tenant}",))
            [(count, known)] = await rows(connection, inside(_COUNT), (calendar.name, tenant))
            if not known and count >= store_rules.CALENDARS_MAX:
                raise store_rules.too_many_calendars()
            [(turn,)] = await rows(connection, inside(_PUT), _row(tenant, calendar))
        return CalendarChange(tenant, calendar.name, turn)

    async def drop(self, tenant: str, name: str) -> CalendarChange | None:
        """Delete a calendar."""
        values = (store_rules.encode_days(()), tenant, name)
        found = await self._context.pool.call(self._context.inside(_DROP), values)
        return CalendarChange(tenant, name, found[0][0]) if found else None

    async def unsettled(self) -> list[CalendarChange]:
        """Changes that are not applied to pending occurrences yet."""
        return [CalendarChange(*row) for row in await self._context.pool.read(self._context.inside(_UNSETTLED))]

    async def settle(self, changes: Sequence[CalendarChange]) -> None:
        """Mark changes as applied."""
        for change in changes:
            for statement in (_SETTLE, _SETTLE_DROPPED):
                values = (change.tenant, change.name, change.turn)
                await self._context.pool.call(self._context.inside(statement), values)

    async def zones(self) -> list[KeptZone]:
        """The time zone rules by which pending occurrences were computed."""
        return [KeptZone(*row) for row in await self._context.pool.read(self._context.inside(_ZONES))]

    async def keep(self, zone: KeptZone, now: int) -> None:
        """Store the rules of a time zone."""
        row = (zone.name, timezone.digest_of(zone.content), zone.version, zone.content, now)
        await self._context.pool.call(self._context.inside(_KEEP), row)

    async def forget(self, zone: KeptZone, now: int) -> None:
        """Delete rules that this node uses no longer, unless other nodes may still use them."""
        stale, current = timezone.digest_of(zone.content), timezone.rules_of(zone.name)
        values = (zone.name, stale, zone.name, current, now - MIXED_US)
        await self._context.pool.call(self._context.inside(_FORGET), values)

    async def keep_zones(self, commands: Sequence[Command], now: int) -> None:
        """Store the rules of time zones that commands use for the first time, before the commands are committed."""
        for add in _adds(commands):
            name = zone_of(add.when)
            if name is not None and name not in self._kept:
                await self.keep(store_rules.kept_zone(name), now)
                self._kept.add(name)

    async def days(self, connection: Connection, commands: Sequence[Command]) -> Days:
        """The days of all calendars that commands name; they are locked until the commit."""
        return await self._days(connection, ((add.tenant, add.when) for add in _adds(commands)))

    async def days_now(self, connection: Connection, seen: Sequence[tuple[str, Found]]) -> Days:
        """The days of the calendars of some schedules, locked too; no days where a calendar was deleted."""
        asked = [(tenant, found.terms.when) for tenant, found in seen if found.terms is not None]
        used = {(tenant, name): () for tenant, when in asked if (name := calendar_of(when)) is not None}
        return {**used, **await self._days(connection, asked)}

    async def _days(self, connection: Connection, asked: Iterable[tuple[str, When]]) -> Days:
        used = sorted({(tenant, name) for tenant, when in asked if (name := calendar_of(when)) is not None})
        if not used:
            return {}
        tenants, names = (database.texts([text.encode() for text in column]) for column in zip(*used, strict=True))
        found = await rows(connection, self._context.inside(_USED), (tenants, names))
        return {(tenant, name): store_rules.decode_days(days) for tenant, name, days in found}

    async def after(self, connection: Connection, cursor: str | None, limit: int) -> list[tuple[str, Found]]:
        """Recurring schedules after a cursor, each with its tenant."""
        found = await rows(connection, self._context.inside(_AFTER), (int(cursor or 0), limit))
        arrivals = database.int8s([arrival for (arrival,) in found])
        recurring = [recurring_row(row) for row in await rows(connection, self._context.sql["recurring"], (arrivals,))]
        names = self._context.names
        await names.know({each.topic for each in recurring}, {each.stream for each in recurring})
        return [(names.tenant_of(each.stream), each) for each in recurring]

    async def remember(self, connection: Connection, moved: Sequence[Moved]) -> None:
        """Store the moves, and delete the oldest ones of each tenant."""
        if not moved:
            return
        columns = (
            database.int8s([one.at for one in moved]),
            database.texts([one.cause.encode() for one in moved]),
            database.texts([one.tenant.encode() for one in moved]),
            database.texts([one.id.encode() for one in moved]),
            database.int8s([one.occurrence for one in moved]),
            database.int8s([one.before for one in moved]),
            database.maybe_int8s([one.after for one in moved]),
        )
        await rows(connection, self._context.inside(_REMEMBER), columns)
        for tenant in sorted({one.tenant for one in moved}):
            await rows(connection, self._context.inside(_TRIM), (tenant, tenant, store_rules.MOVED_MAX))

    async def moved(self, tenant: str, limit: int) -> list[Moved]:
        """The occurrences that were moved most recently, newest first."""
        return [Moved(*row) for row in await self._context.pool.read(self._context.inside(_MOVED), (tenant, limit))]


class Revision:
    """One slice of a revision, decided on locked schedules and calendars."""

    def __init__(self, revise: Revise, days: Days, cause: str, now: int) -> None:
        self._revise = revise
        self._days = days
        self._cause = cause
        self._now = now

    def wanted(self, tenant: str, found: Found) -> bytes | None:
        """The key of a schedule that has to change; None if it has not."""
        return None if self._answer(tenant, found) is None else key_of(tenant, found.id)

    def change(self, tenant: str, entry: ScheduleRow) -> Moved | None:
        """Change a schedule in its current state, unless it has ended meanwhile; returns the move."""
        found = entry.now
        if found is None or found.table != "standing" or found.terms is None:
            return None
        answer = self._answer(tenant, found)
        if answer is None:
            return None
        terms = revised(found.terms, answer.when)
        after = None if answer.due is None else answer.due + terms.jitter_us
        if after is None:
            entry.withdraw()
            entry.now = msgspec.structs.replace(
                found, table="finished", state="ended", at=self._now, reason=None, message=None, terms=None
            )
            entry.notes.append(Event(self._now, "ended", reason=self._cause))
        else:
            entry.now = msgspec.structs.replace(found, terms=terms, due=after)
            if after == found.due:
                return None
            entry.notes.append(
                Event(self._now, "moved", found.n, after, store_rules.moved_reason(self._cause, found.due))
            )
        return Moved(self._now, self._cause, tenant, found.id, found.n, found.due, after)

    def _answer(self, tenant: str, found: Found) -> Pending | None:
        """The new pending occurrence; None if nothing changes, or the schedule got another calendar meanwhile."""
        terms = found.terms
        assert terms is not None, "a recurring schedule has terms"
        name = calendar_of(terms.when)
        if name is not None and (tenant, name) not in self._days:
            return None
        days = None if name is None else self._days[tenant, name]
        return self._revise(Seen(tenant, Pending(terms.when, found.n, found.due - terms.jitter_us), terms.rules, days))


def result(moved: Sequence[Moved], seen: Sequence[tuple[str, Found]], limit: int) -> Slice:
    """The result of a slice."""
    last = max((found.arrival for _, found in seen), default=0)
    return Slice(moved, str(last) if len(seen) == limit else None)


def _calendar(name: str, days: bytes, changed: int) -> Calendar:
    return Calendar(name, store_rules.decode_days(days), changed)


def _row(tenant: str, calendar: Calendar) -> tuple[str, str, bytes, int, int]:
    return tenant, calendar.name, store_rules.encode_days(calendar.days), calendar.changed, calendar.changed


def _adds(commands: Iterable[Command]) -> list[Add]:
    adds = (command.add if isinstance(command, Replace) else command for command in commands)
    return [add for add in adds if isinstance(add, Add)]
