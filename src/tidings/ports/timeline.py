"""The timeline: the durable, ordered set of pending occurrences, and how commands are applied to it."""

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
    """A caller's idempotency key, and a digest of what came with it."""

    tenant: str
    key: str
    body: bytes


class SourcePosition(msgspec.Struct, frozen=True, gc=False):
    """What is taken of one partition of a request topic: from the position expected there to the next."""

    topic: str
    partition: int
    expected: int
    next: int


class SourceBatch(msgspec.Struct, frozen=True, gc=False):
    """What a transaction takes of request topics, and what follows from the outcomes, as part of it."""

    parts: Sequence[SourcePosition]
    on_outcomes: Callable[[Sequence[Outcome]], Sequence[Command]]


class Timeline(Protocol):
    """The durable, ordered set of what is pending. Each verb says what it makes atomic. Intake may span lanes."""

    @property
    def intakes_max(self) -> int:
        """How many transactions of intake it gains from at a time."""
        ...

    def apply(
        self,
        commands: Sequence[Command],
        now: int,
        receipt: IdempotencyKey | None = None,
        taken: SourceBatch | None = None,
    ) -> Awaitable[list[Outcome]]:
        """Commit all commands in order in one durable transaction and answer each. Begins before it is awaited.

        With a receipt seen before, the first answers again and nothing changes; `KeyReused` if the body differs.
        What is taken of sources moves their positions in the same transaction; `Moved` if one is not as expected.
        """
        ...

    async def positions(self) -> dict[tuple[str, int], int]:
        """Where intake stands, by topic and partition."""
        ...

    async def tend(self, now: int) -> bool:
        """One small slice of housekeeping, in its own transaction; True if more is waiting."""
        ...


class Count(msgspec.Struct, frozen=True, gc=False):
    """The store's size: schedules pending, those overdue (counted up to a bound), and bytes on disk."""

    pending: int
    overdue: int
    bytes: int


class ScheduleReader(Protocol):
    """What can be seen of the timeline."""

    async def find(self, tenant: str, schedule_id: str, now: int) -> Schedule | None: ...

    async def history(self, tenant: str, schedule_id: str, now: int) -> list[Event]: ...

    async def page(self, tenant: str, query: Query, now: int) -> Page: ...

    async def forecast(self, tenant: str, start: int, end: int, width_us: int) -> tuple[list[tuple[int, int]], bool]:
        """Pending by time: (start of a step, how many), empty steps left out; True if it was cut short."""
        ...

    async def count(self, now: int) -> Count: ...
