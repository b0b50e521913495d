"""The protocols between the stages: what they need of a store, of its documents, and of a provider."""

from tidings.ports.calendars import CalendarStore
from tidings.ports.documents import (
    ANY,
    NAME_BYTES_MAX,
    Change,
    Document,
    DocumentStore,
    Key,
    Place,
    Put,
    Remove,
    Unchanged,
)
from tidings.ports.keys import ApiKey, KeyStore
from tidings.ports.lane import Lane, Outbox, Release
from tidings.ports.leases import LeaseStore
from tidings.ports.log import Group, GroupMembership, GroupState, GroupUpdate, Log
from tidings.ports.provider import (
    Callback,
    ConnectionLimited,
    Erasable,
    Plugin,
    Provider,
    ProviderContext,
    ReceiptReader,
)
from tidings.ports.store import Store
from tidings.ports.timeline import Count, IdempotencyKey, ScheduleReader, SourceBatch, SourcePosition, Timeline

__all__ = [
    "ANY",
    "NAME_BYTES_MAX",
    "ApiKey",
    "CalendarStore",
    "Callback",
    "Change",
    "ConnectionLimited",
    "Count",
    "Document",
    "DocumentStore",
    "Erasable",
    "Group",
    "GroupMembership",
    "GroupState",
    "GroupUpdate",
    "IdempotencyKey",
    "Key",
    "KeyStore",
    "Lane",
    "LeaseStore",
    "Log",
    "Outbox",
    "Place",
    "Plugin",
    "Provider",
    "ProviderContext",
    "Put",
    "ReceiptReader",
    "Release",
    "Remove",
    "ScheduleReader",
    "SourceBatch",
    "SourcePosition",
    "Store",
    "Timeline",
    "Unchanged",
]
