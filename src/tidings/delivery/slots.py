"""How many messages are on their way through a channel at once, and whose turn it is when one more may go.

Some slots are for high priority alone, so that it never waits behind a bulk. What else waits is served tenant by
tenant, and no tenant may hold all of them: whose receivers are slow does not stop the others.
"""

import asyncio
from collections import Counter, deque

_Waiters = dict[str, "deque[asyncio.Future[None]]"]


class Slots:
    """Of `size` slots, `reserved` are for high priority; of the others a tenant may hold seven eighths, or so many."""

    def __init__(self, size: int, reserved: int, tenant_max: int | None = None) -> None:
        assert 0 <= reserved < size, "somebody else must be able to go too"
        self._size = size
        self._open = size - reserved
        self._tenant_max = tenant_max or max(1, self._open - max(1, self._open // 8))
        self._held: Counter[str] = Counter()
        self._high = 0
        self._waiting_high: deque[asyncio.Future[None]] = deque()
        self._waiting: _Waiters = {}

    @property
    def in_use(self) -> int:
        return self._high + self._held.total()

    @property
    def is_idle(self) -> bool:
        """Whether nobody has one or waits for one."""
        return not (self._high or self._held or self._waiting_high or self._waiting)

    def taken(self, tenant: str, *, high: bool) -> "Slot":
        """One slot while something is under way: `async with` it."""
        return Slot(self, tenant, high=high)

    async def enter(self, tenant: str, *, high: bool) -> None:
        """Wait for one."""
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
                self.leave(tenant, high=high)  # it was ours already
            raise

    def leave(self, tenant: str, *, high: bool) -> None:
        """Give it to the next."""
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


class Slot:
    """One of them, from the beginning of a block to its end."""

    __slots__ = ("_high", "_slots", "_tenant")

    def __init__(self, slots: Slots, tenant: str, *, high: bool) -> None:
        self._slots = slots
        self._tenant = tenant
        self._high = high

    async def __aenter__(self) -> None:
        await self._slots.enter(self._tenant, high=self._high)

    async def __aexit__(self, *_: object) -> None:
        self._slots.leave(self._tenant, high=self._high)
