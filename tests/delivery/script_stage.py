"""A stage for random scripts: the services and a worker over any store, on a simulated clock."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.delivery.scripts import Document, Player, Script, ScriptedProvider, receipt_of, until_idle
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.notifications.reader import Search
from tidings.delivery.services import NotificationServices
from tidings.delivery.templates import EmailPart, InAppPart, Parts, PushPart, SmsPart, WebhookPart
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.delivery.worker.worker import Settings, Worker
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import PREFIX, TOPICS
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.engine import Engine
from tidings.ports import Provider, Store
from tidings.shapes.notification import NewTemplate
from tidings.testing import SimulatedClock

TENANT = "acme"
PLAIN = Parts(
    email={"en": EmailPart("Hi {{ name }}", text="It is {{ what }}.")},
    sms={"en": SmsPart("It is {{ what }}.")},
    push={"en": PushPart("Hi", "It is {{ what }}.")},
    webhook={"en": WebhookPart({"what": "{{ what }}"})},
    in_app={"en": InAppPart("Hi", "It is {{ what }}.")},
)
TEMPLATES = {
    "plain": NewTemplate(PLAIN),
    "brief": NewTemplate(Parts(email=PLAIN.email, sms=PLAIN.sms), urgency="time_sensitive"),
}


class SimulatedDelivery:
    """Services and a worker that release and deliver only when they are told to."""

    def __init__(self, store: Store, clock: SimulatedClock, providers: Mapping[str, Provider]) -> None:
        self.clock = clock
        self._store = store
        engine = Engine(store, clock)
        engine.clock = engine.intake._clock = clock  # also if the store has a clock of its own
        self.services = NotificationServices(store.tables, engine, clock)
        settings = Settings(policy=RetryPolicy(Backoff(attempts_max=4)))
        self._worker = Worker(
            store,
            providers,
            self.services.templates,
            clock,
            settings,
            submit=engine.submit,
            commit=engine.commit,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self._worker.run())
        try:
            yield
        finally:
            self._worker.stop()
            await running

    async def release(self) -> int:
        released = [await lane.release(self.clock.now(), 1_000) for lane in self._store.lanes()]
        self._worker.notify([(TENANT, topic) for topic in TOPICS])
        await until_idle(self._is_idle)
        return sum(len(each.lateness_us) + sum(each.missed.values()) for each in released)

    async def _is_idle(self) -> bool:
        ends = {topic.name: topic.next for _, topic in await self._store.topics_by_prefix(PREFIX)}
        sources = {name: source for (_, name), source in self._worker._consumer._sources.items()}
        return all(
            name in sources
            and len(sources[name].partitions) == len(after)  # it looks up where to begin before it has them
            and all(each.settled_until >= after[number] for number, each in sources[name].partitions.items())
            for name, after in ends.items()
            if name in TOPICS and any(after)
        )

    def next_due(self) -> int | None:
        return min((due for lane in self._store.lanes() if (due := lane.next_due()) is not None), default=None)


class ScriptStage(SimulatedDelivery):
    """Implements `Stage`."""

    def __init__(self, store: Store, script: Script) -> None:
        self.accepted: list[tuple[str, str, str]] = []
        providers = {name: ScriptedProvider(name, script, self.accepted) for name in script.providers}
        super().__init__(store, SimulatedClock(int(script.begin.timestamp()) * 1_000_000), providers)
        self._asked: list[str] = []

    async def run(self, script: Script) -> Document:
        """Play a script to its end."""
        for name, template in TEMPLATES.items():
            await self.services.templates.put(TENANT, name, template)
        async with self.running():
            return await Player(script, self, self.accepted).play()

    async def do(self, kind: str, about: Document) -> str:
        services = self.services
        match kind:
            case "put":
                return str((await services.users.put(TENANT, about["user"], about["profile"])).user.id)
            case "patch":
                return str(await services.users.patch(TENANT, about["user"], about["changes"]) is not None)
            case "delete":
                return str(await services.users.delete(TENANT, about["user"]))
            case "erase":
                return str((await services.erasure.erase(TENANT, about["user"])).user)
            case "notify":
                results = await services.acceptance.accept(TENANT, msgspec.convert(about, NotificationRequest))
                self._asked += [each.id for each in results]
                return "; ".join(
                    f"{each.id} {each.outcome} {each.due} {each.channels} {each.reason}" for each in results
                )
            case "cancel":
                return (await services.cancellation.cancel(TENANT, about["id"])).outcome
            case "retry":
                return (await services.resend.retry(TENANT, about["name"])).outcome
            case "receipt":
                result = await services.receipts.apply(about["accepted"][0], receipt_of(about), TENANT)
                return f"{result.outcome} {result.state}"
            case "suppress" | "allow":
                channel: ChannelName = about["channel"]
                user = about["user"]
                address = f"{user}@example.com" if channel == "email" else f"+1555010{user[1:]}"
                if kind == "suppress":
                    return str(await services.suppressions.add(TENANT, channel, address, "by hand"))
                return str(await services.suppressions.remove(TENANT, channel, address))
            case _:
                raise AssertionError(f"no such action: {kind}")

    async def deliveries(self) -> list[str]:
        return sorted(each.name for each in await self._deliveries())

    async def _deliveries(self) -> list[Delivery]:
        page = await self.services.reader.deliveries(TENANT, Search(limit=500))
        assert page.cursor is None
        return list(page.deliveries)

    async def end(self) -> Document:
        services = self.services
        statuses = {name: await services.reader.get(TENANT, name) for name in self._asked}
        suppressions = (await services.suppressions.page(TENANT, limit=100)).suppressions
        users = (await services.users.page(TENANT)).users
        return {
            "notifications": {name: each and [each.state, each.reason] for name, each in statuses.items()},
            "deliveries": {each.name: _shown(each) for each in await self._deliveries()},
            "suppressions": sorted([each.channel, str(each.address), each.reason] for each in suppressions),
            "devices": {each.id: len(each.devices) for each in users},
        }


def _shown(delivery: Delivery) -> list[Any]:
    attempts = [[each.channel, each.provider, each.outcome] for each in delivery.attempts]
    parts = [each.outcome for each in delivery.parts]
    return [delivery.state, delivery.reason, delivery.channel, delivery.provider, delivery.due, attempts, parts]
