"""Calendars and zones, and what of the schedules a change of them moves."""

from collections.abc import Sequence

import msgspec

from tidings.domain.command import Command, Replace
from tidings.domain.recurrence import zones
from tidings.domain.revising import Pending, zone_of
from tidings.domain.schedule import Calendar, Event, KeptZone, Moved
from tidings.ports import Revise, Revised
from tidings.timeline.dating import MOVED_MAX, kept_zone
from tidings.timeline.memory.rows import Row, Rows


class Dates:
    """What recurring schedules depend on."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.calendars: dict[tuple[str, str], Calendar] = {}
        self.zones: dict[str, KeptZone] = {}
        self.moved: list[Moved] = []

    def of_tenant(self, tenant: str) -> list[Calendar]:
        """A tenant's calendars by name."""
        return [calendar for (owner, _), calendar in sorted(self.calendars.items()) if owner == tenant]

    def days_of(self, tenant: str, name: str) -> tuple[int, ...] | None:
        """The days of a calendar, None if there is none."""
        calendar = self.calendars.get((tenant, name))
        return None if calendar is None else calendar.days

    def keep_zones(self, commands: Sequence[Command]) -> None:
        """Keep the rules of zones that are used for the first time."""
        for command in commands:
            add = command.add if isinstance(command, Replace) else command
            name = zone_of(getattr(add, "when", None))
            if name is not None and name not in self.zones:
                self.zones[name] = kept_zone(name)

    def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Revised:
        """Ask about some schedules from a cursor on, and change those that it answers for."""
        found = [row for row in self._rows.standing() if cursor is None or row.arrival > int(cursor)][:limit]
        moved = []
        for row in found:
            pending = Pending(row.terms.when, row.number, row.due - row.terms.jitter_us)
            answer = revise(row.add.tenant, pending, row.terms.tzdata)
            if answer is not None and (one := self._change(row, answer, cause, now)) is not None:
                moved.append(one)
        self.moved = [*self.moved, *moved][-MOVED_MAX:]
        return Revised(moved, str(found[-1].arrival) if len(found) == limit else None)

    def _change(self, row: Row, pending: Pending, cause: str, now: int) -> Moved | None:
        before, jitter_us = row.due, row.terms.jitter_us
        tzdata = None if row.terms.tzdata is None else zones.VERSION
        row.terms = msgspec.structs.replace(row.terms, when=pending.when, tzdata=tzdata)
        row.add = msgspec.structs.replace(row.add, when=pending.when)
        after = None if pending.due is None else pending.due + jitter_us
        if after == before:
            return None
        if row.state == "pending":
            self._rows.withdraw(row, fires=False)
        if after is None:
            self._rows.finish(row, "ended", now)
            row.note(Event(now, "ended", reason=cause))
        else:
            row.due = after
            row.note(Event(now, "moved", row.number, after, cause))
            if row.state == "pending":
                self._rows.hold(row)
        return Moved(now, cause, row.add.tenant, row.id, row.number, before, after)
