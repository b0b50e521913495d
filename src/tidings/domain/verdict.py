"""What became of handing one message to a provider: taken, not now, never, or our own fault."""

from typing import Literal

import msgspec

TemporaryReason = Literal[
    "timeout", "unreachable", "connection_lost", "rate_limited", "provider_error", "address_deferred"
]
PermanentReason = Literal[
    "address_refused", "address_gone", "unsubscribed", "content_refused", "too_large", "not_supported"
]
BrokenReason = Literal["credentials_refused", "sender_refused", "misconfigured", "account_refused"]


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The provider has taken it, under this id; its receipts name the same. An empty one: it named none."""

    id: str


class Temporary(msgspec.Struct, frozen=True, gc=False):
    """Not now. `retry_after_us` is what the provider asks for.

    `address_deferred` is about the recipient alone (greylisted, a full mailbox): the provider works.

    `may_have_arrived` says that the answer was lost after the message was sent: another attempt may be the second.
    """

    reason: TemporaryReason
    detail: str = ""
    retry_after_us: int | None = None
    may_have_arrived: bool = False


class Permanent(msgspec.Struct, frozen=True, gc=False):
    """Never, as it stands. `address_is_dead` says that nothing else should be sent to this address either."""

    reason: PermanentReason
    detail: str = ""
    address_is_dead: bool = False


class Broken(msgspec.Struct, frozen=True, gc=False):
    """Our fault, and that of every message on this channel: stop it, say so, lose nothing."""

    reason: BrokenReason
    detail: str = ""


Verdict = Accepted | Temporary | Permanent | Broken
