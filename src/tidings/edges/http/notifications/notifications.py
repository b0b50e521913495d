"""Notifications: accept, list, show, explain, cancel; and what the resources of notifications share."""

from contextlib import suppress
from typing import Any, TypeVar, get_args
from urllib.parse import quote

import msgspec

from tidings.delivery.accept.change import DONE
from tidings.delivery.accept.request import OTHER_CONTENT, AcceptResult, AcceptResults, NotificationRequest
from tidings.delivery.notifications.reader import Search, SearchState
from tidings.domain.errors import Conflict, Invalid, KeyReused
from tidings.domain.names import BELONGED
from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.notification import Priority
from tidings.domain.schedules.command import Outcome, OutcomeWord
from tidings.edges.advice import HTTP
from tidings.edges.http.inputs import (
    body_kind,
    decode,
    derived_id,
    idempotency_for,
    idempotency_key,
    moment,
    one_of,
    query_of,
    read_body,
    refuse_body,
    whole_number,
    yes_or_no,
)
from tidings.edges.http.notifications.documents import (
    accepted_document,
    changed_document,
    encoded_columns,
    status_document,
    story_document,
)
from tidings.edges.http.notifications.lines import (
    NUMBER,
    CoalescedRequests,
    NotificationStream,
    as_first_answer,
    read_request,
)
from tidings.edges.http.problems import RETRY_AFTER_S, Refusal, conflict
from tidings.edges.http.routes import Answer, Call, Edge, Handler, Reply, json_answer
from tidings.edges.http.schedules import Preconditions, etag_of, lists_etag
from tidings.shapes.refusal import refused_words, shorten
from tidings.wires.answers import Document, encode, outcome_document
from tidings.wires.document import POLICIES

PAGE_ROWS = 100
PAGE_ROWS_MAX = 1_000
CHANNELS: dict[str, ChannelName] = {name: name for name in CHANNEL_NAMES}
STATES: dict[str, State] = {word: word for word in get_args(State)}
SEARCH_STATES: dict[str, SearchState] = {word: word for word in get_args(State)} | {"paused": "paused"}

T = TypeVar("T")

BODY_BYTES_MAX = 4 << 20  # a text and its HTML, with room for escapes
INSTEAD = "send shorter variables or content, or fewer users at once"
LIST = "/v1/notifications"

_changes = msgspec.json.Decoder(dict[str, Any])

PRIORITIES: dict[str, Priority] = {word: word for word in get_args(Priority)}


async def sent(call: Call, decoder: msgspec.json.Decoder[T], kind: type[msgspec.Struct], bytes_max: int) -> T:
    """Decode the body of a request; unknown fields are refused by name."""
    if body_kind(call.headers) != "json":
        raise Refusal(
            "media_type", "this endpoint takes one document, not NDJSON: send 'Content-Type: application/json'"
        )
    body = await read_body(call.headers, call.receive, bytes_max)
    return decode(decoder, body, kind)


def limit_of(query: dict[str, str]) -> int:
    """The page size."""
    return whole_number(query, "limit", PAGE_ROWS, 1, PAGE_ROWS_MAX)


def channel_of(query: dict[str, str]) -> ChannelName | None:
    """The channel in the query."""
    return one_of(query, "channel", CHANNELS)


def channel_in_path(call: Call) -> ChannelName:
    """The channel in the path."""
    text = call.text("channel")
    if text not in CHANNELS:
        raise refused_words("channel", text, CHANNELS)
    return CHANNELS[text]


def unknown(what: str, name: str, where: str = "") -> Refusal:
    """The refusal for something that does not exist."""
    hint = f"GET {where} lists them" if where else "check the id and the tenant"
    return Refusal("not_found", f"unknown {what} {shorten(name)!r}: {hint}", id=name, outcome="unknown")


# Versions


def version_tag(version: int) -> bytes:
    """The ETag of a version."""
    return b'"%d"' % version


class Precondition:
    """What If-Match and If-None-Match require: a version, that it exists, or that it does not."""

    def __init__(self, call: Call) -> None:
        if_match, if_none_match = call.headers.get(b"if-match"), call.headers.get(b"if-none-match")
        self.version: int | None = None
        self.must_exist = if_match is not None
        self.given = if_match is not None or if_none_match is not None
        if if_none_match is not None:
            if if_none_match.strip() != b"*" or if_match is not None:
                raise Invalid("If-None-Match", "only '*' is supported here, and not together with If-Match")
            self.version = 0
        elif if_match is not None and if_match.strip() != b"*":
            self.version = _version(if_match)

    def failed(self, conflict: Conflict) -> Refusal:
        """The refusal of a change that found another version."""
        return Refusal("precondition_failed" if self.given else "conflict", str(conflict))


