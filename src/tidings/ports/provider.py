"""A provider: what a delivery worker needs to send messages, and what it needs to read a provider's callbacks."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from tidings.clock import Clock
from tidings.domain.notifications.delivery import DeliveryReceipt, Verdict
from tidings.domain.notifications.message import Rendered
from tidings.ports.documents import DocumentStore


class ProviderContext(msgspec.Struct, frozen=True):
    """What a provider may use of the node that opens it: the clock, the folder of the database, and the documents."""

    clock: Clock
    folder: Path
    documents: DocumentStore | None = None


class Provider(Protocol):
    """Sends the messages of a channel."""

    @property
    def deduplicates(self) -> bool:
        """Whether a message that is sent twice under the same id arrives once."""
        ...

    def takes(self, message: Rendered) -> bool:
        """Whether this provider sends such messages: by channel, and for a push by the platform of the device."""
        ...

    async def send(self, message: Rendered) -> Verdict:
        """Send one message. Failures of the provider or the network are verdicts, never exceptions."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class ConnectionLimited(Protocol):
    """A provider that sends a limited number of messages at a time, because each one needs a connection."""

    def lines(self, message: Rendered) -> Mapping[str, int]:
        """The connection pools that a message like this one uses (`""`: that of the whole provider), with their sizes.

        Workers respect the sizes, so that no message waits inside the provider, which knows no priorities.
        """
        ...


@runtime_checkable
class Erasable(Protocol):
    """A provider that stores messages, and can delete them again."""

    async def erase(self, tenant: str, message_ids: Sequence[str]) -> int:
        """Delete the messages of a tenant with these ids; returns how many there were."""
        ...


class Plugin(msgspec.Struct, frozen=True):
    """What an entry point of the group `tidings.channels` provides: the settings of a provider, and how to open it."""

    settings: type[msgspec.Struct]
    open: Callable[[Any, ProviderContext], Provider]


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
