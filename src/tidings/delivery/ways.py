"""The ways out to people, to be shown: providers in their order, their limits, and whether they are called."""

from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.filing import SHARED, read
from tidings.delivery.throttle import Rates
from tidings.domain.breaker import Breaker, Standing, standing
from tidings.domain.bucket import Rate
from tidings.domain.rendered import ChannelName
from tidings.ports import Cabinet, Key


class Way(msgspec.Struct, frozen=True):
    """A provider that was configured: its name, what it is, and the channels that it serves. It holds no secret."""

    name: str
    provider: str
    channels: tuple[ChannelName, ...]


class WayStanding(msgspec.Struct, frozen=True):
    """How a way stands. `until` and `reason` are those of a breaker that is not closed.

    `rate` is the limit of all, `own` that of the tenant who asks.
    """

    way: Way
    breaker: Standing = "closed"
    until: int | None = None
    reason: str = ""
    rate: Rate | None = None
    own: Rate | None = None


class Ways:
    """What is configured, and how it stands now. Webhooks have a breaker for each receiver, which is not shown here."""

    def __init__(self, cabinet: Cabinet, clock: Clock, ways: Sequence[Way] = (), rates: Rates | None = None) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._ways = tuple(ways)
        self._rates = rates or Rates()

    async def standing(self, tenant: str) -> list[WayStanding]:
        """Each way, in the order in which they are tried."""
        now = self._clock.now()
        found = await self._cabinet.get([Key(SHARED, "breaker", way.name) for way in self._ways], now)
        result = []
        for way, there in zip(self._ways, found, strict=True):
            breaker = None if there is None else read(there, Breaker)
            word, until = standing(breaker, now)
            own = self._rates.particular.get((way.name, tenant)) or self._rates.tenants.get(way.name)
            rate = self._rates.providers.get(way.name)
            if breaker is None:
                result.append(WayStanding(way, rate=rate, own=own))
            else:
                result.append(WayStanding(way, word, until, breaker.reason, rate, own))
        return result
