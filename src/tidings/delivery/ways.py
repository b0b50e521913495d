"""The ways out to people, to be shown: providers in their order, their limits, and whether they are called."""

from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.filing import ALL, SHARED, read
from tidings.delivery.throttle import Rates
from tidings.domain.notifications.circuit_breaker import Breaker, BreakerState, state_at
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.rate_limit import Rate
from tidings.ports import DocumentStore, Key, Remove

RECEIVERS_MAX = 100  # shown of those who are left alone


class Way(msgspec.Struct, frozen=True):
    """A provider that was configured: its name, what it is, and the channels that it serves. It holds no secret."""

    name: str
    provider: str
    channels: tuple[ChannelName, ...]


class Receiver(msgspec.Struct, frozen=True):
    """One who receives webhooks and is left alone: scheme, host and port, until when, and why."""

    receiver: str
    breaker: BreakerState
    until: int
    reason: str


class WayStanding(msgspec.Struct, frozen=True):
    """How a way stands. `until` and `reason` are those of a breaker that is not closed.

    `rate` is the limit of all, `own` that of the tenant that asks; `receivers` are its own whose breaker is not
    closed, some of them if there are `more`.
    """

    way: Way
    breaker: BreakerState = "closed"
    until: int | None = None
    reason: str = ""
    rate: Rate | None = None
    own: Rate | None = None
    receivers: tuple[Receiver, ...] = ()
    more: bool = False


class Ways:
    """What is configured, how it stands now, and the warnings about the configuration."""

    def __init__(
        self,
        cabinet: DocumentStore,
        clock: Clock,
        ways: Sequence[Way] = (),
        rates: Rates | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._ways = tuple(ways)
        self._rates = rates or Rates()
        self.warnings = tuple(warnings)

    async def notices(self) -> list[str]:
        """What somebody must put right: each provider that stands still because it refuses us, whoever found out."""
        found = await self._cabinet.find(SHARED, "breaker", ALL, self._clock.now())
        stopped = [(each.key.name, read(each, Breaker)) for each in found]
        return [f"{name} rejects our requests ({_why(breaker)})" for name, breaker in stopped if breaker.is_ours]

    async def standing(self, tenant: str) -> list[WayStanding]:
        """Each way, in the order in which they are tried."""
        now = self._clock.now()
        found = await self._cabinet.get([Key(SHARED, "breaker", way.name) for way in self._ways], now)
        receivers = await self._receivers(tenant, now)
        result = []
        for way, there in zip(self._ways, found, strict=True):
            breaker = None if there is None else read(there, Breaker)
            word, until = state_at(breaker, now)
            own = self._rates.particular.get((way.name, tenant)) or self._rates.tenants.get(way.name)
            rate = self._rates.providers.get(way.name)
            theirs = receivers.get(way.name, [])
            shown, more = tuple(theirs[:RECEIVERS_MAX]), len(theirs) > RECEIVERS_MAX
            if breaker is None:
                result.append(WayStanding(way, rate=rate, own=own, receivers=shown, more=more))
            else:
                result.append(WayStanding(way, word, until, breaker.reason, rate, own, shown, more))
        return result

    async def _receivers(self, tenant: str, now: int) -> dict[str, list[Receiver]]:
        """Those of this tenant's that are left alone, by way and in the order of their names."""
        found: dict[str, list[Receiver]] = {}
        for each in await self._cabinet.find(tenant, "breaker", ALL, now, limit=RECEIVERS_MAX + 1):
            name, _, receiver = each.key.name.partition(" ")
            breaker = read(each, Breaker)
            found.setdefault(name, []).append(Receiver(receiver, *state_at(breaker, now), breaker.reason))
        return found

    async def close(self, tenant: str, name: str, receiver: str | None = None) -> bool | None:
        """Have a provider called again at once, or one who receives this tenant's webhooks; False if it is anyhow.

        None if there is no such provider. Workers know it within half a second.
        """
        key = Key(SHARED, "breaker", name) if receiver is None else Key(tenant, "breaker", f"{name} {receiver}")
        now = self._clock.now()
        [there] = await self._cabinet.get([key], now)
        if there is None:
            return False if name in {way.name for way in self._ways} else None
        await self._cabinet.change([[Remove(key)]], now)
        return True


def _why(breaker: Breaker) -> str:
    return f"{breaker.reason}: {breaker.detail}" if breaker.detail else breaker.reason
