"""Calendars and time zone rules, which recurring schedules depend on."""

from collections.abc import Sequence
from typing import Protocol

from tidings.domain.schedules.reschedule import CalendarChange, Revise, Slice
from tidings.domain.schedules.schedule import (
    Calendar,
    KeptZone,
    Moved,
)


class CalendarStore(Protocol):
    """Stores calendars and time zone rules, and applies changes of them to recurring schedules."""

    async def calendars(self, tenant: str) -> list[Calendar]:
        """All calendars of a tenant, ordered by name."""
        ...

    async def calendar(self, tenant: str, name: str) -> Calendar | None:
        """One calendar; None if there is none of this name."""
        ...

    async def put_calendar(self, tenant: str, calendar: Calendar) -> CalendarChange:
        """Create or replace a calendar, for schedules accepted from now on; `Invalid` if the tenant has too many."""
        ...

    async def drop_calendar(self, tenant: str, name: str) -> CalendarChange | None:
        """Delete a calendar, so that no new schedule can use it; None if there is none of this name."""
        ...

    async def unsettled(self) -> list[CalendarChange]:
        """Calendar changes of all tenants that are not applied to pending occurrences yet."""
        ...

    async def settle_calendars(self, changes: Sequence[CalendarChange]) -> None:
        """Mark changes as applied to all pending occurrences, except where the calendar has changed again since."""
        ...

    async def zones(self) -> list[KeptZone]:
        """The time zone rules by which pending occurrences were computed; several for a zone whose rules changed."""
        ...

    async def keep_zone(self, zone: KeptZone, now: int) -> None:
        """Store the rules of a time zone before occurrences are computed by them."""
        ...

    async def forget_zone(self, zone: KeptZone, now: int) -> None:
        """Delete rules that this process uses no longer; in a fleet they are kept while other nodes may use them."""
        ...

    async def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        """Recompute one slice of recurring schedules after a cursor, in one transaction.

        `revise` gets each pending occurrence and returns the new one, or None to leave it unchanged. Calendars cannot
        change meanwhile. Every move is added to the history of its schedule, and `moved` returns it.
        """
        ...

    async def moved(self, tenant: str, limit: int) -> list[Moved]:
        """The occurrences that were moved most recently, newest first."""
        ...
