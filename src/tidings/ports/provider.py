"""What the workers ask of a channel."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from tidings.clock import Clock
from tidings.domain.notifications.delivery import DeliveryReceipt, Verdict
from tidings.domain.notifications.message import Rendered
from tidings.ports.documents import DocumentStore


class ProviderContext(msgspec.Struct, frozen=True):
    """What a channel may use of the node that opens it: its clock, the folder beside its database, and the cabinet."""

    clock: Clock
    folder: Path
    documents: DocumentStore | None = None


class Provider(Protocol):
    """A way out to people, through one provider."""

    @property
    def deduplicates(self) -> bool:
        """Whether a message that is sent again under the same id arrives once."""
        ...

    def takes(self, message: Rendered) -> bool:
        """Whether this is the provider for such a message: its channel, and for a push the device's platform."""
        ...

    async def send(self, message: Rendered) -> Verdict:
        """Hand one message over. What a provider or a network does is a verdict; it never raises for that."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class ConnectionLimited(Protocol):
    """A channel that carries only so many messages at once, because each takes up a connection."""

    def lines(self, message: Rendered) -> Mapping[str, int]:
        """What a message like this one would take up (`""` is the whole of the channel), and how many fit in there.

        Who sends keeps to it, so that nobody waits inside the channel, where no priority is known.
        """
        ...


@runtime_checkable
class Erasable(Protocol):
    """A channel that keeps messages where it can take them away again."""

    async def erase(self, tenant: str, message_ids: Sequence[str]) -> int:
        """Remove a tenant's messages of these ids; says how many there were."""
        ...


class Plugin(msgspec.Struct, frozen=True):
    """What an entry point of the group `tidings.channels` names: the settings of a provider, and how it is opened."""

    settings: type[msgspec.Struct]
    open: Callable[[Any, ProviderContext], Provider]


class Callback(msgspec.Struct, frozen=True, gc=False):
    """A request of a provider as it came: its path with the query, headers in lower case, the raw body, the second."""

    target: str
    headers: Mapping[str, str]
    body: bytes
    now_s: int


class ReceiptReader(Protocol):
    """Knows the callbacks of one provider, by a key that was configured. `bytes_max` bounds a body."""

    @property
    def bytes_max(self) -> int: ...

    def verify(self, callback: Callback) -> None:
        """Refuse what is not genuine; `Invalid` names the header at fault."""
        ...

    def read(self, callback: Callback) -> Sequence[DeliveryReceipt]:
        """The receipts of a callback that was verified; `Invalid` if it cannot be read."""
        ...