def _version(tag: bytes) -> int:
    text = tag.strip().strip(b'"')
    if not text.isdigit() or len(text) > 18:
        raise Refusal("precondition_failed", "it does not match If-Match: GET it, and send its current ETag")
    return int(text) or -1


class Notifications:
    """The resource `/v1/notifications` and the paths below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._services = edge.services
        self._engine = edge.engine
        self._preconditions = Preconditions(self._etag)
        self._coalesced = CoalescedRequests(edge.services.acceptance)

    async def add(self, call: Call) -> Reply:
        """Accept a notification for a user or an address, one for each of several users, or many as lines."""
        query_of(call.scope)
        if body_kind(call.headers) == "ndjson":
            return NotificationStream(self._edge, call)
        body = await read_body(call.headers, call.receive, BODY_BYTES_MAX, INSTEAD)
        key, tenant = idempotency_key(call.headers), call.caller.tenant
        if key is None:
            ask = await self._coalesced.accept(tenant, body)
            if isinstance(ask, AcceptResult):
                return _one_answer(ask)
            if ask.users:
                return _list_answer(ask, await self._services.acceptance.accept_list(tenant, ask))
            return _one_answer((await self._services.acceptance.accept(tenant, ask))[0])
        ask = read_request(body)
        named = msgspec.structs.replace(ask, id=ask.id or derived_id(f"{call.scope['path']}\n{key}"))
        await self._validate(tenant, named)
        was_known = await self._bind(tenant, key, ask, (call.scope["path"].encode(), body))
        accepted = await self._services.acceptance.accept_list(tenant, named)
        if ask.id is None and any(OTHER_CONTENT in (each.reason or "") for each in accepted.alone.values()):
            raise KeyReused
        if not was_known:
            accepted.alone = {place: as_first_answer(each) for place, each in accepted.alone.items()}
        return _list_answer(ask, accepted) if ask.users else _one_answer(accepted[0])

    async def index(self, call: Call) -> Reply:
        """A page of the notifications that match, the latest first."""
        names = ("user", "to", "state", "channel", "template", "batch", "category", "priority")
        query = query_of(call.scope, *names, "since", "until", "cursor", "limit")
        state = one_of(query, "state", SEARCH_STATES)
        plain = {name: text for name, text in query.items() if name != "state"}
        search = msgspec.structs.replace(search_of(plain, self._engine.clock.now()), state=state)
        page = await self._services.reader.page(call.caller.tenant, search)
        found = [status_document(status, whole=False) for status in page.notifications]
        return json_answer({"notifications": found, "cursor": page.cursor})

    async def show(self, call: Call) -> Reply:
        """One notification with its deliveries."""
        query_of(call.scope)
        document = await self._found(call.caller.tenant, call.text("id"))
        if document is None:
            raise unknown("notification", call.text("id"))
        body = encode(document)
        etag = etag_of(body)
        known = call.headers.get(b"if-none-match")
        if known is not None and lists_etag(known, etag, weakly=True):
            return Answer(b"", 304, [(b"etag", etag)])
        return Answer(body + b"\n", 200, [(b"etag", etag)])

    async def explain(self, call: Call) -> Reply:
        """One notification with its history, from acceptance to the receipt of the provider."""
        query_of(call.scope)
        notification_id = call.text("id")
        found = await self._services.history.explanation(call.caller.tenant, notification_id)
        if found is None or await self._services.reader.is_over(found.status, found.schedule):
            raise unknown("notification", notification_id)
        [status] = await self._services.reader.told([found.status])
        document = status_document(status, schedule=found.schedule)
        return json_answer(document | {"history": [story_document(line) for line in found.lines]})

    async def cancel(self, call: Call) -> Reply:
        """Cancel it: nothing more is sent."""
        query_of(call.scope)
        notification_id = call.text("id")
        async with self._preconditions.hold(call, notification_id):
            outcome = await self._services.cancellation.cancel(call.caller.tenant, notification_id)
        if outcome.outcome == "unknown":
            raise unknown("notification", notification_id)
        if outcome.outcome != "cancelled":
            raise _not_cancelled(outcome, await self._state_of(call.caller.tenant, outcome))
        details = {"in_flight": outcome.in_flight, "note": outcome.note}
        answer = {"id": notification_id, "outcome": "cancelled"}
        return json_answer(answer | {name: value for name, value in details.items() if value is not None})

    async def replace(self, call: Call) -> Reply:
        """Add a notification, or replace the pending one with this id."""
        reuse = yes_or_no(query_of(call.scope, "reuse"), "reuse")
        request = read_request(await self._body(call))
        changes, notification_id = self._services.changes, call.text("id")
        async with self._preconditions.hold(call, notification_id):
            outcome = await changes.replace(call.caller.tenant, notification_id, request, reuse=reuse)
            return await self._changed(call.caller.tenant, outcome)

    async def patch(self, call: Call) -> Reply:
        """Change only the given fields."""
        query_of(call.scope)
        changes = decode(_changes, await self._body(call), NotificationRequest)
        notification_id = call.text("id")
        if "id" in changes and changes["id"] != notification_id:
            raise Invalid("id", "cannot be changed: leave it out")
        for field in ("at", "scheduled_at"):
            if isinstance(changes.get(field), int):
                raise Invalid(field, NUMBER)
        async with self._preconditions.hold(call, notification_id):
            outcome = await self._services.changes.patch(call.caller.tenant, notification_id, changes)
            return await self._changed(call.caller.tenant, outcome)

    async def pause(self, call: Call) -> Reply:
        """Hold it until it is resumed."""
        query_of(call.scope)
        await refuse_body(call.headers, call.receive)
        async with self._preconditions.hold(call, call.text("id")):
            outcome = await self._services.changes.pause(call.caller.tenant, call.text("id"))
        return await self._held(call.caller.tenant, outcome, "paused")

    async def resume(self, call: Call) -> Reply:
        """Resume it."""
        missed = one_of(query_of(call.scope, "missed"), "missed", POLICIES)
        await refuse_body(call.headers, call.receive, "leave it out, and give ?missed=skip in the URL")
        async with self._preconditions.hold(call, call.text("id")):
            outcome = await self._services.changes.resume(call.caller.tenant, call.text("id"), missed)
        return await self._held(call.caller.tenant, outcome, "resumed", "unchanged")

    async def _validate(self, tenant: str, request: NotificationRequest) -> None:
        """Raise `Invalid` before the idempotency key is bound: what is refused is not remembered. A repeat is valid."""
        acceptance = self._services.acceptance
        if not await acceptance.has(tenant, request):
            prepared = await acceptance.validate(tenant, request)
            if prepared is not None:
                await self._engine.dated(tenant, prepared.command.when)

    async def _bind(self, tenant: str, key: str, request: NotificationRequest, parts: tuple[bytes, ...]) -> bool:
        """Bind the idempotency key to a request; whether its id was known before the first request under this key.

        If so, the first answer was `unchanged`, and otherwise `scheduled`. The key is bound to one of two digests, of
        which the second means that the id was known. Raises `KeyReused` if the key is bound to another request.
        """
        if request.id is not None:
            ids = [f"{request.id}:{user}" for user in request.users] or [request.id]
            if await self._services.reader.has_any(tenant, ids):
                with suppress(KeyReused):
                    await self._engine.submit([], idempotency_for(tenant, key, *parts, b"known"))
                    return True
        await self._engine.submit([], idempotency_for(tenant, key, *parts))
        return False

    async def _body(self, call: Call) -> bytes:
        if body_kind(call.headers) != "json":
            raise Refusal("media_type", "send one notification as 'Content-Type: application/json'")
        return await read_body(call.headers, call.receive, BODY_BYTES_MAX, INSTEAD)

    async def _changed(self, tenant: str, outcome: Outcome) -> Answer:
        if outcome.outcome not in DONE:
            raise _not_changed(outcome, await self._state_of(tenant, outcome))
        etag = await self._etag(tenant, outcome.id)
        headers = [] if etag is None else [(b"etag", etag)]
        if outcome.outcome in {"scheduled", "released"}:
            headers.append((b"location", f"{LIST}/{quote(outcome.id, safe='')}".encode()))
            return json_answer(changed_document(outcome), 201, headers)
        return json_answer(changed_document(outcome), headers=headers)

    async def _held(self, tenant: str, outcome: Outcome, *done: OutcomeWord) -> Answer:
        if outcome.outcome not in done:
            raise _not_changed(outcome, await self._state_of(tenant, outcome))
        return json_answer(outcome_document(outcome))

    async def _state_of(self, tenant: str, outcome: Outcome) -> str | None:
        """The state of a notification that was sent or has ended; that of its schedule says less."""
        if outcome.outcome != "already_released":
            return None
        status = await self._services.reader.get(tenant, outcome.id)
        return None if status is None else status.state

    async def _etag(self, tenant: str, notification_id: str) -> bytes | None:
        document = await self._found(tenant, notification_id)
        return None if document is None else etag_of(encode(document))

    async def _found(self, tenant: str, notification_id: str) -> Document | None:
        status = await self._services.reader.get(tenant, notification_id)
        if status is None:
            return None
        return status_document(status, schedule=await self._engine.find(tenant, notification_id))

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method; longer paths first, because an id may contain slashes."""
        one = f"{LIST}/{{id}}"
        return {
            LIST: {"GET": self.index, "POST": self.add},
            f"{one}/explain": {"GET": self.explain},
            f"{one}/pause": {"POST": self.pause},
            f"{one}/resume": {"POST": self.resume},
            one: {"GET": self.show, "PUT": self.replace, "PATCH": self.patch, "DELETE": self.cancel},
        }


