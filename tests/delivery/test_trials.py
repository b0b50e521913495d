"""Whoever tries whether a provider works again can really go; else the next one tries."""

import msgspec

from tests.delivery.stalled import StalledStore
from tests.delivery.test_deciding import case
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, ada, changed, living, words
from tidings.delivery.breakers import Breakers, breaker_key, breaker_put
from tidings.delivery.deciding import Wait
from tidings.delivery.filing import notification_put
from tidings.delivery.sending import Ready, Sending, Target
from tidings.delivery.throttle import Rates, Throttle
from tidings.domain.notifications.circuit_breaker import Breaker, Terms
from tidings.domain.notifications.delivery import Permanent, Temporary, Verdict
from tidings.domain.notifications.message import Sms, Webhook
from tidings.domain.notifications.rate_limit import Rate
from tidings.ports import Key
from tidings.testing import SimulatedClock
from tidings.timeline.memory.documents import MemoryDocuments

SMS = Sms("n/1", "+15550100", "Tea")
KEY = breaker_key("phone", SMS)


class Desk:
    """What a worker sends with, at a provider whose breaker is due and that takes one in ten seconds."""

    def __init__(self) -> None:
        self.clock, cabinet = SimulatedClock(), MemoryDocuments()
        self.one, self.two = (Breakers(cabinet, self.clock, name, Terms(), lambda _: None) for name in ("one", "two"))
        self.throttle = Throttle(cabinet, self.clock, Rates({"phone": Rate(0.1)}), patience_us=0)
        self.sending = Sending({"phone": Recorder("sms")}, self.one, self.throttle, self.clock, lambda _: None)
        self._cabinet = cabinet

    async def open(self) -> None:
        await self._cabinet.change([[breaker_put(KEY, Breaker(self.clock.now()), 0)]], self.clock.now())

    async def prepare(self) -> Ready | Wait | None:
        ready, wait = await self.sending.prepare(case(words("n", "sms")), [Target(0, "+15550100", SMS)])
        return ready[0] if ready else wait


async def test_whom_the_limit_sends_back_keeps_nobody_from_trying() -> None:
    desk = Desk()
    await desk.open()
    assert await desk.throttle.take("phone", TENANT) is None
    waiting = await desk.prepare()
    assert isinstance(waiting, Wait)
    assert waiting.reason == "rate_limited"
    assert (await desk.two.standing(KEY))[0] == "due"
    desk.clock.advance(11 * SECOND)
    ready = await desk.prepare()
    assert isinstance(ready, Ready)
    assert ready.trial


async def test_who_finds_another_one_trying_spends_nothing() -> None:
    desk = Desk()
    await desk.open()
    assert (await desk.one.standing(KEY))[0] == "due"
    assert await desk.two.try_one(KEY)
    waiting = await desk.prepare()
    assert isinstance(waiting, Wait)
    assert waiting.reason == "breaker_open"
    assert await desk.throttle.take("phone", TENANT) is None


async def test_a_trial_is_given_back_by_who_has_it() -> None:
    desk = Desk()
    await desk.open()
    assert await desk.two.try_one(KEY)
    await desk.one.give_back(KEY)
    assert (await desk.one.standing(KEY))[0] == "open", "another one's is not ours"
    await desk.two.give_back(KEY)
    assert await desk.one.try_one(KEY)


async def test_who_cannot_claim_leaves_the_trial_to_the_next_one() -> None:
    terms = msgspec.structs.replace(QUICK.breaker, trial_us=3_600 * SECOND)
    async with living() as world:
        await world.put_user(ada())
        cabinet, stalled = world.store.documents, StalledStore(world.store)
        key = msgspec.structs.replace(KEY, name="mail")
        await cabinet.change([[breaker_put(key, Breaker(world.clock.now()), 0)]], world.clock.now())
        world.start(world.worker({"mail": Recorder("email")}, changed(QUICK, breaker=terms), store=stalled))
        await world.notify(words("n"))
        await stalled.reached.wait()
        await cabinet.change([[notification_put(words("n"), -1)]], world.clock.now())  # the claim rests on it
        stalled.goes_on.set()
        [delivery] = await world.settled("n/1", timeout_s=5)
        assert delivery.state == "sent"


async def test_a_trial_whose_message_cannot_be_built_is_left_to_the_next_one() -> None:
    """It was not sent: the provider may work or not."""
    desk = Desk()
    await desk.open()
    assert await desk.one.try_one(KEY)
    await desk.one.heard(KEY, Permanent("content_refused", concerns_provider=False), trial=True)
    assert (await desk.two.standing(KEY))[0] == "due"
    assert await desk.two.try_one(KEY)


async def test_what_is_wrong_with_messages_never_opens_a_breaker() -> None:
    desk = Desk()
    verdicts: list[Verdict] = [
        Permanent("content_refused", concerns_provider=False),
        Permanent("address_refused"),
        Permanent("too_large"),
        Temporary("address_deferred"),
        Temporary("provider_error", concerns_provider=False),
    ]
    for _ in range(Terms().failures_max * 2):
        for verdict in verdicts:
            await desk.one.heard(KEY, verdict, trial=False)
    assert (await desk.two.standing(KEY))[0] == "closed"


async def test_messages_that_cannot_be_built_do_not_hide_that_a_provider_is_away() -> None:
    desk = Desk()
    for _ in range(Terms().failures_max):
        await desk.one.heard(KEY, Temporary("timeout"), trial=False)
        await desk.one.heard(KEY, Permanent("content_refused", concerns_provider=False), trial=False)
    assert (await desk.two.standing(KEY))[0] == "open"


async def test_a_dead_webhook_stops_nobody_else() -> None:
    desk = Desk()

    def key(url: str, tenant: str = "acme") -> Key:
        return breaker_key("hooks", Webhook("n/1", url, tenant, b"{}"))

    for _ in range(Terms().failures_max):
        await desk.one.heard(key("https://dead.example/a"), Temporary("timeout"), trial=False)
    for same in ("https://dead.example/b", "HTTPS://Dead.Example:443", "https://dead.example./"):
        assert (await desk.two.standing(key(same)))[0] == "open", same
    assert (await desk.two.standing(key("https://dead.example/a", "other")))[0] == "closed"
    for url in ("https://dead.example:8443/a", "http://dead.example/a", "https://other.example/a"):
        assert (await desk.two.standing(key(url)))[0] == "closed", url
