"""What a producer asks for, as it was sent, and the limits it must keep."""

from typing import Literal

import msgspec

from tidings.domain.command import Priority
from tidings.domain.destination import Bus
from tidings.domain.errors import Invalid
from tidings.domain.lateness import CATCH_UP_MAX, Policy
from tidings.domain.message import Headers
from tidings.domain.names import BEHIND_BYTES_MAX, ID_BYTES_MOST

DAY_S = 86_400

Past = Literal["send", "refuse"]


class Timing(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """When, beyond an instant or an interval, field by field as it was sent; docs/reference/rules.md tells of each."""

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


class Request(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A schedule before admission. `at` is an instant in microseconds, or text as people write it; None is now.

    `bus` is where the topic lies; None is the node's own choice. `since` is what durations count from; None is now.
    `timing` says when in more than one word. `past` says what becomes of an `at` that has passed; None is the node's
    own choice.
    """

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()
    id: str | None = None
    at: int | str | None = None
    every: str | None = None
    priority: Priority = Priority.NORMAL
    expires_after: str | None = None
    late: Policy | None = None
    late_grace: str | None = None
    late_max: str | None = None
    jitter: str | None = None
    labels: dict[str, str] | None = None
    bus: Bus | None = None
    since: int | None = None
    timing: Timing | None = None
    past: Past | None = None


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Bounds on everything that comes in."""

    value_bytes_max: int = 1024 * 1024
    key_bytes_max: int = 16 * 1024
    headers_max: int = 64
    headers_bytes_max: int = 16 * 1024
    id_bytes_max: int = 200
    topic_chars_max: int = 249
    labels_max: int = 16
    labels_bytes_max: int = 4 * 1024
    horizon_s: int = 3653 * DAY_S
    period_min_s: int = 1
    jitter_max_s: int = DAY_S
    catch_up_max: int = CATCH_UP_MAX
    line_bytes_max: int = 1024 * 1024 + 64 * 1024
    page_rows_max: int = 1000

    def __post_init__(self) -> None:
        for name, most in LIMITS_MOST.items():
            if not 0 < getattr(self, name) <= most:
                raise Invalid(f"limits.{name}", f"must lie between 1 and {most}")


# What the layout of the stores can hold, of an id also with what its deliveries have behind it.
LIMITS_MOST = {
    "id_bytes_max": ID_BYTES_MOST - BEHIND_BYTES_MAX,
    "labels_bytes_max": 9_999,
    "horizon_s": 50 * 366 * DAY_S,
    "catch_up_max": CATCH_UP_MAX,
}
