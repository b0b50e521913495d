"""The result of sending one message to a provider: accepted, a temporary or permanent failure, or a broken setup.

Only failures of the provider may open its circuit breaker, which all tenants share: transport errors, timeouts, its own
errors, and its refusal of our credentials or settings. What is wrong with one message or one recipient may not.
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
_PROVIDER_WORKS = frozenset({"rate_limited", "address_deferred"})  # temporary, but the provider itself works
BrokenReason = Literal["credentials_refused", "sender_refused", "misconfigured", "account_refused"]


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The provider accepted the message. Its receipts refer to this id, which is empty if it gave none."""

    id: str


class Temporary(msgspec.Struct, frozen=True, gc=False):
    """A temporary failure. `retry_after_us` is the pause that the provider asked for.

    `address_deferred` is about the recipient only (greylisting, a full mailbox): the provider works.

    `may_have_arrived` says that the response was lost after the message was sent: another attempt may be a duplicate.

    `concerns_provider` is False if the failure says nothing about the provider: no circuit breaker counts it.
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
    """A permanent failure. `address_is_dead` says that nothing else should be sent to this address either.

    `concerns_provider` is False if the provider was not called because the message could not be built: the failure
    does not show that the provider works.
    """

    reason: PermanentReason
    detail: str = ""
    address_is_dead: bool = False
    concerns_provider: bool = True


class Broken(msgspec.Struct, frozen=True, gc=False):
    """Our settings are wrong, for every message to this provider: it is stopped and reported, and nothing is lost."""

    reason: BrokenReason
    detail: str = ""


Verdict = Accepted | Temporary | Permanent | Broken


def unbuildable(error: Exception) -> Permanent:
    """The result for a message that cannot be put into the form of its provider: it was not sent, and never will be."""
    detail = " ".join(f"the message cannot be built: {str(error) or type(error).__name__}".split())
    return Permanent("content_refused", detail[:DETAIL_CHARS_MAX], concerns_provider=False)


def built(build: Callable[[], T]) -> T | Permanent:
    """What `build` returns; any exception means that this one message cannot be built."""
    try:
        return build()
    except Exception as error:  # noqa: BLE001
        return unbuildable(error)
