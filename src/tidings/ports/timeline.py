"""The timeline: the durable, ordered set of pending occurrences; how commands change it, and how it is read."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from tidings.domain.schedules.command import Command, Outcome
from tidings.domain.schedules.schedule import (
    Event,
    Page,
    Query,
    Schedule,
)


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
        receipt: IdempotencyKey | None = None,
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
