"""Rate limiting by a token bucket: a rate per second, and a burst. A bucket is one row that all workers share.

`delivery/limits/rate_limit.py` takes the tokens before a provider is called.
"""

import msgspec

from tidings.domain.fleet import is_set_back

WHOLE = 1_000_000  # parts of a token: at a rate of 1 per second, each microsecond adds one part


class Rate(msgspec.Struct, frozen=True, gc=False):
    """A rate limit: tokens per second, and how many may be taken at once."""

    per_s: float
    burst: int = 1

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError("a rate must be more than 0 per second, with a burst of at least 1")


class Bucket(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The content of a bucket at a time, in parts of a token."""

    parts: int
    at: int


def filled(bucket: Bucket | None, rate: Rate, now: int) -> Bucket:
    """The bucket at `now`; full if nothing was ever taken from it.

    Each interval of time adds tokens only once, even if another worker's clock is a little ahead. If the clock was set
    back, nothing is added, and counting continues from there.
    """
    most = rate.burst * WHOLE
    if bucket is None:
        return Bucket(most, now)
    if is_set_back(bucket.at, now):
        return Bucket(min(most, bucket.parts), now)
    at = max(bucket.at, now)
    return Bucket(min(most, bucket.parts + int((at - bucket.at) * rate.per_s)), at)


def take(bucket: Bucket | None, rate: Rate, wanted: int, now: int, left: int = 0) -> tuple[Bucket, int]:
    """Take up to `wanted` whole tokens, but leave `left` in the bucket; returns the bucket and how many were taken."""
    there = filled(bucket, rate, now)
    given = max(0, min(wanted, there.parts // WHOLE - left))
    return Bucket(there.parts - given * WHOLE, there.at), given


def next_at(bucket: Bucket, rate: Rate, now: int, left: int = 0) -> int:
    """When a whole token will be available, in addition to `left` tokens that have to stay."""
    missing = max(0, (1 + left) * WHOLE - bucket.parts)
    return max(now, bucket.at) + int(missing / rate.per_s) + 1
