"""A provider's connections: nobody waits inside a channel, where no priority is known."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

from tests.channels.making import FCM_TOKEN
from tests.delivery.world import QUICK, SECOND, Recorder, World, ada, changed, living, words
from tests.providers.mail import serving
from tidings.channels.smtp import Settings, Smtp
from tidings.delivery.sending import Concurrency
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Verdict
from tidings.domain.notifications.message import Rendered
from tidings.testing import eventually

PATIENT = changed(QUICK, send_s=20.0, terms=msgspec.structs.replace(QUICK.terms, claim_us=30 * SECOND))


class Narrow(Recorder):
    """A provider with so many connections; sees how many are called at once."""

    bounds: Mapping[str, int] = {"": 8}
    now = most = 0

    def lines(self, message: Rendered) -> Mapping[str, int]:
        del message
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
    async with living() as world:
        await world.put_user(ada(devices=tuple(Device("fcm", f"{FCM_TOKEN}{k}") for k in range(3))))
        yield world


async def test_high_has_connections_of_its_own_at_a_provider(world: World) -> None:
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
    assert provider.most <= 8, "never more than it has"


async def test_each_device_of_a_push_takes_a_connection(world: World) -> None:
    provider = Narrow("push")
    provider.gate = asyncio.Event()
    world.start(world.worker({"fcm": provider}, PATIENT))
    await world.notify(*(words(f"n-{k}", "push") for k in range(20)))
    await eventually(lambda: provider.now == 3)
    provider.gate.set()
    await world.settled(*(f"n-{k}/1" for k in range(20)))
    assert len(provider.calls) == 60
    assert provider.most <= 5, "two of the eight are for high priority, and one for another tenant"


async def test_a_slow_receiver_leaves_the_others_their_connections(world: World) -> None:
    class Hooks(Narrow):
        def lines(self, message: Rendered) -> Mapping[str, int]:
            return {str(message.to): 4, "": 50}

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
async def test_high_is_mailed_while_a_bulk_waits_for_a_slow_server(world: World) -> None:
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
