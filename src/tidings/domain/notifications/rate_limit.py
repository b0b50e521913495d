"""Rate limiting by a token bucket: a rate per second, and a burst. A bucket is one row that all workers share.

`delivery/limits/rate_limit.py` takes the tokens before a provider is called.

Messages that have to wait are promised times, in a queue for each tenant and priority. All queues of a priority
take turns: the third message of a tenant comes behind the first three of each other tenant, not behind another tenant's
bulk. For example, at 10 tokens a second, tenant `a` has 50 promised times:

    the 1st of tenant `b`    behind 1 of `a`             0.1 s from now
    the 2nd of tenant `b`    behind 2 of `a`, 1 of `b`   0.3 s from now
    the 51st of tenant `a`   behind 50 of `a`, 2 of `b`  5.2 s from now

A promise takes the same small time, and a queue the same memory, however many tenants and promised times there are. A
queue keeps the count of its times, the first and the last: those between are taken as evenly spread. Lengths of queues
are counted in groups: up to 31 each has its own, from there on a group is at most a sixteenth wide.
"""

from heapq import heappop, heappush, heapreplace

import msgspec

from tidings.domain.fleet import is_set_back

WHOLE = 1_000_000  # parts of a token: at a rate of 1 per second, each microsecond adds one part
SECOND_US = 1_000_000
IN_A_ROW_MAX = 4  # how many of high priority go before one of the others
GROUP_BITS = 4  # a power of two of lengths is divided into this power of two of groups


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


class PromisedTimes:
    """The times that are still to come of all queues at one limit, of high priority and of the others."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._sides = {True: _Side(), False: _Side()}

    def is_over(self, now: int) -> bool:
        """Whether no promised time is still to come."""
        return all(side.last <= now for side in self._sides.values())

    def last(self, tenant: str, *, high: bool) -> int:
        """The last time that was promised in a queue; 0 if it has none."""
        queue = self._sides[high].queues.get(tenant)
        return 0 if queue is None else queue.last

    def promise(self, tenant: str, now: int, earliest: int, *, high: bool) -> int:
        """The next time in a queue, behind those of other queues that come before it if all take turns."""
        for each in self._sides.values():
            each.expire(now)
        side, others = self._sides[high], self._sides[not high].count
        alike = side.before(side.length(tenant) + 1)
        before = alike + min(others, alike // IN_A_ROW_MAX if high else (alike + 1) * IN_A_ROW_MAX)
        return side.add(tenant, earliest + int(before * SECOND_US / self._per_s))

    def clear(self) -> None:
        """Forget all."""
        for side in self._sides.values():
            side.clear()


class _Queue(msgspec.Struct, gc=False):
    """The promised times of one tenant and priority, evenly spread from the first to the last."""

    first: int
    last: int
    count: int

    def expire(self, now: int) -> None:
        """Drop the times until now, of which there is at least one."""
        if self.last <= now:
            self.count = 0
            return
        step = (self.last - self.first) / (self.count - 1)  # the last is later than the first: there are several
        gone = min(int((now - self.first) / step) + 1, self.count - 1)
        self.count -= gone
        self.first = self.last if self.count == 1 else max(now + 1, self.first + int(gone * step))


class _Side:
    """The queues of one priority, none of them empty; `last` is the latest of their times, `count` is that of all."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.queues: dict[str, _Queue] = {}
        self.last = 0
        self.count = 0
        self._firsts: list[tuple[int, str]] = []  # a heap with the first time of each queue
        self._queues_in: list[int] = []  # by group of lengths
        self._times_in: list[int] = []

    def length(self, tenant: str) -> int:
        queue = self.queues.get(tenant)
        return 0 if queue is None else queue.count

    def expire(self, now: int) -> None:
        """Drop the times until now."""
        if self.last <= now:
            if self.queues:
                self.clear()
            return
        while self._firsts[0][0] <= now:
            tenant = self._firsts[0][1]
            queue = self.queues[tenant]
            self._note(queue.count, -1)
            queue.expire(now)
            if queue.count:
                self._note(queue.count, 1)
                heapreplace(self._firsts, (queue.first, tenant))
            else:
                heappop(self._firsts)
                del self.queues[tenant]

    def before(self, number: int) -> int:
        """How many times come before the one of this number in a queue: of each queue, at most that many.

        Of queues in the same group of lengths it may be a little too many, never too few.
        """
        group = _group(number)
        self._widen(group)
        shorter, alike = sum(self._times_in[:group]), self._queues_in[group]
        longer = sum(self._queues_in[group + 1 :])
        return shorter + min(self._times_in[group], alike * number) + longer * number

    def add(self, tenant: str, time: int) -> int:
        """Add a time to a queue, not before its last one; returns it."""
        queue = self.queues.get(tenant)
        if queue is None:
            self.queues[tenant] = _Queue(time, time, 1)
            heappush(self._firsts, (time, tenant))
            self._note(1, 1)
        else:
            time = max(time, queue.last)
            self._note(queue.count, -1)
            queue.last, queue.count = time, queue.count + 1
            self._note(queue.count, 1)
        self.last = max(self.last, time)
        return time

    def _note(self, length: int, change: int) -> None:
        """Count one queue of this length more or less."""
        group = _group(length)
        self._widen(group)
        self._queues_in[group] += change
        self._times_in[group] += change * length
        self.count += change * length

    def _widen(self, group: int) -> None:
        missing = group + 1 - len(self._queues_in)
        if missing > 0:
            self._queues_in.extend([0] * missing)
            self._times_in.extend([0] * missing)


def _group(length: int) -> int:
    """The group of a length: 31 is alone in group 31, 32 and 33 are in group 32, 64 to 67 in group 48."""
    shift = max(0, length.bit_length() - 1 - GROUP_BITS)
    return (shift << GROUP_BITS) + (length >> shift)
