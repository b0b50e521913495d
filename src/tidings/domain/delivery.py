"""What became of one occurrence of a notification: its state, why, and each attempt."""

from typing import Literal

import msgspec

from tidings.domain.rendered import ChannelName

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


class News(msgspec.Struct, frozen=True, omit_defaults=True):
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
    news: tuple[News, ...] = ()
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
