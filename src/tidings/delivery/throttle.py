"""Rate limits by provider, and by tenant at a provider, for all workers together.

What may still go is a document that all share. A worker takes a portion of it by compare-and-set and spends that by
itself, so that the store is asked a few times a second, not for each message. What it does not spend at once is lost:
limits are kept, not used up. A part of what is there at once is for high priority alone, whichever worker it is at.

Who has to wait for a moment waits here, and the next tokens are dealt by priority and tenant. Who has to wait for
longer is told when its turn may be, in the queue of its tenant and priority: nobody waits behind another's bulk.
"""

import asyncio

import msgspec

from tidings.clock import Clock
from tidings.delivery.filing import SHARED, encode, read
from tidings.delivery.purse import SECOND_US, Line, Purse
from tidings.domain.notifications.rate_limit import Bucket, Rate, filled, next_at, take
from tidings.ports import DocumentStore, Key, Put

PORTION_S = 0.2
SPEND_US = 1_000_000
KEPT_US = 3_600_000_000
TRIES_MAX = 8
PATIENCE_US = 500_000  # who may hope for a token within this time waits for it
WAITERS_MAX = 4  # of one line: those who wait hold a place among those who are under way
PAUSE_US_MIN = 1_000


class Rates(msgspec.Struct, frozen=True):
    """What each provider takes at all, and what it takes of each tenant, or of one in particular."""

    providers: dict[str, Rate] = {}
    tenants: dict[str, Rate] = {}  # by provider, for each tenant
    particular: dict[tuple[str, str], Rate] = {}  # by provider and tenant

    def of(self, provider: str, tenant: str) -> list[tuple[Key, Rate]]:
        """The limits that hold for a message, the tenant's own first: a message that it stops takes no shared token."""
        found: list[tuple[Key, Rate]] = []
        own = self.particular.get((provider, tenant)) or self.tenants.get(provider)
        if own is not None:
            found.append((Key(tenant, "throttle", provider), own))
        if (rate := self.providers.get(provider)) is not None:
            found.append((Key(SHARED, "throttle", provider), rate))
        return found


class Throttle:
    """What this worker may spend of each limit."""

    def __init__(self, cabinet: DocumentStore, clock: Clock, rates: Rates, *, patience_us: int = PATIENCE_US) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._rates = rates
        self._patience_us = patience_us
        self._purses: dict[Key, Purse] = {}

    async def take(self, provider: str, tenant: str, *, high: bool = False, returning: bool = False) -> int | None:
        """None if a message may go; else from when on it may. Who waited and returns need not queue again."""
        spent: list[Purse] = []
        for key, rate in self._rates.of(provider, tenant):
            purse = self._purses.setdefault(key, Purse(key, rate))
            try:
                until = await self._spend(purse, purse.line(tenant, high=high), returning=returning)
            except BaseException:
                _give_back(spent)
                raise
            if until is not None:
                _give_back(spent)
                return until
            spent.append(purse)
        return None

    def give_back(self, provider: str, tenant: str) -> None:
        """One that might have gone does not: another may."""
        _give_back([self._purses[key] for key, _ in self._rates.of(provider, tenant)])

    async def _spend(self, purse: Purse, line: Line, *, returning: bool) -> int | None:
        now = self._clock.now()
        purse.see(now)
        patience_us = self._patience_us
        if (not returning and line.until(now) > now + patience_us) or len(line.waiting) >= WAITERS_MAX:
            return purse.promise(line, now)
        if await self._wait(purse, line, 0):
            return None
        place = now if returning else purse.promise(line, now)
        if place > now + patience_us:
            # It comes a little early: who is there when the token is gets it before those who are less urgent.
            return place - patience_us // 2 if line.high else place
        if patience_us and await self._wait(purse, line, patience_us):
            return None
        return purse.promise(line, self._clock.now())

    async def _wait(self, purse: Purse, line: Line, within_us: int) -> bool:
        """Stand in line for a time; True if there was a token. Who waits sees to it that there are more."""
        waiter, until = line.enter(), self._clock.elapsed() + within_us
        try:
            while True:
                await self._fill(purse, line)
                purse.deal()
                left_us = until - self._clock.elapsed()
                if waiter.done() or left_us <= 0:
                    return waiter.done()
                pause_us = max(PAUSE_US_MIN, min(left_us, purse.empty_until[line.high] - self._clock.now()))
                await asyncio.wait([waiter], timeout=pause_us / SECOND_US)
        except BaseException:
            if waiter.done():
                purse.give_back()
            raise
        finally:
            line.leave(waiter)

    async def _fill(self, purse: Purse, line: Line) -> None:
        async with purse.lock:
            now = self._clock.now()
            purse.see(now)
            if now >= purse.until:
                purse.tokens = 0
            if not purse.tokens and now >= purse.empty_until[line.high]:
                await self._refill(purse, now, high=line.high)

    async def _refill(self, purse: Purse, now: int, *, high: bool) -> None:
        """Take a portion, as often as another worker is faster. Only for high priority is the last of it taken.

        A bucket that stands ahead of a clock set back is written anew, though nothing is taken: it would never fill.
        """
        portion = max(1, min(purse.rate.burst, int(purse.rate.per_s * PORTION_S)))
        wanted, left = (min(portion, purse.urgent), 0) if high else (portion, purse.reserved)
        for _ in range(TRIES_MAX):
            [there] = await self._cabinet.get([purse.key], now)
            before = None if there is None else read(there, Bucket)
            after, given = take(before, purse.rate, wanted, now, left)
            if not given and (before is None or before.at <= after.at):
                purse.empty_until[high] = next_at(filled(before, purse.rate, now), purse.rate, now, left)
                return
            change = Put(purse.key, encode(after), 0 if there is None else there.version, until=now + KEPT_US)
            [done] = await self._cabinet.change([[change]], now)
            if done and given:
                purse.tokens, purse.until = given, now + SPEND_US
                return
        purse.empty_until[high] = now + int(SECOND_US / purse.rate.per_s)


def _give_back(spent: list[Purse]) -> None:
    for purse in spent:
        purse.give_back()
