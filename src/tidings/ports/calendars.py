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
    """What recurring schedules depend on: calendars, and the rules of zones."""

    async def calendars(self, tenant: str) -> list[Calendar]:
        """A tenant's calendars by name."""
        ...

    async def calendar(self, tenant: str, name: str) -> Calendar | None:
        """One of them."""
        ...

    async def put_calendar(self, tenant: str, calendar: Calendar) -> CalendarChange:
        """Put it in place of the one of its name, for what is taken from then on; `Invalid` if it is one too many."""
        ...

    async def drop_calendar(self, tenant: str, name: str) -> CalendarChange | None:
        """Nothing new can name it; None if there is none."""
        ...

    async def unsettled(self) -> list[CalendarChange]:
        """Changes of calendars of all tenants that were not settled."""
        ...

    async def settle_calendars(self, changes: Sequence[CalendarChange]) -> None:
        """What is pending has followed these, unless there was a later change of the same calendar."""
        ...

    async def zones(self) -> list[KeptZone]:
        """The rules of zones by which something pending was computed; several of a zone whose rules have changed."""
        ...

    async def keep_zone(self, zone: KeptZone, now: int) -> None:
        """Something is about to be computed by these rules."""
        ...

    async def forget_zone(self, zone: KeptZone, now: int) -> None:
        """Nothing that this process takes follows these rules; where others do, they are kept for a while."""
        ...

    async def revise(self, cursor: str | None, limit: int, revise: Revise, cause: str, now: int) -> Slice:
        """Some schedules from a cursor on, in one transaction: what `revise` answers takes the place of what it was.

        Calendars cannot change meanwhile. None leaves a schedule as it is. What moves is written down in its history
        and can be read by `moved`.
        """
        ...

    async def moved(self, tenant: str, limit: int) -> list[Moved]:
        """What was moved lately, the latest first."""
        ...
