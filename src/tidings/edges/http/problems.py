"""Errors as RFC 9457 problems: what went wrong, and what to change."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from tidings.domain.errors import (
    BusError,
    Conflict,
    Invalid,
    KeyReused,
    NotAMember,
    NotFound,
    NotOwner,
    StoreError,
    TidingsError,
)
from tidings.edges.advice import HTTP, advice, plain
from tidings.wires.answers import Document, OutcomeDocument, errors_document

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
_MEMBERS = tuple(field.name for field in msgspec.structs.fields(OutcomeDocument))

logger = logging.getLogger(__name__)

# slug: status, title
KINDS: dict[str, tuple[int, str]] = {
    "invalid": (400, "The request cannot be accepted as it stands"),
    "unauthorized": (401, "An API key is needed"),
    "unsigned": (401, "The signature is missing or wrong"),
    "forbidden": (403, "This is not allowed"),
    "not_found": (404, "There is nothing here"),
    "unknown": (404, "No such schedule"),
    "method_not_allowed": (405, "Not a method of this resource"),
    "conflict": (409, "It is not in a state for this"),
    "not_a_member": (409, "No longer a member of the group"),
    "precondition_failed": (412, "It has changed meanwhile"),
    "too_large": (413, "The body is too large"),
    "media_type": (415, "The content type is not taken here"),
    "key_reused": (422, "The idempotency key was used for another request"),
    "quota": (429, "A quota is used up"),
    "internal": (500, "An error inside Tidings"),
    "unavailable": (503, "Not able to serve this now"),
}


class Refusal(TidingsError):
    """A request that the HTTP edge itself answers with a problem."""

    def __init__(self, kind: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.members: Document = members

    @property
    def status(self) -> int:
        return KINDS[self.kind][0]


def refusal_of(error: Exception) -> Refusal:
    """The refusal that an error of any stage becomes."""
    match error:
        case Refusal():
            return error
        case Invalid():
            return Refusal("invalid", str(error), errors=errors_document(error))
        case KeyReused():
            detail = "this Idempotency-Key came before with another request: use a new key, or repeat that one"
            return Refusal("key_reused", detail)
        case NotAMember():
            return Refusal("not_a_member", _said(error, "join the group again, then fetch"))
        case Conflict():
            return Refusal("conflict", str(error))
        case NotFound():
            return Refusal("not_found", _said(error, "there is no such topic, group or key: check the name"))
        case NotOwner() | StoreError() | BusError():
            detail = plain(_said(error, "this process stands by: try again, or ask the one that owns the store"))
            return Refusal("unavailable", detail, headers={"retry-after": str(RETRY_AFTER_S)})
        case _:
            logger.error("a request failed unexpectedly", exc_info=error)
            return Refusal("internal", "this is a fault of Tidings, not yours: see its log, and try again")


def problem_document(refusal: Refusal) -> Document:
    """The problem's members."""
    status, title = KINDS[refusal.kind]
    problem = {"type": f"urn:tidings:problem:{refusal.kind}", "title": title, "status": status}
    return problem | {"detail": refusal.detail} | refusal.members


def conflict(outcome: OutcomeDocument) -> Refusal:
    """The refusal that a change becomes which did not happen; it carries the outcome's own members."""
    kind = "unknown" if outcome.outcome == "unknown" else "conflict"
    if outcome.reason is not None and "quota" in outcome.reason:
        kind = "quota"
    detail = advice(outcome.outcome, outcome.state, outcome.reason, HTTP)
    members = {name: value for name in _MEMBERS if (value := getattr(outcome, name)) is not None}
    headers = {"retry-after": str(RETRY_AFTER_S)} if kind == "quota" else {}
    return Refusal(kind, detail, headers=headers, **members)


def _said(error: Exception, otherwise: str) -> str:
    return str(error) or otherwise
