"""What delivery asks of the engine: a notification is a schedule like any other."""

from collections.abc import Sequence
from typing import Protocol

from tidings.domain.fleet import Fleet
from tidings.domain.schedules.command import Add, Command, Outcome
from tidings.domain.schedules.request import Request
from tidings.domain.schedules.schedule import Event, Schedule


class Schedules(Protocol):
    """The engine, as far as it is needed here."""

    def command(self, tenant: str, request: Request, now: int, *, new: bool = True, reuse: bool = False) -> Add:
        """The command for a request; raises `Invalid`."""
        ...

    async def submit(self, commands: Sequence[Command]) -> list[Outcome]:
        """Commit commands durably, in order, and answer each."""
        ...

    async def find(self, tenant: str, schedule_id: str) -> Schedule | None:
        """A schedule as it stands, None if it is not (or no longer) known."""
        ...

    async def nodes(self) -> Fleet:
        """Who shares the store."""
        ...

    async def history(self, tenant: str, schedule_id: str) -> list[Event]:
        """What happened to a schedule and when, oldest first."""
        ...
