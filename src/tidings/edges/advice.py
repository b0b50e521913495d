"""What to do about a change that did not happen, in the words of the edge that tells it."""

import re
from typing import NamedTuple

from tidings.domain.names import BELONGED, BELONGS

SEND_KEY = "send 'Authorization: Bearer <key>'; `tidings keys create` makes one"

TENANT_CHARS_MAX = 229  # a tenant of Kafka's requests is what its topic's name leaves room for

_TENANT = re.compile(rf"[A-Za-z0-9._-]{{1,{TENANT_CHARS_MAX}}}")

NO_ANSWER = "Kafka does not answer: "

_KAFKA_ERROR = re.compile(r'KafkaError\{[^{}"]*str="(.*?)"\}')
_PLAIN = {
    "Failed to get metadata: ": "",
    "Local: Broker transport failure": "no broker can be reached",
    "Local: All broker connections are down": "no broker can be reached",
    "Local: Timed out": "no broker answers in time",
}


class Words(NamedTuple):
    """How an edge names what can be done."""

    replace: str
    reuse: str
    explain: str


HTTP = Words("replace it (PUT)", "PUT it with ?reuse=true", "GET it to see")


def plain(text: str) -> str:
    """What Kafka's client complains of, in words: `KafkaError{code=_TRANSPORT,...}` says nothing to most people."""
    text = _KAFKA_ERROR.sub(r"\1", text)
    for theirs, ours in _PLAIN.items():
        text = text.replace(theirs, ours)
    return text


def wrong_tenant(name: str) -> str | None:
    """Why nobody can be called so, None if somebody can."""
    if _TENANT.fullmatch(name):
        return None
    return f"is not a name of a tenant: use 1 to {TENANT_CHARS_MAX} letters, digits, '.', '_' and '-'"


def advice(outcome: str, state: str | None, reason: str | None, words: Words) -> str:
    """Why a change did not happen, and what to do."""
    anew = f"{words.reuse} to start it anew, or use another id"
    match outcome, state:
        case "unknown", _:
            return "there is no such schedule, or it is no longer remembered: check the id and the tenant"
        case "in_flight", _ if reason:
            return f"it was due and nobody can take it back; it is kept back for now: {reason}"
        case "in_flight", _:
            return f"it was due and is on its way to Kafka, nobody can take it back: {words.explain} how it stands"
        case "already_released", _:
            return f"it has left already: {anew}"
        case "cancelled", _:
            return f"it was cancelled: {anew}"
        case "rejected", _ if reason is not None and reason.startswith((BELONGS, BELONGED)):
            return reason
        case "rejected", "missed":
            return f"{reason or 'it was missed'}: {anew}"
        case "rejected", "pending" | "paused":
            return f"this id holds a schedule with other content: {words.replace}, cancel it, or use another id"
        case _:
            return reason or "look at it again"
