"""An engine on a memory store with workers, and scripted providers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tidings import tasks
from tidings.clock import Clock, SystemClock
from tidings.delivery.notifications.template_usage import TemplateUsage
from tidings.delivery.rows import change, delivery_key, notification_put, read, user_put
from tidings.delivery.templates.repository import TemplateRepository
from tidings.delivery.worker import job as jobs
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.delivery.worker.worker import Settings, Worker
from tidings.delivery.worker.writer import Commit
from tidings.domain.facts import DeliveryFact, DeliveryListener
from tidings.domain.notifications import circuit_breaker
from tidings.domain.notifications.delivery import Accepted, Delivery, Verdict
from tidings.domain.notifications.message import ChannelName, Rendered
from tidings.domain.notifications.notification import PRIORITIES, DeliveryJob, InlineContent, Notification, topic
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.notifications.user import User
from tidings.domain.schedules.command import Add, Outcome
from tidings.domain.schedules.when import Once
from tidings.engine import Engine
from tidings.ports import Address, Provider, Store
from tidings.ports.tables import ChangeGroup, GroupResult
from tidings.testing import eventually
from tidings.timeline.memory import MemoryStore

TENANT = "default"
MS = 1_000
SECOND = 1_000_000
QUICK = Settings(
    policy=RetryPolicy(Backoff(first_us=10 * MS, longest_us=50 * MS, attempts_max=4), claim_us=400 * MS),
    breaker=circuit_breaker.Terms(failures_max=5, first_us=150 * MS, longest_us=SECOND, trial_us=300 * MS),
    send_s=0.3,
)


class Recorder:
    """A provider that records its messages. `answer` decides the result; by default everything is accepted.

    `took` counts what recipients received: a message id seen before is accepted and not sent again.
    """

    def __init__(self, *channels: ChannelName, deduplicates: bool = True) -> None:
        self._channels = channels
        self.deduplicates = deduplicates
        self.calls: list[Rendered] = []
        self.took: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.answer: Callable[[Rendered], Verdict | None] = lambda _: None
        self.gate: asyncio.Event | None = None

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        del address
        return not self._channels or channel in self._channels

    async def send(self, message: Rendered) -> Verdict:
        self.calls.append(message)
        if self.gate is not None:
            await self.gate.wait()
        verdict = self.answer(message) or Accepted(f"p-{message.id}")
        if isinstance(verdict, Accepted):
            self.accepted[message.id] += 1
            if not (self.deduplicates and self.took[message.id]):
                self.took[message.id] += 1
        return verdict

    async def close(self) -> None:
        """Nothing is open."""


class World:
    """One store, one engine, and the documents that notifications need."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.engine = Engine(store, clock)
        self.clock = clock = self.engine.clock
        self.templates = TemplateRepository(store.tables, clock, TemplateUsage(store.tables, self.engine, clock))
        self.facts: list[DeliveryFact] = []
        self.listeners: list[DeliveryListener] = [self.facts.append]
        self._tasks: dict[Worker, asyncio.Task[None]] = {}

    def worker(self, providers: Mapping[str, Provider], settings: Settings = QUICK, **more: Any) -> Worker:
        store: Store = more.pop("store", self.store)
        given = {"submit": self.engine.submit, "commit": self._commit_to(store), "listener": self._publish, **more}
        worker = Worker(store, providers, self.templates, self.clock, settings, **given)
        self.engine.following.watch(worker.topics, worker.notify)
        return worker

    def _commit_to(self, store: Store) -> Commit:
        """What commits to a store; to a wrapped one directly, so that the wrapper sees it."""
        if store is self.store:
            return self.engine.commit

        async def commit(groups: Sequence[ChangeGroup]) -> list[GroupResult]:
            results = await store.tables.commit(groups, self.clock.now())
            self.engine.lanes.wake()
            return results

        return commit

    def _publish(self, fact: DeliveryFact) -> None:
        for listener in self.listeners:
            listener(fact)

    def start(self, worker: Worker) -> "asyncio.Task[None]":
        self._tasks[worker] = asyncio.create_task(worker.run())
        return self._tasks[worker]

    async def stop(self, worker: Worker) -> None:
        worker.stop()
        await self._tasks.pop(worker)

    async def kill(self, worker: Worker) -> None:
        """Cancel its task at once, with everything it does."""
        await tasks.end([self._tasks.pop(worker)])

    async def close(self) -> None:
        for worker in list(self._tasks):
            await self.stop(worker)
        await self.engine.stop()

    async def put_user(self, user: User) -> None:
        await change(self.store.tables, [[user_put(TENANT, user, -1)]], self.clock.now())

    async def notify(self, *notifications: Notification, at: int | None = None) -> list[Outcome]:
        """Accept them as the services do, each with its schedule."""
        now = self.clock.now()
        groups = [
            ChangeGroup((notification_put(each, -1),), schedule(each, now if at is None else at))
            for each in notifications
        ]
        return [result.outcome for result in await self.engine.commit(groups) if result.outcome is not None]

    async def delivery(self, name: str) -> Delivery | None:
        [found] = await self.store.tables.get([delivery_key(TENANT, name)], self.clock.now())
        return None if found is None else read(found, Delivery)

    async def settled(self, *names: str, timeout_s: float = 10.0) -> list[Delivery]:
        """These deliveries, once all of them are settled."""

        async def all_settled() -> list[Delivery] | None:
            found = [await self.delivery(name) for name in names]
            done = [each for each in found if each is not None and each.is_settled]
            return done if len(done) == len(names) else None

        return await eventually(all_settled, timeout_s) or []

    async def dead(self) -> list[Any]:
        """The dead letters."""
        records = [
            await self.store.read(TENANT, "notify.dead", part, 0, 1_000) for part in range(self.store.partitions)
        ]
        return [record for part in records for record in part]


@asynccontextmanager
async def started_world(store: Store | None = None) -> AsyncIterator[World]:
    world = World(store or MemoryStore(), SystemClock())
    await world.engine.start()
    try:
        yield world
    finally:
        await world.close()


def words(name: str, *channels: ChannelName, user: str | None = "ada", **more: Any) -> Notification:
    given: dict[str, Any] = {"words": InlineContent("Tea at nine.", "Tea"), "user": user, **more}
    return Notification(name, TENANT, channels or ("email",), **given)


def schedule(notification: Notification, at: int, job: DeliveryJob | None = None) -> Add:
    where = topic(notification.channels[0], notification.priority)
    packed = jobs.job_message(job or DeliveryJob(notification.id))
    priority = PRIORITIES[notification.priority]
    return Add(notification.tenant, notification.id, where, Once(at), packed, b"c" * 16, at, priority)


def ada(**changes: Any) -> User:
    given = {"email": "ada@example.com", "phone": "+15550100", "webhook": "https://hooks.example/in"}
    return User("ada", "Ada", **{**given, **changes})


def states(deliveries: Sequence[Delivery]) -> Counter[str]:
    return Counter(each.state for each in deliveries)


def changed(settings: Settings, **changes: Any) -> Settings:
    return msgspec.structs.replace(settings, **changes)
