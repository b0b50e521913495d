"""New schedules on their way in: one object, an array, or lines without end."""

from collections.abc import AsyncGenerator
from urllib.parse import quote

import msgspec

from tidings.domain.command import Outcome
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import (
    NDJSON_TYPE,
    accepts_ndjson,
    body_kind,
    derived_id,
    idempotency_key,
    query_of,
    read_body,
    receipt_for,
    too_large,
)
from tidings.edges.http.lines import BATCH_LINES, Batch, BodyLines
from tidings.edges.http.ndjson import OutcomeStream
from tidings.edges.http.problems import conflict
from tidings.edges.http.routing import Answer, Call, Reply, json_answer
from tidings.shapes.schedule import NewSchedule
from tidings.wires.answers import outcome_document
from tidings.wires.refusal import refusal

ARRAY_BYTES_MAX = 16 * 1024 * 1024

_ARRAY = ord("[")
_AS_LINES = f"send less, or many as lines of {NDJSON_TYPE}"
_SPACES = b" \t\r\n"
_items = msgspec.json.Decoder(list[msgspec.Raw])


async def accept(edge: Edge, call: Call, topic: str | None = None) -> Reply:
    """Take whatever a POST brings. With a topic from the path it is published now."""
    query_of(call.scope)
    if body_kind(call.headers) == "ndjson":
        lines = BodyLines(edge, call, keyed=idempotency_key(call.headers) is not None)
        return OutcomeStream(edge, call, topic, lines.batches(), as_lines=True)
    body = await read_body(call.headers, call.receive, ARRAY_BYTES_MAX, _AS_LINES)
    if body[:1] == b"{":
        return await _accept_one(edge, call, body, topic)
    start = body.lstrip(_SPACES)
    if start and start[0] == _ARRAY:
        batches = _array_batches(_read_items(body), edge.engine.settings.limits.line_bytes_max)
        return OutcomeStream(edge, call, topic, batches, as_lines=accepts_ndjson(call.headers))
    return await _accept_one(edge, call, body, topic)


async def _accept_one(edge: Edge, call: Call, body: bytes, topic: str | None) -> Answer:
    bytes_max = object_bytes_max(edge)
    if len(body) > bytes_max:
        raise too_large(bytes_max)
    tenant = call.caller.tenant
    request = edge.read(tenant, body, topic)
    key = idempotency_key(call.headers)
    if key is None:
        outcome = edge.engine.accepted(await edge.engine.submit([edge.admit(tenant, request)]))
        return added(await explained(edge, tenant, outcome))
    if request.id is None:
        request = msgspec.structs.replace(request, id=derived_id(key))
    receipt = receipt_for(tenant, key, call.scope["path"].encode(), body)
    outcome = edge.engine.accepted(await edge.engine.submit([edge.admit(tenant, request)], receipt))
    return added(await explained(edge, tenant, outcome))


def object_bytes_max(edge: Edge) -> int:
    """The most that one document may have: escapes and base64 make a value larger than it is."""
    return 2 * edge.engine.settings.limits.line_bytes_max


async def explained(edge: Edge, tenant: str, outcome: Outcome) -> Outcome:
    """The outcome; of one in flight with the reason, where it is kept back."""
    if outcome.outcome != "in_flight":
        return outcome
    found = await edge.engine.find(tenant, outcome.id)
    return outcome if found is None else msgspec.structs.replace(outcome, reason=found.reason)


def added(outcome: Outcome) -> Answer:
    """The answer to what was to become a new schedule."""
    document = outcome_document(outcome)
    word = outcome.outcome
    if word in {"scheduled", "released"}:
        return json_answer(document, 201, [(b"location", location(outcome.id))])
    if word in {"unchanged", "replaced"}:
        return json_answer(document)
    raise conflict(document)


def location(schedule_id: str) -> bytes:
    """Where a schedule is found from now on."""
    return f"/v1/schedules/{quote(schedule_id, safe='')}".encode("ascii")


def _read_items(body: bytes) -> list[msgspec.Raw]:
    try:
        return _items.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(error, NewSchedule) from None


async def _array_batches(items: list[msgspec.Raw], bytes_max: int) -> AsyncGenerator[Batch, None]:
    """The items of an array in batches, numbered from 1 like lines."""
    for start in range(0, len(items), BATCH_LINES):
        part = (bytes(item) for item in items[start : start + BATCH_LINES])
        yield Batch(start + 1, [item if len(item) <= bytes_max else None for item in part])
