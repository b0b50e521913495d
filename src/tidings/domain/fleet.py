"""A fleet as its store knows it: the nodes, what each says of itself, and who owns which lane."""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

Role = Literal["api", "intake", "dispatch", "deliver"]
ROLES: tuple[Role, ...] = get_args(Role)


class Report(msgspec.Struct, frozen=True, gc=False):
    """What a node says of itself each time it renews its leases. Releases and lateness are those of the last minute.

    Nodes of other versions read it too: what they do not know they leave aside, what is missing has its default.
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
    ahead_us: int = 0  # of its own wall clock before the store's

    @property
    def dispatches(self) -> bool:
        """Whether it takes lanes."""
        return "dispatch" in self.roles


class Node(msgspec.Struct, frozen=True, gc=False):
    """A node: it lives while its lease runs, and is remembered for a short while after that."""

    id: str
    since: int
    until: int
    is_alive: bool
    report: Report


class LaneState(msgspec.Struct, frozen=True, gc=False):
    """A lane: the id of the node that owns it (None: nobody does) and since when, and how long the first is overdue."""

    number: int
    node: str | None
    since: int | None
    overdue_us: int


class Fleet(msgspec.Struct, frozen=True, gc=False):
    """All nodes, those that came first being the first, and all lanes in order."""

    nodes: Sequence[Node]
    lanes: Sequence[LaneState]


class Predecessor(msgspec.Struct, frozen=True):
    """A store whose place another has taken: its name, and where the outbox of each of its lanes ended.

    All that was in them was on Kafka by then.
    """

    identity: str
    outboxes: tuple[int, ...]

    def end(self, lane: int) -> int:
        """The offset after the last that this lane of it can have published."""
        return self.outboxes[lane] if lane < len(self.outboxes) else 0


def one_node(before: Node | None, report: Report, lease_us: int) -> Node:
    """The owner of a store that only one process at a time can own, after it has taken or renewed its lease."""
    since = report.at if before is None else before.since
    return Node("", since, report.at + lease_us, True, report)


def one_fleet(node: Node | None, now: int, due: int | None) -> Fleet:
    """All there is of such a store: its owner, if it has one, and its lane."""
    overdue_us = 0 if due is None else max(0, now - due)
    if node is None:
        return Fleet((), (LaneState(0, None, None, overdue_us),))
    if node.until <= now:
        gone = msgspec.structs.replace(node, is_alive=False)
        return Fleet((gone,), (LaneState(0, None, None, overdue_us),))
    return Fleet((node,), (LaneState(0, node.id, node.since, overdue_us),))


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in order for people: `0-3, 7, 9-15`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


SKEW_US_MAX = 1_000_000  # the clocks of two nodes differ by less


def is_set_back(noted: int, now: int) -> bool:
    """Whether the clock was set back since a moment that it showed once, here or at another node."""
    return now < noted - SKEW_US_MAX
