"""How many messages may be under way at once, and whose turn it is when one more may go.

Some slots are for high priority alone, so that it never waits behind a bulk; some it never takes, so that a bulk of it
stops nobody else. What waits is served tenant by tenant, high priority first, and no tenant may hold all that there
are: whose receivers are slow does not stop the others.
"""

import asyncio
from collections import deque

PASSES_MAX = 4  # so many times each slot may go to high priority before one of the others who wait has its turn

_Waiter = tuple["asyncio.Future[None]", int]


class _Side:
    """What has high priority, or what has not: who holds how much, and who waits, tenant by tenant."""

    def __init__(self, tenant_max: int) -> None:
        self.tenant_max = tenant_max
        self.total = 0
        self.held: dict[str, int] = {}
        self.waiting: dict[str, deque[_Waiter]] = {}

    def give(self, tenant: str, count: int) -> None:
        self.total += count
        self.held[tenant] = self.held.get(tenant, 0) + count

    def take_back(self, tenant: str, count: int) -> None:
        self.total -= count
        self.held[tenant] -= count
        if not self.held[tenant]:
            del self.held[tenant]

    def pop(self, tenant: str) -> "asyncio.Future[None]":
        """The first of a tenant's; its others stand behind those of all tenants."""
        queue = self.waiting.pop(tenant)
        waiter, _ = queue.popleft()
        if queue:
            self.waiting[tenant] = queue
        return waiter


class Slots:
    """Of `size` slots, `reserved` are for high priority; of the others an eighth is kept from it.

    A tenant may hold all but an eighth of the others, all but two with high priority, and all but one in sum. Where
    there are so few that nothing can be kept, high priority lets the others go now and then.
    """

    def __init__(self, size: int, reserved: int) -> None:
        assert 0 <= reserved < size, "somebody else must be able to go too"
        self._size = size
        self._reserved = reserved
        self._open = size - reserved
        self._kept = max(1, self._open // 8)
        self._high_max = max(1, size - self._kept)
        self._tenant_max = size - self._kept if self._open > 1 else size + 1  # of a single one nothing can be left
        self._high = _Side(max(1, size - 2 * self._kept))
        self._low = _Side(max(1, self._open - self._kept))
        self._passes = 0  # how many of high priority went since one of the others who wait did

    @property
    def in_use(self) -> int:
        return self._high.total + self._low.total

    async def take(self, tenant: str, *, high: bool, count: int = 1) -> int:
        """Wait for so many slots, to be given back with `leave`; answers how many they are.

        A caller that wants more than it may hold gets what it may hold.
        """
        side = self._high if high else self._low
        count = min(count, side.tenant_max)
        nobody_waits = not self._high.waiting and not self._low.waiting
        if nobody_waits and self._may_hold(side, tenant, count) and self._has_room(side, count):
            side.give(tenant, count)
        else:
            await self._wait(side, tenant, count)
        return count

    def leave(self, tenant: str, *, high: bool, count: int) -> None:
        """Give slots back: the next ones may have them."""
        (self._high if high else self._low).take_back(tenant, count)
        self._deal()

    async def _wait(self, side: _Side, tenant: str, count: int) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        side.waiting.setdefault(tenant, deque()).append((waiter, count))
        self._deal()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                side.take_back(tenant, count)  # they were ours already
            self._deal()  # somebody smaller may have waited behind it
            raise

    def _deal(self) -> None:
        while (self._high.waiting or self._low.waiting) and (found := self._next()) is not None:
            side, tenant, count = found
            waiter = side.pop(tenant)
            if waiter.done():
                continue  # it gave up
            side.give(tenant, count)
            self._passes = self._passes + 1 if side is self._high and self._low.waiting else 0
            waiter.set_result(None)

    def _next(self) -> tuple[_Side, str, int] | None:
        """Whose turn it is. Who only waits for room is not overtaken: else who wants several might wait for ever."""
        high, low = self._first(self._high), self._first(self._low)
        if high is not None and low is not None and self._passes >= PASSES_MAX * self._size:
            high = None
        if high is not None and self._has_room(self._high, high[1]):
            return self._high, *high
        if low is not None and self._has_room(self._low, low[1]):
            is_free = high is None or self._low.total + low[1] <= self._kept  # the rest is for who waits in front
            return (self._low, *low) if is_free else None
        return None

    def _first(self, side: _Side) -> tuple[str, int] | None:
        """The first whose tenant may hold more; one that gave up wants nothing."""
        for tenant, queue in side.waiting.items():
            waiter, count = queue[0]
            if waiter.done():
                return tenant, 0
            if self._may_hold(side, tenant, count):
                return tenant, count
        return None

    def _may_hold(self, side: _Side, tenant: str, count: int) -> bool:
        """Whether its tenant may hold it. It need not have room for all of it at once: while single slots of
        its own are freed and taken again, it would wait for ever."""
        held = side.held.get(tenant, 0)
        other = self._low if side is self._high else self._high
        return held + count <= side.tenant_max and held + other.held.get(tenant, 0) < self._tenant_max

    def _has_room(self, side: _Side, count: int) -> bool:
        """Whether there are so many. High priority counts against its own slots first."""
        if side is self._high:
            return side.total + count <= self._high_max and self.in_use + count <= self._size
        return side.total + count <= self._open - max(0, self._high.total - self._reserved)
