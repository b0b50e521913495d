"""Handing messages to providers: which one, whether it is called now, and one call with its time-out."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import msgspec

from tidings.clock import Clock
from tidings.delivery.breakers import Breakers, breaker_key
from tidings.delivery.choosing import Option, choose
from tidings.delivery.deciding import Address, Case, Wait
from tidings.delivery.envelope import put
from tidings.delivery.slots import Slots
from tidings.delivery.templates import Content
from tidings.delivery.throttle import Throttle
from tidings.domain.errors import Invalid
from tidings.domain.facts import Called, DeliveryListener
from tidings.domain.notifications.delivery import Accepted, Attempt, Temporary, Verdict, unbuildable
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName, Rendered
from tidings.domain.schedules.request import jittered
from tidings.ports import ConnectionLimited, Erasable, Provider

SPREAD_US = 1_000_000  # those whom an open breaker kept do not all come back in the same moment
RESERVED_SHARE = 4  # one in so many of a provider's connections is for high priority alone

logger = logging.getLogger("tidings.delivery")


class Target(msgspec.Struct, frozen=True):
    """One message for one address, before its provider is chosen; `number` is that of the device, 0 without several."""

    number: int
    address: Address
    message: Rendered


class Ready(msgspec.Struct, frozen=True):
    """A message that may go now. `trial` says that it tries whether a provider works again."""

    target: Target
    provider: str
    trial: bool


class Concurrency(msgspec.Struct, frozen=True):
    """How many messages may be under way in a channel, and how many of these only with high priority."""

    together_max: int = 64
    reserved: int = 8


class Sending:
    """The providers by name, in the order of preference."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        breakers: Breakers,
        throttle: Throttle,
        clock: Clock,
        tell: DeliveryListener,
        *,
        send_s: float = 30.0,
        concurrency: Mapping[ChannelName, Concurrency] | None = None,
    ) -> None:
        self._providers = dict(providers)
        self._bounded = {name: channel for name, channel in providers.items() if isinstance(channel, ConnectionLimited)}
        self._breakers = breakers
        self._throttle = throttle
        self._clock = clock
        self._tell = tell
        self._send_s = send_s
        self._concurrency = {name: (concurrency or {}).get(name, Concurrency()) for name in CHANNEL_NAMES}
        self._slots = {name: Slots(each.together_max, each.reserved) for name, each in self._concurrency.items()}
        self._lines: WeakValueDictionary[tuple[str, str], Slots] = WeakValueDictionary()  # while somebody is there

    @asynccontextmanager
    async def slot(self, case: Case, addresses: Sequence[Address]) -> AsyncIterator[None]:
        """A place among those that are under way: at the providers that it would go to, then in its channel."""
        tenant, high = case.tenant, case.notification.priority == "high"
        wanted = [*await self._bounds(case, addresses), (self._slots[case.channel], 1)]
        taken: list[tuple[Slots, int]] = []
        try:
            for slots, count in wanted:
                taken.append((slots, await slots.take(tenant, high=high, count=count)))
            yield
        finally:
            for slots, count in reversed(taken):
                slots.leave(tenant, high=high, count=count)

    async def _bounds(self, case: Case, addresses: Sequence[Address]) -> list[tuple[Slots, int]]:
        """The connections that it needs, in an order that is the same for all: nobody waits for one in a circle."""
        sizes: dict[tuple[str, str], int] = {}
        needed: Counter[tuple[str, str]] = Counter()
        for address in addresses:
            blank = _blank(case, address)
            found = None if blank is None else await self._option(case, blank)
            if blank is None or not isinstance(found, Option):
                continue
            channel = self._bounded.get(found.provider)
            if channel is not None:
                lines = {(found.provider, line): size for line, size in channel.lines(blank).items() if size > 0}
                sizes |= lines
                needed.update(lines.keys())
        reserved = self._concurrency[case.channel].reserved
        return [(self._line(key, sizes[key], reserved), needed[key]) for key in sorted(sizes, reverse=True)]

    def _line(self, key: tuple[str, str], size: int, reserved: int) -> Slots:
        found = self._lines.get(key)
        if found is None:
            found = Slots(size, min(reserved, max(1, size // RESERVED_SHARE), size - 1))
            self._lines[key] = found
        return found

    def takes(self, message: Rendered) -> bool:
        """Whether there is any provider for it."""
        return any(channel.takes(message) for channel in self._providers.values())

    async def prepare(self, case: Case, targets: Sequence[Target]) -> tuple[list[Ready], Wait | None]:
        """Those that may go now; and for the others, if there are any, when the first of them may."""
        ready: list[Ready] = []
        waits: list[Wait] = []
        for target in targets:
            found = await self._choose(case, target)
            if isinstance(found, Wait):
                waits.append(found)
            else:
                ready.append(found)
        return ready, min(waits, key=lambda wait: wait.until, default=None)

    async def _choose(self, case: Case, target: Target) -> Ready | Wait:
        """The rate limit is checked before the trial, so that a message that has to wait does not hold the trial."""
        options = await self._options(target.message)
        tried = _tried(case)
        returning = case.delivery.reason == "rate_limited"
        high = case.notification.priority == "high"
        while isinstance(chosen := choose(options, tried), Option):
            free = await self._throttle.take(chosen.provider, case.tenant, high=high, returning=returning)
            if free is not None:
                return Wait(free, "rate_limited")
            if chosen.standing != "due":
                return Ready(target, chosen.provider, trial=False)
            if await self._breakers.try_one(breaker_key(chosen.provider, target.message)):
                return Ready(target, chosen.provider, trial=True)
            self._throttle.give_back(chosen.provider, case.tenant)
            later = self._clock.now() + SPREAD_US  # another message tries already
            options[options.index(chosen)] = Option(chosen.provider, chosen.deduplicates, "open", later)
        moment = jittered(chosen.until, SPREAD_US, case.delivery.name.encode())
        return Wait(moment, chosen.reason, self._why(options, target.message))

    async def withdraw(self, ready: Sequence[Ready]) -> None:
        """They are not called after all: whose trial it was leaves it to the next one."""
        for each in ready:
            if each.trial:
                await self._breakers.give_back(breaker_key(each.provider, each.target.message))

    def _why(self, options: Sequence[Option], message: Rendered) -> str:
        """Which providers do not work, why, and where to look."""
        told = (f"{each.provider} {self._breakers.why(breaker_key(each.provider, message))}" for each in options)
        return f"{', '.join(text.rstrip() for text in told)}; see `tidings channels`"

    async def _option(self, case: Case, message: Rendered) -> Option | Wait | None:
        """The provider that it would go to now; None if nobody takes it."""
        options = await self._options(message)
        return choose(options, _tried(case)) if options else None

    async def _options(self, message: Rendered) -> list[Option]:
        options = []
        for name, channel in self._providers.items():
            if channel.takes(message):
                standing, until = await self._breakers.standing(breaker_key(name, message))
                options.append(Option(name, channel.deduplicates, standing, until))
        return options

    async def call(self, ready: Ready, channel: ChannelName, due: int, until: int) -> Verdict:
        """One call. Whatever a channel does, it comes to a verdict, before the claim ends under which it is made."""
        begun, elapsed = self._clock.now(), self._clock.elapsed()
        verdict = await self._call(ready, min(self._send_s, (until - begun) / 1_000_000))
        took_us = self._clock.elapsed() - elapsed
        outcome = "accepted" if isinstance(verdict, Accepted) else verdict.reason
        self._tell(Called(begun, channel, ready.provider, outcome, took_us, max(0, begun - due)))
        await self._breakers.heard(breaker_key(ready.provider, ready.target.message), verdict, trial=ready.trial)
        return verdict

    async def erase(self, tenant: str, message_ids: Sequence[str]) -> None:
        """Take away again what channels keep in reach: whom it was for was erased while it was being sent."""
        for channel in self._providers.values():
            if isinstance(channel, Erasable):
                await channel.erase(tenant, message_ids)

    async def _call(self, ready: Ready, within_s: float) -> Verdict:
        try:
            async with asyncio.timeout(within_s):
                return await self._providers[ready.provider].send(ready.target.message)
        except TimeoutError:
            return Temporary("timeout", f"no answer within {within_s:.3g} s", may_have_arrived=True)
        except (Invalid, UnicodeEncodeError) as error:
            return unbuildable(error)
        except Exception as error:  # nothing shows whether the provider or this message is at fault
            logger.exception("the channel %s failed because of a bug in it", ready.provider)
            detail = f"{type(error).__name__} in the channel"
            return Temporary("provider_error", detail, may_have_arrived=True, concerns_provider=False)


def _blank(case: Case, address: Address) -> Rendered | None:
    """A message without words, which shows where it would go; None where there is no such address."""
    try:
        return put(Content("", "-", "-", json=b"{}"), case.channel, address, "-", tenant=case.tenant)
    except Invalid:
        return None


def _tried(case: Case) -> list[Attempt]:
    """The attempts by the channel that it goes by now."""
    return [attempt for attempt in case.delivery.attempts if attempt.channel == case.channel]
