"""Which provider a message goes to. Pure."""

from collections.abc import Sequence

import msgspec

from tidings.delivery.deciding import Wait
from tidings.domain.notifications.circuit_breaker import BreakerState
from tidings.domain.notifications.delivery import Attempt


class Option(msgspec.Struct, frozen=True, gc=False):
    """A provider that takes such a message, and how its breaker stands, until when."""

    provider: str
    deduplicates: bool
    standing: BreakerState = "closed"
    until: int = 0


def is_unsure(attempt: Attempt) -> bool:
    """Whether its message may have been taken, though nobody said so."""
    return attempt.ended is None or attempt.may_have_arrived


def choose(options: Sequence[Option], attempts: Sequence[Attempt]) -> Option | Wait:
    """The first that is called at all, beginning behind the one that failed last; else when to ask again.

    One whose breaker asks for a trial gets it, also where another provider would take the message: else nobody would
    ever find out that it works again.

    Where the last one may have taken it, and would know it again, it goes nowhere else: another provider would send it
    a second time.
    """
    assert options, "somebody takes it"
    last = attempts[-1] if attempts else None
    names = [option.provider for option in options]
    if last is not None and last.provider in names:
        place = names.index(last.provider)
        if is_unsure(last) and options[place].deduplicates:
            options = [options[place]]
        elif last.outcome != "rate_limited":
            options = [*options[place + 1 :], *options[: place + 1]]
    for option in options:
        if option.standing != "open":
            return option
    return Wait(min(option.until for option in options), "breaker_open")
