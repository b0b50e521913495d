"""The delivery worker: reads released notifications, and sends each once or records why it was not sent."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping

import msgspec

from tidings import tasks
from tidings.clock import Clock
from tidings.delivery.limits.circuit_breaker import CircuitBreakers
from tidings.delivery.limits.rate_limit import RateLimiter, RateLimits
from tidings.delivery.limits.router import Concurrency, ProviderRouter
from tidings.delivery.people.suppressions import DeadAddressHandler
from tidings.delivery.rows import RETENTION_US
from tidings.delivery.templates.renderer import Link, Renderer, TemplateSource, no_link
from tidings.delivery.worker.consumer import Backlog, Consumer, JobRecord, Windows
from tidings.delivery.worker.context import ContextLoader
from tidings.delivery.worker.pipeline import Pipeline, RetryPolicy, Submit
from tidings.delivery.worker.writer import Commit, DeliveryWriter
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import DeliveryFact, DeliveryListener
from tidings.domain.notifications.circuit_breaker import Terms as BreakerTerms
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.notification import TOPICS, Priority
from tidings.ports import Provider, Store

DRAIN_S = 2.5


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker."""

    policy: RetryPolicy = RetryPolicy()
    breaker: BreakerTerms = BreakerTerms()
    rates: RateLimits = RateLimits()
    windows: Windows = Windows()
    concurrency: dict[ChannelName, Concurrency] = {}
    channels: tuple[ChannelName, ...] = CHANNEL_NAMES
    send_s: float = 30.0
    retention_us: int = RETENTION_US
    receipts_from: frozenset[str] | None = None  # the providers whose receipts are accepted; None: all


class Worker:
    """A background service of the engine. `notify` wakes it when there are new records on its `topics`.

    What has high priority is committed by `commit_urgent`, before the large batches of the others that wait.
    """

    topics = TOPICS.keys()

    problem: str | None = None  # a provider that rejects our requests is reported by all nodes: see `provider_status`

    def __init__(
        self,
        store: Store,
        providers: Mapping[str, Provider],
        templates: TemplateSource,
        clock: Clock,
        settings: Settings | None = None,
        *,
        submit: Submit,
        commit: Commit,
        commit_urgent: Commit | None = None,
        listener: DeliveryListener | None = None,
        link: Link = no_link,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        chosen = settings or Settings()
        assert chosen.policy.claim_us > chosen.send_s * 1_000_000, "a claim lasts longer than a call"
        self.name = secrets.token_hex(6)
        listener = listener or _no_listener
        breakers = CircuitBreakers(store.tables, clock, self.name, chosen.breaker, listener)
        self._limiter = RateLimiter(store.tables, clock, chosen.rates)
        self._router = ProviderRouter(
            providers, breakers, self._limiter, clock, send_s=chosen.send_s, concurrency=chosen.concurrency
        )
        self._consumer = Consumer(store, clock, self._take, chosen.windows, channels=chosen.channels, is_ready=is_ready)

        def pipeline(commit: Commit) -> Pipeline:
            return Pipeline(
                self.name,
                clock,
                records=self._consumer,
                loader=ContextLoader(store.tables, clock),
                writer=DeliveryWriter(commit, chosen.retention_us, chosen.receipts_from),
                router=self._router,
                renderer=Renderer(templates, link),
                dead_addresses=DeadAddressHandler(store.tables, clock),
                submit=submit,
                policy=chosen.policy,
                listener=listener,
            )

        self._high, self._others = pipeline(commit_urgent or commit), pipeline(commit)
        self.notify = self._consumer.notify
        self._is_over = asyncio.Event()

    def wake(self) -> None:
        """Nothing to do: this service does not send to Kafka."""

    def stop(self) -> None:
        """Read no more, and end once the calls in progress are settled."""
        self._consumer.stop()
        self._is_over.set()

    def backlog(self) -> list[Backlog]:
        """What waits and what is in progress, by channel and priority."""
        return self._consumer.backlog()

    async def run(self) -> None:
        """Work until stopped."""
        reading = asyncio.create_task(self._consumer.run(), name="tidings-deliver")
        over = asyncio.create_task(self._is_over.wait())
        try:
            await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            await asyncio.gather(self._high.drain(DRAIN_S), self._others.drain(DRAIN_S))
        finally:
            self._limiter.close()
            await self._high.stop()
            await self._others.stop()
            await tasks.end({reading, over})
        await self._commit_positions()

    async def _commit_positions(self) -> None:
        try:
            await self._consumer.commit()
        except (StoreError, NotOwner):
            return  # the records are read again, and found settled

    def _take(self, priority: Priority, records: Iterable[JobRecord]) -> None:
        (self._high if priority == "high" else self._others).put(records)


def _no_listener(_: DeliveryFact) -> None:
    """The default listener."""
