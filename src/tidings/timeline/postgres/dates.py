"""Calendars and zones, and what of the standing schedules a change of them moves."""

from collections.abc import Iterable, Sequence

import msgspec

from tidings.domain.command import Add, Command, Replace
from tidings.domain.recurrence import zones
from tidings.domain.revising import Pending, calendar_of, zone_of
from tidings.domain.schedule import Calendar, KeptZone, Moved
from tidings.ports import Revise, Revised
from tidings.timeline.dating import MOVED_MAX, is_current, kept_zone
from tidings.timeline.postgres import arrays
from tidings.timeline.postgres.database import Connection
from tidings.timeline.postgres.pool import rows
from tidings.timeline.postgres.rows import Found, key_of
from tidings.timeline.postgres.shared import Shared
from tidings.timeline.postgres.working import Entry, standing_row

Days = dict[tuple[str, str], tuple[int, ...]]

_encode_days = msgspec.msgpack.Encoder().encode
_decode_days = msgspec.msgpack.Decoder(tuple[int, ...]).decode

_CALENDARS = "SELECT name, days, changed FROM tidings.calendar WHERE tenant = %s ORDER BY name"
_USED = "SELECT tenant, name, days FROM tidings.calendar WHERE tenant = ANY (%s) AND name = ANY (%s) FOR SHARE"
_PUT = """
INSERT INTO tidings.calendar VALUES (%s, %s, %s, %s)
ON CONFLICT (tenant, name) DO UPDATE SET days = excluded.days, changed = excluded.changed
"""
_ADD = "INSERT INTO tidings.calendar VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
_ALL_CALENDARS = "SELECT tenant, name, days, changed FROM tidings.calendar ORDER BY tenant, name"
_DROP = "DELETE FROM tidings.calendar WHERE tenant = %s AND name = %s RETURNING 1"
_ZONES = "SELECT name, version, content FROM tidings.zone ORDER BY name"
_FIRST = "INSERT INTO tidings.zone VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_KEEP = """
INSERT INTO tidings.zone VALUES (%s, %s, %s)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, content = excluded.content
"""
_SOME = "SELECT arrival FROM tidings.standing WHERE arrival > %s ORDER BY arrival LIMIT %s"
_REMEMBER = """
INSERT INTO tidings.movement (at, cause, tenant, id, occurrence, before, after)
SELECT * FROM unnest(%s, %s, %s, %s, %s, %s, %s)
"""
_TRIM = "DELETE FROM tidings.movement WHERE entry <= (SELECT max(entry) FROM tidings.movement) - %s"
_MOVED = """
SELECT at, cause, tenant, id, occurrence, before, after FROM tidings.movement
WHERE tenant = %s ORDER BY entry DESC LIMIT %s
"""


class Dates:
    """What recurring schedules depend on, in one schema."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._kept: set[str] = set()

    async def calendars(self, tenant: str) -> list[Calendar]:
        """A tenant's calendars by name."""
        found = await self._shared.pool.read(self._shared.inside(_CALENDARS), (tenant,))
        return [Calendar(name, _decode_days(days), changed) for name, days, changed in found]

    async def put(self, tenant: str, calendar: Calendar) -> None:
        """Put a calendar in the place of the one of its name; waits for those who take schedules by the old one."""
        row = (tenant, calendar.name, _encode_days(calendar.days), calendar.changed)
        await self._shared.pool.call(self._shared.inside(_PUT), row)

    async def drop(self, tenant: str, name: str) -> bool:
        """Nothing new can name it."""
        return bool(await self._shared.pool.call(self._shared.inside(_DROP), (tenant, name)))

    async def all_calendars(self) -> list[tuple[str, Calendar]]:
        """Every calendar with its tenant."""
        found = await self._shared.pool.read(self._shared.inside(_ALL_CALENDARS))
        return [(tenant, Calendar(name, _decode_days(days), changed)) for tenant, name, days, changed in found]

    async def take(self, calendars: Iterable[tuple[str, Calendar]], kept: Iterable[KeptZone]) -> None:
        """What came from another store; of a zone the older rules stay, so that what follows them is revised."""
        for tenant, calendar in calendars:
            row = (tenant, calendar.name, _encode_days(calendar.days), calendar.changed)
            await self._shared.pool.call(self._shared.inside(_ADD), row)
        for zone in kept:
            statement = _FIRST if is_current(zone) else _KEEP
            await self._shared.pool.call(self._shared.inside(statement), (zone.name, zone.version, zone.content))

    async def zones(self) -> list[KeptZone]:
        """The rules of zones by which something pending was computed."""
        return [KeptZone(*row) for row in await self._shared.pool.read(self._shared.inside(_ZONES))]

    async def keep(self, zone: KeptZone) -> None:
        """Everything in this zone is computed by these rules now."""
        await self._shared.pool.call(self._shared.inside(_KEEP), (zone.name, zone.version, zone.content))

    async def keep_zones(self, commands: Sequence[Command]) -> None:
        """Keep the rules of zones that are used for the first time, before what uses them is there."""
        for add in _adds(commands):
            name = zone_of(add.when)
            if name is not None and name not in self._kept:
                zone = kept_zone(name)
                await self._shared.pool.call(self._shared.inside(_FIRST), (zone.name, zone.version, zone.content))
                self._kept.add(name)

    async def days(self, connection: Connection, commands: Sequence[Command]) -> Days:
        """The days of all calendars that commands name; they cannot change before these are committed."""
        used = {(add.tenant, name) for add in _adds(commands) if (name := calendar_of(add.when)) is not None}
        if not used:
            return {}
        tenants, names = zip(*used, strict=True)
        found = await rows(connection, self._shared.inside(_USED), (list(tenants), list(names)))
        return {(tenant, name): _decode_days(days) for tenant, name, days in found}

    async def some(self, connection: Connection, cursor: str | None, limit: int) -> list[tuple[str, Found]]:
        """Standing schedules from a cursor on, each with its tenant."""
        found = await rows(connection, self._shared.inside(_SOME), (int(cursor or 0), limit))
        arrivals = arrays.int8s([arrival for (arrival,) in found])
        standing = [standing_row(row) for row in await rows(connection, self._shared.sql["standing"], (arrivals,))]
        names = self._shared.names
        await names.know({each.topic for each in standing}, {each.stream for each in standing})
        return [(names.tenant_of(each.stream), each) for each in standing]

    async def remember(self, connection: Connection, moved: Sequence[Moved]) -> None:
        """Write down what was moved."""
        if not moved:
            return
        columns = (
            arrays.int8s([one.at for one in moved]),
            arrays.texts([one.cause.encode() for one in moved]),
            arrays.texts([one.tenant.encode() for one in moved]),
            arrays.texts([one.id.encode() for one in moved]),
            arrays.int8s([one.occurrence for one in moved]),
            arrays.int8s([one.before for one in moved]),
            arrays.maybe_int8s([one.after for one in moved]),
        )
        await rows(connection, self._shared.inside(_REMEMBER), columns)
        await rows(connection, self._shared.inside(_TRIM), (MOVED_MAX,))

    async def moved(self, tenant: str, limit: int) -> list[Moved]:
        """What was moved lately, the latest first."""
        return [Moved(*row) for row in await self._shared.pool.read(self._shared.inside(_MOVED), (tenant, limit))]


