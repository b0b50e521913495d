"""Trial calls of a half-open circuit breaker: a message that cannot be sent leaves the trial to the next."""

import asyncio

import msgspec

from tests.delivery.limits import ask, state, tables
from tests.delivery.stalled_store import StalledStore
from tests.delivery.test_policy import case as context
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, ada, changed, started_world, words
from tidings.delivery.limits.circuit_breaker import CircuitBreakers, breaker_key, breaker_put
from tidings.delivery.limits.rate_limit import RateLimiter, RateLimits
from tidings.delivery.limits.router import ProviderRouter
from tidings.delivery.rows import change, notification_put
from tidings.delivery.templates.renderer import Renderer
from tidings.delivery.worker.consumer import JobRecord
from tidings.delivery.worker.context import ContextLoader
from tidings.delivery.worker.policy import Decision, Defer
from tidings.delivery.worker.reservation import Call, PendingSend, Reservation
from tidings.domain.notifications.circuit_breaker import Breaker, Terms
from tidings.domain.notifications.delivery import Permanent, Temporary, Verdict
from tidings.domain.notifications.message import Sms
from tidings.domain.notifications.rate_limit import Rate
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.schedules.schedule import Record
from tidings.ports.tables import ChangeGroup, RowKey
from tidings.testing import SimulatedClock

SMS = Sms("n/1", "+15550100", "Tea")
KEY = breaker_key("phone", SMS.tenant, "sms", SMS.to)


class NoTemplates:
    async def compiled(self, tenant: str, name: str, version: int | None = None) -> None:
        raise AssertionError("the content is in the notification")


class Sender:
    """The reservations of a worker, for a provider with a half-open breaker and one message in ten seconds."""

    def __init__(self) -> None:
        self.clock, self._rows, quiet = SimulatedClock(), tables(), Terms()
        self.one, self.two = (
            CircuitBreakers(self._rows, self.clock, name, quiet, lambda _: None) for name in ("one", "two")
        )
        self.limiter = RateLimiter(self._rows, self.clock, RateLimits({"phone": Rate(0.1)}), patience_us=0)
        self.router = ProviderRouter({"phone": Recorder("sms")}, self.one, self.limiter, self.clock)

    async def open(self) -> None:
        breaker = breaker_put(KEY, Breaker(self.clock.now()), 0)
        await self._rows.commit([ChangeGroup((breaker,))], self.clock.now())

    async def prepare(self) -> Call | Decision:
        """The call that may be made, or why it may not."""
        result: asyncio.Future[Call | Decision] = asyncio.get_running_loop().create_future()
        reservation = Reservation(
            self.clock,
            ContextLoader(self._rows, self.clock),
            self.router,
            Renderer(NoTemplates()),
            Backoff(),
            ready=lambda send: result.set_result(send.calls[0]),
            abandon=PendingSend.release,
            decided=lambda _, context, decision: result.set_result(decision),
            failed=lambda _, error: result.set_exception(error),
        )
        record = JobRecord(TENANT, Record("notify.sms", 0, 0, "n", 1, 1, 0, 0, b""), "sms", "normal")
        send = PendingSend(record, context(words("n", "sms")), ("+15550100",), self.clock.elapsed())
        await reservation.refresh([send])
        reservation.enter([send])
        return await result


async def test_a_rate_limited_message_does_not_hold_the_trial() -> None:
    sender = Sender()
    await sender.open()
    assert await ask(sender.limiter, "phone", TENANT) is None
    waiting = await sender.prepare()
    assert isinstance(waiting, Defer)
    assert waiting.reason == "rate_limited"
    assert (await state(sender.two, KEY))[0] == "due"
    sender.clock.advance(11 * SECOND)
    ready = await sender.prepare()
    assert isinstance(ready, Call)
    assert ready.trial
    assert ready.taken_at == sender.clock.elapsed(), "from then on its token grows old"


