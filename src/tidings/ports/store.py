"""A store: all of its protocols, over data that is committed together."""

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
    """Everything that one database holds."""

    @property
    def identity(self) -> str:
        """A unique id of this store, which never changes."""
        ...

    @property
    def predecessors(self) -> Sequence[Predecessor]:
        """The stores that this one has replaced, because all their data was moved into it."""
        ...

    @property
    def documents(self) -> DocumentStore:
        """The document store, used by delivery."""
        ...

    async def close(self) -> None: ...
