"""Calendars and zones, and what of the standing schedules a change of them moves."""

from collections.abc import Iterable

import apsw
import msgspec

from tidings.domain.recurrence import zones
from tidings.domain.revising import Pending
from tidings.domain.schedule import Calendar, KeptZone, Moved
from tidings.ports import Revise, Revised
from tidings.timeline.dating import MOVED_MAX, is_current, kept_zone
from tidings.timeline.sqlite import single
from tidings.timeline.sqlite.lookup import Found, standing
from tidings.timeline.sqlite.writer import Writer
from tidings.timeline.terms import Terms, encode_terms

_encode_days = msgspec.msgpack.Encoder().encode
_decode_days = msgspec.msgpack.Decoder(tuple[int, ...]).decode

_SAVE = "UPDATE standing SET policy = ?, due = ? WHERE arrival = ?"


class Dates:
    """The writer's way to what recurring schedules depend on."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def put(self, tenant: str, calendar: Calendar) -> None:
        """Put a calendar in the place of the one of its name."""
        row = (tenant, calendar.name, _encode_days(calendar.days), calendar.changed)
        with self._writer.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO calendar VALUES (?, ?, ?, ?)", row)

    def drop(self, tenant: str, name: str) -> bool:
        """Nothing new can name it."""
        with self._writer.transaction() as connection:
            connection.execute("DELETE FROM calendar WHERE tenant = ? AND name = ?", (tenant, name))
            return int(connection.changes()) == 1

    def keep(self, zone: KeptZone) -> None:
        """Everything in this zone is computed by these rules now."""
        with self._writer.transaction() as connection:
            _keep(connection, zone)

    def take(self, calendars_there: Iterable[tuple[str, Calendar]], zones_there: Iterable[KeptZone]) -> None:
        """What came from another store; of a zone the older rules stay, so that what follows them is revised."""
        with self._writer.transaction() as connection:
            for tenant, calendar in calendars_there:
                row = (tenant, calendar.name, _encode_days(calendar.days), calendar.changed)
                connection.execute("INSERT OR IGNORE INTO calendar VALUES (?, ?, ?, ?)", row)
            for zone in zones_there:
                if zone.name not in self._writer.zones or not is_current(zone):
                    _keep(connection, zone)
                    self._writer.zones.add(zone.name)

    def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Revised:
        """Ask about some schedules from a cursor on, and change those that it answers for."""
        with self._writer.transaction() as connection:
            sql = "SELECT arrival FROM standing WHERE arrival > ? ORDER BY arrival LIMIT ?"
            arrivals = [arrival for (arrival,) in connection.execute(sql, (int(cursor or 0), limit))]
            moved = [one for arrival in arrivals if (one := self._ask(arrival, revise, cause, now)) is not None]
            _remember(connection, moved)
        return Revised(moved, str(arrivals[-1]) if len(arrivals) == limit else None)

    def _ask(self, arrival: int, revise: Revise, cause: str, now: int) -> Moved | None:
        found = next(standing(self._writer.connection, arrival))
        assert found.terms is not None, "a standing schedule has its terms"
        tenant = self._writer.stream_names[found.stream][0]
        pending = Pending(found.terms.when, found.n, found.due - found.terms.jitter_us)
        answer = revise(tenant, pending, found.terms.tzdata)
        return None if answer is None else self._change(found, found.terms, answer, cause, now)

    def _change(self, found: Found, terms: Terms, pending: Pending, cause: str, now: int) -> Moved | None:
        tzdata = None if terms.tzdata is None else zones.VERSION
        terms = msgspec.structs.replace(terms, when=pending.when, tzdata=tzdata)
        after = None if pending.due is None else pending.due + terms.jitter_us
        tenant, before = self._writer.stream_names[found.stream][0], found.due
        if after == before:
            self._writer.connection.execute(_SAVE, (encode_terms(terms), before, found.arrival))
            return None
        if after is None:
            single.remove(self._writer, found)
            single.finish(self._writer, found, "ended", now)
            single.note(self._writer, found, now, "ended", reason=cause)
        else:
            if found.state == "pending":
                single.remove_pointer(self._writer, found)
            found.due = after
            self._writer.connection.execute(_SAVE, (encode_terms(terms), after, found.arrival))
            if found.state == "pending":
                single.insert_pointer(self._writer, found)
            single.note(self._writer, found, now, "moved", found.n, after, cause)
        return Moved(now, cause, tenant, found.id, found.n, before, after)


def days_of(connection: apsw.Connection, tenant: str, name: str) -> tuple[int, ...] | None:
    """The days of a calendar, None if there is none."""
    sql = "SELECT days FROM calendar WHERE tenant = ? AND name = ?"
    row = connection.execute(sql, (tenant, name)).fetchone()
    return None if row is None else _decode_days(row[0])


def keep_zone(writer: Writer, name: str) -> None:
    """Keep the rules of a zone that is used for the first time."""
    if name not in writer.zones:
        _keep(writer.connection, kept_zone(name))
        writer.zones.add(name)


def calendars(connection: apsw.Connection, tenant: str) -> list[Calendar]:
    """A tenant's calendars by name."""
    sql = "SELECT name, days, changed FROM calendar WHERE tenant = ? ORDER BY name"
    rows = connection.execute(sql, (tenant,))
    return [Calendar(name, _decode_days(days), changed) for name, days, changed in rows]


def all_calendars(connection: apsw.Connection) -> list[tuple[str, Calendar]]:
    """Every calendar with its tenant."""
    rows = connection.execute("SELECT tenant, name, days, changed FROM calendar ORDER BY tenant, name")
    return [(tenant, Calendar(name, _decode_days(days), changed)) for tenant, name, days, changed in rows]


def kept_zones(connection: apsw.Connection) -> list[KeptZone]:
    """The rules of zones by which something pending was computed."""
    return [KeptZone(*row) for row in connection.execute("SELECT name, version, content FROM zone ORDER BY name")]


def moved_lately(connection: apsw.Connection, tenant: str, limit: int) -> list[Moved]:
    """What was moved lately, the latest first."""
    sql = (
        "SELECT at, cause, tenant, id, occurrence, before, after FROM movement WHERE tenant = ?"
        " ORDER BY entry DESC LIMIT ?"
    )
    return [Moved(*row) for row in connection.execute(sql, (tenant, limit))]


def _keep(connection: apsw.Connection, zone: KeptZone) -> None:
    connection.execute("INSERT OR REPLACE INTO zone VALUES (?, ?, ?)", (zone.name, zone.version, zone.content))


def _remember(connection: apsw.Connection, moved: Iterable[Moved]) -> None:
    sql = "INSERT INTO movement (at, cause, tenant, id, occurrence, before, after) VALUES (?, ?, ?, ?, ?, ?, ?)"
    connection.executemany(sql, (msgspec.structs.astuple(one) for one in moved))
    connection.execute("DELETE FROM movement WHERE entry <= (SELECT max(entry) FROM movement) - ?", (MOVED_MAX,))
