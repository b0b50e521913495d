"""A request for a schedule as it was sent, before admission; and the jitter of due times."""

from hashlib import blake2b

import msgspec

from tidings.domain.limits import DAY_S, LIMITS_MOST, Limits
from tidings.domain.names import Bus, Past, Policy, Priority
from tidings.domain.schedules.schedule import Headers

__all__ = ["DAY_S", "LIMITS_MOST", "Limits", "Request", "Timing", "jittered"]

_DIGEST_BYTES = 8


class Timing(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The fields that say when a schedule is due besides `at` and `every`, as sent; see docs/reference/rules.md."""

    rrule: str | None = None
    cron: str | None = None
    zone: str | None = None
    start: str | None = None
    until: str | None = None
    count: int | None = None
    rdates: tuple[str, ...] = ()
    exdates: tuple[str, ...] = ()
    gap: str | None = None
    overlap: str | None = None
    calendar: str | None = None
    on_excluded: str | None = None


class Request(msgspec.Struct, frozen=True, gc=False):
    """A schedule before admission. `at` is an instant in microseconds, or a text as it was sent; None is now.

    Durations count from `since`; None is now. The fields after `timing` have the names and values of the HTTP API
    (`shapes.schedule.NewSchedule`) and are passed on as they were sent: a new optional field goes at the end. They
    are positional because `wires.document.read` builds one for each request, and keyword arguments are slower.
    """

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()
    id: str | None = None
    at: int | str | None = None
    priority: Priority = Priority.NORMAL
    since: int | None = None
    timing: Timing | None = None
    every: str | None = None
    expires_after: str | None = None
    late: Policy | None = None
    late_grace: str | None = None
    late_max: str | None = None
    jitter: str | None = None
    labels: dict[str, str] | None = None
    bus: Bus | None = None
    past: Past | None = None


def jittered(due: int, window_us: int, identity: bytes) -> int:
    """The due time, moved later by a part of the window that is always the same for an identity; never earlier."""
    assert window_us >= 0, "a jitter window cannot be negative"
    share = int.from_bytes(blake2b(identity, digest_size=_DIGEST_BYTES).digest(), "big")
    return due + (share * (window_us + 1) >> 8 * _DIGEST_BYTES)
