"""How many messages are on their way through a channel at once, and whose turn it is when one more may go.

Some slots are for high priority alone, so that it never waits behind a bulk. What else waits is served tenant by
tenant, and no tenant may hold all of them: whose receivers are slow does not stop the others.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_Waiter = tuple["asyncio.Future[None]", int]


class Slots:
    """Of `size` slots, `reserved` are for high priority; of the others a tenant may hold seven eighths."""

    def __init__(self, size: int, reserved: int) -> None:
        assert 0 <= reserved < size, "somebody else must be able to go too"
        self._size = size
        self._open = size - reserved
        self._tenant_max = max(1, self._open - max(1, self._open // 8))
        self._held: Counter[str] = Counter()
        self._high = 0
        self._waiting_high: deque[_Waiter] = deque()
        self._waiting: dict[str, deque[_Waiter]] = {}

    @property
    def in_use(self) -> int:
        return self._high + self._held.total()

    @asynccontextmanager
    async def taken(self, tenant: str, *, high: bool, count: int = 1) -> AsyncIterator[None]:
        """So many slots while something is under way; who wants more than he may hold gets what he may hold."""
        count = min(count, self._size if high else self._tenant_max)
        await self._enter(tenant, count, high=high)
        try:
            yield
        finally:
            self._leave(tenant, count, high=high)

    async def _enter(self, tenant: str, count: int, *, high: bool) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiting_high if high else self._waiting.setdefault(tenant, deque())).append((waiter, count))
        self._deal()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._leave(tenant, count, high=high)  # they were ours already
            else:
                self._deal()  # somebody smaller may have waited behind it
            raise

    def _leave(self, tenant: str, count: int, *, high: bool) -> None:
        if high:
            self._high -= count
        else:
            self._held[tenant] -= count
            if not self._held[tenant]:
                del self._held[tenant]
        self._deal()

    def _deal(self) -> None:
        while self._waiting_high:
            waiter, count = self._waiting_high[0]
            if not waiter.done() and self.in_use + count > self._size:
                break
            self._waiting_high.popleft()
            if not waiter.done():
                self._high += count
                waiter.set_result(None)
        while (tenant := self._next()) is not None:
            queue = self._waiting.pop(tenant)
            waiter, count = queue.popleft()
            if queue:
                self._waiting[tenant] = queue  # behind the others
            if not waiter.done():
                self._held[tenant] += count
                waiter.set_result(None)

    def _next(self) -> str | None:
        """Whose turn it is. Who only waits for room is not overtaken: else who wants several might wait for ever."""
        beyond = max(0, self._high - (self._size - self._open))  # high priority counts against its own slots first
        room = self._open - beyond - self._held.total()
        for tenant, queue in self._waiting.items():
            waiter, count = queue[0]
            if waiter.done():
                return tenant  # it gave up
            if self._held[tenant] + count <= self._tenant_max:
                return tenant if count <= room else None
        return None
