"""The built-in log: topics, partitions, offsets and committed positions."""

from collections.abc import Callable
from typing import Protocol

from tidings.domain.schedules.schedule import (
    Record,
    Topic,
)
from tidings.ports.groups import GroupMembership


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
