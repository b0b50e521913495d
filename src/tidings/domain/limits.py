"""Limits on what a request may hold, and the most that each limit can be set to."""

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import ID_BYTES_MOST, SUFFIX_BYTES_MAX

DAY_S = 86_400
CATCH_UP_MAX = 10_000  # the most overdue occurrences of one schedule that `fire_all` releases
PREVIEW_MAX = 1_000  # the most occurrences that a preview shows


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The section `limits` of the configuration."""

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
    page_bytes_max: int = 512 * 1024

    def __post_init__(self) -> None:
        for name, most in LIMITS_MOST.items():
            if not 0 < getattr(self, name) <= most:
                raise Invalid(f"limits.{name}", f"must lie between 1 and {most}")


# What the stores can hold; an id must leave room for the suffix of its deliveries.
LIMITS_MOST = {
    "id_bytes_max": ID_BYTES_MOST - SUFFIX_BYTES_MAX,
    "labels_bytes_max": 9_999,
    "horizon_s": 50 * 366 * DAY_S,
    "catch_up_max": CATCH_UP_MAX,
}
