"""How many messages are on their way through a channel at once, and whose turn it is when one more may go.

Some slots are for high priority alone, so that it never waits behind a bulk. What else waits is served tenant by
tenant, and no tenant may hold all of them: whose receivers are slow does not stop the others.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_Waiters = dict[str, "deque[asyncio.Future[None]]"]


class Slots:
    """Of `size` slots, `reserved` are for high priority; of the others a tenant may hold seven eighths."""

    def __init__(self, size: int, reserved: int) -> None:
        assert 0 <= reserved < size, "somebody else must be able to go too"
        self._size = size
        self._open = size - reserved
        self._tenant_max = max(1, self._open - max(1, self._open // 8))
        self._held: Counter[str] = Counter()
        self._high = 0
        self._waiting_high: deque[asyncio.Future[None]] = deque()
        self._waiting: _Waiters = {}

    @property
    def in_use(self) -> int:
        return self._high + self._held.total()

    @asynccontextmanager
    async def taken(self, tenant: str, *, high: bool) -> AsyncIterator[None]:
        """One slot while something is under way."""
        await self._enter(tenant, high=high)
        try:
            yield
        finally:
            self._leave(tenant, high=high)

    async def _enter(self, tenant: str, *, high: bool) -> None:
        if high and self.in_use < self._size and not self._waiting_high:
            self._high += 1
            return
        if not high and self._may(tenant) and tenant not in self._waiting:
            self._held[tenant] += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiting_high if high else self._waiting.setdefault(tenant, deque())).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._leave(tenant, high=high)  # it was ours already
            raise

    def _leave(self, tenant: str, *, high: bool) -> None:
        if high:
            self._high -= 1
        else:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
        self._deal()

    def _may(self, tenant: str) -> bool:
        """High priority counts against the reserved slots first."""
        beyond = max(0, self._high - (self._size - self._open))
        return self._held.total() + beyond < self._open and self._held[tenant] < self._tenant_max

    def _deal(self) -> None:
        while self._waiting_high and self.in_use < self._size:
            waiter = self._waiting_high.popleft()
            if not waiter.done():
                self._high += 1
                waiter.set_result(None)
        while (tenant := self._next()) is not None:
            queue = self._waiting.pop(tenant)
            waiter = queue.popleft()
            if queue:
                self._waiting[tenant] = queue  # behind the others
            if not waiter.done():
                self._held[tenant] += 1
                waiter.set_result(None)

    def _next(self) -> str | None:
        return next((tenant for tenant in self._waiting if self._may(tenant)), None)
