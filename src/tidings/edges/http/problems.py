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
from tidings.edges.advice import HTTP, advice, kafka_text
from tidings.wires.answers import Document, OutcomeDocument, errors_document

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
_MEMBERS = tuple(field.name for field in msgspec.structs.fields(OutcomeDocument))

logger = logging.getLogger(__name__)

# slug: status, title
KINDS: dict[str, tuple[int, str]] = {
    "invalid": (400, "The request cannot be accepted"),
    "unauthorized": (401, "An API key is needed"),
    "unsigned": (401, "The signature is missing or wrong"),
    "forbidden": (403, "This is not allowed"),
    "not_found": (404, "Not found"),
    "unknown": (404, "No such schedule"),
    "method_not_allowed": (405, "The method is not allowed"),
    "conflict": (409, "Its state does not allow this"),
    "not_a_member": (409, "No longer a member of the group"),
    "precondition_failed": (412, "The precondition is not met"),
    "too_large": (413, "The body is too large"),
    "media_type": (415, "The content type is not accepted"),
    "key_reused": (422, "The idempotency key was used for another request"),
    "quota": (429, "A quota is used up"),
    "internal": (500, "An internal error"),
    "unavailable": (503, "Temporarily unavailable"),
}


class Refusal(TidingsError):
    """An error that is answered as a problem of this kind."""

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
    """The refusal for any error; unexpected ones are logged and become a 500."""
    match error:
        case Refusal():
            return error
        case Invalid():
            return Refusal("invalid", str(error), errors=errors_document(error))
        case KeyReused():
            detail = "this Idempotency-Key was used before for another request: use a new key, or repeat that request"
            return Refusal("key_reused", detail)
        case NotAMember():
            return Refusal("not_a_member", _text_of(error, "join the group again, then fetch"))
        case Conflict():
            return Refusal("conflict", str(error))
        case NotFound():
            return Refusal("not_found", _text_of(error, "there is no such topic, group or key: check the name"))
        case NotOwner() | StoreError() | BusError():
            detail = kafka_text(
                _text_of(error, "this process is a standby: try again, or ask the process that owns the store")
            )
            return Refusal("unavailable", detail, headers={"retry-after": str(RETRY_AFTER_S)})
        case _:
            logger.error("a request failed unexpectedly", exc_info=error)
            return Refusal("internal", "an internal error of Tidings: see its log, and try again")


def problem_document(refusal: Refusal) -> Document:
    """The members of a problem document."""
    status, title = KINDS[refusal.kind]
    problem = {"type": f"urn:tidings:problem:{refusal.kind}", "title": title, "status": status}
    return problem | {"detail": refusal.detail} | refusal.members


def conflict(outcome: OutcomeDocument) -> Refusal:
    """The refusal for a change that did not happen, with the members of its outcome."""
    kind = "unknown" if outcome.outcome == "unknown" else "conflict"
    if outcome.reason is not None and "quota" in outcome.reason:
        kind = "quota"
    detail = advice(outcome.outcome, outcome.state, outcome.reason, HTTP)
    members = {name: value for name in _MEMBERS if (value := getattr(outcome, name)) is not None}
    headers = {"retry-after": str(RETRY_AFTER_S)} if kind == "quota" else {}
    return Refusal(kind, detail, headers=headers, **members)


def _text_of(error: Exception, default: str) -> str:
    return str(error) or default
