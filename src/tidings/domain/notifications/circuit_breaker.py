"""The circuit breaker of a provider: one row that all workers share.

Without a row it is closed. It opens after consecutive failures, or at once if our own settings are at fault. When
its time is over it is half-open: one worker at a time makes a trial call, whose result closes it or opens it for
longer.
"""

from typing import Literal, get_args

import msgspec

from tidings.domain.fleet import is_set_back
from tidings.domain.notifications.delivery import BrokenReason

SECOND_US = 1_000_000


class Terms(msgspec.Struct, frozen=True, gc=False):
    """Settings: how many consecutive failures open it, for how long at first and at most, how long a trial may take."""

    failures_max: int = 10
    first_us: int = 15 * SECOND_US
    longest_us: int = 600 * SECOND_US
    trial_us: int = 40 * SECOND_US


class Breaker(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Open until `until`, for the `times`-th time in a row; or half-open, with a trial by `worker` until `trial_until`.

    `since` is when it was opened or the trial began; if that lies in the future, the clock was set back.
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
        """Whether our own settings are at fault, so that an operator has to correct them."""
        return self.reason in get_args(BrokenReason)


BreakerState = Literal["closed", "open", "due"]


def state_at(breaker: Breaker | None, now: int) -> tuple[BreakerState, int]:
    """The state, and when to ask again. `closed` allows calls, `open` does not, `due` asks for a trial call."""
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
    """The breaker opened, for twice as long as the time before."""
    times = 1 if before is None else before.times + 1
    length = min(terms.first_us << min(times - 1, 30), terms.longest_us)
    return Breaker(now + length, times, reason, detail=detail, since=now)


def tried(before: Breaker, terms: Terms, worker: str, now: int) -> Breaker:
    """The breaker half-open, with a trial by this worker."""
    until = min(before.until, now)
    return msgspec.structs.replace(before, until=until, worker=worker, trial_until=now + terms.trial_us, since=now)


def untried(before: Breaker) -> Breaker:
    """The breaker after an abandoned trial: another worker may make one."""
    return msgspec.structs.replace(before, worker="", trial_until=0)
