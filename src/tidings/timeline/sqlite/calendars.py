"""Calendars and time zone rules, and the recurring schedules that a change of them moves."""

from collections.abc import Sequence

import apsw
import msgspec

from tidings.domain.recurrence import timezone
from tidings.domain.schedules.recurrence_state import RecurrenceState, encode_state, revised
from tidings.domain.schedules.reschedule import CalendarChange, Pending, Revise, Seen, Slice, calendar_of
from tidings.domain.schedules.schedule import Calendar, Event, KeptZone, Moved
from tidings.timeline import store_rules
from tidings.timeline.sqlite import row_writes
from tidings.timeline.sqlite.id_lookup import Found, recurring
from tidings.timeline.sqlite.writer import Writer

_SAVE = "UPDATE standing SET policy = ?, due = ? WHERE arrival = ?"
_PUT = """
INSERT INTO calendar VALUES (?1, ?2, ?3, ?4, ?4, 0, 0) ON CONFLICT (tenant, name) DO UPDATE
SET days = ?3, changed = ?4, turn = max(turn + 1, ?4), settled = 0, dropped = 0 RETURNING turn
"""
_DROP = """
UPDATE calendar SET days = ?3, turn = turn + 1, settled = 0, dropped = 1
WHERE tenant = ?1 AND name = ?2 AND dropped = 0 RETURNING turn
"""
_TRIM = """
DELETE FROM movement WHERE tenant = ?1 AND entry <=
    (SELECT entry FROM movement WHERE tenant = ?1 ORDER BY entry DESC LIMIT 1 OFFSET ?2)
"""
_UNSETTLED = "SELECT tenant, name, turn FROM calendar WHERE settled = 0 ORDER BY tenant, name"
_ZONES = "SELECT name, version, content FROM zone ORDER BY name, digest"


