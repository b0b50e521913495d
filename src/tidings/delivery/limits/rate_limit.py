"""Rate limits by provider, and by tenant at a provider, for all workers together.

The token bucket of a limit is one row that all workers share. A worker leases tokens in advance by compare-and-set and
spends them by itself, so that the store is asked a few times a second, not for each message. Leased tokens that are
not spent within a second are lost: a limit is kept, not used up. A part of the bucket is for high priority alone,
whichever worker the message is at. A message that is not sent returns its token only within a second, too.

A message that can have a token within a moment waits here, and tokens are dealt by priority and tenant. One that has to
wait longer gets the time when its turn may be, in the queue of its tenant and priority: nobody waits behind another
tenant's bulk.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from tidings.clock import Clock
from tidings.delivery.rows import encode, read
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.fleet import is_set_back
from tidings.domain.notifications.rate_limit import (
    IN_A_ROW_MAX,
    SECOND_US,
    Bucket,
    PromisedTimes,
    Rate,
    filled,
    next_at,
    take,
)
from tidings.domain.notifications.tables import SHARED
from tidings.ports.tables import ChangeGroup, Put, RowKey, Tables

LEASE_S = 0.2  # a lease has the tokens of this time
SPEND_US = 1_000_000
RETENTION_US = 3_600_000_000
TRIES_MAX = 8
PATIENCE_US = 500_000  # a message that may have a token within this time waits for it
WAITERS_MAX = 32  # of one queue: waiting messages hold slots
BOUNCED_MAX = 64  # how many messages get a place in one turn of the event loop
LEASES_MAX = 1_000  # of one worker; more only if so many are in use
PAUSE_US_MIN = 1_000
RETRY_US = 250_000  # while the store is away
RESERVED_SHARE = 4  # one in so many tokens of a burst is for high priority alone

Answer = Callable[[int | None], None]  # None: the message may go; otherwise from when on it may


class RateLimits(msgspec.Struct, frozen=True):
    """The limits of each provider in all, for each tenant, and for particular tenants."""

    providers: dict[str, Rate] = {}
    tenants: dict[str, Rate] = {}  # by provider, for each tenant
    particular: dict[tuple[str, str], Rate] = {}  # by provider and tenant

    @property
    def is_empty(self) -> bool:
        """Whether there is no limit at all."""
        return not (self.providers or self.tenants or self.particular)

    def own(self, provider: str, tenant: str) -> Rate | None:
        """The limit of a tenant at a provider."""
        return self.particular.get((provider, tenant)) or self.tenants.get(provider)

    def of(self, provider: str, tenant: str) -> list[tuple[RowKey, Rate]]:
        """The limits of a message, the tenant's own first: a message that it stops takes no shared token."""
        found: list[tuple[RowKey, Rate]] = []
        own = self.own(provider, tenant)
        if own is not None:
            found.append((RowKey("rate_limit", tenant, provider), own))
        if (rate := self.providers.get(provider)) is not None:
            found.append((RowKey("rate_limit", SHARED, provider), rate))
        return found


class RateLimiter:
    """The leases of this worker, one for each limit."""

    def __init__(self, tables: Tables, clock: Clock, limits: RateLimits, *, patience_us: int = PATIENCE_US) -> None:
        self._tables = tables
        self._clock = clock
        self._limits = limits
        self._patience_us = patience_us
        self._leases: dict[RowKey, TokenLease] = {}

    def enter(self, provider: str, tenant: str, answer: Answer, *, high: bool, returning: bool) -> None:
        """Answer None once a message may go, at once or within a moment; otherwise from when on it may.

        A message that was told a time and returns does not queue again.
        """
        leases = self._of(provider, tenant)
        self._enter_next(leases, 0, tenant, answer, 0, high=high, returning=returning)

    @property
    def is_unlimited(self) -> bool:
        """Whether any message may go at once: there is no limit at all."""
        return self._limits.is_empty

    def give_back(self, provider: str, tenant: str, taken_at: int) -> None:
        """A message that might have gone since a moment of elapsed time does not: another may."""
        for key, _ in self._limits.of(provider, tenant):
            lease = self._leases.get(key)
            if lease is not None:
                lease.give_back(taken_at)

    def close(self) -> None:
        """Stop: those that wait get no answer."""
        for lease in self._leases.values():
            lease.close()

    def _of(self, provider: str, tenant: str) -> "list[TokenLease]":
        leases = []
        for key, rate in self._limits.of(provider, tenant):
            lease = self._leases.get(key)
            if lease is None:
                self._drop_idle()
                lease = TokenLease(self._tables, self._clock, key, rate, self._patience_us)
                self._leases[key] = lease
            leases.append(lease)
        return leases

    def _drop_idle(self) -> None:
        """Forget the leases of tenants that send nothing, once there are many."""
        if len(self._leases) >= LEASES_MAX:
            idle = [key for key, lease in self._leases.items() if key.tenant != SHARED and lease.is_idle]
            for key in idle:
                del self._leases[key]

    def _enter_next(
        self,
        leases: "list[TokenLease]",
        number: int,
        tenant: str,
        answer: Answer,
        taken_at: int,
        *,
        high: bool,
        returning: bool,
    ) -> None:
        """Take a token of each limit in turn; if one has none, give those back that were taken, at a moment."""
        if number == len(leases):
            answer(None)
            return

        def answered(until: int | None) -> None:
            if until is None:
                moment = self._clock.elapsed()
                self._enter_next(leases, number + 1, tenant, answer, moment, high=high, returning=returning)
                return
            for lease in leases[:number]:
                lease.give_back(taken_at)
            answer(until)

        leases[number].enter(tenant, answered, high=high, returning=returning)


