"""All services of delivery around one store and one engine that releases only when told."""

from typing import Any

import msgspec

from tidings.delivery.asking import Notify
from tidings.delivery.cancelling import Cancelling
from tidings.delivery.erasing import Erasing
from tidings.delivery.explaining import Explaining
from tidings.delivery.filing import delivery_put, sent_put
from tidings.delivery.importing import Importing
from tidings.delivery.lookup import Lookup
from tidings.delivery.notifying import Accepted, Notifying
from tidings.delivery.profile import Profile
from tidings.delivery.receiving import Receiving
from tidings.delivery.suppressions import Suppressions
from tidings.delivery.sweeping import Sweeping
from tidings.delivery.templates import EmailPart, InAppPart, Parts, SmsPart
from tidings.delivery.users import Users
from tidings.delivery.versions import Templates
from tidings.delivery.waiting import Waiting
from tidings.domain.notifications.delivery import Attempt, Delivery
from tidings.domain.schedules.schedule import Record
from tidings.engine import Engine
from tidings.ports import ANY, Put, Store
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


class Office:
    """What an edge has at hand."""

    def __init__(self, store: Store, clock: SimulatedClock, engine: Engine | None = None, tenant: str = ACME) -> None:
        self.tenant = tenant
        self.store, self.clock, self.documents = store, clock, store.documents
        self.engine = engine = engine or _timed(Engine(store, clock), clock)
        cabinet = store.documents
        self.users = Users(cabinet, clock)
        self.importing = Importing(cabinet, clock)
        self.suppressions = Suppressions(cabinet, clock)
        self.templates = Templates(cabinet, clock, Waiting(cabinet, engine, clock))
        self.notifying = Notifying(cabinet, engine, self.users, self.templates, clock)
        self.lookup = Lookup(cabinet, engine, clock)
        self.cancelling = Cancelling(cabinet, engine, clock)
        self.explaining = Explaining(cabinet, engine, clock)
        self.erasing = Erasing(cabinet, engine, self.suppressions, clock)
        self.receiving = Receiving(cabinet, self.users, self.suppressions, clock, [KEY])
        self.sweeping = Sweeping(cabinet, engine, clock)

    async def notify(self, **asked: Any) -> Accepted:
        """Ask for one, as an edge does."""
        [accepted] = await self.notifying.accept(self.tenant, msgspec.convert(asked, Notify))
        return accepted

    async def release(self, topic: str) -> list[Record]:
        """Release what is due now; all that is on a topic."""
        for lane in self.store.lanes():
            await lane.release(self.clock.now(), 1_000)
        found = []
        for partition in range(self.store.partitions):
            found += await self.store.read(self.tenant, topic, partition, 0, 1_000)
        return found

    async def deliver(self, notification: str, user: str | None = "ada", **about: Any) -> Delivery:
        """Write down what a worker writes when a provider took it."""
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
            sent = sent_put(self.tenant, delivery, "smtp", delivery.provider_id, now)
            group.append(msgspec.structs.replace(sent, expected=ANY))
        assert await self.documents.change([group], now) != [0]
        return delivery


def _timed(engine: Engine, clock: SimulatedClock) -> Engine:
    """The time of these tests is theirs, also where a store brings a clock of its own."""
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
