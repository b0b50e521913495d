"""Routes: the way of a request to its handler and back, what handlers share, and their answers."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.routing import BaseRoute, Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tidings.config.settings import Server
from tidings.delivery.services import NotificationServices
from tidings.domain.errors import Invalid, StoreError
from tidings.domain.facts import Refused
from tidings.domain.schedules.command import CommandBatch
from tidings.edges.http.auth import Caller, KeyRing, acting_for, authenticate
from tidings.edges.http.inputs import Disconnected, path_text, refuse_body
from tidings.edges.http.problems import PROBLEM_TYPE, Refusal, problem_document, refusal_of
from tidings.edges.http.readers import BufferedAnswers, Readers
from tidings.engine import Engine
from tidings.intake.admission import check_new_id
from tidings.shapes.fields import names_of
from tidings.shapes.schedule import NewSchedule
from tidings.wires.answers import encode
from tidings.wires.document import decode_document, plain_of, request_of

if TYPE_CHECKING:
    from tidings.bus.kafka.topic_reader import KafkaTopicReader

Metrics = Callable[[], bytes | Awaitable[bytes]]
Headers = Sequence[tuple[bytes, bytes]]

_READS = ("GET", "HEAD")
_JSON = b"application/json"
_PARAMETER = re.compile(r"\{(\w+)\}")
_ANONYMOUS = Caller("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What handlers share: the engine, the notification services, the API keys and the limits of the server.

    `stopping` is set when open streams and long polls have to end.
    """

    engine: Engine
    keys: KeyRing | None
    metrics: Metrics | None
    version: str
    services: NotificationServices
    kafka: "KafkaTopicReader | None" = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    server: Server = field(default_factory=Server)
    readers: Readers = field(init=False)
    buffered_answers: BufferedAnswers = field(default_factory=BufferedAnswers)

    def __post_init__(self) -> None:
        object.__setattr__(self, "readers", Readers(self.server))

    def add(self, batch: CommandBatch, tenant: str, body: bytes, topic: str | None, now: int) -> None:
        """Add the command for a document to a batch, plain ones as columns; a refusal is published as a fact."""
        admission = self.engine.admission
        try:
            document = decode_document(body)
            plain = plain_of(document, topic, now)
            if plain is not None and admission.admit_plain(batch, tenant, plain, now):
                return
            request = request_of(document, topic)
            if request.id is not None:
                check_new_id(request.id)
            batch.append(admission.admit(tenant, request, now))
        except Invalid as invalid:
            self.publish_refusal(tenant, invalid, now)
            raise

    def publish_refusal(self, tenant: str, invalid: Invalid, now: int) -> None:
        """Publish the refusal of a schedule as a fact."""
        field_name = invalid.field if invalid.field in names_of(NewSchedule) else "body"
        self.engine.publish(Refused(now, tenant, field_name))


