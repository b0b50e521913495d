"""How many messages are on their way through a channel at once, and whose turn it is when one more may go.

Some slots are for high priority alone, so that it never waits behind a bulk. What else waits is served tenant by
tenant, and no tenant may hold all of them: whose receivers are slow does not stop the others.
"""

import asyncio
from collections import Counter, deque

_Waiter = tuple["asyncio.Future[None]", int]


class Slots:
    """Of `size` slots, `reserved` are for high priority; of the others a tenant may hold seven eighths."""

    def __init__(self, size: int, reserved: int) -> None:
        assert 0 <= reserved < size, "somebody else must be able to go too"
        self._size = size
        self._open = size - reserved
        self._tenant_max = max(1, self._open - max(1, self._open // 8))
        self._held: Counter[str] = Counter()
        self._low = 0  # of all tenants together
        self._high = 0
        self._waiting_high: deque[_Waiter] = deque()
        self._waiting: dict[str, deque[_Waiter]] = {}

    @property
    def in_use(self) -> int:
        return self._high + self._low

    async def take(self, tenant: str, *, high: bool, count: int = 1) -> int:
        """Wait for so many slots, to be given back with `leave`; answers how many they are.

        Who wants more than he may hold gets what he may hold.
        """
        count = min(count, self._size if high else self._tenant_max)
        if not self._waiting_high and not self._waiting and self._fits(tenant, count, high=high):
            self._give(tenant, count, high=high)
        else:
            await self._wait(tenant, count, high=high)
        return count

    def leave(self, tenant: str, *, high: bool, count: int) -> None:
        """Give slots back: the next ones may have them."""
        if high:
            self._high -= count
        else:
            self._low -= count
            self._held[tenant] -= count
            if not self._held[tenant]:
                del self._held[tenant]
        self._deal()

    def _give(self, tenant: str, count: int, *, high: bool) -> None:
        if high:
            self._high += count
        else:
            self._low += count
            self._held[tenant] += count

    async def _wait(self, tenant: str, count: int, *, high: bool) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiting_high if high else self._waiting.setdefault(tenant, deque())).append((waiter, count))
        self._deal()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave(tenant, high=high, count=count)  # they were ours already
            else:
                self._deal()  # somebody smaller may have waited behind it
            raise

    def _deal(self) -> None:
        while self._waiting_high:
            waiter, count = self._waiting_high[0]
            if not waiter.done() and not self._fits("", count, high=True):
                break
            self._waiting_high.popleft()
            if not waiter.done():
                self._give("", count, high=True)
                waiter.set_result(None)
        while self._waiting and (tenant := self._next()) is not None:
            queue = self._waiting.pop(tenant)
            waiter, count = queue.popleft()
            if queue:
                self._waiting[tenant] = queue  # behind the others
            if not waiter.done():
                self._give(tenant, count, high=False)
                waiter.set_result(None)

    def _fits(self, tenant: str, count: int, *, high: bool) -> bool:
        if high:
            return self.in_use + count <= self._size
        return count <= self._room and self._held[tenant] + count <= self._tenant_max

    @property
    def _room(self) -> int:
        """What is left for all but high priority, which counts against its own slots first."""
        return self._open - max(0, self._high - (self._size - self._open)) - self._low

    def _next(self) -> str | None:
        """Whose turn it is. Who only waits for room is not overtaken: else who wants several might wait for ever."""
        for tenant, queue in self._waiting.items():
            waiter, count = queue[0]
            if waiter.done():
                return tenant  # it gave up
            if self._held[tenant] + count <= self._tenant_max:
                return tenant if count <= self._room else None
        return None
