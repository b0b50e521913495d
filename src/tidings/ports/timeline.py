"""The timeline: the durable, ordered set of pending occurrences; how commands change it, and how it is read."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from tidings.domain.schedules.command import Command, Outcome
from tidings.domain.schedules.reschedule import CalendarChange, Revise, Slice
from tidings.domain.schedules.schedule import (
    Calendar,
    Event,
    KeptZone,
    Moved,
    Page,
    Query,
    Schedule,
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


class IdempotencyKey(msgspec.Struct, frozen=True, gc=False):
    """A caller's idempotency key, and a digest of the request body."""

    tenant: str
    key: str
    body: bytes


class SourcePosition(msgspec.Struct, frozen=True, gc=False):
    """What a batch reads from one partition of a request topic: from the expected position up to `next`."""

    topic: str
    partition: int
    expected: int
    next: int


class SourceBatch(msgspec.Struct, frozen=True, gc=False):
    """Positions to advance in the same transaction, and a callback that turns outcomes into further commands."""

    parts: Sequence[SourcePosition]
    on_outcomes: Callable[[Sequence[Outcome]], Sequence[Command]]


class Timeline(Protocol):
    """The pending occurrences. Each method says what it does atomically. A batch of commands may span lanes."""

    @property
    def intakes_max(self) -> int:
        """How many intake transactions are worth running at a time."""
        ...

    def apply(
        self,
        commands: Sequence[Command],
        now: int,
        idempotency: IdempotencyKey | None = None,
        taken: SourceBatch | None = None,
    ) -> Awaitable[list[Outcome]]:
        """Commit all commands in order in one durable transaction; returns an outcome for each.

        It starts when it is called, not when it is awaited. An idempotency key that was used before returns the first
        outcomes again and changes nothing; `KeyReused` if the body differs. The positions of a source advance in the
        same transaction; `Moved` if one is not as expected.
        """
        ...

    async def positions(self) -> dict[tuple[str, int], int]:
        """The next position to read, by request topic and partition."""
        ...

    async def tend(self, now: int) -> bool:
        """Do one small slice of housekeeping in its own transaction; True if there is more to do."""
        ...


class Count(msgspec.Struct, frozen=True, gc=False):
    """The size of a store: pending schedules, overdue ones (counted up to a limit), and bytes on disk."""

    pending: int
    overdue: int
    bytes: int


class ScheduleReader(Protocol):
    """Reads schedules: one by id, pages, histories, forecasts and counts."""

    async def find(self, tenant: str, schedule_id: str, now: int) -> Schedule | None: ...

    async def history(self, tenant: str, schedule_id: str, now: int) -> list[Event]: ...

    async def page(self, tenant: str, query: Query, now: int) -> Page: ...

    async def forecast(self, tenant: str, start: int, end: int, width_us: int) -> tuple[list[tuple[int, int]], bool]:
        """Pending occurrences by time: (start of a step, count), without empty steps; True if it was cut short."""
        ...

    async def count(self, now: int) -> Count: ...