async def test_a_message_that_waits_for_another_trial_takes_no_token() -> None:
    sender = Sender()
    await sender.open()
    assert (await state(sender.one, KEY))[0] == "due"
    assert await sender.two.try_one(KEY)
    waiting = await sender.prepare()
    assert isinstance(waiting, Defer)
    assert waiting.reason == "breaker_open"
    assert await ask(sender.limiter, "phone", TENANT) is None


async def test_only_the_holder_gives_a_trial_back() -> None:
    sender = Sender()
    await sender.open()
    assert await sender.two.try_one(KEY)
    await sender.one.give_back(KEY)
    assert (await state(sender.one, KEY))[0] == "open", "the trial belongs to another worker"
    await sender.two.give_back(KEY)
    assert await sender.one.try_one(KEY)


async def test_a_worker_that_cannot_claim_leaves_the_trial_to_the_next() -> None:
    terms = msgspec.structs.replace(QUICK.breaker, trial_us=3_600 * SECOND)
    async with started_world() as world:
        await world.put_user(ada())
        rows, stalled = world.store.tables, StalledStore(world.store)
        key = msgspec.structs.replace(KEY, name="mail")
        await change(rows, [[breaker_put(key, Breaker(world.clock.now()), 0)]], world.clock.now())
        world.start(world.worker({"mail": Recorder("email")}, changed(QUICK, breaker=terms), store=stalled))
        await world.notify(words("n"))
        await stalled.reached.wait()
        await change(rows, [[notification_put(words("n"), -1)]], world.clock.now())  # the claim requires it unchanged
        stalled.goes_on.set()
        [delivery] = await world.settled("n/1", timeout_s=5)
        assert delivery.state == "sent"


async def test_a_trial_whose_message_cannot_be_built_is_left_to_the_next() -> None:
    """It was not sent, so the state of the provider is unknown."""
    sender = Sender()
    await sender.open()
    assert await sender.one.try_one(KEY)
    await sender.one.record(KEY, Permanent("content_refused", concerns_provider=False), trial=True)
    assert (await state(sender.two, KEY))[0] == "due"
    assert await sender.two.try_one(KEY)


async def test_errors_of_messages_never_open_a_breaker() -> None:
    sender = Sender()
    verdicts: list[Verdict] = [
        Permanent("content_refused", concerns_provider=False),
        Permanent("address_refused"),
        Permanent("too_large"),
        Temporary("address_deferred"),
        Temporary("provider_error", concerns_provider=False),
    ]
    for _ in range(Terms().failures_max * 2):
        for verdict in verdicts:
            await sender.one.record(KEY, verdict, trial=False)
    assert (await state(sender.two, KEY))[0] == "closed"


async def test_messages_that_cannot_be_built_do_not_hide_a_provider_outage() -> None:
    sender = Sender()
    for _ in range(Terms().failures_max):
        await sender.one.record(KEY, Temporary("timeout"), trial=False)
        await sender.one.record(KEY, Permanent("content_refused", concerns_provider=False), trial=False)
    assert (await state(sender.two, KEY))[0] == "open"


async def test_a_dead_webhook_receiver_stops_no_other_receiver() -> None:
    sender = Sender()

    def key(url: str, tenant: str = "acme") -> RowKey:
        return breaker_key("hooks", tenant, "webhook", url)

    for _ in range(Terms().failures_max):
        await sender.one.record(key("https://dead.example/a"), Temporary("timeout"), trial=False)
    for same in ("https://dead.example/b", "HTTPS://Dead.Example:443", "https://dead.example./"):
        assert (await state(sender.two, key(same)))[0] == "open", same
    assert (await state(sender.two, key("https://dead.example/a", "other")))[0] == "closed"
    for url in ("https://dead.example:8443/a", "http://dead.example/a", "https://other.example/a"):
        assert (await state(sender.two, key(url)))[0] == "closed", url
