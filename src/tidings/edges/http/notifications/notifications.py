"""Notifications: accept, list, show, explain, cancel; and what the resources of notifications share."""

from typing import TypeVar, get_args
from urllib.parse import quote

import msgspec

from tidings.delivery.asking import Notify, check
from tidings.delivery.lookup import Search
from tidings.delivery.notifying import OTHER_CONTENT, Accepted
from tidings.domain.errors import Conflict, Invalid, KeyReused
from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.notification import Priority
from tidings.domain.recurrence.preview import local_text
from tidings.domain.schedules.command import Outcome
from tidings.domain.schedules.reschedule import zone_of
from tidings.edges.http.inputs import (
    body_kind,
    decode,
    derived_id,
    idempotency_key,
    moment,
    one_of,
    query_of,
    read_body,
    receipt_for,
    whole_number,
)
from tidings.edges.http.notifications.documents import accepted_document, status_document, story_document
from tidings.edges.http.problems import RETRY_AFTER_S, Refusal
from tidings.edges.http.routes import Answer, Call, Edge, Handler, Reply, json_answer
from tidings.wires.answers import Document
from tidings.wires.document import refused_words, shorten

PAGE_ROWS = 100
PAGE_ROWS_MAX = 1_000
CHANNELS: dict[str, ChannelName] = {name: name for name in CHANNEL_NAMES}
STATES: dict[str, State] = {word: word for word in get_args(State)}

T = TypeVar("T")

BODY_BYTES_MAX = 4 << 20  # a text and its HTML, with room for escapes
INSTEAD = "send shorter variables or content, or fewer users at once"
LIST = "/v1/notifications"

PRIORITIES: dict[str, Priority] = {word: word for word in get_args(Priority)}

_decoder = msgspec.json.Decoder(Notify)


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
        self._office = edge.office
        self._engine = edge.engine

    async def add(self, call: Call) -> Reply:
        """Accept a notification for a user or an address, or one for each of several users."""
        query_of(call.scope)
        if body_kind(call.headers) != "json":
            raise Refusal("media_type", "this endpoint takes one object: list several users in its 'users'")
        body = await read_body(call.headers, call.receive, BODY_BYTES_MAX, INSTEAD)
        ask = decode(_decoder, body, Notify)
        for field in ("at", "scheduled_at"):
            if isinstance(getattr(ask, field), int):
                raise Invalid(field, 'is a number: send "tomorrow 09:00", "2026-11-20T09:00:00Z" or "+5s", a text')
        key, tenant = idempotency_key(call.headers), call.caller.tenant
        if key is None:
            return self._answer(ask, await self._office.notifying.accept(tenant, ask))
        check(ask)
        await self._engine.submit([], receipt_for(tenant, key, call.scope["path"].encode(), body))
        if ask.id is not None:
            return self._answer(ask, await self._office.notifying.accept(tenant, ask))
        named = msgspec.structs.replace(ask, id=derived_id(f"{call.scope['path']}\n{key}"))
        accepted = await self._office.notifying.accept(tenant, named)
        if any(OTHER_CONTENT in (each.reason or "") for each in accepted):
            raise KeyReused
        answers = [_as_first_answer(each) for each in accepted]
        return self._answer(ask, answers)

    async def index(self, call: Call) -> Reply:
        """A page of the notifications that match, the latest first."""
        names = ("user", "to", "state", "channel", "template", "batch", "category", "priority")
        query = query_of(call.scope, *names, "since", "until", "cursor", "limit")
        page = await self._office.lookup.page(call.caller.tenant, search_of(query, self._engine.clock.now()))
        found = [status_document(status, whole=False) for status in page.notifications]
        return json_answer({"notifications": found, "cursor": page.cursor})

    async def show(self, call: Call) -> Reply:
        """One notification with its deliveries."""
        query_of(call.scope)
        return json_answer(await self._found(call))

    async def explain(self, call: Call) -> Reply:
        """One notification with its history, from acceptance to the receipt of the provider."""
        query_of(call.scope)
        document = await self._found(call)
        history = await self._office.explaining.explain(call.caller.tenant, call.text("id"))
        return json_answer(document | {"history": [story_document(line) for line in history or ()]})

    async def cancel(self, call: Call) -> Reply:
        """Cancel it: nothing more is sent."""
        query_of(call.scope)
        notification_id = call.text("id")
        outcome = await self._office.cancelling.cancel(call.caller.tenant, notification_id)
        if outcome.outcome == "unknown":
            raise unknown("notification", notification_id)
        if outcome.outcome != "cancelled":
            raise _not_cancelled(outcome)
        details = {"in_flight": outcome.in_flight, "note": outcome.note}
        answer = {"id": notification_id, "outcome": "cancelled"}
        return json_answer(answer | {name: value for name, value in details.items() if value is not None})

    async def _found(self, call: Call) -> Document:
        tenant, notification_id = call.caller.tenant, call.text("id")
        status = await self._office.lookup.get(tenant, notification_id)
        if status is None:
            raise unknown("notification", notification_id)
        return status_document(status, local=await self._local(tenant, notification_id))

    async def _local(self, tenant: str, notification_id: str) -> str | None:
        """The due time in the time zone of the schedule."""
        schedule = await self._engine.find(tenant, notification_id)
        zone = None if schedule is None else zone_of(schedule.when)
        return None if schedule is None or zone is None else local_text(zone, schedule.due)

    def _answer(self, ask: Notify, accepted: list[Accepted]) -> Answer:
        if ask.users:
            batch = next((each.batch for each in accepted if each.batch), ask.batch or ask.id)
            return json_answer({"batch": batch, "notifications": [*map(accepted_document, accepted)]})
        [one] = accepted
        if one.outcome == "conflict":
            reason = one.reason or "the id belongs to something else: choose another"
            if "quota" in reason:
                raise Refusal("quota", reason, headers={"retry-after": str(RETRY_AFTER_S)}, id=one.id)
            raise Refusal("conflict", reason, id=one.id, outcome="rejected")
        document = accepted_document(one)
        if one.outcome != "scheduled":
            return json_answer(document)
        return json_answer(document, 201, [(b"location", f"{LIST}/{quote(one.id, safe='')}".encode())])

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method; longer paths first, because an id may contain slashes."""
        one = f"{LIST}/{{id}}"
        return {
            LIST: {"GET": self.index, "POST": self.add},
            f"{one}/explain": {"GET": self.explain},
            one: {"GET": self.show, "DELETE": self.cancel},
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


def _as_first_answer(accepted: Accepted) -> Accepted:
    """A repeat under an idempotency key gets the same answer as the first request."""
    if accepted.outcome != "unchanged":
        return accepted
    return msgspec.structs.replace(accepted, outcome="scheduled", state=None)


def _not_cancelled(outcome: Outcome) -> Refusal:
    if outcome.outcome == "in_flight":
        detail = "it is being sent now and can no longer be cancelled: GET it to see the outcome"
    else:
        detail = "it was sent or has ended: GET it to see the outcome"
    return Refusal("conflict", detail, id=outcome.id, outcome=outcome.outcome)
