"""What a provider tells us later about a message that it took."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec

from tidings.domain.notifications.message import ChannelName

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
SETTLED: frozenset[State] = FINAL | {"sent"}  # a worker has nothing left to do

STEPS_MAX = 50


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a provider; without `ended` it is under way, or was cut off.

    `may_have_arrived` says that it failed without our knowing whether the message was taken.
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


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of several devices that a push goes to, known by a digest; its number stays when others go.

    `outcome` is empty while it is still to be tried.
    """

    number: int
    digest: str
    outcome: Literal["", "accepted", "refused"] = ""
    provider_id: str | None = None


class ProviderEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a provider told us later; `event` is the same if it tells it again."""

    at: int
    state: str
    event: str
    reason: str = ""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a delivery beside its attempts, or `times` in a row from `at` on.

    `event` is `passed_over` (a channel, for a reason), `pending` (back onto the timeline `until` then), `retried` by
    hand, the state in which it had been given up before that, or why a provider refused us.
    """

    at: int
    event: str
    channel: ChannelName | None = None
    provider: str = ""
    reason: str = ""
    detail: str = ""
    until: int | None = None
    times: int = 1


class Claim(msgspec.Struct, frozen=True):
    """Who is at it, and until when nobody else may be."""

    worker: str
    until: int


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """One occurrence, on its way or at its end. Times are moments; `due` is when it should have left.

    `turn` counts how often it was put on the timeline. A turn is put there before it is written here, so that the
    record of a former turn may be left aside, and that of a later one never is. `trying_us` is how long it has been
    tried by its channel: calls, and the pauses after those that failed. `given_up` is the number of the last attempt
    before somebody had it sent again: what is counted is counted from there. `first_due` is when it should have left
    before that; `history` has the latest steps, and none if all went well at once.
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
        """The attempts since it was asked for, or was sent again by hand."""
        return tuple(attempt for attempt in self.attempts if attempt.number > self.given_up)

    @property
    def is_settled(self) -> bool:
        return self.state in SETTLED

    @property
    def was_due(self) -> int:
        """The moment from which lateness counts, also if it was sent again by hand."""
        return self.due if self.first_due is None else self.first_due


def remembered(delivery: Delivery, *steps: Step) -> Delivery:
    """The delivery with these steps behind the others; the same one again and again is one with its count."""
    history = list(delivery.history)
    for step in steps:
        before = history[-1] if history else None
        if before is not None and _is_repeated(before, step):
            history[-1] = msgspec.structs.replace(before, until=step.until, times=before.times + 1)
        else:
            history.append(step)
    return msgspec.structs.replace(delivery, history=tuple(history[-STEPS_MAX:]))


def _is_repeated(before: Step, step: Step) -> bool:
    same = ("event", "channel", "provider", "reason", "detail")
    return all(getattr(before, name) == getattr(step, name) for name in same)


# News of a provider moves a delivery to a state of a higher rank only: whatever comes late or twice changes nothing.
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

# Of the channels of one occurrence: what is still under way first, then the best that was reached.
_TOLD_FIRST: tuple[State, ...] = (
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


def moved(state: State, news: ReceiptState) -> State | None:
    """The state that news lead to; None if they change nothing."""
    after = _AFTER.get(news)
    if after is None or state not in _RANKS or _RANKS[after] <= _RANKS[state]:
        return None
    return after


def together(states: Sequence[State]) -> int:
    """Which of several deliveries of one occurrence speaks for all of them."""
    return min(range(len(states)), key=lambda place: _TOLD_FIRST.index(states[place]))
