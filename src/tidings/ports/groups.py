"""Membership of consumer groups, shared by every process of a fleet."""

from collections.abc import Callable
from typing import Protocol

import msgspec

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
