"""A circuit breaker: whether a provider is called at all, as one document that all workers share.

Without a document it is closed. It opens after failures in a row, or at once where our own settings are at fault; when
its time is over, one worker at a time tries one message, and what becomes of it closes it or opens it for longer.
"""

from typing import Literal, get_args

import msgspec

from tidings.domain.fleet import is_set_back
from tidings.domain.notifications.delivery import BrokenReason

SECOND_US = 1_000_000


class Terms(msgspec.Struct, frozen=True, gc=False):
    """How many failures in a row open it, for how long at first and at most, and how long one may try."""

    failures_max: int = 10
    first_us: int = 15 * SECOND_US
    longest_us: int = 600 * SECOND_US
    trial_us: int = 40 * SECOND_US


class Breaker(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Open until a moment, the `times`-th time in a row; or half open: `worker` tries one until `trial_until`.

    `since` is when it was opened or tried: if that is still to come, the clock was set back.
    """

    until: int
    times: int = 1
    reason: str = ""
    worker: str = ""
    trial_until: int = 0
    detail: str = ""
    since: int = 0

    @property
    def is_ours(self) -> bool:
        """Whether our own settings are at fault, and somebody must put them right."""
        return self.reason in get_args(BrokenReason)


BreakerState = Literal["closed", "open", "due"]


def state_at(breaker: Breaker | None, now: int) -> tuple[BreakerState, int]:
    """Whether calls may be made, and from when on to ask again. `due` asks for somebody who tries."""
    if breaker is None:
        return "closed", now
    if is_set_back(breaker.since, now):
        return "due", now
    if now < breaker.until:
        return "open", breaker.until
    if now < breaker.trial_until:
        return "open", breaker.trial_until
    return "due", now


def opened(before: Breaker | None, terms: Terms, reason: str, now: int, detail: str = "") -> Breaker:
    """Open, for twice as long as the time before."""
    times = 1 if before is None else before.times + 1
    length = min(terms.first_us << min(times - 1, 30), terms.longest_us)
    return Breaker(now + length, times, reason, detail=detail, since=now)


def tried(before: Breaker, terms: Terms, worker: str, now: int) -> Breaker:
    """Half open: this worker tries."""
    until = min(before.until, now)
    return msgspec.structs.replace(before, until=until, worker=worker, trial_until=now + terms.trial_us, since=now)


def untried(before: Breaker) -> Breaker:
    """Nobody tries any more: the next one may."""
    return msgspec.structs.replace(before, worker="", trial_until=0)
