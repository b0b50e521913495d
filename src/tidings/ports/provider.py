"""A provider: what a delivery worker needs to send messages, and what a node needs to register and open one.

An entry point of the group `tidings.providers` names a `ProviderType`. A node loads only the types that its
configuration names, opens each with its settings, and hands the open `Provider` to its delivery workers.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from tidings.clock import Clock
from tidings.domain.notifications.address import PLATFORMS, Device, Platform
from tidings.domain.notifications.delivery import DeliveryReceipt, Verdict
from tidings.domain.notifications.message import ChannelName, InApp, Rendered
from tidings.domain.notifications.user import InboxEntry

ENTRY_POINTS = "tidings.providers"

Address = str | Device  # an e-mail address, a telephone number, a URL, a user id; or a device


class Provider(Protocol):
    """Sends messages over the channels of its type."""

    @property
    def deduplicates(self) -> bool:
        """Whether a message that is sent twice under the same id arrives once."""
        ...

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        """Whether this provider sends to such an address; cheap, because it is asked for every message."""
        ...

    async def send(self, message: Rendered) -> Verdict:
        """Send one message to an address that it accepts.

        Failures of the provider or the network are verdicts, never exceptions. Every call ends within the provider's
        own time-out; if it is cancelled, the message may have arrived.
        """
        ...

    async def close(self) -> None:
        """Close all connections. Nothing is sent afterwards."""
        ...


@runtime_checkable
class ConnectionLimited(Protocol):
    """A provider that sends a limited number of messages at a time, because each one needs a connection."""

    def connections(self, address: Address) -> Mapping[str, int]:
        """The connection pools that a message to this address uses, with their sizes.

        `""` is the pool of the whole provider; any other name is that of a part, such as the origin of a webhook.
        Workers keep to the sizes, so that no message waits inside the provider, which knows no priorities.
        """
        ...


@runtime_checkable
class Erasable(Protocol):
    """A provider that stores messages, and can delete them again."""

    async def erase(self, tenant: str, message_ids: Sequence[str]) -> int:
        """Delete the messages of a tenant with these ids; returns how many there were."""
        ...


@runtime_checkable
class InboxProvider(Protocol):
    """A provider whose messages are entries in the inboxes of users, and whose `send` is never called.

    A worker writes the entry in the transaction that settles its delivery, on condition that the notification and the
    user are as they were loaded. So it needs no connection, no claim and no commit of its own, and is there once.
    """

    def entry(self, message: InApp, now: int) -> tuple[InboxEntry, int]:
        """The entry of a message, and until when it is kept."""
        ...


class ProviderContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider may use of the node that opens it.

    `folder` is that of the database. `receipts_url` is where this provider is to send its receipts, if the
    configuration says how they are verified. `others` are the providers that come before a fallback.
    """

    clock: Clock
    folder: Path
    receipts_url: str | None = None
    others: tuple[Provider, ...] = ()


class Callback(msgspec.Struct, frozen=True, gc=False):
    """A request from a provider: its path with the query, headers in lower case, the raw body, and the time."""

    target: str
    headers: Mapping[str, str]
    body: bytes
    now_s: int


class ReceiptReader(Protocol):
    """Verifies and reads the callbacks of one provider. `bytes_max` limits the size of a body."""

    @property
    def bytes_max(self) -> int: ...

    def verify(self, callback: Callback) -> None:
        """Reject a callback that is not genuine; `Invalid` names the wrong header."""
        ...

    def read(self, callback: Callback) -> Sequence[DeliveryReceipt]:
        """The receipts in a verified callback; `Invalid` if it cannot be parsed."""
        ...


def no_defaults(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Nothing in the table `receipts` follows from the provider's own settings."""
    del settings
    return {}


class ReceiptType(msgspec.Struct, frozen=True, kw_only=True):
    """The receipts that a provider sends: the settings in its table `receipts`, and how to open their reader.

    `open` gets the settings and the node's public URL. `defaults` derives settings from the provider's own table.
    """

    settings: type[msgspec.Struct]
    open: Callable[[Any, str | None], ReceiptReader]
    defaults: Callable[[Mapping[str, Any]], Mapping[str, Any]] = no_defaults


WebhookCheck = Callable[[str, str], None]  # a URL, and the field it is in; raises `Invalid` if it is never called


def any_webhook(url: str, field: str) -> None:
    """Refuse no URL: whether it may be called is decided when a connection is made."""
    del url, field


class ProviderType(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry point of the group `tidings.providers` names: all that a node knows of a kind of provider.

    `platforms` are the push services that it reaches, if it serves push. `receipts` is None for a provider whose
    receipts are signed as Standard Webhooks specifies. A fallback is opened last and accepts only what no other
    provider accepts. `webhook_check` makes a check of URLs from the settings of a provider of webhooks, without reading
    a secret.
    """

    channels: tuple[ChannelName, ...]
    settings: type[msgspec.Struct]
    open: Callable[[Any, ProviderContext], Provider]
    platforms: tuple[Platform, ...] = PLATFORMS
    receipts: ReceiptType | None = None
    is_fallback: bool = False
    webhook_check: Callable[[Mapping[str, Any]], WebhookCheck] | None = None
