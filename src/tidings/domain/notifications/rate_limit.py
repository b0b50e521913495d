"""A token bucket: so many in a second, and so many at once after a pause. It is one document that all workers share."""

import msgspec

from tidings.domain.fleet import is_set_back

WHOLE = 1_000_000  # a token, in the parts that it is counted in: a microsecond adds one for each token a second


class Rate(msgspec.Struct, frozen=True, gc=False):
    """How many a second, and how many at once."""

    per_s: float
    burst: int = 1

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError("a rate lets through more than 0 a second, and at least 1 at once")


class Bucket(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What was in it at a moment, in parts of a token."""

    parts: int
    at: int


def filled(bucket: Bucket | None, rate: Rate, now: int) -> Bucket:
    """The same at another moment; full if nobody ever took from it.

    Time is added once, though another worker's clock is a little ahead. A clock set back adds nothing, and goes on
    from there.
    """
    most = rate.burst * WHOLE
    if bucket is None:
        return Bucket(most, now)
    if is_set_back(bucket.at, now):
        return Bucket(min(most, bucket.parts), now)
    at = max(bucket.at, now)
    return Bucket(min(most, bucket.parts + int((at - bucket.at) * rate.per_s)), at)


def take(bucket: Bucket | None, rate: Rate, wanted: int, now: int, left: int = 0) -> tuple[Bucket, int]:
    """As many whole tokens as are there beyond those that have to be left, up to what is wanted; and what is left."""
    there = filled(bucket, rate, now)
    given = max(0, min(wanted, there.parts // WHOLE - left))
    return Bucket(there.parts - given * WHOLE, there.at), given


def next_at(bucket: Bucket, rate: Rate, now: int, left: int = 0) -> int:
    """When the next whole token will be there, beyond those that have to be left."""
    missing = max(0, (1 + left) * WHOLE - bucket.parts)
    return max(now, bucket.at) + int(missing / rate.per_s) + 1
