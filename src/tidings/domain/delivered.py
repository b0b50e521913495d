"""What a provider tells us later about a message that it took."""

from typing import Literal

import msgspec

ReceiptState = Literal["delivered", "bounced", "complained", "unsubscribed", "failed"]


class DeliveryReceipt(msgspec.Struct, frozen=True, gc=False):
    """One line of news. `message` is our own id where it came back, `provider_id` the provider's.

    `tenant` says whose that id of ours is, where it came back with it. `event` is the same when a provider tells the
    same news twice. `suppress` says that nothing else should go to `address`: a hard bounce, a complaint, an
    unsubscription.
    """

    state: ReceiptState
    provider_id: str
    event: str
    message: str | None = None
    tenant: str | None = None
    address: str | None = None
    at: int | None = None
    reason: str = ""
    suppress: bool = False
