"""The status of the configured providers, in their order: their limits, and their circuit breakers."""

from collections.abc import Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.limits.circuit_breaker import provider_breaker_key, receiver_breaker_key
from tidings.delivery.limits.rate_limit import RateLimits
from tidings.delivery.rows import change, read
from tidings.domain.notifications.circuit_breaker import Breaker, BreakerState, state_at
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.rate_limit import Rate
from tidings.domain.notifications.tables import CIRCUIT_BREAKERS, SHARED
from tidings.ports.tables import Remove, Tables

RECEIVERS_MAX = 100  # shown of those whose breaker is not closed


class ConfiguredProvider(msgspec.Struct, frozen=True):
    """A provider that was configured: its name, what it is, and the channels that it serves. It holds no secret."""

    name: str
    provider: str
    channels: tuple[ChannelName, ...]


class Receiver(msgspec.Struct, frozen=True):
    """A receiver of webhooks whose breaker is not closed: scheme, host and port, until when, and why."""

    receiver: str
    breaker: BreakerState
    until: int
    reason: str


class ProviderStatus(msgspec.Struct, frozen=True):
    """The status of a provider. `until` and `reason` are those of a breaker that is not closed.

    `rate` is the limit of all, `tenant_rate` that of the tenant that asks; `receivers` are those of its webhooks whose
    breaker is not closed, the first of them if it `has_more`.
    """

    provider: ConfiguredProvider
    breaker: BreakerState = "closed"
    until: int | None = None
    reason: str = ""
    rate: Rate | None = None
    tenant_rate: Rate | None = None
    receivers: tuple[Receiver, ...] = ()
    has_more: bool = False


class ProviderDirectory:
    """The configured providers, their status, and warnings about the configuration."""

    def __init__(
        self,
        tables: Tables,
        clock: Clock,
        configured: Sequence[ConfiguredProvider] = (),
        rates: RateLimits | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self._tables = tables
        self._clock = clock
        self._configured = tuple(configured)
        self._rates = rates or RateLimits()
        self.warnings = tuple(warnings)

    async def notices(self) -> list[str]:
        """What an operator must correct: each provider that is stopped because it rejects our requests."""
        found = await self._tables.find(CIRCUIT_BREAKERS, SHARED, (), self._clock.now())
        stopped = [(each.key.name, read(each, Breaker)) for each in found]
        return [f"{name} rejects our requests ({_why(breaker)})" for name, breaker in stopped if breaker.is_ours]

    async def statuses(self, tenant: str) -> list[ProviderStatus]:
        """The status of each provider, in the order in which they are tried."""
        now = self._clock.now()
        found = await self._tables.get([provider_breaker_key(provider.name) for provider in self._configured], now)
        receivers = await self._receivers(tenant, now)
        result = []
        for provider, there in zip(self._configured, found, strict=True):
            breaker = None if there is None else read(there, Breaker)
            word, until = state_at(breaker, now)
            tenant_rate = self._rates.own(provider.name, tenant)
            rate = self._rates.providers.get(provider.name)
            theirs = receivers.get(provider.name, [])
            shown, has_more = tuple(theirs[:RECEIVERS_MAX]), len(theirs) > RECEIVERS_MAX
            reason = "" if breaker is None else breaker.reason
            status = ProviderStatus(
                provider,
                word,
                None if breaker is None else until,
                reason,
                rate,
                tenant_rate,
                receivers=shown,
                has_more=has_more,
            )
            result.append(status)
        return result

    async def _receivers(self, tenant: str, now: int) -> dict[str, list[Receiver]]:
        """The receivers of this tenant whose breaker is not closed, by provider and in the order of their names."""
        found: dict[str, list[Receiver]] = {}
        for each in await self._tables.find(CIRCUIT_BREAKERS, tenant, (), now, limit=RECEIVERS_MAX + 1):
            name, _, receiver = each.key.name.partition(" ")
            breaker = read(each, Breaker)
            found.setdefault(name, []).append(Receiver(receiver, *state_at(breaker, now), breaker.reason))
        return found

    async def close(self, tenant: str, name: str, receiver: str | None = None) -> bool | None:
        """Close the breaker of a provider, or of one receiver of this tenant's webhooks; False if it is closed.

        None if there is no such provider. Workers know it within half a second.
        """
        key = provider_breaker_key(name) if receiver is None else receiver_breaker_key(name, tenant, receiver)
        now = self._clock.now()
        [there] = await self._tables.get([key], now)
        if there is None:
            return False if name in {provider.name for provider in self._configured} else None
        await change(self._tables, [[Remove(key)]], now)
        return True


def _why(breaker: Breaker) -> str:
    return f"{breaker.reason}: {breaker.detail}" if breaker.detail else breaker.reason
