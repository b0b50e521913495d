"""A store: all of its protocols, over data that commits together."""

from collections.abc import Sequence
from typing import Protocol

from tidings.domain.fleet import Predecessor
from tidings.ports.calendars import CalendarStore
from tidings.ports.documents import DocumentStore
from tidings.ports.keys import KeyStore
from tidings.ports.leases import LeaseStore
from tidings.ports.log import Log
from tidings.ports.timeline import ScheduleReader, Timeline


class Store(Timeline, CalendarStore, ScheduleReader, Log, KeyStore, LeaseStore, Protocol):
    """All of it, in one place that commits together."""

    @property
    def identity(self) -> str:
        """A name that no other store has; it stays the same for as long as the store exists."""
        ...

    @property
    def predecessors(self) -> Sequence[Predecessor]:
        """The stores whose place this one has taken, because everything of them was moved into it."""
        ...

    @property
    def documents(self) -> DocumentStore:
        """The documents of delivery."""
        ...

    async def close(self) -> None: ...
