"""A lane: a shard of the timeline that one process at a time releases, with its outbox for Kafka."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from tidings.clock import Clock
from tidings.domain.schedules.command import Command
from tidings.domain.schedules.schedule import (
    Outgoing,
)


class Release(msgspec.Struct, frozen=True, gc=False):
    """What one release transaction did. `more` says that something is still due, `handed` what is in the outbox."""

    lateness_us: Sequence[int] = ()
    topics: frozenset[tuple[str, str]] = frozenset()
    missed: dict[str, int] = {}
    more: bool = False
    bytes: int = 0
    handed: int = 0


class Outbox(Protocol):
    """What is released to Kafka, in one order, until it is there. What is in it leaves: nobody can take it back.

    It holds a bounded number of records and bytes that are not known to be on Kafka, without those that are kept back.
    """

    async def outgoing(self, offset: int, limit: int) -> list[Outgoing]:
        """Records from an offset on (or from the first that is still kept); fewer of large ones, but at least one."""
        ...

    async def outbox(self) -> tuple[int, int]:
        """The first offset that is not known to be on Kafka, and the next that will be given."""
        ...

    def shut(self, is_shut: bool) -> None:
        """While Kafka is away nothing goes in: what is due for it waits on the timeline, where it can be changed."""
        ...

    def arrived(self, offset: int) -> None:
        """Everything before this offset is on Kafka; kept in memory only. Wakes who watches if there is room again."""
        ...

    async def settle(self, offset: int) -> None:
        """The same, durably: what lies before it may be forgotten."""
        ...

    async def hold(self, offsets: Sequence[int], reason: str) -> None:
        """Keep records back, durably: `outgoing` leaves them out until they are freed or dropped."""
        ...

    async def held_topics(self) -> set[str]:
        """The topics of which something is kept back."""
        ...

    async def held(self, topic: str, limit: int = 1_000) -> list[Outgoing]:
        """Records of a topic that are kept back, in order; fewer of large ones, but at least one."""
        ...

    async def free(self, offsets: Sequence[int]) -> None:
        """These have reached Kafka on another way, and may be forgotten."""
        ...

    async def drop(self, offset: int, reason: str, instead: Sequence[Command], now: int) -> None:
        """A record that was kept back is missed, for this reason; commands that tell of it are part of that."""
        ...

    async def confirm(self) -> None:
        """Raise `NotOwner` unless this process owns the lane at this moment."""
        ...


class Lane(Outbox, Protocol):
    """A part of the timeline that one process at a time releases, with an outbox of its own.

    Every write of it checks, in its own transaction, that this process owns the lane; `NotOwner` if it does not.
    """

    @property
    def number(self) -> int:
        """Counted from 0."""
        ...

    async def release(self, now: int, rows_max: int, clock: Clock | None = None) -> Release:
        """Move what is due at `now` onto the log or into the outbox, or count it as missed, in one durable transaction.

        Where a clock is given, it is read anew when the transaction begins, which may be later than the call.

        At most `rows_max` rows, in fair shares by priority and tenant. Recurring ones get their next occurrence.
        What goes to Kafka stays pending while its outbox is full; never more is handed over than there is room for.
        """
        ...

    def next_due(self) -> int | None:
        """When the next release has work to do; None if nothing is near that may leave. Never later than the truth."""
        ...

    def watch(self, wake: Callable[[], None]) -> None:
        """Have this called when `next_due` moves to an earlier moment: by another process, or by room in the outbox."""
        ...
