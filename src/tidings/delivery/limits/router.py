"""Hands messages to providers: which one, whether it may be called now, and one call with its time-out."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from tidings.clock import Clock
from tidings.delivery.limits.circuit_breaker import CircuitBreakers, breaker_key
from tidings.delivery.limits.concurrency import FairSemaphore, Held
from tidings.delivery.limits.rate_limit import RateLimiter
from tidings.domain.errors import Invalid
from tidings.domain.notifications.circuit_breaker import BreakerState
from tidings.domain.notifications.delivery import Accepted, Attempt, Temporary, Verdict, unbuildable
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName, Rendered
from tidings.ports import Address, ConnectionLimited, Erasable, InboxProvider, Provider
from tidings.ports.tables import RowKey
from tidings.tasks import Deadlines

RESERVED_SHARE = 4  # one in so many of a provider's connections is for high priority alone
POOLS_MAX = 256  # in memory before unused ones are dropped
ROUTES_MAX = 4_096  # in memory
CLAIMS_AHEAD_MIN, CLAIMS_AHEAD_MAX = 128, 256  # messages that are claimed before a connection is free for them
QUICK_US, SLOW_US = 500_000, 2_000_000  # if all that is claimed ahead takes this long, claim more, or fewer, ahead

logger = logging.getLogger("tidings.delivery")


class Concurrency(msgspec.Struct, frozen=True):
    """How many calls may be in progress in a channel, and how many of these only with high priority."""

    together_max: int = 64
    reserved: int = 8


class Slots:
    """The slots of a channel or of a connection pool.

    `calls` bounds the calls in progress. `reservations` bounds these and the messages that are claimed, or being
    claimed, for them: so no connection waits for a commit, and no claim is taken for a message that must wait long.
    How many are claimed ahead follows from the rate of the calls: the quicker they are, the larger the batches.
    """

    def __init__(self, size: int, reserved: int) -> None:
        self._size, self._reserved = size, reserved
        self._ahead_min = self._ahead = min(CLAIMS_AHEAD_MIN, 4 * size)
        self._claims, self._counted_since = 0, 0
        self.calls = FairSemaphore(size, min(reserved, size - 1))
        self.reservations = FairSemaphore(*self._extent())

    def _extent(self) -> tuple[int, int, int]:
        """The size of the reservations, those for high priority, and how many are given out at a time."""
        size = self._size + self._ahead
        return size, min(2 * self._reserved, size - 1), max(1, self._ahead // 2)

    def count_claims(self, count: int, now: int) -> None:
        """Count claims whose calls are to be made; claim further ahead if many follow in a short time."""
        self._claims += count
        if self._claims < self._ahead:
            return
        took_us, self._counted_since, self._claims = now - self._counted_since, now, 0
        ahead = self._ahead
        if took_us < QUICK_US:
            ahead = min(2 * ahead, CLAIMS_AHEAD_MAX)
        elif took_us > SLOW_US:
            ahead = max(ahead // 2, self._ahead_min)
        if ahead != self._ahead:
            self._ahead = ahead
            self.reservations.resize(*self._extent())

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds or waits for a slot."""
        return not any(each.in_use or each.waiting for each in (self.calls, self.reservations))


class Recipient(msgspec.Struct, frozen=True, gc=False):
    """Where a delivery goes, and what was tried before: everything that decides on its provider."""

    tenant: str
    channel: ChannelName
    high: bool
    attempts: tuple[Attempt, ...]
    returning: bool  # a rate limit deferred it until now


class Option(msgspec.Struct, frozen=True, gc=False):
    """A provider that accepts a message, and the state of its circuit breaker, until when."""

    provider: str
    deduplicates: bool
    breaker: BreakerState = "closed"
    until: int = 0


def is_unsure(attempt: Attempt) -> bool:
    """Whether the provider may have accepted the message although it did not say so."""
    return attempt.ended is None or attempt.may_have_arrived


def choose(options: Sequence[Option], attempts: Sequence[Attempt]) -> Option | int:
    """The first provider that is called at all, beginning behind the one that failed last; else when to ask again.

    A half-open breaker gets its trial call even if another provider would accept the message: otherwise nobody would
    find out that it works again.

    If the last provider may have accepted the message, and recognises repeated ids, the message goes nowhere else:
    another provider would send it a second time.
    """
    assert options, "a provider accepts it"
    last = attempts[-1] if attempts else None
    names = [option.provider for option in options]
    if last is not None and last.provider in names:
        place = names.index(last.provider)
        if is_unsure(last) and options[place].deduplicates:
            options = [options[place]]
        elif last.outcome != "rate_limited":
            options = [*options[place + 1 :], *options[: place + 1]]
    for option in options:
        if option.breaker != "open":
            return option
    return min(option.until for option in options)


