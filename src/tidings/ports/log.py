"""The built-in log: topics, partitions, offsets, and consumer groups with their committed positions."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tidings.domain.schedules.schedule import (
    Record,
    Topic,
)

Group = tuple[str, str, str]  # tenant, topic, name


class GroupState(msgspec.Struct, frozen=True, gc=False):
    """A consumer group as stored: its encoded members (None: no members), and the committed offset of each partition.

    `now` is on the clock that its deadlines use. `groups` is the number of other groups of the tenant if it is new.
    """

    roster: bytes | None
    committed: dict[int, int]
    now: int
    groups: int = 0


class GroupUpdate(msgspec.Struct, frozen=True, gc=False):
    """A change of a consumer group: its encoded members, until when they stay if none calls, and new offsets.

    `moved` says that partitions were reassigned, so that waiting members have to look again.
    """

    roster: bytes
    until: int
    offsets: dict[int, int] = {}
    moved: bool = False


class GroupMembership(Protocol):
    """The members of consumer groups, shared by all processes: a member may call any of them."""

    @property
    def poll_us(self) -> int:
        """How long a waiting member may go without looking again: hints about reassignments may be lost."""
        ...

    async def change(self, group: Group, decide: Callable[[GroupState], GroupUpdate | None]) -> None:
        """Change a group and commit its offsets in one transaction; nothing is written if `decide` returns None.

        `decide` is called again if another process has changed the group meanwhile. Only offsets have to survive a
        crash of the store.
        """
        ...

    def on_moved(self, listener: Callable[[Group], None]) -> None:
        """Call the listener when another process has reassigned partitions. It is a hint, and may be lost."""
        ...


class Log(Protocol):
    """The built-in bus."""

    partitions: int

    @property
    def group_membership(self) -> GroupMembership | None:
        """None where one process at a time coordinates the groups, and keeps their members in memory."""
        ...

    async def topics(self, tenant: str) -> list[Topic]: ...

    async def topic(self, tenant: str, name: str) -> Topic | None: ...

    async def topics_by_prefix(self, prefix: str) -> list[tuple[str, Topic]]:
        """The topics of all tenants that start with a prefix and ever had a record, each with its tenant."""
        ...

    async def read(
        self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
    ) -> list[Record]:
        """Records of one partition from an offset on, or from the first one still stored.

        `bytes_max` limits the total size of their messages; at least one record is returned.
        """
        ...

    async def committed(self, tenant: str, topic: str, group: str) -> dict[int, int]: ...

    async def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Store the committed offsets of a group, durably."""
        ...

    async def subscribe(self, tenant: str, topic: str) -> None:
        """Get hints about records that other processes append to a topic, until as many calls of `unsubscribe`."""
        ...

    def unsubscribe(self, tenant: str, topic: str) -> None: ...

    def on_records(self, listener: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        """Call the listener with the topics to which other processes have appended. It is a hint, and may be lost."""
        ...