class Call(msgspec.Struct, frozen=True):
    """One request, as a handler sees it."""

    scope: Scope
    receive: Receive
    headers: dict[bytes, bytes]
    caller: Caller

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of the path, as they were sent."""
        parameters: dict[str, str] = self.scope.get("path_params", {})
        return parameters

    def text(self, name: str) -> str:
        """A parameter of the path, decoded."""
        return path_text(self.parameters[name], name)


Reply = Callable[[Send], Awaitable[None]]
Handler = Callable[[Call], Awaitable[Reply]]


class Answer:
    """A complete answer, ready to be sent."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, body: bytes, status: int = 200, headers: Headers = (), media_type: bytes = _JSON) -> None:
        self.body = body
        self.status = status
        self.headers: list[tuple[bytes, bytes]] = [
            (b"content-type", media_type),
            (b"content-length", b"%d" % len(body)),
            *headers,
        ]

    async def __call__(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


def json_answer(document: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """A document as an answer."""
    return Answer(encode(document) + b"\n", status, headers)


def problem_answer(error: Exception) -> Answer:
    """An error as an answer."""
    refusal = refusal_of(error)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers.items()]
    return Answer(encode(problem_document(refusal)) + b"\n", refusal.status, headers, PROBLEM_TYPE.encode())


class Resource(BaseRoute):
    """A path and its methods. The path is matched before it is decoded, so that an id may contain an encoded slash."""

    def __init__(
        self,
        edge: Edge,
        path: str,
        methods: dict[str, Handler],
        *,
        guarded: bool = True,
        slashes: bool = False,
    ) -> None:
        self.path = path
        self.methods = dict(methods)
        self._edge = edge
        self._guarded = guarded
        segment = r"(?P<\1>.+)" if slashes else r"(?P<\1>[^/]+)"
        self._pattern = re.compile(_PARAMETER.sub(segment, path))

    def covers(self, path: str) -> bool:
        """Whether the path is one of this resource."""
        return self._pattern.fullmatch(path) is not None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        found = self._pattern.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            return Match.NONE, {}
        return Match.FULL, {"path_params": found.groupdict()}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._reply(scope, receive)
        except Disconnected:
            return
        except asyncio.CancelledError:
            if not self._edge.stopping.is_set():
                raise
            reply = problem_answer(StoreError("this node is shutting down: try again, or use another node"))
        except Exception as error:  # noqa: BLE001 - every error is answered, and logged if it is ours
            reply = problem_answer(error)
        await reply(send)

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        method = scope["method"]
        handler = self._handler(method)
        headers: dict[bytes, bytes] = dict(scope["headers"])  # of a repeated one, the last
        caller = _ANONYMOUS
        if self._guarded:
            trouble = self._edge.engine.owner.trouble
            if trouble is not None and method not in _READS:  # refused at once, before the key is looked up
                raise StoreError(trouble)
            caller = acting_for(await authenticate(self._edge.keys, scope, headers), headers)
            scope.setdefault("state", {})["caller"] = caller  # for the log, if the client has to be disconnected
        if method == "DELETE":
            await refuse_body(headers, receive)
        return await handler(Call(scope, receive, headers, caller))

    def _handler(self, method: str) -> Handler:
        handler = self.methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = [*self.methods, "HEAD"] if "GET" in self.methods else [*self.methods]
            detail = f"{method} is not allowed here: use {' or '.join(allowed)}"
            raise Refusal("method_not_allowed", detail, headers={"allow": ", ".join(allowed)})
        return handler


class App:
    """The HTTP edge of one engine, as an ASGI application. Routes are tried in order.

    A path without parameters is looked up, because the router would try every route before it.
    """

    def __init__(self, edge: Edge, routes: Sequence[Resource], *, default: ASGIApp) -> None:
        self.edge = edge
        self.routes = routes
        self._fixed = {route.path: route for route in routes if _is_fixed(route, routes)}
        self._router = Router(routes, redirect_slashes=False, default=default)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
        elif (fixed := self._fixed.get(scope["path"])) is not None:
            await fixed.handle(scope, receive, send)
        else:
            raw = scope.get("raw_path")
            path = scope["path"] if raw is None else raw.decode("latin-1")
            await self._router({**scope, "path": path}, receive, send)

    def stop(self) -> None:
        """End the streams and long polls that are open; new requests are still answered."""
        self.edge.stopping.set()


def _is_fixed(route: Resource, routes: Sequence[Resource]) -> bool:
    """Whether a route has no parameters, and is the first that its path matches, whatever the method."""
    first = next(each for each in routes if each.covers(route.path))
    return first is route and type(route) is Resource and not _PARAMETER.search(route.path)


class VerbRoute(Resource):
    """A verb at a place where a name is possible too: with other methods, the path is that of the name."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if scope.get("method") in self.methods else (Match.NONE, {})


class UnknownVerb(Resource):
    """A POST to an unknown verb below a path that has verbs: the answer lists the verbs, not other methods."""

    def __init__(self, edge: Edge, path: str, verbs: Sequence[str]) -> None:
        super().__init__(edge, path + "/{verb}", {}, slashes=True)
        self._verbs = verbs

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if scope.get("method") == "POST" else (Match.NONE, {})

    def _handler(self, method: str) -> Handler:
        verbs = " or ".join(f".../{verb}" for verb in self._verbs)
        raise Refusal("not_found", f"unknown verb: use {method} {verbs}")
