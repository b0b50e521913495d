"""Lanes: shards of the timeline, each released by one process at a time, with its outbox for Kafka; their leases."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from tidings.clock import Clock
from tidings.domain.fleet import Fleet, Report
from tidings.domain.notifications.message import ChannelName
from tidings.domain.schedules.command import Command
from tidings.domain.schedules.schedule import Outgoing


class Release(msgspec.Struct, frozen=True, gc=False):
    """The result of one release transaction. `more`: something is still due; `handed`: records put into the outbox."""

    lateness_us: Sequence[int] = ()
    topics: frozenset[tuple[str, str]] = frozenset()
    missed: dict[str, int] = {}
    more: bool = False
    bytes: int = 0
    handed: int = 0


class Outbox(Protocol):
    """Records that are released to Kafka and not yet known to be there, in one order. They cannot be cancelled.

    Its size is limited in records and bytes; records that are held back do not count.
    """

    async def outgoing(self, offset: int, limit: int) -> list[Outgoing]:
        """Records from an offset on, or from the first one stored. Large records shorten the list to one at least."""
        ...

    async def outbox(self) -> tuple[int, int]:
        """The first offset that is not known to be on Kafka, and the next offset to be assigned."""
        ...

    def shut(self, is_shut: bool) -> None:
        """Accept no records while Kafka is unreachable: they wait on the timeline, where they can still be changed."""
        ...

    def arrived(self, offset: int) -> None:
        """Everything before this offset is on Kafka; noted in memory only. Calls `wake` if there is room again."""
        ...

    async def settle(self, offset: int) -> None:
        """The same, durably: records before this offset are deleted."""
        ...

    async def hold(self, offsets: Sequence[int], reason: str) -> None:
        """Hold records back, durably: `outgoing` skips them until they are freed or dropped."""
        ...

    async def held_topics(self) -> set[str]:
        """The topics that have records held back."""
        ...

    async def held(self, topic: str, limit: int = 1_000) -> list[Outgoing]:
        """Records of a topic that are held back, in order. Large records shorten the list to one at least."""
        ...

    async def free(self, offsets: Sequence[int]) -> None:
        """Delete records that were held back and have reached Kafka since."""
        ...

    async def drop(self, offset: int, reason: str, instead: Sequence[Command], now: int) -> None:
        """Count a record that was held back as missed; the commands that report it are part of the transaction."""
        ...

    async def expire(self, offsets: Sequence[int], now: int) -> None:
        """Count records that are not held back and not published as missed, with the reason `expired`."""
        ...

    async def left(self, offsets: Sequence[int], at: int) -> None:
        """Store when records left that had waited in the outbox, as the moment at which their one-shots finished."""
        ...

    async def confirm(self) -> None:
        """Raise `NotOwner` unless this process owns the lane now."""
        ...


class Lane(Outbox, Protocol):
    """A shard of the timeline, with its own outbox.

    Every write checks, in its transaction, that this process owns the lane; `NotOwner` if it does not.
    """

    @property
    def number(self) -> int:
        """Counted from 0."""
        ...

    def release(self, now: int, rows_max: int, clock: Clock | None = None) -> Awaitable[Release]:
        """Release what is due at `now`: to the log, to the outbox, or as missed, in one durable transaction.

        If a clock is given, it is read when the transaction begins, which may be later than the call.

        Takes at most `rows_max` rows, in fair shares by priority and tenant. Recurring schedules get their next
        occurrence. Records for Kafka stay pending while the outbox has no room for them.
        """
        ...

    def next_due(self) -> int | None:
        """When the next release has work to do; None if nothing is due soon. It may be too early, never too late."""
        ...

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` when `next_due` becomes earlier, because of another process or of room in the outbox."""
        ...


class LeaseStore(Protocol):
    """Leases on lanes: each lane has one owner, which renews its lease; every write checks the fencing token."""

    @property
    def clock(self) -> Clock | None:
        """The clock of the store as this process measures it; None where each process uses its own clock."""
        ...

    async def acquire(self, elapsed: int, lease_us: int, report: Report = Report()) -> bool:  # noqa: B008 - frozen
        """Renew the leases of our lanes and take our share of the free ones; False if we may not accept changes.

        `elapsed` was read before the call, and the leases start then. The report is what others see of this node; a
        node without the role `dispatch` owns no lane.
        """
        ...

    async def nodes(self, now: int) -> Fleet:
        """The nodes that are alive, and the owner of each lane."""
        ...

    def lanes(self) -> Sequence[Lane]:
        """The lanes that this process owns now, by its own clock."""
        ...

    def reads(self, source: str, partition: int, channel: ChannelName | None = None) -> bool:
        """Whether this process is to read a partition of a source now. May be called on any thread.

        With a channel the source is a topic of notifications, whose partitions are shared by the processes that deliver
        to this channel; without one it is a topic of requests, shared by those with the role `intake`.

        For a moment two processes may both believe so: the second one is stopped by `Moved` (intake) or by the claim
        (delivery).
        """
        ...

    def on_free(self, listener: Callable[[], None]) -> None:
        """Call the listener when another process has handed lanes over: it is time to acquire."""
        ...

    async def resign(self) -> None:
        """Give up all lanes at once."""
        ...