class _Waiter(msgspec.Struct, eq=False, gc=False, kw_only=True):
    """A message that waits for a token, until a moment of elapsed time; `has_place` once it has one in its queue."""

    tenant: str
    high: bool
    answer: Answer
    until: int
    has_place: bool
    has_left: bool = False


class _Waiters:
    """Messages in a queue for each tenant and priority. All wait equally long at most: who comes first, ends first.

    Every step takes the same time, however many wait.
    """

    def __init__(self) -> None:
        self.counts = {True: 0, False: 0}  # of high priority, and of the others
        self._turns: dict[bool, OrderedDict[str, dict[_Waiter, None]]] = {True: OrderedDict(), False: OrderedDict()}
        self._without_place: dict[bool, deque[_Waiter]] = {True: deque(), False: deque()}
        self._arrived: deque[_Waiter] = deque()

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

    def add(self, waiter: _Waiter) -> None:
        """Add a message to the end of its queue."""
        self._turns[waiter.high].setdefault(waiter.tenant, {})[waiter] = None
        self._arrived.append(waiter)
        if not waiter.has_place:
            self._without_place[waiter.high].append(waiter)
        self.counts[waiter.high] += 1

    def take(self, *, high: bool) -> _Waiter:
        """Take the first message of the queue whose turn it is. This queue goes behind the others."""
        turns = self._turns[high]
        tenant = next(iter(turns))
        turns.move_to_end(tenant)
        waiter = next(iter(turns[tenant]))
        self.remove(waiter)
        return waiter

    def remove(self, waiter: _Waiter) -> None:
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

    def without_place(self) -> _Waiter | None:
        """The next message that needs a place, once; high priority first."""
        for arrived in self._without_place.values():
            while arrived:
                waiter = arrived.popleft()
                if not waiter.has_left:
                    waiter.has_place = True
                    return waiter
        return None

    def first(self) -> _Waiter | None:
        """The message that waits longest."""
        while self._arrived and self._arrived[0].has_left:
            self._arrived.popleft()
        return self._arrived[0] if self._arrived else None