class Calendars:
    """Writes calendars and time zone rules."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def put(self, tenant: str, calendar: Calendar) -> CalendarChange:
        """Create or replace a calendar."""
        with self._writer.transaction() as connection:
            known_sql = "SELECT count(*), ifnull(max(name = ?2), 0) FROM calendar WHERE tenant = ?1 AND dropped = 0"
            count, known = connection.execute(known_sql, (tenant, calendar.name)).fetchone()
            if not known and count >= store_rules.CALENDARS_MAX:
                raise store_rules.too_many_calendars()
            row = (tenant, calendar.name, store_rules.encode_days(calendar.days), calendar.changed)
            return CalendarChange(tenant, calendar.name, connection.execute(_PUT, row).get)

    def drop(self, tenant: str, name: str) -> CalendarChange | None:
        """Delete a calendar."""
        with self._writer.transaction() as connection:
            turn = connection.execute(_DROP, (tenant, name, store_rules.encode_days(()))).get
            return None if turn is None else CalendarChange(tenant, name, turn)

    def settle(self, changes: Sequence[CalendarChange]) -> None:
        """Mark changes as applied."""
        with self._writer.transaction() as connection:
            for change in changes:
                of_it = (change.tenant, change.name, change.turn)
                which = "WHERE tenant = ? AND name = ? AND turn = ?"
                connection.execute(f"DELETE FROM calendar {which} AND dropped = 1", of_it)
                connection.execute(f"UPDATE calendar SET settled = 1 {which}", of_it)

    def keep(self, zone: KeptZone) -> None:
        """Store the rules of a time zone."""
        with self._writer.transaction():
            _keep(self._writer, zone)

    def forget(self, zone: KeptZone) -> None:
        """Delete the rules of a time zone; no other process uses them."""
        digest = timezone.digest_of(zone.content)
        with self._writer.transaction() as connection:
            connection.execute("DELETE FROM zone WHERE name = ? AND digest = ?", (zone.name, digest))
            self._writer.remove_zone(zone.name, digest)

    def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        """Recompute one slice of recurring schedules after a cursor."""
        with self._writer.transaction() as connection:
            sql = "SELECT arrival FROM standing WHERE arrival > ? ORDER BY arrival LIMIT ?"
            arrivals = [arrival for (arrival,) in connection.execute(sql, (int(cursor or 0), limit))]
            moved = [one for arrival in arrivals if (one := self._revise(arrival, revise, cause, now)) is not None]
            _remember(connection, moved)
        return Slice(moved, str(arrivals[-1]) if len(arrivals) == limit else None)

    def _revise(self, arrival: int, revise: Revise, cause: str, now: int) -> Moved | None:
        found = next(recurring(self._writer.connection, arrival))
        assert found.terms is not None, "a recurring schedule has terms"
        tenant = self._writer.stream_names[found.stream][0]
        name = calendar_of(found.terms.when)
        days = None if name is None else days_of(self._writer.connection, tenant, name) or ()
        pending = Pending(found.terms.when, found.n, found.due - found.terms.jitter_us)
        answer = revise(Seen(tenant, pending, found.terms.rules, days))
        return None if answer is None else self._change(found, found.terms, answer, cause, now)

    def _change(self, found: Found, terms: RecurrenceState, pending: Pending, cause: str, now: int) -> Moved | None:
        terms = revised(terms, pending.when)
        after = None if pending.due is None else pending.due + terms.jitter_us
        tenant, before = self._writer.stream_names[found.stream][0], found.due
        if after == before:
            self._writer.connection.execute(_SAVE, (encode_state(terms), before, found.arrival))
            return None
        if after is None:
            row_writes.remove(self._writer, found)
            row_writes.finish(self._writer, found, "ended", now)
            row_writes.note(self._writer, found, Event(now, "ended", reason=cause))
        else:
            if found.state == "pending":
                row_writes.remove_pointer(self._writer, found)
            found.due = after
            self._writer.connection.execute(_SAVE, (encode_state(terms), after, found.arrival))
            if found.state == "pending":
                row_writes.insert_pointer(self._writer, found)
            line = Event(now, "moved", found.n, after, store_rules.moved_reason(cause, before))
            row_writes.note(self._writer, found, line)
        return Moved(now, cause, tenant, found.id, found.n, before, after)


def days_of(connection: apsw.Connection, tenant: str, name: str) -> tuple[int, ...] | None:
    """The days of a calendar; None if there is none of this name."""
    found = calendar(connection, tenant, name)
    return None if found is None else found.days


def keep_zone(writer: Writer, name: str) -> None:
    """Store the rules of a time zone when they are used for the first time."""
    if (name, timezone.rules_of(name)) not in writer.zones:
        _keep(writer, store_rules.kept_zone(name))


def calendar(connection: apsw.Connection, tenant: str, name: str) -> Calendar | None:
    """One calendar; None if there is none of this name."""
    sql = "SELECT days, changed FROM calendar WHERE tenant = ? AND name = ? AND dropped = 0"
    row = connection.execute(sql, (tenant, name)).fetchone()
    return None if row is None else Calendar(name, store_rules.decode_days(row[0]), row[1])


def calendars(connection: apsw.Connection, tenant: str) -> list[Calendar]:
    """All calendars of a tenant, ordered by name."""
    sql = "SELECT name, days, changed FROM calendar WHERE tenant = ? AND dropped = 0 ORDER BY name"
    rows = connection.execute(sql, (tenant,))
    return [Calendar(name, store_rules.decode_days(days), changed) for name, days, changed in rows]


def unsettled(connection: apsw.Connection) -> list[CalendarChange]:
    """Changes that are not applied to pending occurrences yet."""
    return [CalendarChange(*row) for row in connection.execute(_UNSETTLED)]


def kept_zones(connection: apsw.Connection) -> list[KeptZone]:
    """The time zone rules by which pending occurrences were computed."""
    return [KeptZone(*row) for row in connection.execute(_ZONES)]


def recent_moves(connection: apsw.Connection, tenant: str, limit: int) -> list[Moved]:
    """The occurrences that were moved most recently, newest first."""
    sql = (
        "SELECT at, cause, tenant, id, occurrence, before, after FROM movement WHERE tenant = ?"
        " ORDER BY entry DESC LIMIT ?"
    )
    return [Moved(*row) for row in connection.execute(sql, (tenant, limit))]


def _keep(writer: Writer, zone: KeptZone) -> None:
    digest = timezone.digest_of(zone.content)
    row = (zone.name, digest, zone.version, zone.content)
    writer.connection.execute("INSERT OR IGNORE INTO zone VALUES (?, ?, ?, ?)", row)
    writer.add_zone(zone.name, digest)


def _remember(connection: apsw.Connection, moved: Sequence[Moved]) -> None:
    sql = "INSERT INTO movement (at, cause, tenant, id, occurrence, before, after) VALUES (?, ?, ?, ?, ?, ?, ?)"
    connection.executemany(sql, (msgspec.structs.astuple(one) for one in moved))
    for tenant in {one.tenant for one in moved}:
        connection.execute(_TRIM, (tenant, store_rules.MOVED_MAX))
