"""A store: all of its protocols, over data that is committed together; and its API keys, stored as digests."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tidings.domain.fleet import Predecessor
from tidings.domain.schedules.schedule import Event, Schedule
from tidings.ports.lane import LeaseStore
from tidings.ports.log import Log
from tidings.ports.tables import Row, Tables
from tidings.ports.timeline import CalendarStore, ScheduleReader, Timeline


class ApiKey(msgspec.Struct, frozen=True, gc=False):
    """An API key as stored: never the key itself, only its digest."""

    name: str
    tenant: str
    digest: bytes
    admin: bool
    created: int


class NotificationTrace(msgspec.Struct, frozen=True):
    """Everything that is stored about a notification: its row and its latest deliveries, the last due first; its
    schedule, without the message if it was released; and what happened to that, oldest first."""

    notification: Row | None
    deliveries: list[Row]
    schedule: Schedule | None
    events: list[Event]


class KeyStore(Protocol):
    """Stores API keys."""

    async def keys(self) -> list[ApiKey]: ...

    async def add_key(self, key: ApiKey) -> None: ...

    async def revoke_key(self, name: str) -> bool: ...


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
    def tables(self) -> Tables:
        """The tables of notifications."""
        ...

    async def trace(self, tenant: str, notification_id: str, now: int, deliveries_max: int) -> NotificationTrace:
        """Everything about a notification, from one snapshot: one round trip to a server."""
        ...

    async def close(self) -> None: ...
