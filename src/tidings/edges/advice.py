"""Texts that the HTTP API and the command line share: why a change did not happen and what to do, tenants, Kafka."""

import re
from typing import NamedTuple

from tidings.domain.names import BELONGED, BELONGS

SEND_KEY = "send 'Authorization: Bearer <key>'; `tidings keys create` creates one"

TENANT_CHARS_MAX = 229  # the name of a tenant's rejection topic on Kafka leaves room for this many

NO_ANSWER = "Kafka does not answer: "

_TENANT = re.compile(rf"[A-Za-z0-9._-]{{1,{TENANT_CHARS_MAX}}}")
_KAFKA_ERROR = re.compile(r'KafkaError\{[^{}"]*str="(.*?)"\}')
_KAFKA_TEXTS = {
    "Failed to get metadata: ": "",
    "Local: Broker transport failure": "no broker can be reached",
    "Local: All broker connections are down": "no broker can be reached",
    "Local: Timed out": "no broker answers in time",
}


class NextSteps(NamedTuple):
    """How a client of an edge replaces a schedule, reuses its id, and looks at it."""

    replace: str
    reuse: str
    explain: str


HTTP = NextSteps("replace it (PUT)", "PUT it with ?reuse=true", "GET it to see")


def kafka_text(text: str) -> str:
    """An error of Kafka's client in plain words instead of `KafkaError{code=_TRANSPORT,...}`."""
    text = _KAFKA_ERROR.sub(r"\1", text)
    for theirs, ours in _KAFKA_TEXTS.items():
        text = text.replace(theirs, ours)
    return text


def wrong_tenant(name: str) -> str | None:
    """What is wrong with the name of a tenant; None if it is valid."""
    if _TENANT.fullmatch(name):
        return None
    return f"is not a valid tenant name: use 1 to {TENANT_CHARS_MAX} letters, digits, '.', '_' and '-'"


def advice(outcome: str, state: str | None, reason: str | None, steps: NextSteps) -> str:
    """Why a change did not happen, and what to do."""
    belonged = reason if reason is not None and reason.startswith((BELONGS, BELONGED)) else None
    start_again = f"{steps.reuse} to start it again, or use another id"
    match outcome, state:
        case "unknown", _:
            return "there is no such schedule, or it is no longer remembered: check the id and the tenant"
        case "in_flight", _ if reason:
            return f"it was due and can no longer be changed; it is held for now: {reason}"
        case "in_flight", _:
            return f"it was due and is on its way to Kafka, so it can no longer be changed: {steps.explain} its state"
        case "already_released", _ if belonged:
            return f"it has been released already, and {belonged}"
        case "already_released", _:
            return f"it has been released already: {start_again}"
        case "cancelled", _ if belonged:
            return f"it was cancelled, and {belonged}"
        case "cancelled", _:
            return f"it was cancelled: {start_again}"
        case "rejected", _ if belonged:
            return belonged
        case "rejected", "missed":
            return f"{reason or 'it was missed'}: {start_again}"
        case "rejected", "pending" | "paused":
            return f"this id belongs to a schedule with other content: {steps.replace}, cancel it, or use another id"
        case _:
            return reason or "its state has changed: look at it again"
