"""What delivery needs of the engine: a notification is a schedule like any other."""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from tidings.domain.fleet import Fleet
from tidings.domain.schedules.command import Add, Command, Outcome, UniformAdds
from tidings.domain.schedules.schedule import Request, Schedule
from tidings.ports.store import NotificationTrace
from tidings.ports.tables import ChangeGroup, GroupResult


class AddForm(Protocol):
    """Commands that differ only in id, key, value and one label; `zone` is the time zone that their time is in."""

    @property
    def zone(self) -> str | None: ...

    @property
    def expires_after_us(self) -> int | None: ...

    @property
    def adds(self) -> UniformAdds:
        """The commands that were filled in."""
        ...

    def fill(self, ids: Sequence[str], words: Sequence[bytes], values: Sequence[bytes]) -> bool:
        """Add a command for each id, with this value, and this word as its key and label.

        False, and nothing is added, if one of them may have to be refused.
        """
        ...


class NotificationEngine(Protocol):
    """The engine, as far as delivery uses it."""

    def command(
        self,
        tenant: str,
        request: Request,
        now: int,
        *,
        new: bool = True,
        reuse: bool = False,
        for_delivery: bool = False,
    ) -> Add:
        """The command for a request; raises `Invalid`. `for_delivery` allows the topics of notifications."""
        ...

    def form(self, tenant: str, request: Request, now: int, blank: str) -> AddForm | None:
        """The commands for requests that differ only in id, key, value and one label, of which `blank` holds the place.

        None if they differ in more; raises `Invalid`.
        """
        ...

    def submit(self, commands: Sequence[Command]) -> Awaitable[list[Outcome]]:
        """Commit commands durably, in order; the outcome of each."""
        ...

    def commit(self, groups: Sequence[ChangeGroup]) -> Awaitable[list[GroupResult]]:
        """Commit groups of row changes, with their commands, durably and in order."""
        ...

    async def find(self, tenant: str, schedule_id: str) -> Schedule | None:
        """A schedule; None if it is not known, or not any more."""
        ...

    async def is_read(self, schedule: Schedule, group: str) -> bool:
        """Whether a consumer group has passed the last record that a finished schedule released to the log."""
        ...

    async def nodes(self) -> Fleet:
        """The nodes that share the store."""
        ...

    async def trace(self, tenant: str, notification_id: str, deliveries_max: int) -> NotificationTrace:
        """Everything that is stored about a notification, from one snapshot."""
        ...
