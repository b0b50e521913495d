"""The parts of an operation: parameters, request bodies and responses."""

from collections.abc import Iterable
from typing import Any, get_args

from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.domain.schedules.lateness import Policy
from tidings.edges.http.auth import TENANT_HEADER
from tidings.edges.http.problems import KINDS, PROBLEM_TYPE

Schema = dict[str, Any]

JSON = "application/json"
NDJSON = "application/x-ndjson"
REFERENCE = "#/components/schemas/{name}"

_MEANINGS = {
    400: "A field, parameter or header cannot be accepted: `errors` names it and says what to change.",
    401: "The key is missing or unknown; of a callback: the signature is not that of its provider.",
    403: "The key is not allowed to do this, or not for this tenant; without keys: a foreign Host or Origin.",
    404: "It does not exist.",
    405: "The method is not allowed: `Allow` lists those that are.",
    409: "Its state does not allow this: `outcome` says why, `detail` what to do.",
    412: "It is not the version that `If-Match` names, or it is the one that `If-None-Match` names.",
    413: "The body is too large: `detail` has the limit.",
    415: "The content type is not JSON (or NDJSON, where many items are accepted).",
    422: "The `Idempotency-Key` was used before for another request.",
    429: "Too many reads are open with this key: retry after `Retry-After`.",
    500: "An internal error of Tidings.",
    503: "The store is unavailable, another process owns it, or there are too many clients: retry after `Retry-After`.",
}
_INVALID = {
    "type": "urn:tidings:problem:invalid",
    "title": "The request cannot be accepted",
    "status": 400,
    "detail": "at: give either 'at' or 'every', not both",
    "errors": [{"field": "at", "detail": "give either 'at' or 'every', not both"}],
}
_UNKNOWN = {
    "type": "urn:tidings:problem:unknown",
    "title": "No such schedule",
    "status": 404,
    "detail": "there is no such schedule, or it is no longer remembered: check the id and the tenant",
    "id": "order-42-reminder",
    "outcome": "unknown",
    "remembered_since": "2026-11-13T09:00:00.000000Z",
}
_CONFLICT = {
    "type": "urn:tidings:problem:conflict",
    "title": "Its state does not allow this",
    "status": 409,
    "detail": "it has been released already: PUT it with ?reuse=true to start it again, or use another id",
    "id": "order-42-reminder",
    "outcome": "already_released",
    "state": "released",
}
_EXAMPLES = {400: _INVALID, 404: _UNKNOWN, 409: _CONFLICT}
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}


def ref(name: str) -> Schema:
    """A reference to a schema by its name."""
    return {"$ref": REFERENCE.format(name=name)}


def one_or_many(name: str, many: str | None = None) -> Schema:
    """One object, or an array of such (or other) objects."""
    return {"oneOf": [ref(name), {"type": "array", "items": ref(many or name)}]}


def problem_responses() -> dict[str, Schema]:
    """Every error response, by status."""
    responses = {}
    for status in sorted({status for status, _ in KINDS.values()}):
        media: Schema = {"schema": ref("Problem")}
        if status in _EXAMPLES:
            media["example"] = _EXAMPLES[status]
        response: Schema = {"description": _MEANINGS[status], "content": {PROBLEM_TYPE: media}}
        if status in {429, 503}:
            response["headers"] = _RETRY
        responses[f"Problem{status}"] = response
    return responses


def answer(description: str, schema: str, example: Any, media: str = JSON, **headers: str) -> Schema:
    """A successful response."""
    response: Schema = {"description": description, "content": {media: content(schema, example)}}
    if headers:
        response["headers"] = {
            name.replace("_", "-"): {"description": meaning, "schema": {"type": "string"}}
            for name, meaning in headers.items()
        }
    return response


def content(schema: str, example: Any) -> Schema:
    """A body of the schema with this name (plain text without one), with an example."""
    return {"schema": ref(schema) if schema else {"type": "string"}, "example": example}


def sent(schema: str, example: Any, *, required: bool = True) -> Schema:
    """A request body of one JSON object."""
    return {"required": required, "content": {JSON: content(schema, example)}}


def patch(schema: str, example: Any) -> Schema:
    """A request body with some fields of an object; null removes one."""
    about = f"Fields of `{schema}`; null removes one."
    return {
        "required": True,
        "content": {JSON: {"schema": {"type": "object", "description": about}, "example": example}},
    }


def query(name: str, description: str, schema: Schema | None = None) -> Schema:
    """A parameter of the query."""
    return {"name": name, "in": "query", "description": description, "schema": schema or {"type": "string"}}


def choice(name: str, description: str, words: Iterable[str], **more: str) -> Schema:
    """A parameter of the query that takes one of these words."""
    return query(name, description, {"type": "string", "enum": list(words), **more})


def switch(name: str, description: str) -> Schema:
    """A parameter of the query that is true or false."""
    return query(name, description, {"type": "boolean", "default": False})


def header(name: str, description: str) -> Schema:
    """A parameter in a header."""
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def in_path(name: str, description: str) -> Schema:
    """A parameter of the path."""
    return {"name": name, "in": "path", "required": True, "description": description, "schema": {"type": "string"}}


CURSOR = query("cursor", "Cursor of the previous page.")
LIMIT = query("limit", "Page size.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100})
CHANNEL = choice("channel", "Only this channel.", CHANNEL_NAMES)
IF_MATCH = header("If-Match", "Only if the ETag is still this one.")
IF_NONE_MATCH = header("If-None-Match", "`*`: only if it does not exist yet.")
IDEMPOTENCY = header("Idempotency-Key", "Kept for 24 h: a repeat gets the same answer as the first request.")
LOCATION = "Its path."
ETAG = "Its version, for `If-Match`."

_TENANT_TAGS = (
    *("Schedules", "Planning", "Calendars", "Topics", "Groups"),
    *("Users", "Templates", "Notifications", "Deliveries", "Inbox", "Suppressions"),
)
_TENANT = header(
    TENANT_HEADER, "Act for this tenant instead of the key's own: with an admin key, or on a server without keys."
)


def operation(
    tag: str,
    name: str,
    summary: str,
    answers: dict[int, Schema],
    problems: str = "",
    *,
    parameters: Iterable[Schema] = (),
    body: Schema | None = None,
    guarded: bool = True,
) -> Schema:
    """One method of one path. `problems` are the statuses of further errors; `guarded`: it needs a key."""
    statuses = {int(status) for status in problems.split()} | {400, 405, 500}
    if guarded:
        statuses |= {401, 403, 503}
    responses: dict[str, Schema] = {str(status): response for status, response in answers.items()}
    for status in sorted(statuses - answers.keys()):
        responses[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    written: Schema = {"tags": [tag], "operationId": name, "summary": summary, "responses": responses}
    if given := [*parameters, *([_TENANT] if tag in _TENANT_TAGS else [])]:
        written["parameters"] = given
    if body is not None:
        written["requestBody"] = body
    if not guarded:
        written["security"] = []
    return written


MISSED = choice(
    "missed", "What happens to occurrences that fell due during the pause, instead of its `late`.", get_args(Policy)
)
