"""How many messages may be in progress at a time, and which one goes next when one more may.

Some slots are reserved for high priority, so that it never waits behind a bulk; some it never takes, so that a bulk of
high priority stops nobody else. Waiting messages are served tenant by tenant, high priority first, and no tenant may
hold all slots: a tenant whose receivers are slow does not stop the others.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

PASSES_MAX = 4  # how many times each slot may go to high priority before one of the others that wait has its turn
BUNCH_S = 0.02  # how long freed slots wait for more: much less than what is claimed ahead takes to send
LINES_MAX = 1_024  # in memory before those that nobody uses are dropped

Granted = Callable[[], None]
_Waiter = tuple[Granted, int]
Item = TypeVar("Item")


class _Side:
    """The messages of high priority, or all others: how many slots each tenant holds, and who waits."""

    def __init__(self) -> None:
        self.tenant_max = 0
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

    def pop(self, tenant: str) -> _Waiter:
        """The first of a tenant; its others go behind those of all tenants."""
        queue = self.waiting.pop(tenant)
        waiter = queue.popleft()
        if queue:
            self.waiting[tenant] = queue
        return waiter


class FairSemaphore:
    """Of `size` slots, `reserved` are for high priority; of the others an eighth is kept from it.

    A tenant may hold all but an eighth of the others, all but two with high priority, and all but one in sum. Where
    there are so few slots that none can be kept, high priority lets the others go now and then.

    With a `bunch`, freed slots are given to waiting messages of normal and low priority that many at a time, so that
    these go on in batches; fewer after a moment, because those that hold the other slots may take long. It must be so
    much less than `size` that the rest have enough to do meanwhile.
    """

    def __init__(self, size: int, reserved: int, bunch: int = 1) -> None:
        self._high, self._low = _Side(), _Side()
        self._passes = 0  # how many of high priority went since one of the others that wait did
        self.waiting = 0
        self._freed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._set_size(size, reserved, bunch)
        self._count_max = {True: self._high.tenant_max, False: self._low.tenant_max}  # whatever its size is later

    def _set_size(self, size: int, reserved: int, bunch: int) -> None:
        assert 0 <= reserved < size, "normal and low priority need slots too"
        self._size = size
        self._reserved = reserved
        self._open = size - reserved
        self._kept = max(1, self._open // 8)
        self._high_max = max(1, size - self._kept)
        self._tenant_max = size - self._kept if self._open > 1 else size + 1  # a single slot cannot be shared
        self._high.tenant_max = max(1, size - 2 * self._kept)
        self._low.tenant_max = max(1, self._open - self._kept)
        self.bunch = bunch

    def resize(self, size: int, reserved: int, bunch: int) -> None:
        """Change the number of slots, but never below that of the start.

        If it shrinks, slots that are given back are not given out again until no more are in use than there are.
        """
        self._set_size(size, reserved, bunch)
        if self.waiting:
            self._deal()

    @property
    def in_use(self) -> int:
        return self._high.total + self._low.total

    @property
    def has_too_many(self) -> bool:
        """Whether more slots are in use than there are since it became smaller."""
        return self._high.total + self._low.total > self._size

    def count_for(self, *, high: bool, count: int) -> int:
        """How many slots a message gets that wants so many: not more than its tenant may hold."""
        return min(count, self._count_max[high])

    def try_take(self, tenant: str, *, high: bool, count: int = 1) -> bool:
        """Take so many slots if they are free and nobody waits."""
        return self.take_some(1, tenant, high=high, count=count) == 1

    def take_some(self, most: int, tenant: str, *, high: bool, count: int = 1) -> int:
        """Take so many slots for each of as many messages as may have them at once; none if somebody waits."""
        if self.waiting:
            return 0
        side, other = (self._high, self._low) if high else (self._low, self._high)
        held = side.held.get(tenant, 0)
        if high:
            room = min(self._high_max, self._size - other.total) - side.total
        else:
            room = self._open - max(0, other.total - self._reserved) - side.total
        allowed = (self._tenant_max - held - other.held.get(tenant, 0) - 1) // count + 1  # as `_may_hold` says
        number = min(most, room // count, (side.tenant_max - held) // count, allowed)
        if number <= 0:
            return 0
        side.give(tenant, number * count)
        return number

    def enter(self, granted: Granted, tenant: str, *, high: bool, count: int = 1) -> None:
        """Call `granted` once there are so many slots for it, at once or later; they are given back with `leave`."""
        if self.try_take(tenant, high=high, count=count):
            granted()
        else:
            self.wait(granted, tenant, high=high, count=count)

    def wait(self, granted: Granted, tenant: str, *, high: bool, count: int = 1) -> None:
        """The same after `try_take` has failed."""
        side = self._high if high else self._low
        side.waiting.setdefault(tenant, deque()).append((granted, count))
        self.waiting += 1
        if high or self._is_bunch:
            self._deal()
        else:
            self._deal_soon()

    def leave(self, tenant: str, *, high: bool, count: int = 1) -> None:
        """Give slots back: the next ones may have them."""
        (self._high if high else self._low).take_back(tenant, count)
        self._freed += count
        if self._high.waiting or (self._low.waiting and self._is_bunch):
            self._deal()
        elif self._low.waiting:
            self._deal_soon()

    @property
    def _is_bunch(self) -> bool:
        return self.bunch == 1 or self._freed >= self.bunch or self.in_use < self._size - self.bunch

    def _deal_soon(self) -> None:
        if self._timer is None and self.in_use < self._size:
            self._timer = asyncio.get_running_loop().call_later(BUNCH_S, self._deal)

    def _deal(self) -> None:
        self._freed = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (self._high.waiting or self._low.waiting) and (found := self._next()) is not None:
            side, tenant, count = found
            granted, _ = side.pop(tenant)
            self.waiting -= 1
            side.give(tenant, count)
            self._passes = self._passes + 1 if side is self._high and self._low.waiting else 0
            granted()

    def _next(self) -> tuple[_Side, str, int] | None:
        """Whose turn it is. What only waits for room is not overtaken: a large one might wait for ever otherwise."""
        high, low = self._first(self._high), self._first(self._low)
        if high is not None and low is not None and self._passes >= PASSES_MAX * self._size:
            high = None
        if high is not None and self._has_room(self._high, high[1]):
            return self._high, *high
        if low is not None and self._has_room(self._low, low[1]):
            is_free = high is None or self._low.total + low[1] <= self._kept  # the rest is for the one in front
            return (self._low, *low) if is_free else None
        return None

    def _first(self, side: _Side) -> tuple[str, int] | None:
        """The first one whose tenant may hold more."""
        for tenant, queue in side.waiting.items():
            count = queue[0][1]
            if self._may_hold(side, tenant, count):
                return tenant, count
        return None

    def _may_hold(self, side: _Side, tenant: str, count: int) -> bool:
        """Whether its tenant may hold it. There need not be room for all of it at once: it would wait for ever while
        single slots of its tenant are freed and taken again."""
        held = side.held.get(tenant, 0)
        other = self._low if side is self._high else self._high
        return held + count <= side.tenant_max and held + other.held.get(tenant, 0) < self._tenant_max

    def _has_room(self, side: _Side, count: int) -> bool:
        """Whether there are so many slots. High priority counts against its reserved slots first."""
        if side is self._high:
            return side.total + count <= self._high_max and self.in_use + count <= self._size
        return side.total + count <= self._open - max(0, self._high.total - self._reserved)


Held = tuple[FairSemaphore, int]


class SlotLine(Generic[Item]):
    """The messages of one tenant and priority that need the same slots, in their order: `wanted` are those of each.
    `granted` gets those that have them.

    Slots that a message frees go to the next one in the line, without the semaphores, as long as nobody else waits for
    them. With semaphores that give slots out in bunches, the line does, too.
    """

    def __init__(
        self,
        wanted: Sequence[Held],
        tenant: str,
        granted: "Callable[[SlotLine[Item], list[Item]], None]",
        *,
        high: bool,
    ) -> None:
        self._wanted = wanted
        self._tenant = tenant
        self._granted = granted
        self._high = high
        self._bunch = self._bunch_now()
        self._queue: deque[Item] = deque()
        self._in_use = 0  # messages that have their slots
        self._freed = 0  # of these, those that need them no more
        self._waits_at: FairSemaphore | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds or waits for slots here."""
        return not self._in_use and not self._queue and self._waits_at is None

    def put(self, items: Iterable[Item]) -> None:
        """Grant slots to these, each as soon as it has all of them."""
        self._queue.extend(items)
        self._grow()

    def next(self) -> Item | None:
        """The next message instead of one that has ended, in the same slots; None if it has to wait for its turn."""
        if self._queue and not self._is_wanted_elsewhere():
            return self._queue.popleft()
        self.free()
        return None

    def free(self, count: int = 1) -> None:
        """Give up the slots of this many messages that have ended."""
        self._freed += count
        is_bunch = self._freed >= self._bunch or self._freed == self._in_use or not self._queue
        if is_bunch or self._is_wanted_elsewhere():
            self._pass_on()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BUNCH_S, self._pass_on)

    def _bunch_now(self) -> int:
        return 1 if self._high else min(slots.bunch for slots, _ in self._wanted)

    def _is_wanted_elsewhere(self) -> bool:
        """Whether others wait for slots of this line."""
        for slots, _ in self._wanted:  # noqa: SIM110 - a generator takes twice as long
            if slots.waiting and slots.waiting > (slots is self._waits_at):
                return True
        return False

    def _pass_on(self) -> None:
        """Give freed slots to the next in the line, or back if others wait for them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        freed, self._freed = self._freed, 0
        self._bunch = self._bunch_now()
        is_kept = not self._is_wanted_elsewhere() and not any(slots.has_too_many for slots, _ in self._wanted)
        kept = min(freed, len(self._queue)) if is_kept else 0
        self._in_use -= freed
        if kept < freed:
            self._give_back(freed - kept, len(self._wanted))
        if kept:
            self._grant(kept)
        self._grow()

    def _grow(self) -> None:
        """Take slots for those in the line, as many as there are; wait for those of one if there are none."""
        while self._queue and self._waits_at is None:
            count = self._take(len(self._queue))
            if count:
                self._grant(count)
            else:
                self._wait(0)

    def _take(self, most: int) -> int:
        """Take the slots of as many as possible; returns how many."""
        for number, (slots, count) in enumerate(self._wanted):
            found = slots.take_some(most, self._tenant, high=self._high, count=count)
            if found < most:
                self._give_back(most - found, number)
                most = found
            if not most:
                return 0
        return most

    def _wait(self, first: int) -> None:
        """Take the slots of one message, from this number on, waiting for each if it has to."""
        for number in range(first, len(self._wanted)):
            slots, count = self._wanted[number]
            if not slots.try_take(self._tenant, high=self._high, count=count):
                self._waits_at = slots
                slots.wait(partial(self._go_on, number + 1), self._tenant, high=self._high, count=count)
                return
        self._grant(1)

    def _go_on(self, first: int) -> None:
        self._waits_at = None
        self._wait(first)
        self._grow()

    def _grant(self, count: int) -> None:
        """The next messages have their slots."""
        items = [self._queue.popleft() for _ in range(min(count, len(self._queue)))]
        self._in_use += len(items)
        if len(items) < count:  # others took their place meanwhile
            self._give_back(count - len(items), len(self._wanted))
        if items:
            self._granted(self, items)

    def _give_back(self, messages: int, number: int) -> None:
        """Give back the first slots of so many messages."""
        for slots, count in reversed(self._wanted[:number]):
            slots.leave(self._tenant, high=self._high, count=messages * count)


class SlotLines(Generic[Item]):
    """The lines of everything that waits; `granted` gets the messages that have their slots."""

    def __init__(self, granted: "Callable[[SlotLine[Item], list[Item]], None]") -> None:
        self._granted = granted
        self._lines: dict[tuple[str, bool, tuple[Held, ...]], SlotLine[Item]] = {}
        self._lines_max = LINES_MAX

    def line(self, wanted: tuple[Held, ...], tenant: str, *, high: bool) -> SlotLine[Item]:
        """The line of a tenant for so many slots of these semaphores."""
        key = tenant, high, wanted
        line = self._lines.get(key)
        if line is None:
            self._drop_idle()
            line = self._lines[key] = SlotLine(wanted, tenant, self._granted, high=high)
        return line

    def _drop_idle(self) -> None:
        if len(self._lines) >= self._lines_max:
            self._lines = {key: line for key, line in self._lines.items() if not line.is_idle}
            self._lines_max = max(LINES_MAX, 2 * len(self._lines))
