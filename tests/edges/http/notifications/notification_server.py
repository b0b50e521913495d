"""A server with workers: an inbox, a scripted mailbox, and a folder for the other channels."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.delivery.world import QUICK, Recorder
from tests.edges.http.site import Reply, Site, serving
from tidings.channels.callbacks import SignedReader, TwilioReader
from tidings.channels.in_app import InAppChannel
from tidings.channels.in_app import Settings as InboxSettings
from tidings.channels.outbox import Outbox
from tidings.channels.outbox import Settings as OutboxSettings
from tidings.delivery.office import Office
from tidings.delivery.throttle import Rates
from tidings.delivery.ways import Way
from tidings.delivery.worker import Worker
from tidings.domain.notifications.rate_limit import Rate
from tidings.domain.secret import Secret
from tidings.engine import Engine
from tidings.ports import Provider, ReceiptReader, Store
from tidings.testing import eventually

LINK_KEY = b"l" * 32
SECRET = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
TOKEN = Secret("twilio-token")
PUBLIC = "https://notify.example.com"
ADA = {"name": "Ada", "email": "ada@example.com", "phone": "+15550100", "zone": "America/New_York"}
REMINDER = {"parts": {"email": {"en": {"subject": "Hi {{ name }}", "text": "It is {{ what }}."}}}}
IN_APP = {"parts": {"in_app": {"en": {"title": "Hi {{ name }}", "body": "It is {{ what }}."}}}}
NINE = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}}
FAR = "2030-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Desk:
    """A site, and the mailbox behind it."""

    site: Site
    mail: Recorder

    @property
    def office(self) -> Office:
        return self.site.app.edge.office

    async def call(self, method: str, path: str, document: Any = None, **options: Any) -> Reply:
        return await self.site.call(method, path, document, **options)

    async def done(self, method: str, path: str, document: Any = None, **options: Any) -> Any:
        """The document of a call that went well."""
        reply = await self.call(method, path, document, **options)
        assert reply.status in {200, 201}, reply.body
        return reply.document

    async def welcome(self, *users: str) -> None:
        """Users, and templates to tell them something."""
        for user in users or ("ada",):
            await self.done("PUT", f"/v1/users/{user}", ADA | {"email": f"{user}@example.com"})
        await self.done("PUT", "/v1/templates/reminder", REMINDER)
        await self.done("PUT", "/v1/templates/line", IN_APP)

    async def settled(self, notification: str, state: str = "sent") -> Any:
        """Its last delivery, once it is in this state."""

        async def found() -> Any:
            reply = await self.call("GET", f"/v1/deliveries?notification={notification}")
            return next((each for each in reply.document["deliveries"] if each["state"] == state), None)

        return await eventually(found)


@asynccontextmanager
async def staffed(store: Store, folder: Path, key: str | None = None, **readers: ReceiptReader) -> AsyncIterator[Desk]:
    """A desk that is open."""
    mail = Recorder("email")

    def furnish(engine: Engine) -> Office:
        cabinet, clock = store.documents, engine.clock
        office = Office(
            cabinet,
            engine,
            clock,
            keys=[LINK_KEY],
            ways=[Way("mail", "smtp", ("email",)), Way("outbox", "outbox", ("email", "sms", "push", "webhook"))],
            rates=Rates({"mail": Rate(1_000, 100)}, {"mail": Rate(500, 50)}),
            readers={"generic": SignedReader([SECRET]), "text": TwilioReader(TOKEN, PUBLIC), **readers},
        )
        channels: dict[str, Provider] = {
            "inbox": InAppChannel(InboxSettings(), clock, cabinet),
            "mail": mail,
            "outbox": Outbox(OutboxSettings(terminal=False), clock, folder),
        }
        worker = Worker(store, engine.submit, channels, office.templates, clock, QUICK, tell=office.inbox)
        engine.add_service(worker)
        engine.listen(worker)
        return office

    async with serving(store, furnish=furnish, key=key) as site:
        yield Desk(site, mail)


class Events:
    """Reads server-sent events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content

    async def next(self) -> tuple[str, Any]:
        """The id and the data of the next event that has some."""
        event_id = ""
        while True:
            line = (await self._content.readline()).decode().rstrip("\n")
            if line.startswith("id: "):
                event_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                return event_id, json.loads(line.removeprefix("data: "))
