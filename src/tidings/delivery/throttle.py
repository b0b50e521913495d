"""Rate limits by provider, and by tenant at a provider, for all workers together.

What may still go is a document that all share. A worker takes a portion of it by compare-and-set and spends that by
itself, so that the store is asked a few times a second, not for each message. What it does not spend at once is lost:
limits are kept, not used up. Who has to wait is told when his turn may be: one after the other, not all at once.
"""

import asyncio

import msgspec

from tidings.clock import Clock
from tidings.delivery.filing import SHARED, encode, read
from tidings.domain.bucket import Bucket, Rate, filled, next_at, take
from tidings.ports import Cabinet, Key, Put

PORTION_S = 0.2
SPEND_US = 1_000_000
KEPT_US = 3_600_000_000
TRIES_MAX = 8
SECOND_US = 1_000_000


class Rates(msgspec.Struct, frozen=True):
    """What each provider takes at all, and what it takes of each tenant, or of one in particular."""

    providers: dict[str, Rate] = {}
    tenants: dict[str, Rate] = {}  # by provider, for each tenant
    particular: dict[tuple[str, str], Rate] = {}  # by provider and tenant

    def of(self, provider: str, tenant: str) -> list[tuple[Key, Rate]]:
        """The limits that hold for a message."""
        found: list[tuple[Key, Rate]] = []
        if (rate := self.providers.get(provider)) is not None:
            found.append((Key(SHARED, "throttle", provider), rate))
        own = self.particular.get((provider, tenant)) or self.tenants.get(provider)
        if own is not None:
            found.append((Key(tenant, "throttle", provider), own))
        return found


class Throttle:
    """What this worker may spend of each limit."""

    def __init__(self, cabinet: Cabinet, clock: Clock, rates: Rates) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._rates = rates
        self._purses: dict[Key, _Purse] = {}

    async def take(self, provider: str, tenant: str, *, returning: bool = False) -> int | None:
        """None if a message may go; else from when on it may. Who waited and returns need not queue again."""
        spent: list[_Purse] = []
        for key, rate in self._rates.of(provider, tenant):
            purse = self._purses.setdefault(key, _Purse(key, rate))
            until = await self._spend(purse, returning=returning)
            if until is not None:
                for other in spent:
                    other.tokens += 1
                return until
            spent.append(purse)
        return None

    async def _spend(self, purse: "_Purse", *, returning: bool) -> int | None:
        now = self._clock.now()
        if not returning and purse.queue_until > now:
            return purse.promise(now)
        async with purse.lock:
            now = self._clock.now()
            if now >= purse.until:
                purse.tokens = 0
            if not purse.tokens and now >= purse.empty_until:
                await self._refill(purse, now)
            if purse.tokens:
                purse.tokens -= 1
                return None
        return purse.promise(now)

    async def _refill(self, purse: "_Purse", now: int) -> None:
        """Take a portion, as often as another worker is faster."""
        wanted = max(1, min(purse.rate.burst, int(purse.rate.per_s * PORTION_S)))
        for _ in range(TRIES_MAX):
            [there] = await self._cabinet.get([purse.key], now)
            before = None if there is None else read(there, Bucket)
            after, given = take(before, purse.rate, wanted, now)
            if not given:
                purse.empty_until = next_at(filled(before, purse.rate, now), purse.rate, now)
                return
            change = Put(purse.key, encode(after), 0 if there is None else there.version, until=now + KEPT_US)
            [done] = await self._cabinet.change([[change]], now)
            if done:
                purse.tokens, purse.until = given, now + SPEND_US
                return
        purse.empty_until = now + int(SECOND_US / purse.rate.per_s)


class _Purse:
    """What was taken of one limit, and the queue of those who wait for more."""

    def __init__(self, key: Key, rate: Rate) -> None:
        self.key = key
        self.rate = rate
        self.tokens = 0
        self.until = 0
        self.empty_until = 0
        self.queue_until = 0
        self.lock = asyncio.Lock()

    def promise(self, now: int) -> int:
        """The next place in the queue."""
        self.queue_until = max(self.queue_until, self.empty_until, now) + int(SECOND_US / self.rate.per_s)
        return self.queue_until
