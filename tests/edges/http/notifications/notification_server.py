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
from tidings.delivery.limits.provider_status import ConfiguredProvider
from tidings.delivery.limits.rate_limit import RateLimits
from tidings.delivery.services import NotificationServices
from tidings.delivery.worker.worker import Worker
from tidings.domain.notifications.rate_limit import Rate
from tidings.domain.secret import Secret
from tidings.engine import Engine
from tidings.ports import Provider, ReceiptReader, Store
from tidings.providers.files import FileProvider
from tidings.providers.files import Settings as FileSettings
from tidings.providers.http.guard import Guard
from tidings.providers.in_app import InAppProvider
from tidings.providers.in_app import Settings as InboxSettings
from tidings.providers.signed_receipts import SignedReader
from tidings.providers.sms.twilio import TwilioReader
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
class NotificationServer:
    """A server, and the mailbox that its mail is sent to."""

    site: Site
    mail: Recorder

    @property
    def services(self) -> NotificationServices:
        return self.site.app.edge.services

    async def call(self, method: str, path: str, document: Any = None, **options: Any) -> Reply:
        return await self.site.call(method, path, document, **options)

    async def ok(self, method: str, path: str, document: Any = None, **options: Any) -> Any:
        """The document of a successful call."""
        reply = await self.call(method, path, document, **options)
        assert reply.status in {200, 201}, reply.body
        return reply.document

    async def create_users(self, *users: str) -> None:
        """Create users, and templates for their notifications."""
        for user in users or ("ada",):
            await self.ok("PUT", f"/v1/users/{user}", ADA | {"email": f"{user}@example.com"})
        await self.ok("PUT", "/v1/templates/reminder", REMINDER)
        await self.ok("PUT", "/v1/templates/line", IN_APP)

    async def settled(self, notification: str, state: str = "sent") -> Any:
        """Its last delivery, once it is in this state."""

        async def found() -> Any:
            reply = await self.call("GET", f"/v1/deliveries?notification={notification}")
            return next((each for each in reply.document["deliveries"] if each["state"] == state), None)

        return await eventually(found)


@asynccontextmanager
async def notification_server(
    store: Store, folder: Path, key: str | None = None, **readers: ReceiptReader
) -> AsyncIterator[NotificationServer]:
    """A running server."""
    mail = Recorder("email")

    def make_services(engine: Engine) -> NotificationServices:
        tables, clock = store.tables, engine.clock
        services = NotificationServices(
            tables,
            engine,
            clock,
            keys=[LINK_KEY],
            configured=[
                ConfiguredProvider("mail", "smtp", ("email",)),
                ConfiguredProvider("files", "files", ("email", "sms", "push", "webhook")),
            ],
            webhook_check=Guard((443,), plain_http=False, allowed=["10.1.0.0/16"]).check_target,
            rates=RateLimits({"mail": Rate(1_000, 100)}, {"mail": Rate(500, 50)}),
            readers={"generic": SignedReader([SECRET]), "text": TwilioReader(TOKEN, PUBLIC), **readers},
        )
        channels: dict[str, Provider] = {
            "inbox": InAppProvider(InboxSettings()),
            "mail": mail,
            "files": FileProvider(FileSettings(terminal=False), clock, folder),
        }
        worker = Worker(
            store,
            channels,
            services.templates,
            clock,
            QUICK,
            submit=engine.submit,
            commit=engine.commit,
            listener=services.inbox,
        )
        engine.add_service(worker)
        engine.following.watch(worker.topics, worker.notify)
        return services

    async with serving(store, make_services=make_services, key=key) as site:
        yield NotificationServer(site, mail)


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