def search_of(query: dict[str, str], now: int) -> Search:
    """The search that a query asks for."""
    since, until = moment(query, "since", now), moment(query, "until", now)
    if since is not None and until is not None and since > until:
        raise Invalid("until", "is before 'since': swap them, or change one")
    return Search(
        user=query.get("user"),
        state=one_of(query, "state", STATES),
        channel=channel_of(query),
        template=query.get("template"),
        batch=query.get("batch"),
        since=since,
        until=until,
        cursor=query.get("cursor"),
        limit=limit_of(query),
        to=query.get("to"),
        category=query.get("category"),
        priority=one_of(query, "priority", PRIORITIES),
    )


def _not_changed(outcome: Outcome, state: str | None) -> Refusal:
    if outcome.outcome == "unknown":
        return unknown("notification", outcome.id)
    if outcome.outcome == "already_released" and outcome.reason is None:
        return _over(outcome, state, f"{HTTP.reuse} to start it again, or use another id")
    if outcome.outcome != "in_flight":
        return conflict(outcome_document(outcome))
    reason = outcome.reason or "it is on its way"
    return Refusal("conflict", f"it cannot be changed now: {reason}", id=outcome.id, outcome="in_flight", reason=reason)


def _list_answer(ask: NotificationRequest, accepted: AcceptResults) -> Answer:
    documents = {place: encode(accepted_document(each)) for place, each in accepted.alone.items()}
    for columns in accepted.columns:
        documents.update(zip(columns.places, encoded_columns(columns), strict=True))
    in_order = b",".join([documents[place] for place in range(len(accepted))])
    batch = accepted.batch or ask.batch or ask.id
    return json_answer({"batch": batch, "notifications": msgspec.Raw(b"[%s]" % in_order)})