class TokenLease:
    """The tokens of one limit that this worker may spend, and the messages that wait for more."""

    def __init__(self, tables: Tables, clock: Clock, key: RowKey, rate: Rate, patience_us: int) -> None:
        self._tables = tables
        self._clock = clock
        self._key = key
        self._rate = rate
        self._patience_us = patience_us
        self._reserved = max(1, rate.burst // RESERVED_SHARE) if rate.burst > 1 else 0
        self._tokens = 0
        self._until = 0
        self._empty_until = {True: 0, False: 0}  # for high priority, and for the others
        self._waiters = _Waiters()
        self._promised = PromisedTimes(rate.per_s)
        self._in_a_row = 0
        self._seen = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether no message waits, and no time that was promised is still to come."""
        return self._task is None and self._promised.is_over(self._clock.now())

    def enter(self, tenant: str, answer: Answer, *, high: bool, returning: bool) -> None:
        """Spend a token for a message, now or within a moment, or answer when its turn may be."""
        if self._is_closed:
            return
        now = self._see()
        is_long = not returning and self._promised.last(tenant, high=high) > now + self._patience_us
        if self._tokens and not is_long and not self._waiters:
            self._spend(high=high)
            answer(None)
            return
        if is_long or self._waiters.queued(tenant, high=high) >= WAITERS_MAX:
            answer(self._promise(tenant, now, high=high))
            return
        until = self._clock.elapsed() + self._patience_us
        self._waiters.add(_Waiter(tenant=tenant, high=high, answer=answer, until=until, has_place=returning))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="tidings-rate-limit")
        else:
            self._wake.set()

    def give_back(self, taken_at: int) -> None:
        """A token that was taken at a moment of elapsed time and is not spent; an old one is lost.

        Claims that waited long and are given back together would exceed the limit several times over.
        """
        if self._clock.elapsed() - taken_at < SPEND_US:
            self._tokens = min(self._tokens + 1, self._rate.burst)
            self._deal()

    def close(self) -> None:
        """Stop: those that wait get no answer."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._waiters.clear()
        self._promised.clear()

    def _see(self) -> int:
        """The time. If the clock was set back, all times before count no more."""
        now = self._clock.now()
        if is_set_back(self._seen, now):
            self._until = 0
            self._empty_until = {True: 0, False: 0}
            self._promised.clear()
        self._seen = now
        if now >= self._until:
            self._tokens = 0
        return now

    async def _run(self) -> None:
        """Lease tokens as long as messages wait for them.

        A message that arrives meanwhile wakes this up: tokens may be left for its priority.
        """
        try:
            while self._waiters:
                self._wake.clear()
                await self._fill()
                self._deal()
                if self._bounce():
                    await asyncio.sleep(0)
                elif (left_us := self._pause_us()) is not None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(PAUSE_US_MIN, left_us) / SECOND_US):
                            await self._wake.wait()
        finally:
            self._task = None

    async def _fill(self) -> None:
        """Lease tokens for each priority that waits, if there may be any."""
        for high in (True, False):
            now = self._see()
            if self._waiters.counts[high] and not self._tokens and now >= self._empty_until[high]:
                try:
                    await self._lease(now, high=high)
                except (StoreError, NotOwner):
                    self._empty_until[high] = now + RETRY_US
                if is_set_back(now, self._clock.now()):  # while the store was asked: the times that it gave are wrong
                    self._until, self._empty_until[high] = 0, 0

    def _bounce(self) -> bool:
        """Answer those that cannot have a token within their time, with the time when their turn may be.

        It returns whether some are left for another turn of the event loop. All leave before the first is answered: an
        answer may lead to new messages here.
        """
        now, elapsed = self._see(), self._clock.elapsed()
        bounced: list[tuple[Answer, int]] = []
        is_done = False
        for _ in range(BOUNCED_MAX):
            if (waiter := self._waiters.without_place()) is not None:
                place = self._promise(waiter.tenant, now, high=waiter.high)
                if place <= now + self._patience_us:
                    continue
                # High priority returns a little early: it gets its token before those that are less urgent.
                place -= self._patience_us // 2 if waiter.high else 0
            elif (waiter := self._waiters.first()) is not None and elapsed >= waiter.until:
                place = self._promise(waiter.tenant, now, high=waiter.high)
            else:
                is_done = True
                break
            self._waiters.remove(waiter)
            bounced.append((waiter.answer, place))
        for answer, place in bounced:
            answer(place)
        return not is_done

    def _pause_us(self) -> int | None:
        """How long nothing can happen here; None if nobody waits."""
        first = self._waiters.first()
        if first is None:
            return None
        empty_until = min(self._empty_until[high] for high, count in self._waiters.counts.items() if count)
        return min(first.until - self._clock.elapsed(), empty_until - self._clock.now())

    def _promise(self, tenant: str, now: int, *, high: bool) -> int:
        return self._promised.promise(tenant, now, max(self._empty_until[high], now), high=high)

    def _deal(self) -> None:
        """Give the tokens to those whose turn it is."""
        counts = self._waiters.counts
        while self._tokens and self._waiters:
            high = bool(counts[True]) and (not counts[False] or self._in_a_row < IN_A_ROW_MAX)
            waiter = self._waiters.take(high=high)
            self._spend(high=high)
            waiter.answer(None)

    def _spend(self, *, high: bool) -> None:
        self._tokens -= 1
        self._in_a_row = self._in_a_row + 1 if high else 0

    async def _lease(self, now: int, *, high: bool) -> None:
        """Take tokens out of the bucket, again if another worker was faster. Only high priority takes the last ones.

        A bucket that is ahead of a clock that was set back is rewritten even if nothing is taken: it would never fill.
        """
        portion = max(1, min(self._rate.burst, int(self._rate.per_s * LEASE_S)))
        urgent = self._waiters.counts[True]
        wanted, left = (min(portion, max(1, urgent + urgent // IN_A_ROW_MAX)), 0) if high else (portion, self._reserved)
        for _ in range(TRIES_MAX):
            [row] = await self._tables.get([self._key], now)
            before = None if row is None else read(row, Bucket)
            after, given = take(before, self._rate, wanted, now, left)
            if not given and (before is None or before.at <= after.at):
                self._empty_until[high] = next_at(filled(before, self._rate, now), self._rate, now, left)
                return
            values = (after.parts, after.at)
            put = Put(self._key, encode(after), 0 if row is None else row.version, values, now + RETENTION_US)
            [result] = await self._tables.commit([ChangeGroup((put,))], now)
            if result.version and given:
                self._see()  # tokens may have been given back meanwhile
                self._tokens, self._until = min(self._tokens + given, self._rate.burst), now + SPEND_US
                return
        self._empty_until[high] = now + int(SECOND_US / self._rate.per_s)
