"""Connections of a provider: messages wait outside of the provider, where their priority is known."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

from tests.delivery.limits import tables
from tests.delivery.world import QUICK, SECOND, Recorder, World, ada, changed, started_world, words
from tests.providers.messages import FCM_TOKEN
from tests.providers.servers.mail import serving
from tidings.delivery.limits import router as router_module
from tidings.delivery.limits.circuit_breaker import CircuitBreakers
from tidings.delivery.limits.concurrency import SlotLine, SlotLines
from tidings.delivery.limits.rate_limit import RateLimiter, RateLimits
from tidings.delivery.limits.router import CLAIMS_AHEAD_MAX, Concurrency, ProviderRouter, Recipient, Slots
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.circuit_breaker import Terms
from tidings.domain.notifications.delivery import Temporary, Verdict
from tidings.domain.notifications.message import Rendered
from tidings.ports import Address
from tidings.providers.email.smtp import Settings, Smtp
from tidings.testing import SimulatedClock, eventually

PATIENT = changed(QUICK, send_s=20.0, policy=msgspec.structs.replace(QUICK.policy, claim_us=30 * SECOND))


class Narrow(Recorder):
    """A provider with a limit of connections; counts concurrent calls."""

    bounds: Mapping[str, int] = {"": 8}
    now = most = 0

    def connections(self, address: Address) -> Mapping[str, int]:
        del address
        return self.bounds

    async def send(self, message: Rendered) -> Verdict:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().send(message)
        finally:
            self.now -= 1


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada(devices=tuple(Device("fcm", f"{FCM_TOKEN}{k}") for k in range(3))))
        yield world


async def test_some_connections_of_a_provider_are_reserved_for_high_priority(world: World) -> None:
    provider = Narrow("email")
    provider.gate = asyncio.Event()
    world.start(world.worker({"mail": provider}, PATIENT))
    await world.notify(*(words(f"low-{k}", priority="low") for k in range(100)))
    await eventually(lambda: provider.now == 5)
    await world.notify(*(words(f"high-{k}", priority="high") for k in range(2)))
    await eventually(lambda: provider.now == 7)
    assert {each.id for each in provider.calls[5:]} == {"high-0/1", "high-1/1"}
    provider.gate.set()
    await world.settled(*(f"low-{k}/1" for k in range(100)))
    assert provider.most <= 8, "never more than its limit"


async def test_no_call_is_made_once_the_circuit_breaker_is_open(world: World) -> None:
    """Five calls fail at once; what was claimed meanwhile and waits for their connections is not sent."""
    provider = Narrow("email")
    provider.gate = asyncio.Event()
    provider.answer = lambda _: Temporary("provider_error")
    breaker = msgspec.structs.replace(QUICK.breaker, failures_max=1, first_us=600 * SECOND, longest_us=600 * SECOND)
    world.start(world.worker({"mail": provider}, changed(PATIENT, breaker=breaker)))
    names = [f"n-{k}" for k in range(40)]
    await world.notify(*map(words, names))

    async def found(state: str, reason: str = "") -> int:
        deliveries = [await world.delivery(f"{name}/1") for name in names]
        return sum(each is not None and each.state == state and each.reason == reason for each in deliveries)

    async def are_claimed() -> bool:
        return provider.now == 5 and await found("processing") > 5

    async def are_deferred() -> bool:
        return await found("pending", "breaker_open") >= len(names) - 5  # the five are deferred too at their next turn

    assert await eventually(are_claimed)
    provider.gate.set()
    assert await eventually(are_deferred)
    assert len(provider.calls) == 5


async def test_each_device_of_a_push_takes_a_connection(world: World) -> None:
    provider = Narrow("push")
    provider.gate = asyncio.Event()
    world.start(world.worker({"fcm": provider}, PATIENT))
    await world.notify(*(words(f"n-{k}", "push") for k in range(20)))
    await eventually(lambda: provider.now == 5)
    provider.gate.set()
    await world.settled(*(f"n-{k}/1" for k in range(20)))
    assert len(provider.calls) == 60
    assert provider.most <= 5, "two of the eight are for high priority, and one for another tenant"


async def test_a_slow_receiver_leaves_the_others_their_connections(world: World) -> None:
    class Hooks(Narrow):
        def connections(self, address: Address) -> Mapping[str, int]:
            return {str(address): 4, "": 50}

    hooks = Hooks("webhook")
    hooks.gate = asyncio.Event()
    settings = changed(PATIENT, concurrency={"webhook": Concurrency(16, 4)})
    world.start(world.worker({"hooks": hooks}, settings))
    await world.notify(*(words(f"b-{k}", "webhook", user=None, to="https://b.example/") for k in range(60)))
    await eventually(lambda: hooks.now == 2)
    await world.notify(words("c", "webhook", user=None, to="https://c.example/"))
    await eventually(lambda: any(each.id == "c/1" for each in hooks.calls))
    await world.notify(words("high", "webhook", user=None, to="https://b.example/", priority="high"))
    await eventually(lambda: any(each.id == "high/1" for each in hooks.calls))
    assert hooks.now == 4, "of the bulk two are called, and no more"
    hooks.gate.set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:aiosmtpd")
async def test_high_priority_is_mailed_while_a_bulk_waits_for_a_slow_server(world: World) -> None:
    async with serving("none", ssl.create_default_context(), login=False) as server:
        server.at["data"].then(*["silence"] * 5)
        mail = Smtp(
            Settings("localhost", "a@example.com", port=server.port, security="none", connections_max=8), world.clock
        )
        world.start(world.worker({"mail": mail}, PATIENT))
        await world.notify(*(words(f"low-{k}", priority="low") for k in range(100)))
        await eventually(lambda: server.connections == 5)
        await world.notify(words("high", priority="high"))
        [sent] = await world.settled("high/1")
        assert sent.state == "sent"
        assert len(server.accepted) == 1, "the bulk hangs"
        server.over.set()
        await world.settled(*(f"low-{k}/1" for k in range(5, 100)))
        await mail.close()


def test_messages_that_need_the_same_slots_are_in_one_line() -> None:
    """Also pushes to several devices, whose slots are counted anew for each message."""
    clock, rows = SimulatedClock(), tables()
    breakers = CircuitBreakers(rows, clock, "one", Terms(), lambda _: None)
    router = ProviderRouter({"push": Narrow("push")}, breakers, RateLimiter(rows, clock, RateLimits()), clock)
    to = Recipient("acme", "push", high=False, attempts=(), returning=False)
    devices = [Device("fcm", f"{FCM_TOKEN}{number}") for number in range(3)]
    lines: SlotLines[str] = SlotLines(lambda *_: None)
    first = lines.line(router.reservations(to, devices[:2]), "acme", high=False)
    assert lines.line(router.reservations(to, devices[1:]), "acme", high=False) is first
    assert lines.line(router.reservations(to, devices), "acme", high=False) is not first, "it needs more of them"
    assert lines.line(router.reservations(to, devices[:2]), "acme", high=True) is not first
    assert lines.line(router.reservations(to, devices[:2]), "other", high=False) is not first


async def test_pools_of_receivers_that_nobody_uses_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hooks(Narrow):
        def connections(self, address: Address) -> Mapping[str, int]:
            return {str(address): 4, "": 50}

    monkeypatch.setattr(router_module, "POOLS_MAX", 16)
    clock, rows = SimulatedClock(), tables()
    breakers = CircuitBreakers(rows, clock, "one", Terms(), lambda _: None)
    router = ProviderRouter({"hooks": Hooks("webhook")}, breakers, RateLimiter(rows, clock, RateLimits()), clock)
    to = Recipient("acme", "webhook", high=False, attempts=(), returning=False)
    held = SlotLine[str](router.reservations(to, ["https://slow.example/"]), to.tenant, lambda *_: None, high=False)
    held.put(["slow"])
    called = router.call_slots(to, "hooks", "https://slow.example/")
    SlotLine[str](called, to.tenant, lambda *_: None, high=False).put(["slow"])
    held.free()
    for number in range(200):
        router.drop_idle_pools()
        wanted = router.reservations(to, [f"https://{number}.example/"])
        line = SlotLine[str](wanted, to.tenant, lambda *_: None, high=False)
        line.put(["one"])
        line.free()
    assert len(router._pools) <= 16
    assert router.call_slots(to, "hooks", "https://slow.example/") == called, "a call is still in progress there"


def _claimed_ahead(slots: Slots, size: int) -> int:
    """How many messages of two tenants are reserved beyond the calls that may be in progress."""
    taken = [slots.reservations.take_some(10_000, tenant, high=False) for tenant in ("acme", "other")]
    for tenant, count in zip(("acme", "other"), taken, strict=True):
        if count:
            slots.reservations.leave(tenant, high=False, count=count)
    return sum(taken) - size


@pytest.mark.parametrize(("size", "least"), [(1, 4), (16, 64), (32, 128), (100, 128)])
def test_the_quicker_calls_are_the_more_are_claimed_ahead(size: int, least: int) -> None:
    slots, now = Slots(size, 0), 0
    assert _claimed_ahead(slots, size) == least
    for _ in range(4_000):  # of 2,000 a second
        now += SECOND // 2_000
        slots.count_claims(1, now)
    assert _claimed_ahead(slots, size) == CLAIMS_AHEAD_MAX
    for _ in range(2_000):  # of 16 a second
        now += SECOND // 16
        slots.count_claims(1, now)
    assert _claimed_ahead(slots, size) <= max(least, 2 * 16), "they wait for about two seconds at most"


def test_as_few_are_claimed_ahead_as_before_when_a_receiver_becomes_slow() -> None:
    slots, now = Slots(32, 8), 0
    for _ in range(10):
        now += SECOND // 10
        slots.count_claims(512, now)
    assert _claimed_ahead(slots, 32) + 16 == CLAIMS_AHEAD_MAX, "but those for high priority"
    for _ in range(3):
        now += 10 * SECOND
        slots.count_claims(512, now)
    assert _claimed_ahead(slots, 32) + 16 == 128