Pools = tuple[tuple[str, str], ...]  # the keys of connection pools: provider and name


class Route(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The providers that accept an address of a tenant, in the order of preference, as if all of them worked.

    Of each: its circuit breaker, the connection pools that a message uses, and its slots, for a message and for a call.
    """

    options: tuple[Option, ...]
    breakers: tuple[RowKey, ...]
    pools: tuple[Pools, ...]
    slots: tuple[tuple[Slots, ...], ...]
    reservations: tuple[tuple[Held, ...], ...]
    calls: tuple[tuple[Held, ...], ...]

    def index(self, provider: str) -> int:
        """The place of a provider."""
        if self.options[0].provider == provider:
            return 0
        return [each.provider for each in self.options].index(provider)


class ProviderRouter:
    """The providers by name, in the order of preference."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        breakers: CircuitBreakers,
        limiter: RateLimiter,
        clock: Clock,
        *,
        send_s: float = 30.0,
        concurrency: Mapping[ChannelName, Concurrency] | None = None,
    ) -> None:
        self._providers = dict(providers)
        self._pooled = {name: each for name, each in providers.items() if isinstance(each, ConnectionLimited)}
        self._inboxes = {name: each for name, each in providers.items() if isinstance(each, InboxProvider)}
        self.breakers = breakers
        self.limiter = limiter
        self._clock = clock
        self.send_s = send_s
        self._concurrency = {name: (concurrency or {}).get(name, Concurrency()) for name in CHANNEL_NAMES}
        self._channels = {name: Slots(each.together_max, each.reserved) for name, each in self._concurrency.items()}
        self._pools: dict[tuple[str, str], Slots] = {}
        self._pools_max = POOLS_MAX  # then those that nobody uses are dropped
        self._routes: dict[tuple[str, ChannelName, Address], Route] = {}
        self._shapes: dict[object, Route] = {}  # those that addresses share: most e-mail addresses have the same one
        self._without_pools = {name: ((slots.reservations, 1),) for name, slots in self._channels.items()}
        self._timed_out: set[asyncio.Task[object]] = set()
        self._deadlines = Deadlines(clock, self._time_out)

    def route(self, tenant: str, channel: ChannelName, address: Address) -> Route:
        """Where a message may go."""
        key = tenant, channel, address
        route = self._routes.get(key)
        if route is None:
            if len(self._routes) >= ROUTES_MAX:
                self._forget_routes()
            names = tuple(name for name, each in self._providers.items() if each.accepts(channel, address))
            breakers = tuple(breaker_key(name, tenant, channel, address) for name in names)
            pools = tuple(self._pools_of(channel, name, address) for name in names)
            shape = channel, names, breakers, pools
            route = self._shapes.get(shape)
            if route is None:
                route = self._shapes[shape] = self._new_route(*shape)
            self._routes[key] = route
        return route

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._shapes.clear()

    def _new_route(
        self, channel: ChannelName, names: tuple[str, ...], breakers: tuple[RowKey, ...], pools: tuple[Pools, ...]
    ) -> Route:
        slots = tuple((*(self._pools[key] for key in keys), self._channels[channel]) for keys in pools)
        return Route(
            options=tuple(Option(name, self._providers[name].deduplicates) for name in names),
            breakers=breakers,
            pools=pools,
            slots=slots,
            reservations=tuple(tuple((each.reservations, 1) for each in some) for some in slots),
            calls=tuple(tuple((each.calls, 1) for each in some) for some in slots),
        )

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        """Whether a provider sends to such an address."""
        return any(provider.accepts(channel, address) for provider in self._providers.values())

    def inbox(self, channel: ChannelName, address: Address) -> tuple[str, InboxProvider] | None:
        """The provider of an address with its name, if it writes to inboxes."""
        if channel == "in_app":
            for name, provider in self._providers.items():
                if provider.accepts(channel, address):
                    return (name, self._inboxes[name]) if name in self._inboxes else None
        return None

    def is_plain(self, route: Route, attempts: Sequence[Attempt]) -> bool:
        """Whether a message goes to the first provider of its route, as most do: it works, and nothing was tried."""
        return not attempts and bool(route.breakers) and self.breakers.is_closed(route.breakers[0])

    def options(self, route: Route) -> Sequence[Option]:
        """The providers of a route, with the state of their breakers."""
        if all(map(self.breakers.is_closed, route.breakers)):
            return route.options
        states = [self.breakers.state(key) for key in route.breakers]
        return [
            Option(each.provider, each.deduplicates, *state) for each, state in zip(route.options, states, strict=True)
        ]

    def reservations(self, to: Recipient, addresses: Sequence[Address]) -> tuple[Held, ...]:
        """What a message needs before it is claimed, in an order that is the same for all: no two wait in a circle."""
        needed: dict[tuple[str, str], int] = {}
        for address in addresses:
            route = self.route(to.tenant, to.channel, address)
            if len(addresses) == 1 and self.is_plain(route, to.attempts):
                return route.reservations[0]
            options = self.options(route)
            chosen = choose(options, to.attempts) if options else None
            if isinstance(chosen, Option):
                number = options.index(chosen)
                if len(addresses) == 1:
                    return route.reservations[number]
                for key in route.pools[number]:
                    needed[key] = needed.get(key, 0) + 1
        if not needed:
            return self._without_pools[to.channel]
        wanted = [(self._pools[key].reservations, needed[key]) for key in sorted(needed, reverse=True)]
        wanted.append((self._channels[to.channel].reservations, 1))
        return tuple((each, 1 if count == 1 else each.count_for(high=to.high, count=count)) for each, count in wanted)

    def call_slots(self, to: Recipient, provider: str, address: Address) -> tuple[Held, ...]:
        """What one call needs."""
        route = self.route(to.tenant, to.channel, address)
        return route.calls[route.index(provider)]

    def count_claims(self, to: Recipient, provider: str, address: Address, count: int) -> None:
        """Calls that need the same slots as this one were claimed."""
        route, now = self.route(to.tenant, to.channel, address), self._clock.elapsed()
        for slots in route.slots[route.index(provider)]:
            slots.count_claims(count, now)

    def _pools_of(self, channel: ChannelName, provider: str, address: Address) -> Pools:
        """The keys of the connection pools that a message uses; each has its slots from then on."""
        pooled = self._pooled.get(provider)
        keys: list[tuple[str, str]] = []
        for pool, size in () if pooled is None else pooled.connections(address).items():
            if size > 0:
                key = (provider, pool)
                if key not in self._pools:
                    reserved = min(self._concurrency[channel].reserved, max(1, size // RESERVED_SHARE), size - 1)
                    self._pools[key] = Slots(size, reserved)
                keys.append(key)
        return tuple(sorted(keys, reverse=True))

    def drop_idle_pools(self) -> None:
        """Forget the pools that nobody uses, if there are many: there is one for each receiver of webhooks.

        Those of whole providers stay. A message takes them last: it may hold one of a receiver, and wait there, while
        nobody holds the other. What `reservations` returned and nobody has taken yet is of no use afterwards.
        """
        if len(self._pools) < self._pools_max:
            return
        self._pools = {key: slots for key, slots in self._pools.items() if not key[1] or not slots.is_idle}
        self._pools_max = max(POOLS_MAX, 2 * len(self._pools))
        self._forget_routes()

    async def call(
        self, provider: str, message: Rendered, within_s: float, *, task: "asyncio.Task[object]", begun: int
    ) -> Verdict:
        """One call by this task, begun at this monotonic time. Whatever a provider does, it comes to a verdict."""
        self._deadlines.add(task, within_s, begun)
        try:
            verdict = await self._providers[provider].send(message)
            if type(verdict) is Accepted:
                if type(verdict.id) is not str:
                    raise TypeError(f"{type(verdict.id).__name__} instead of the text of an id")
            elif not isinstance(verdict, Verdict):
                raise TypeError(f"{type(verdict).__name__} instead of a verdict")
            return verdict
        except asyncio.CancelledError:
            if task in self._timed_out and task.cancelling() == 1:
                return Temporary("timeout", f"no answer within {within_s:.3g} s", may_have_arrived=True)
            if task.cancelling():
                raise
            logger.error("the provider %s cancelled its own call because of a bug in it", provider)
            return Temporary("provider_error", "cancelled", may_have_arrived=True, concerns_provider=False)
        except TimeoutError:
            return Temporary("timeout", f"no answer within {within_s:.3g} s", may_have_arrived=True)
        except (Invalid, UnicodeEncodeError) as error:
            return unbuildable(error)
        except Exception as error:  # nothing shows whether the provider or this message is at fault
            logger.exception("the provider %s failed because of a bug in it", provider)
            detail = f"{type(error).__name__} in the provider"
            return Temporary("provider_error", detail, may_have_arrived=True, concerns_provider=False)
        finally:
            self._deadlines.remove(task)
            if self._timed_out and task in self._timed_out:
                self._timed_out.discard(task)
                task.uncancel()

    def _time_out(self, task: "asyncio.Task[object]") -> None:
        self._timed_out.add(task)
        task.cancel()

    async def erase(self, tenant: str, message_ids: Sequence[str]) -> None:
        """Delete messages that providers store: their recipient was erased while they were sent."""
        for provider in self._providers.values():
            if isinstance(provider, Erasable):
                await provider.erase(tenant, message_ids)
