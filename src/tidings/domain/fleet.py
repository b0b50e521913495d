"""A fleet as the store knows it: nodes and their reports, owners of lanes, predecessors, clocks that were set back."""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from tidings.domain.notifications.message import CHANNEL_NAMES

Role = Literal["api", "intake", "dispatch", "deliver"]
ROLES: tuple[Role, ...] = get_args(Role)


class Report(msgspec.Struct, frozen=True, gc=False):
    """What a node reports each time it renews its leases. Releases and lateness are those of the last minute.

    Nodes of other versions read it too: they ignore unknown fields, and missing ones have their defaults.
    """

    name: str = ""
    roles: tuple[str, ...] = ROLES
    url: str = ""
    version: str = ""
    at: int = 0
    released: int = 0
    p50_us: int = 0
    p99_us: int = 0
    max_us: int = 0
    ahead_us: int = 0  # how far its wall clock is ahead of the store's
    channels: tuple[str, ...] = CHANNEL_NAMES  # that it delivers to, if it has the role `deliver`

    @property
    def dispatches(self) -> bool:
        """Whether the node takes ownership of lanes."""
        return "dispatch" in self.roles

    def delivers(self, channel: str) -> bool:
        """Whether the node delivers notifications of this channel."""
        return "deliver" in self.roles and channel in self.channels


class Node(msgspec.Struct, frozen=True, gc=False):
    """A node. It is alive while its lease runs, and is listed for a short time after that."""

    id: str
    since: int
    until: int
    is_alive: bool
    report: Report


class LaneState(msgspec.Struct, frozen=True, gc=False):
    """A lane: the id of its owner (None without one), since when, and how long its first pending row is overdue."""

    number: int
    node: str | None
    since: int | None
    overdue_us: int


class Fleet(msgspec.Struct, frozen=True, gc=False):
    """All nodes, oldest first, and all lanes in order."""

    nodes: Sequence[Node]
    lanes: Sequence[LaneState]


class Predecessor(msgspec.Struct, frozen=True):
    """A store that was replaced by this one: its identity, and the end of the outbox of each of its lanes.

    All records in these outboxes were on Kafka before the store was replaced.
    """

    identity: str
    outboxes: tuple[int, ...]

    def end(self, lane: int) -> int:
        """The offset after the last record that a lane of it can have published."""
        return self.outboxes[lane] if lane < len(self.outboxes) else 0


def one_node(before: Node | None, report: Report, lease_us: int) -> Node:
    """The node of a store with a single owner, after it has acquired or renewed the lease."""
    since = report.at if before is None else before.since
    return Node(id="", since=since, until=report.at + lease_us, is_alive=True, report=report)


def one_fleet(node: Node | None, now: int, due: int | None) -> Fleet:
    """The fleet of a store with a single owner: the owner, if there is one, and the one lane."""
    overdue_us = 0 if due is None else max(0, now - due)
    if node is None:
        return Fleet((), (LaneState(0, None, None, overdue_us),))
    if node.until <= now:
        gone = msgspec.structs.replace(node, is_alive=False)
        return Fleet((gone,), (LaneState(0, None, None, overdue_us),))
    return Fleet((node,), (LaneState(0, node.id, node.since, overdue_us),))


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers as ranges, for people: `0-3, 7, 9-15`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


SKEW_US_MAX = 1_000_000  # the clocks of two nodes differ by less than this


def is_set_back(noted: int, now: int) -> bool:
    """Whether the clock was set back since a time that was read from it, on this node or on another."""
    return now < noted - SKEW_US_MAX
