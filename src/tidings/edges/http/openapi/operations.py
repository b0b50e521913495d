"""How an operation is written: its parameters, what is sent, and every answer."""

from typing import Any

from tidings.edges.http.auth import TENANT_HEADER
from tidings.edges.http.openapi import examples
from tidings.edges.http.openapi.shapes import Schema, ref
from tidings.edges.http.problems import KINDS, PROBLEM_TYPE

JSON = "application/json"
NDJSON = "application/x-ndjson"

_MEANINGS = {
    400: "A field, parameter or header cannot be accepted: `errors` names it and says what to change.",
    401: "No key, or one that is not known; of a callback: not the signature of its provider.",
    403: "The key may not do this, or not for this tenant; without keys: a foreign Host or Origin.",
    404: "There is no such thing.",
    405: "Another method: `Allow` lists those taken.",
    409: "Not in a state for this: `outcome` says which, `detail` what to do.",
    412: "It is not what `If-Match` names, or is what `If-None-Match` names.",
    413: "The body is too large: `detail` has the bound.",
    415: "The content type is not JSON (or NDJSON, where many are taken).",
    422: "The `Idempotency-Key` came before with another request.",
    429: "Too many reads are open with this key: come back after `Retry-After`.",
    500: "A fault of Tidings.",
    503: "The store is away, another process owns it, or too many clients are served: come back after `Retry-After`.",
}
_EXAMPLES = {400: examples.INVALID, 404: examples.UNKNOWN, 409: examples.CONFLICT}
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}


def problem_responses() -> dict[str, Schema]:
    """Every error that there is, by status."""
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
    """What is answered when all is well."""
    response: Schema = {"description": description, "content": {media: content(schema, example)}}
    if headers:
        response["headers"] = {
            name.replace("_", "-"): {"description": meaning, "schema": {"type": "string"}}
            for name, meaning in headers.items()
        }
    return response


def content(schema: str, example: Any) -> Schema:
    """A shape by name (plain text without one), with an example."""
    return {"schema": ref(schema) if schema else {"type": "string"}, "example": example}


def sent(schema: str, example: Any, *, required: bool = True) -> Schema:
    """What is sent as one JSON object."""
    return {"required": required, "content": {JSON: content(schema, example)}}


def query(name: str, description: str, schema: Schema | None = None) -> Schema:
    """A parameter of the query."""
    return {"name": name, "in": "query", "description": description, "schema": schema or {"type": "string"}}


def header(name: str, description: str) -> Schema:
    """A parameter in a header."""
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def in_path(name: str, description: str) -> Schema:
    """A parameter of the path."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
    }


_OF_A_TENANT = (
    *("Schedules", "Planning", "Calendars", "Topics", "Groups"),
    *("Users", "Templates", "Notifications", "Deliveries", "Inbox", "Suppressions"),
)
_TENANT = header(
    TENANT_HEADER, "For whom, instead of the key's own tenant: with an admin key, or on a server without keys."
)


def operation(
    tag: str,
    name: str,
    summary: str,
    answers: dict[int, Schema],
    problems: str = "",
    *,
    parameters: list[Schema] | None = None,
    body: Schema | None = None,
    guarded: bool = True,
) -> Schema:
    """One method of one path. Further problems are given as their statuses."""
    statuses = {int(status) for status in problems.split()} | {400, 405, 500}
    if guarded:
        statuses |= {401, 403, 503}
    responses: dict[str, Schema] = {str(status): response for status, response in answers.items()}
    for status in sorted(statuses - answers.keys()):
        responses[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    written: Schema = {"tags": [tag], "operationId": name, "summary": summary, "responses": responses}
    if tag in _OF_A_TENANT:
        parameters = [*(parameters or ()), _TENANT]
    if parameters:
        written["parameters"] = parameters
    if body is not None:
        written["requestBody"] = body
    if not guarded:
        written["security"] = []
    return written
