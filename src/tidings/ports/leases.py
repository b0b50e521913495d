"""Leases on lanes, and the fleet of processes that hold them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tidings.clock import Clock
from tidings.domain.fleet import Fleet, Report, Role
from tidings.ports.lane import Lane


class LeaseStore(Protocol):
    """Each lane is owned by one process, by a lease that it renews; every write of a lane checks the owner's token."""

    @property
    def clock(self) -> Clock | None:
        """The clock that counts, where it is not each process's own: the store's, as this process measures it."""
        ...

    async def acquire(self, elapsed: int, lease_us: int, report: Report = Report()) -> bool:  # noqa: B008 - frozen
        """Renew the leases of our lanes and take our share of those that are free; False if we may take no changes.

        `elapsed` was read before the call: the leases run from then on. The report is what others see of us; whose
        roles have no dispatch owns no lane.
        """
        ...

    async def nodes(self, now: int) -> Fleet:
        """Who lives, and who owns which lane."""
        ...

    def lanes(self) -> Sequence[Lane]:
        """The lanes that this process owns now, as far as it can know by itself."""
        ...

    def reads(self, source: str, partition: int, role: Role = "intake") -> bool:
        """Whether a partition of a source is for this process to read now, among those of a role. On any thread.

        For a moment two processes may think so of the same one: of intake `Moved` tells the second, of delivery the
        claim.
        """
        ...

    def on_free(self, call: Callable[[], None]) -> None:
        """Have this called when another process has handed lanes over: it is time to acquire."""
        ...

    async def resign(self) -> None:
        """Hand all lanes over at once."""
        ...
