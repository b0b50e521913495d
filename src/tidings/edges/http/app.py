"""The ASGI application: every path with its handlers."""

import asyncio
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from tidings.config.settings import Server
from tidings.delivery.services import NotificationServices
from tidings.domain.errors import TidingsError
from tidings.edges.http.admin import ApiKeys, Calendars, Docs, Health, Nodes, Zones
from tidings.edges.http.auth import KeyRing
from tidings.edges.http.notifications.deliveries import Channels, Deliveries, Receipts
from tidings.edges.http.notifications.notifications import Notifications
from tidings.edges.http.notifications.suppressions import Suppressions, UnsubscribePages
from tidings.edges.http.notifications.templates import Templates
from tidings.edges.http.notifications.users import Inboxes, Users
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routes import App, Edge, Metrics, Resource, UnknownVerb, VerbRoute, problem_answer
from tidings.edges.http.schedules import Previews, Schedules
from tidings.edges.http.topics import Groups, Topics
from tidings.engine import Engine

if TYPE_CHECKING:
    from tidings.bus.kafka.topic_reader import KafkaTopicReader

SCHEDULES = "/v1/schedules"
SEARCH_AGAIN_US = 2_000_000
SEARCH_S_MAX = 1.0


def create_app(
    engine: Engine,
    *,
    keys: KeyRing | None = None,
    metrics: Metrics | None = None,
    version: str,
    kafka: "KafkaTopicReader | None" = None,
    services: NotificationServices | None = None,
    has_api: bool = True,
    server: Server | None = None,
) -> App:
    """The application for an engine. Without a key ring only clients on this machine are served.

    Without `has_api` only the monitoring paths are. Without an services, one without providers is created.
    """
    services = services or NotificationServices(engine.store.tables, engine, engine.clock)
    edge = Edge(
        engine=engine,
        keys=keys,
        metrics=metrics,
        version=version,
        services=services,
        kafka=kafka,
        server=server or Server(),
    )
    if not has_api:
        return App(edge, _monitoring(edge), default=WithoutApi(edge))
    return App(edge, _resources(edge), default=_not_found)


def _resources(edge: Edge) -> list[Resource]:
    """All resources in the order in which they are tried."""
    schedules = Schedules(edge)
    resources = [Resource(edge, SCHEDULES, {"GET": schedules.index, "POST": schedules.add})]
    groups = (Topics(edge), Groups(edge), Previews(edge), Calendars(edge), Zones(edge), ApiKeys(edge), Nodes(edge))
    for group in groups:
        resources += [Resource(edge, path, methods) for path, methods in group.methods().items()]
    *verbs, one = [Resource(edge, path, methods, slashes=True) for path, methods in schedules.methods().items()]
    known = [resource.path.rpartition("/")[2] for resource in verbs if "POST" in resource.methods]
    resources += [*verbs, UnknownVerb(edge, one.path, known), one]
    resources += _notification_resources(edge)
    for page in (Health(edge), Docs(edge), Receipts(edge), UnsubscribePages(edge)):
        resources += [Resource(edge, path, methods, guarded=False) for path, methods in page.methods().items()]
    return resources


def _notification_resources(edge: Edge) -> list[Resource]:
    """The resources of notifications. Some names contain slashes, and a user's id may equal a verb."""
    resources: list[Resource] = []
    for group in (Users(edge), Templates(edge), Inboxes(edge), Suppressions(edge), Channels(edge)):
        resources += [
            (VerbRoute if path.endswith("/import") else Resource)(edge, path, methods)
            for path, methods in group.methods().items()
        ]
    for named in (Notifications(edge), Deliveries(edge)):
        resources += [Resource(edge, path, methods, slashes=True) for path, methods in named.methods().items()]
    return resources


def _monitoring(edge: Edge) -> list[Resource]:
    """The resources of a node without the API."""
    return [Resource(edge, path, methods, guarded=False) for path, methods in Health(edge).methods().items()]


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await _refuse(scope, receive, send, f"there is no {scope['path'][:200]!r} here: /docs lists every path")


class WithoutApi:
    """The answer of a node without the API to all other paths: the URL of a node that has it, if one is known."""

    def __init__(self, edge: Edge) -> None:
        self._engine = edge.engine
        self._search: asyncio.Task[str | None] | None = None
        self._searched_at: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = await self._api_url()
        other = f"use {found}, which has it" if found else "use a node that has it; none is alive now"
        detail = f"this node does not have the role api and serves only /healthz, /readyz and /metrics: {other}"
        await _refuse(scope, receive, send, detail)

    async def _api_url(self) -> str | None:
        """The URL of a node with the API. The store is asked at most every two seconds, and not waited for long."""
        elapsed = self._engine.clock.elapsed()
        if self._search is None or (self._search.done() and elapsed - (self._searched_at or 0) > SEARCH_AGAIN_US):
            self._searched_at = elapsed
            self._search = asyncio.create_task(self._find())
        search = self._search
        done, _ = await asyncio.wait({search}, timeout=SEARCH_S_MAX)
        return search.result() if done else None

    async def _find(self) -> str | None:
        try:
            fleet = await self._engine.nodes()
        except TidingsError:
            return None
        urls = (node.report.url for node in fleet.nodes if node.is_alive and "api" in node.report.roles)
        return next((url for url in urls if url), None)


async def _refuse(scope: Scope, receive: Receive, send: Send, detail: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
        return
    await problem_answer(Refusal("not_found", detail))(send)
