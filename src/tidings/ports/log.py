"""The built-in log: topics, partitions, offsets and committed positions."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tidings.domain.schedules.schedule import (
    Record,
    Topic,
)

Group = tuple[str, str, str]  # tenant, topic, name


class GroupState(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a consumer group: who is in it (None: nobody), and how far it has come by partition.

    `now` is on the clock that its deadlines are counted on; `groups` says how many others its tenant has, if it is new.
    """

    roster: bytes | None
    committed: dict[int, int]
    now: int
    groups: int = 0


class GroupUpdate(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a consumer group: who is in it, until when if nobody calls, and what is committed.

    `moved` says that partitions changed hands, so that those who wait have to look.
    """

    roster: bytes
    until: int
    offsets: dict[int, int] = {}
    moved: bool = False


class GroupMembership(Protocol):
    """Who is in each consumer group, kept for all processes alike: a member may call any of them."""

    @property
    def look_us(self) -> int:
        """How long those who wait may go without looking: hints that partitions moved may not reach us."""
        ...

    async def change(self, group: Group, decide: Callable[[GroupState], GroupUpdate | None]) -> None:
        """Take one step with a group, in one transaction with what it commits, unless there is nothing to change.

        The decision is made again if another process was faster. Only what is committed has to outlive the store.
        """
        ...

    def on_moved(self, call: Callable[[Group], None]) -> None:
        """Have this called when partitions changed hands elsewhere. It is a hint."""
        ...


class Log(Protocol):
    """The built-in bus: topics, partitions, offsets, and where consumer groups stand."""

    partitions: int

    @property
    def rosters(self) -> GroupMembership | None:
        """None where only one process at a time leads the groups, and keeps in memory who is in them."""
        ...

    async def topics(self, tenant: str) -> list[Topic]: ...

    async def topic(self, tenant: str, name: str) -> Topic | None: ...

    async def prefixed(self, prefix: str) -> list[tuple[str, Topic]]:
        """The topics of all tenants whose names begin so and that ever held a record, each with its tenant."""
        ...

    async def read(
        self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
    ) -> list[Record]:
        """Records of one partition from an offset on (or from the first that is still kept).

        With `bytes_max`, only as many as have that many bytes of messages together; always at least one.
        """
        ...

    async def committed(self, tenant: str, topic: str, group: str) -> dict[int, int]: ...

    async def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Keep where a group stands, durably."""
        ...

    async def follow(self, tenant: str, topic: str) -> None:
        """Be told of what other processes put onto a topic, from now on until as many calls of `unfollow`."""
        ...

    def unfollow(self, tenant: str, topic: str) -> None: ...

    def on_news(self, call: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        """Have this called too, as soon as can be, with the topics on which others put something. It is a hint."""
        ...
