"""What a provider's callback is asked: whether it is genuine, and what it tells."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from tidings.domain.delivered import DeliveryReceipt


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