class Revision:
    """One slice of a revision, decided on entries that are locked."""

    def __init__(self, revise: Revise, cause: str, now: int) -> None:
        self._revise = revise
        self._cause = cause
        self._now = now

    def wanted(self, tenant: str, found: Found) -> bytes | None:
        """The key of a schedule that has to change."""
        return None if self._answer(tenant, found) is None else key_of(tenant, found.id)

    def change(self, tenant: str, entry: Entry) -> Moved | None:
        """Change it as it is now, unless it has ended meanwhile; answers what moved."""
        found = entry.now
        if found is None or found.table != "standing" or found.terms is None:
            return None
        answer = self._answer(tenant, found)
        if answer is None:
            return None
        tzdata = None if found.terms.tzdata is None else zones.VERSION
        terms = msgspec.structs.replace(found.terms, when=answer.when, tzdata=tzdata)
        after = None if answer.due is None else answer.due + terms.jitter_us
        if after is None:
            entry.withdraw()
            entry.now = msgspec.structs.replace(
                found, table="finished", state="ended", at=self._now, reason=None, message=None, terms=None
            )
            entry.note(self._now, "ended", reason=self._cause)
        else:
            entry.now = msgspec.structs.replace(found, terms=terms, due=after)
            if after == found.due:
                return None
            entry.note(self._now, "moved", found.n, after, self._cause)
        return Moved(self._now, self._cause, tenant, found.id, found.n, found.due, after)

    def _answer(self, tenant: str, found: Found) -> Pending | None:
        assert found.terms is not None, "a standing schedule has its terms"
        pending = Pending(found.terms.when, found.n, found.due - found.terms.jitter_us)
        return self._revise(tenant, pending, found.terms.tzdata)


def result(moved: Sequence[Moved], seen: Sequence[tuple[str, Found]], limit: int) -> Revised:
    """What a slice did."""
    last = max((found.arrival for _, found in seen), default=0)
    return Revised(moved, str(last) if len(seen) == limit else None)


def _adds(commands: Iterable[Command]) -> list[Add]:
    adds = (command.add if isinstance(command, Replace) else command for command in commands)
    return [add for add in adds if isinstance(add, Add)]