def _one_answer(one: AcceptResult) -> Answer:
    if one.outcome == "conflict":
        reason = one.reason or "the id belongs to something else: choose another"
        if "quota" in reason:
            raise Refusal("quota", reason, headers={"retry-after": str(RETRY_AFTER_S)}, id=one.id)
        raise Refusal("conflict", reason, id=one.id, outcome="conflict")
    document = accepted_document(one)
    if one.outcome != "scheduled":
        return json_answer(document)
    return json_answer(document, 201, [(b"location", f"{LIST}/{quote(one.id, safe='')}".encode())])


def _not_cancelled(outcome: Outcome, state: str | None) -> Refusal:
    if outcome.outcome != "in_flight":
        return _over(outcome, state, "GET it to see the outcome")
    detail = "it is being sent now and can no longer be cancelled: GET it to see the outcome"
    return Refusal("conflict", detail, id=outcome.id, outcome="in_flight")


def _over(outcome: Outcome, state: str | None, advice: str) -> Refusal:
    """The refusal to change or cancel a notification of which nothing is pending, with its own state."""
    detail, reason = f"it was sent or has ended: {advice}", outcome.reason
    if reason is not None and not reason.startswith(BELONGED):
        detail = reason
    known = {"due_at": outcome_document(outcome).due_at, "state": state}
    members: Document = {name: value for name, value in known.items() if value is not None}
    return Refusal("conflict", detail, id=outcome.id, outcome=outcome.outcome, **members)
