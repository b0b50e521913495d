"""What happens to overdue occurrences, and the jitter of those to come."""

from hashlib import blake2b
from typing import Literal

import msgspec

from tidings.domain.limits import CATCH_UP_MAX
from tidings.domain.names import Policy
from tidings.domain.recurrence.local_time import is_swallowed
from tidings.domain.schedules.when import (
    SECOND_US,
    Once,
    When,
    first_index_at_or_after,
    last_index_at_or_before,
    occurrence,
)

__all__ = [
    "CATCH_UP_MAX",
    "GRACE_DEFAULT_US",
    "Decision",
    "Lateness",
    "MissedRange",
    "MissedReason",
    "Pardon",
    "Policy",
    "deadline",
    "decide",
    "overdue_count",
]

MissedReason = Literal[
    "expired",
    "late_skipped",
    "late_max",
    "superseded",
    "damaged",
    "too_large",
    "invalid_record",
    "catch_up_max",
    "paused",
    "gap",
]

# Longer than any restart or failover, so that `skip` does not drop what only moved to another node.
GRACE_DEFAULT_US = 60_000_000


class Lateness(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A lateness policy: what happens to overdue occurrences, and bounds that hold under every policy.

    `fire_all` releases every overdue occurrence in turn (at most the latest `CATCH_UP_MAX`), `fire_latest` only the
    latest one, `skip` only those that are at most `grace_us` late.
    """

    policy: Policy = "fire_latest"
    grace_us: int = GRACE_DEFAULT_US
    max_us: int | None = None
    expires_after_us: int | None = None


class Pardon(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The policy for occurrences due during a pause that ended at `through`: they are judged as of that instant."""

    policy: Policy
    through: int


class MissedRange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Occurrences `first` to `last`, both included, that will never be released."""

    first: int
    last: int
    reason: MissedReason


class Decision(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What to do with a due schedule. Each number before `next` is either released or missed, exactly once.

    `release` is the occurrence to release now; `next` is the one to wait for, None if none is left.
    """

    release: int | None
    missed: tuple[MissedRange, ...]
    next: int | None


def deadline(due: int, lateness: Lateness) -> tuple[int, MissedReason] | None:
    """The last instant at which an occurrence may be released, and the reason if it is missed; None if unbounded."""
    bound = _bound(lateness)
    return None if bound is None else (due + bound[0], bound[1])


def shortened(lateness: Lateness, by_us: int) -> Lateness:
    """The policy of something that was this late already when it was accepted, as counted from then on."""
    return Lateness(
        lateness.policy,
        max(0, lateness.grace_us - by_us) if lateness.policy == "skip" else lateness.grace_us,
        None if lateness.max_us is None else max(0, lateness.max_us - by_us),
        None if lateness.expires_after_us is None else max(0, lateness.expires_after_us - by_us),
    )


def decide(when: When, n: int, now: int, lateness: Lateness, pardon: Pardon | None = None) -> Decision:
    """Decide what to do at `now` with a schedule whose pending occurrence is n, however long the downtime was."""
    due, following = occurrence(when, n), occurrence(when, n + 1)
    if due is None or due > now:
        return Decision(None, (), None if due is None else n)
    if is_swallowed(when):
        return Decision(None, (MissedRange(n, n, "gap"),), None)
    bound = _bound(lateness)
    if pardon is not None and due <= pardon.through:
        now, lateness = min(now, pardon.through), msgspec.structs.replace(lateness, policy=pardon.policy)
        bound = (0, "paused") if pardon.policy == "skip" else _bound(lateness)
    if following is not None and following <= now:
        return _decide_overdue(when, n, now, lateness.policy, bound)
    after = None if following is None else n + 1
    if bound is not None and now > due + bound[0]:
        return Decision(None, (MissedRange(n, n, bound[1]),), after)
    return Decision(n, (), after)


def overdue_count(when: When, now: int, lateness: Lateness) -> int:
    """How many overdue occurrences would still be released, one after the other."""
    last = last_index_at_or_before(when, now)
    if not last or lateness.policy == "fire_latest":
        return min(last, 1)
    bound = _bound(lateness)
    first = 1 if bound is None else first_index_at_or_after(when, now - bound[0])
    return 0 if first is None else max(0, last - first + 1)


def _decide_overdue(when: When, n: int, now: int, policy: Policy, bound: tuple[int, MissedReason] | None) -> Decision:
    """The decision when at least two occurrences are due, computed without a loop over them.

    Example: every minute, n = 5 pending, 100 the last that is due, a bound of 10 minutes. Numbers 5 to 89 are missed by
    the bound. `fire_latest` misses 90 to 99 as superseded and releases 100; `fire_all` releases 90 and waits for 91.
    """
    missed: list[MissedRange] = []
    first, last = n, last_index_at_or_before(when, now)
    if bound is not None:
        oldest = first_index_at_or_after(when, now - bound[0])
        first = last + 1 if oldest is None else max(n, oldest)
        missed += _range(n, first - 1, bound[1])
    if first > last:
        return Decision(None, tuple(missed), _existing(when, last + 1))
    if policy == "fire_latest":
        release = last
        missed += _range(first, last - 1, "superseded")
    else:
        release = max(first, last - CATCH_UP_MAX + 1)
        missed += _range(first, release - 1, "catch_up_max")
    return Decision(release, tuple(missed), _existing(when, release + 1))


def _bound(lateness: Lateness) -> tuple[int, MissedReason] | None:
    """The tightest bound on lateness and its reason; among equal bounds the first of the list wins."""
    bounds: list[tuple[int, MissedReason]] = []
    if lateness.expires_after_us is not None:
        bounds.append((lateness.expires_after_us, "expired"))
    if lateness.policy == "skip":
        bounds.append((lateness.grace_us, "late_skipped"))
    if lateness.max_us is not None:
        bounds.append((lateness.max_us, "late_max"))
    return min(bounds, key=lambda bound: bound[0], default=None)


def tightest(lateness: Lateness) -> Lateness:
    """The part of a policy that matters for a single moment: its tightest bound."""
    bound = _bound(lateness)
    return Lateness() if bound is None else bounded_by(*bound)


def bounded_by(bound_us: int, reason: str | None) -> Lateness:
    """The policy of which a bound and its reason are the tightest."""
    match reason:
        case "expired":
            return Lateness(expires_after_us=bound_us)
        case "late_skipped":
            return Lateness("skip", bound_us)
        case _:
            return Lateness(max_us=bound_us)


def _range(first: int, last: int, reason: MissedReason) -> list[MissedRange]:
    return [MissedRange(first, last, reason)] if first <= last else []


def _existing(when: When, n: int) -> int | None:
    return None if occurrence(when, n) is None else n


AHEAD_US = SECOND_US  # a time that is less far ahead is now: the clock of the client may be ahead of ours
_DIGEST_BYTES = 8


def is_ahead(when: When, due: int, now: int) -> bool:
    """Whether a schedule gets the jitter of low priority: only what is scheduled ahead. What is due now leaves now."""
    return due > now + AHEAD_US or type(when) is not Once


def jittered(due: int, window_us: int, identity: bytes) -> int:
    """The due time, moved later by a part of the window that is always the same for an identity; never earlier."""
    assert window_us >= 0, "a jitter window cannot be negative"
    share = int.from_bytes(blake2b(identity, digest_size=_DIGEST_BYTES).digest(), "big")
    return due + (share * (window_us + 1) >> 8 * _DIGEST_BYTES)
