"""The messages that wait for a token of a rate limit, and whose turn it is."""

from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

Answer = Callable[[int | None], None]  # None: the message may go; otherwise from when on it may


class Waiter(msgspec.Struct, eq=False, gc=False, kw_only=True):
    """A message that waits for a token, until a moment of elapsed time; `has_place` once it has one in its queue."""

    tenant: str
    high: bool
    answer: Answer
    until: int
    has_place: bool
    has_left: bool = False


class TokenWaiters:
    """Messages in a queue for each tenant and priority. All wait equally long at most: who comes first, ends first.

    Every step takes the same time, however many wait.
    """

    def __init__(self) -> None:
        self.counts = {True: 0, False: 0}  # of high priority, and of the others
        self._turns: dict[bool, OrderedDict[str, dict[Waiter, None]]] = {True: OrderedDict(), False: OrderedDict()}
        self._without_place: dict[bool, deque[Waiter]] = {True: deque(), False: deque()}
        self._arrived: deque[Waiter] = deque()

    def clear(self) -> None:
        """Forget all."""
        for high in (True, False):
            self.counts[high] = 0
            self._turns[high].clear()
            self._without_place[high].clear()
        self._arrived.clear()

    def __bool__(self) -> bool:
        return bool(self.counts[True] or self.counts[False])

    def queued(self, tenant: str, *, high: bool) -> int:
        """How many messages wait in a queue."""
        return len(self._turns[high].get(tenant, ()))

    def add(self, waiter: Waiter) -> None:
        """Add a message to the end of its queue."""
        self._turns[waiter.high].setdefault(waiter.tenant, {})[waiter] = None
        self._arrived.append(waiter)
        if not waiter.has_place:
            self._without_place[waiter.high].append(waiter)
        self.counts[waiter.high] += 1

    def take(self, *, high: bool) -> Waiter:
        """Take the first message of the queue whose turn it is. This queue goes behind the others."""
        turns = self._turns[high]
        tenant = next(iter(turns))
        turns.move_to_end(tenant)
        waiter = next(iter(turns[tenant]))
        self.remove(waiter)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Take a message out of its queue, which keeps its turn."""
        turns = self._turns[waiter.high]
        queue = turns[waiter.tenant]
        del queue[waiter]
        if not queue:
            del turns[waiter.tenant]
        waiter.has_left = True
        self.counts[waiter.high] -= 1
        if not self:
            self.clear()  # of those that left before

    def without_place(self) -> Waiter | None:
        """The next message that needs a place, once; high priority first."""
        for arrived in self._without_place.values():
            while arrived:
                waiter = arrived.popleft()
                if not waiter.has_left:
                    waiter.has_place = True
                    return waiter
        return None

    def first(self) -> Waiter | None:
        """The message that waits longest."""
        while self._arrived and self._arrived[0].has_left:
            self._arrived.popleft()
        return self._arrived[0] if self._arrived else None
