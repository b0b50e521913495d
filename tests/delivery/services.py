"""All services of delivery around one store and one engine that releases only when a test asks for it."""

from typing import Any

import msgspec

from tidings.delivery.accept.acceptance import Acceptance
from tidings.delivery.accept.request import AcceptResult, NotificationRequest
from tidings.delivery.notifications.cancellation import Cancellation
from tidings.delivery.notifications.history import NotificationHistory
from tidings.delivery.notifications.pruner import Pruner
from tidings.delivery.notifications.reader import NotificationReader
from tidings.delivery.notifications.template_usage import TemplateUsage
from tidings.delivery.people.erasure import Erasure
from tidings.delivery.people.profile import Profile
from tidings.delivery.people.suppressions import Suppressions
from tidings.delivery.people.user_import import UserImport
from tidings.delivery.people.users import Users
from tidings.delivery.receipts import ReceiptHandler
from tidings.delivery.rows import change, delivery_put, provider_message_put
from tidings.delivery.templates import EmailPart, InAppPart, Parts, SmsPart
from tidings.delivery.templates.repository import TemplateRepository
from tidings.domain.notifications.delivery import Attempt, Delivery
from tidings.domain.schedules.schedule import Record
from tidings.engine import Engine
from tidings.ports import Store
from tidings.ports.tables import ANY, Put
from tidings.shapes.notification import NewTemplate
from tidings.testing import SimulatedClock

ACME = "acme"
KEY = b"k" * 32
SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
ADA = Profile(
    name="Ada", email="ada@example.com", phone="+15550100", zone="America/New_York", variables={"plan": "gold"}
)


class Services:
    """The services that an edge calls."""

    def __init__(self, store: Store, clock: SimulatedClock, engine: Engine | None = None, tenant: str = ACME) -> None:
        self.tenant = tenant
        self.store, self.clock, self.tables = store, clock, store.tables
        self.engine = engine = engine or _timed(Engine(store, clock), clock)
        tables = store.tables
        self.users = Users(tables, engine, clock)
        self.user_import = UserImport(tables, engine, clock)
        self.suppressions = Suppressions(tables, clock)
        self.templates = TemplateRepository(tables, clock, TemplateUsage(tables, engine, clock))
        self.acceptance = Acceptance(tables, engine, self.templates, clock)
        self.reader = NotificationReader(tables, engine, clock)
        self.cancellation = Cancellation(tables, engine, clock)
        self.history = NotificationHistory(engine)
        self.erasure = Erasure(tables, engine, self.suppressions, clock)
        self.receipts = ReceiptHandler(tables, self.users, self.suppressions, clock, [KEY])
        self.pruner = Pruner(tables, engine, clock)

    async def notify(self, **asked: Any) -> AcceptResult:
        """Accept one request, as an edge does."""
        [accepted] = await self.acceptance.accept(self.tenant, msgspec.convert(asked, NotificationRequest))
        return accepted

    async def release(self, topic: str) -> list[Record]:
        """Release what is due now; returns all records of a topic."""
        for lane in self.store.lanes():
            await lane.release(self.clock.now(), 1_000)
        found = []
        for partition in range(self.store.partitions):
            found += await self.store.read(self.tenant, topic, partition, 0, 1_000)
        return found

    async def deliver(self, notification: str, user: str | None = "ada", **about: Any) -> Delivery:
        """Write what a worker writes after a provider accepted the message."""
        now = self.clock.now()
        attempt = Attempt(1, "email", "smtp", now, now + 2_000, "accepted", provider_id=f"p-{notification}")
        made = Delivery(
            f"{notification}/1",
            notification,
            now,
            "sent",
            channel="email",
            user=user,
            address=f"{user}@example.com",
            attempts=(attempt,),
            changed=now + 2_000,
            sent=now + 2_000,
            provider="smtp",
            provider_id=attempt.provider_id,
        )
        delivery = msgspec.structs.replace(made, **about)
        group: list[Put] = [delivery_put(self.tenant, delivery, -1)]
        if delivery.provider_id is not None:
            sent = provider_message_put(self.tenant, delivery, "smtp", delivery.provider_id, now)
            group.append(msgspec.structs.replace(sent, expected=ANY))
        assert await change(self.tables, [group], now) != [0]
        return delivery


def _timed(engine: Engine, clock: SimulatedClock) -> Engine:
    """Use the simulated clock, also with a store that has a clock of its own."""
    engine.clock = clock
    engine.intake._clock = clock
    return engine


def reminder(subject: str = "Hi {{ name }}", text: str = "It is {{ what }}.", **more: Any) -> NewTemplate:
    """A template with an e-mail and a text message."""
    parts = Parts(email={"en": EmailPart(subject, text=text)}, sms={"en": SmsPart(text)})
    return NewTemplate(parts, **more)


def in_app() -> NewTemplate:
    """A template that only an inbox can show."""
    return NewTemplate(Parts(in_app={"en": InAppPart("t", "b")}))
