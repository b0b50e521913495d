"""A worker: reads what is due to people, and sees to it that each is told once, or that it is known why not."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping

import msgspec

from tidings import tasks
from tidings.clock import Clock
from tidings.delivery.breakers import Breakers
from tidings.delivery.burying import Burying
from tidings.delivery.handling import Handling, Terms, Tools
from tidings.delivery.looking import Looking
from tidings.delivery.reader import Read, Reader, Windows
from tidings.delivery.sending import Concurrency, Sending
from tidings.delivery.settling import Settling, Submit
from tidings.delivery.throttle import Rates, Throttle
from tidings.delivery.wording import Link, Templates, Wording, no_link
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import DeliveryFact, DeliveryListener, Fact, Released
from tidings.domain.notifications.circuit_breaker import Terms as BreakerTerms
from tidings.domain.notifications.message import ChannelName
from tidings.ports import Provider, Store

DRAIN_S = 2.5
TRIES_MAX = 3
PAUSE_S = 0.5

logger = logging.getLogger("tidings.delivery")


class Settings(msgspec.Struct, frozen=True):
    """What a worker can be told."""

    terms: Terms = Terms()
    breaker: BreakerTerms = BreakerTerms()
    rates: Rates = Rates()
    windows: Windows = Windows()
    concurrency: dict[ChannelName, Concurrency] = {}
    send_s: float = 30.0


class Worker:
    """Runs beside the engine as one of its companions. As a listener of its facts it wakes at once."""

    problem: str | None = None  # a provider that refuses us is known to all nodes: `Ways` tells of it

    def __init__(
        self,
        store: Store,
        submit: Submit,
        providers: Mapping[str, Provider],
        templates: Templates,
        clock: Clock,
        settings: Settings | None = None,
        *,
        tell: DeliveryListener | None = None,
        link: Link = no_link,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        chosen = settings or Settings()
        assert chosen.terms.claim_us > chosen.send_s * 1_000_000, "a claim lasts longer than a call"
        self.name = secrets.token_hex(6)
        self._tell = tell or _nobody
        breakers = Breakers(store.documents, clock, self.name, chosen.breaker, self._tell)
        self._reader = Reader(store, clock, self._take, chosen.windows, is_ready)
        sending = Sending(
            providers,
            breakers,
            Throttle(store.documents, clock, chosen.rates),
            clock,
            self._tell,
            send_s=chosen.send_s,
            concurrency=chosen.concurrency,
        )
        tools = Tools(
            Looking(store.documents, clock),
            Settling(store.documents, submit, clock),
            sending,
            Wording(templates, link),
            Burying(store.documents, clock),
        )
        self._handling = Handling(self.name, clock, tools, self._reader, chosen.terms, self._tell)
        self._running: set[asyncio.Task[None]] = set()
        self._is_over = asyncio.Event()

    def __call__(self, fact: Fact) -> None:
        """Hear of what this process released."""
        if isinstance(fact, Released):
            self._reader.notify(fact.topics)

    def wake(self) -> None:
        """Nothing that concerns the way to Kafka concerns us."""

    def stop(self) -> None:
        """Read no more, and end once what is under way is written down."""
        self._reader.stop()
        self._is_over.set()

    async def run(self) -> None:
        """Work until stopped."""
        reading = asyncio.create_task(self._reader.run(), name="tidings-deliver")
        over = asyncio.create_task(self._is_over.wait())
        try:
            await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            await self._drain()
        finally:
            await tasks.end({reading, over, *self._running})
        await self._keep_places()

    async def _drain(self) -> None:
        """Those who called a provider may write down what it says; the others are read again by whoever comes."""
        busy = self._running & self._handling.claiming
        await tasks.end(self._running - busy)
        if busy:
            await asyncio.wait(busy, timeout=DRAIN_S)

    async def _keep_places(self) -> None:
        try:
            await self._reader.commit()
        except (StoreError, NotOwner):
            return  # they are read again, and found settled

    def _take(self, read: Read) -> None:
        task = asyncio.create_task(self._handle(read))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(self, read: Read) -> None:
        """A mistake of ours must not hold up what lies behind it: after some tries the delivery fails, and says so.

        Where not even that can be done the record is not settled: whoever reads its place next finds it again.
        """
        for left in reversed(range(TRIES_MAX)):
            try:
                await self._handling.run(read)
                break
            except Exception as error:
                where = f"{read.record.topic}/{read.record.partition}/{read.record.offset}"
                logger.exception("the record %s of %s could not be processed", where, read.tenant)
                if not left and not await self._give_up(read, f"worker_error: {type(error).__name__}"):
                    self._reader.hold(read)
                    return
                await asyncio.sleep(PAUSE_S)
        self._reader.done(read)

    async def _give_up(self, read: Read, reason: str) -> bool:
        try:
            await self._handling.give_up(read, reason)
        except Exception:
            logger.exception(
                "marking it as failed did not work either; it stays on its topic until a worker can process it"
            )
            return False
        return True


def _nobody(_: DeliveryFact) -> None:
    """Nobody listens."""
