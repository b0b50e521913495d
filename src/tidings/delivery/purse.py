"""What a worker took of one limit, those who wait for it, and whose turn it is: by priority, then tenant by tenant."""

import asyncio
from collections import deque

from tidings.domain.fleet import is_set_back
from tidings.domain.notifications.rate_limit import Rate
from tidings.ports import Key

SECOND_US = 1_000_000
RESERVED_SHARE = 4  # one in so many of those that may go at once is for high priority alone
IN_A_ROW_MAX = 4  # so many of high priority go before one of the others: a bulk of high ones stops nobody for good


class Line:
    """Those of one tenant and priority: who waits here, and the places on the timeline that were promised."""

    def __init__(self, *, high: bool) -> None:
        self.high = high
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.places: deque[int] = deque()

    def until(self, now: int) -> int:
        """The last of its places, of those that are still to come."""
        while self.places and self.places[0] <= now:
            self.places.popleft()
        return self.places[-1] if self.places else now

    def enter(self) -> "asyncio.Future[None]":
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        return waiter

    def leave(self, waiter: "asyncio.Future[None]") -> None:
        if not waiter.done():
            self.waiting.remove(waiter)


class Purse:
    """The tokens of one limit that may be spent here, until a moment."""

    def __init__(self, key: Key, rate: Rate) -> None:
        self.key = key
        self.rate = rate
        self.reserved = max(1, rate.burst // RESERVED_SHARE) if rate.burst > 1 else 0
        self.tokens = 0
        self.until = 0
        self.empty_until = {True: 0, False: 0}  # for high priority, and for the others
        self.lock = asyncio.Lock()
        self._lines: dict[tuple[bool, str], Line] = {}
        self._in_a_row = 0
        self._seen = 0

    def see(self, now: int) -> None:
        """What time it is. If the clock was set back, all that was said of moments before counts no more."""
        if is_set_back(self._seen, now):
            self.until = 0
            self.empty_until = {True: 0, False: 0}
            for line in self._lines.values():
                line.places.clear()
        self._seen = now

    def line(self, tenant: str, *, high: bool) -> Line:
        return self._lines.setdefault((high, tenant), Line(high=high))

    @property
    def urgent(self) -> int:
        """How many of high priority wait, and those of the others who go between them."""
        waiting = sum(len(line.waiting) for line in self._lines.values() if line.high)
        return max(1, waiting + waiting // IN_A_ROW_MAX)

    def promise(self, line: Line, now: int) -> int:
        """The next place in a line, behind those of other lines that come before it if all take turns."""
        for key, each in list(self._lines.items()):
            if each.until(now) <= now and not each.waiting and each is not line:
                del self._lines[key]
        number = len(line.places) + 1
        alike = sum(min(len(each.places), number) for each in self._lines.values() if each.high == line.high)
        others = sum(len(each.places) for each in self._lines.values() if each.high != line.high)
        before = alike + min(others, alike // IN_A_ROW_MAX if line.high else (alike + 1) * IN_A_ROW_MAX)
        place = max(self.empty_until[line.high], now) + int(before * SECOND_US / self.rate.per_s)
        line.places.append(max(place, line.until(now)))
        return line.places[-1]

    def deal(self) -> None:
        """Give what is there to those whose turn it is."""
        while self.tokens and (key := self._next()) is not None:
            line = self._lines.pop(key)
            self._lines[key] = line  # behind the others
            self.tokens -= 1
            self._in_a_row = self._in_a_row + 1 if line.high else 0
            line.waiting.popleft().set_result(None)

    def give_back(self) -> None:
        """One that was taken and is not spent."""
        self.tokens += 1
        self.deal()

    def _next(self) -> tuple[bool, str] | None:
        waiting = [key for key, line in self._lines.items() if line.waiting]
        high = next((key for key in waiting if key[0]), None)
        other = next((key for key in waiting if not key[0]), None)
        if high is not None and (other is None or self._in_a_row < IN_A_ROW_MAX):
            return high
        return other
