"""The protocols between the stages: what they need of a store, of its tables, and of a provider."""

from tidings.ports.lane import Lane, LeaseStore, Outbox, Release
from tidings.ports.log import Group, GroupMembership, GroupState, GroupUpdate, Log
from tidings.ports.provider import (
    Address,
    Callback,
    ConnectionLimited,
    Erasable,
    InboxProvider,
    Provider,
    ProviderContext,
    ProviderType,
    ReceiptReader,
    ReceiptType,
    WebhookCheck,
    any_webhook,
)
from tidings.ports.store import ApiKey, KeyStore, NotificationTrace, Store
from tidings.ports.timeline import (
    CalendarStore,
    Count,
    IdempotencyKey,
    ScheduleReader,
    SourceBatch,
    SourcePosition,
    Timeline,
)

__all__ = [
    "Address",
    "ApiKey",
    "CalendarStore",
    "Callback",
    "ConnectionLimited",
    "Count",
    "Erasable",
    "Group",
    "GroupMembership",
    "GroupState",
    "GroupUpdate",
    "IdempotencyKey",
    "InboxProvider",
    "KeyStore",
    "Lane",
    "LeaseStore",
    "Log",
    "NotificationTrace",
    "Outbox",
    "Provider",
    "ProviderContext",
    "ProviderType",
    "ReceiptReader",
    "ReceiptType",
    "Release",
    "ScheduleReader",
    "SourceBatch",
    "SourcePosition",
    "Store",
    "Timeline",
    "WebhookCheck",
    "any_webhook",
]
