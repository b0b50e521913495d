"""A delivery: its state, attempts and history; the results of sending (verdicts); and the receipts of providers."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec

from tidings.domain.notifications.message import ChannelName

ReceiptState = Literal["delivered", "bounced", "complained", "unsubscribed", "failed"]


class DeliveryReceipt(msgspec.Struct, frozen=True, gc=False):
    """A provider's report on a message that it accepted earlier.

    `message` is our own message id, and `tenant` its tenant, if the provider returns them; `provider_id` is the
    provider's id. `event` identifies the report, so that a repeated one is recognized. `suppress` says that nothing
    else should be sent to `address`: after a hard bounce, a complaint or an unsubscription.
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


State = Literal[
    "pending", "processing", "sent", "delivered", "bounced", "complained", "failed", "cancelled", "expired", "skipped"
]
FINAL: frozenset[State] = frozenset({"delivered", "bounced", "complained", "failed", "cancelled", "expired", "skipped"})
SETTLED: frozenset[State] = FINAL | {"sent"}  # nothing left to do for a worker

STEPS_MAX = 50
QUIET_HOURS = "quiet_hours"  # as the reason of a delivery


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One call of a provider. Without `ended` it is in progress, or was interrupted.

    `may_have_arrived` says that it failed and the provider may have accepted the message nevertheless.
    """

    number: int
    channel: ChannelName
    provider: str
    begun: int
    ended: int | None = None
    outcome: str = ""  # accepted, or the reason of the verdict
    detail: str = ""
    provider_id: str | None = None
    may_have_arrived: bool = False


class Part(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One of several devices that a push is sent to, identified by a digest. Its number stays when others are removed.

    `outcome` is empty until the device has been tried.
    """

    number: int
    digest: str
    outcome: Literal["", "accepted", "refused"] = ""
    provider_id: str | None = None


class ProviderEvent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A receipt as it is stored with the delivery; `event` identifies it, so that a repeated one is recognized."""

    at: int
    state: str
    event: str
    reason: str = ""


class Step(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An event in the history of a delivery other than its attempts; `times` counts repetitions since `at`.

    `event` is `passed_over` (a channel was skipped, for a reason), `pending` (back on the timeline until `until`),
    `retried` (manually), the final state before a manual retry, or the reason why a provider refused us.
    """

    at: int
    event: str
    channel: ChannelName | None = None
    provider: str = ""
    reason: str = ""
    detail: str = ""
    until: int | None = None
    times: int = 1


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The exclusive right of a worker to send a delivery, until a deadline."""

    worker: str
    until: int


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One occurrence of a notification for one user: its state, attempts and result. `due` is its due time.

    `turn` counts how often the delivery was put on the timeline. The schedule of a turn is committed together with the
    turn here, so a record of an earlier turn can be ignored, and there is none of a later turn. `trying_us` is how long
    its channel has been tried: calls, and the pauses after failed ones. After a manual retry, `given_up` is the
    number of the last attempt before it, from which attempts are counted, and `first_due` the due time before it.
    `history` has the latest steps; it is empty if the first attempt succeeded.
    """

    name: str
    notification: str
    due: int
    state: State = "pending"
    reason: str = ""
    channel: ChannelName | None = None
    user: str | None = None
    address: str | None = None
    attempts: tuple[Attempt, ...] = ()
    claim: Claim | None = None
    turn: int = 1
    parts: tuple[Part, ...] = ()
    next_try: int | None = None
    changed: int = 0
    sent: int | None = None
    provider: str | None = None
    provider_id: str | None = None
    news: tuple[ProviderEvent, ...] = ()
    trying_us: int = 0
    given_up: int = 0
    first_due: int | None = None
    history: tuple[Step, ...] = ()

    @property
    def fresh(self) -> tuple[Attempt, ...]:
        """The attempts since the request, or since the last manual retry."""
        return tuple(attempt for attempt in self.attempts if attempt.number > self.given_up)

    @property
    def is_settled(self) -> bool:
        return self.state in SETTLED

    @property
    def is_held(self) -> bool:
        """Whether it waits for the end of its user's quiet hours."""
        return self.state == "pending" and self.reason == QUIET_HOURS

    @property
    def has_arrived(self) -> bool:
        """Whether one of several devices has got it."""
        return any(part.outcome == "accepted" for part in self.parts)

    @property
    def was_due(self) -> int:
        """The due time from which lateness counts, also after a manual retry."""
        return self.due if self.first_due is None else self.first_due


def remembered(delivery: Delivery, *steps: Step) -> Delivery:
    """The delivery with these steps appended to its history; repeated steps are merged into one with a count.

    Steps with an attempt between them are not repetitions: each of them is the wait after another attempt.
    """
    history = list(delivery.history)
    tried = max((attempt.begun for attempt in delivery.attempts), default=0)
    for step in steps:
        before = history[-1] if history else None
        if before is not None and before.at >= tried and _is_repeated(before, step):
            history[-1] = msgspec.structs.replace(before, until=step.until, times=before.times + 1)
        else:
            history.append(step)
    return msgspec.structs.replace(delivery, history=tuple(history[-STEPS_MAX:]))


def _is_repeated(before: Step, step: Step) -> bool:
    same = ("event", "channel", "provider", "reason", "detail")
    return all(getattr(before, name) == getattr(step, name) for name in same)


# A receipt moves a delivery only to a state of a higher rank, so late and repeated receipts change nothing.
_RANKS: dict[State, int] = {
    "pending": 0,
    "processing": 0,
    "sent": 1,
    "delivered": 2,
    "failed": 3,
    "bounced": 3,
    "complained": 4,
}
_AFTER: dict[ReceiptState, State] = {
    "delivered": "delivered",
    "bounced": "bounced",
    "complained": "complained",
    "failed": "failed",
}

# Which state represents several channels of one occurrence: what is in progress first, then the best result.
_PRECEDENCE: tuple[State, ...] = (
    "processing",
    "pending",
    "complained",
    "delivered",
    "sent",
    "bounced",
    "failed",
    "expired",
    "cancelled",
    "skipped",
)


def state_after(state: State, receipt: ReceiptState) -> State | None:
    """The state of a delivery after a receipt; None if the receipt changes nothing."""
    after = _AFTER.get(receipt)
    if after is None or state not in _RANKS or _RANKS[after] <= _RANKS[state]:
        return None
    return after


def representative(states: Sequence[State]) -> int:
    """The index of the delivery that represents all deliveries of one occurrence."""
    return min(range(len(states)), key=lambda index: _PRECEDENCE.index(states[index]))
