"""What became of handing one message to a provider: taken, not now, never, or our own fault.

Only what concerns the provider may open its circuit breaker, which all tenants share: transport errors, time-outs, its
own failures, and its refusal of our credentials or settings. What is wrong with one message or one recipient may not.
"""

from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

T = TypeVar("T")

DETAIL_CHARS_MAX = 300

TemporaryReason = Literal[
    "timeout", "unreachable", "connection_lost", "rate_limited", "provider_error", "address_deferred"
]
PermanentReason = Literal[
    "address_refused", "address_gone", "unsubscribed", "content_refused", "too_large", "not_supported"
]
_PROVIDER_WORKS = frozenset({"rate_limited", "address_deferred"})  # not now, but the provider has answered as it should
BrokenReason = Literal["credentials_refused", "sender_refused", "misconfigured", "account_refused"]


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The provider has taken it, under this id; its receipts name the same. An empty one: it named none."""

    id: str


class Temporary(msgspec.Struct, frozen=True, gc=False):
    """Not now. `retry_after_us` is what the provider asks for.

    `address_deferred` is about the recipient alone (greylisted, a full mailbox): the provider works.

    `may_have_arrived` says that the answer was lost after the message was sent: another attempt may be the second.

    `concerns_provider` is False where it says nothing about the provider: no circuit breaker counts it.
    """

    reason: TemporaryReason
    detail: str = ""
    retry_after_us: int | None = None
    may_have_arrived: bool = False
    concerns_provider: bool = True

    @property
    def is_provider_failure(self) -> bool:
        """Whether a circuit breaker counts it as a failure of the provider."""
        return self.concerns_provider and self.reason not in _PROVIDER_WORKS


class Permanent(msgspec.Struct, frozen=True, gc=False):
    """Never, as it stands. `address_is_dead` says that nothing else should be sent to this address either.

    `concerns_provider` is False where the provider was never called, because the message could not be built: it does
    not show that the provider works.
    """

    reason: PermanentReason
    detail: str = ""
    address_is_dead: bool = False
    concerns_provider: bool = True


class Broken(msgspec.Struct, frozen=True, gc=False):
    """Our fault, and that of every message on this channel: stop it, say so, lose nothing."""

    reason: BrokenReason
    detail: str = ""


Verdict = Accepted | Temporary | Permanent | Broken


def unbuildable(error: Exception) -> Permanent:
    """The verdict on a message that cannot be put into the form that its provider takes: it was not sent, and never
    will be as it stands."""
    told = " ".join(f"the message cannot be built: {str(error) or type(error).__name__}".split())
    return Permanent("content_refused", told[:DETAIL_CHARS_MAX], concerns_provider=False)


def built(build: Callable[[], T]) -> T | Permanent:
    """What a channel makes of a message before it calls its provider; whatever fails there is wrong with this message
    alone."""
    try:
        return build()
    except Exception as error:  # noqa: BLE001
        return unbuildable(error)
