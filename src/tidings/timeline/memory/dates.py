"""Calendars and zones, and what of the schedules a change of them moves."""

from collections.abc import Sequence

from tidings.domain.command import Command, Replace
from tidings.domain.recurrence import zones
from tidings.domain.revising import CalendarChange, Pending, Revise, Seen, Slice, calendar_of, zone_of
from tidings.domain.schedule import Calendar, Event, KeptZone, Moved
from tidings.domain.terms import revised
from tidings.timeline import dating
from tidings.timeline.memory.rows import Row, Rows


class Dates:
    """What recurring schedules depend on."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._calendars: dict[tuple[str, str], Calendar] = {}
        self._turns: dict[tuple[str, str], int] = {}
        self._unsettled: dict[tuple[str, str], CalendarChange] = {}
        self.zones: dict[tuple[str, str], KeptZone] = {}
        self._moved: dict[str, list[Moved]] = {}

    def of_tenant(self, tenant: str) -> list[Calendar]:
        """A tenant's calendars by name."""
        return [calendar for (owner, _), calendar in sorted(self._calendars.items()) if owner == tenant]

    def calendar(self, tenant: str, name: str) -> Calendar | None:
        """One of them."""
        return self._calendars.get((tenant, name))

    def days_of(self, tenant: str, name: str) -> tuple[int, ...] | None:
        """The days of a calendar, None if there is none."""
        calendar = self.calendar(tenant, name)
        return None if calendar is None else calendar.days

    def put(self, tenant: str, calendar: Calendar) -> CalendarChange:
        """Put a calendar in the place of the one of its name."""
        if (tenant, calendar.name) not in self._calendars and len(self.of_tenant(tenant)) >= dating.CALENDARS_MAX:
            raise dating.too_many()
        self._calendars[tenant, calendar.name] = calendar
        return self._changed(tenant, calendar.name)

    def drop(self, tenant: str, name: str) -> CalendarChange | None:
        """Nothing new can name it."""
        return None if self._calendars.pop((tenant, name), None) is None else self._changed(tenant, name)

    def _changed(self, tenant: str, name: str) -> CalendarChange:
        self._turns[tenant, name] = turn = self._turns.get((tenant, name), 0) + 1
        self._unsettled[tenant, name] = change = CalendarChange(tenant, name, turn)
        return change

    def unsettled(self) -> list[CalendarChange]:
        """Changes that what is pending has yet to follow."""
        return list(self._unsettled.values())

    def settle(self, changes: Sequence[CalendarChange]) -> None:
        """What is pending has followed these."""
        for change in changes:
            if self._unsettled.get((change.tenant, change.name)) == change:
                del self._unsettled[change.tenant, change.name]

    def keep(self, zone: KeptZone) -> None:
        """Something is about to be computed by these rules."""
        self.zones.setdefault((zone.name, zones.digest_of(zone.content)), zone)

    def forget(self, zone: KeptZone) -> None:
        """Nothing follows these rules."""
        self.zones.pop((zone.name, zones.digest_of(zone.content)), None)

    def keep_zones(self, commands: Sequence[Command]) -> None:
        """Keep the rules of the zones that are used."""
        for command in commands:
            add = command.add if isinstance(command, Replace) else command
            name = zone_of(getattr(add, "when", None))
            if name is not None and (name, zones.rules_of(name)) not in self.zones:
                self.keep(dating.kept_zone(name))

    def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        """Ask about some schedules from a cursor on, and change those that it answers for."""
        found = [row for row in self._rows.standing() if cursor is None or row.arrival > int(cursor)][:limit]
        moved = []
        for row in found:
            answer = revise(self._seen(row))
            if answer is not None and (one := self._change(row, answer, cause, now)) is not None:
                moved.append(one)
                self._moved[one.tenant] = [*self._moved.get(one.tenant, []), one][-dating.MOVED_MAX :]
        return Slice(moved, str(found[-1].arrival) if len(found) == limit else None)

    def moved(self, tenant: str, limit: int) -> list[Moved]:
        """What was moved lately, the latest first."""
        return self._moved.get(tenant, [])[: -limit - 1 : -1]

    def _seen(self, row: Row) -> Seen:
        terms, tenant = row.terms, row.add.tenant
        name = calendar_of(terms.when)
        days = None if name is None else self.days_of(tenant, name) or ()
        return Seen(tenant, Pending(terms.when, row.number, row.due - terms.jitter_us), terms.rules, days)

    def _change(self, row: Row, pending: Pending, cause: str, now: int) -> Moved | None:
        before, jitter_us = row.due, row.terms.jitter_us
        row.terms = revised(row.terms, pending.when)
        after = None if pending.due is None else pending.due + jitter_us
        if after == before:
            return None
        if row.state == "pending":
            self._rows.withdraw(row, fires=False)
        if after is None:
            self._rows.withdraw(row, fires=True)
            self._rows.finish(row, "ended", now)
            row.note(Event(now, "ended", reason=cause))
        else:
            row.due = after
            row.note(Event(now, "moved", row.number, after, dating.moved_why(cause, before)))
            if row.state == "pending":
                self._rows.hold(row)
        return Moved(now, cause, row.add.tenant, row.id, row.number, before, after)
