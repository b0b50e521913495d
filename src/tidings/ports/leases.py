"""Leases on lanes, and the fleet of processes that hold them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tidings.clock import Clock
from tidings.domain.fleet import Fleet, Report, Role
from tidings.ports.lane import Lane


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

    def reads(self, source: str, partition: int, role: Role = "intake") -> bool:
        """Whether this process is to read a partition of a source now, in a role. May be called on any thread.

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
