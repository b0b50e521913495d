"""Who reads which partition of a source: evenly among the nodes that live and take in, without asking each other.

All nodes know the same rows of the same table, and each follows from them by itself what is its own to read. For a
moment they may know different ones and read the same: what was read twice is taken once, for the position that it
begins at is compared with the stored one.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from uuid import UUID


class Sharing:
    """Asked on any thread."""

    def __init__(self, node: UUID, elapsed: Callable[[], int]) -> None:
        self._node = node
        self._elapsed = elapsed
        self._until = 0
        self._readers: tuple[UUID, ...] = ()
        self._orders: dict[str, tuple[UUID, ...]] = {}

    def learn(self, readers: Sequence[UUID], until: int) -> None:
        """These live, and until when we may believe that we are one of them."""
        if tuple(readers) != self._readers:
            self._readers, self._orders = tuple(readers), {}
        self._until = until

    def reads(self, source: str, partition: int) -> bool:
        """Whether a partition is ours. The nodes take turns, beginning with another one for each source."""
        readers, orders = self._readers, self._orders
        if self._node not in readers or self._elapsed() >= self._until:
            return False
        order = orders.get(source)
        if order is None:
            order = orders[source] = tuple(sorted(readers, key=lambda node: _score(source, node)))
        return order[partition % len(order)] == self._node


def _score(source: str, node: UUID) -> bytes:
    return blake2b(source.encode() + node.bytes, digest_size=8).digest()
