"""A server on a real socket with a client for it."""

import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from tidings.clock import Clock, SystemClock
from tidings.config.settings import Server
from tidings.delivery.services import NotificationServices
from tidings.edges.http.app import create_app
from tidings.edges.http.auth import KeyRing
from tidings.edges.http.routes import App
from tidings.edges.http.server import running
from tidings.engine import Engine, Settings
from tidings.observe.metrics import Metrics
from tidings.ports import Store
from tidings.testing import eventually

VERSION = "0.0.test"
FAR = "2030-01-01T00:00:00Z"
NDJSON = {"Content-Type": "application/x-ndjson"}


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def problem(self) -> Any:
        """The document of an error, which says what to do."""
        assert self.headers["Content-Type"] == "application/problem+json", self.body
        problem = self.document
        assert problem["status"] == self.status
        assert problem["type"].startswith("urn:tidings:problem:")
        assert problem["title"]
        assert len(problem["detail"]) > 10
        return problem


@dataclass(frozen=True, slots=True)
class Site:
    """One running server."""

    engine: Engine
    app: App
    session: aiohttp.ClientSession
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def at(self, path: str) -> URL:
        return URL(self.url + path, encoded=True)

    async def call(self, method: str, path: str, document: Any = None, **options: Any) -> Reply:
        """One request; a document is sent as JSON, `data` as it is."""
        if document is not None:
            options["data"] = json.dumps(document).encode()
            options["headers"] = {"Content-Type": "application/json"} | options.get("headers", {})
        if isinstance(options.get("data"), bytes):
            options["data"] = io.BytesIO(options["data"])
        async with self.session.request(method, self.at(path), **options) as response:
            return Reply(response.status, response.headers, await response.read())

    async def add(self, **document: Any) -> Any:
        """One new schedule, far ahead unless it says when."""
        if not document.keys() & {"at", "every", "scheduled_at"}:
            document["at"] = FAR
        reply = await self.call("POST", "/v1/schedules", {"topic": "greetings"} | document)
        assert reply.status == 201, reply.body
        return reply.document

    async def publish(self, topic: str, **document: Any) -> Any:
        """Publish one record, and wait until it can be read."""
        reply = await self.call("POST", f"/v1/topics/{topic}/records", document)
        assert reply.status == 201, reply.body
        await self.state_of(reply.document["id"], "released")
        return reply.document

    async def state_of(self, schedule_id: str, state: str) -> Any:
        """The schedule, once it is in this state."""

        async def found() -> Any:
            document = (await self.call("GET", f"/v1/schedules/{schedule_id}")).document
            return document if document.get("state") == state else None

        return await eventually(found)

    async def records(self, topic: str) -> list[Any]:
        """All records of a topic."""
        records: list[Any] = (await self.call("GET", f"/v1/topics/{topic}/records?limit=1000")).document["records"]
        return records


@asynccontextmanager
async def serving(
    store: Store,
    clock: Clock | None = None,
    *,
    settings: Settings | None = None,
    key: str | None = None,
    make_services: Callable[[Engine], NotificationServices] | None = None,
    server: Server | None = None,
) -> AsyncIterator[Site]:
    """A server over a store; with a key its client sends that. `make_services` creates the notification services."""
    clock = clock or SystemClock()
    engine = Engine(store, clock, settings)
    metrics = Metrics(VERSION, engine.count)
    engine.listen(metrics)
    services = None if make_services is None else make_services(engine)
    await engine.start()
    keys = KeyRing(store, clock)
    app = create_app(engine, keys=keys, metrics=metrics.render, version=VERSION, services=services, server=server)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        async with running(app) as (host, port), aiohttp.ClientSession(headers=headers) as session:
            yield Site(engine, app, session, host, port)
    finally:
        await engine.stop()
