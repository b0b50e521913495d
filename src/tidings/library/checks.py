"""Refusals for values of the wrong type, in the words of a Python program: the field, and what to give."""

import re
from typing import TypeVar

import msgspec

from tidings.domain.errors import Invalid

_DURATION = "a timedelta, or text such as 'PT1H' or '90s'"
TAKES = {
    "topic": "text, such as 'greetings'",
    "id": "text, such as 'order-42'",
    "value": "bytes, text, None, or what can be JSON",
    "key": "text, bytes or None",
    "headers": "a mapping of names to text, bytes or None, or pairs of these, such as [('trace', 'abc')]",
    "at": "an aware datetime, a timedelta, or text such as '+5s'",
    "every": "a timedelta, or text such as 'PT10M' or 'R5/2026-11-20T09:00:00Z/PT1H'",
    "priority": "'high', 'normal' or 'low'",
    "late": "'fire_latest', 'fire_all' or 'skip'",
    **dict.fromkeys(("expires_after", "late_grace", "late_max", "jitter"), _DURATION),
    "past": "'send' or 'refuse'",
    "labels": "a dictionary of texts, such as {'campaign': 'autumn'}",
    "state": "'pending', 'paused', 'in_flight', 'released', 'missed', 'cancelled' or 'ended'",
    "prefix": "text, such as 'order-'",
    "label": "a pair of texts, such as ('campaign', 'autumn')",
    "start": "'beginning', 'latest' or a cursor",
    "requests": "what tidings.make_request makes",
}

_FIELD = re.compile(r"`\$\.(\w+)")

Struct = TypeVar("Struct", bound=msgspec.Struct)


def wrong(field: str) -> Invalid:
    """The refusal of a value that is not of a type which this field takes."""
    return Invalid(field, f"give {TAKES[field]}")


def check_text(text: object, field: str) -> None:
    """Refuse what is not text, or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise wrong(field)
    encoded(text, field)


def encoded(text: str, field: str) -> bytes:
    """The text as UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _half(field) from None


def checked(struct: Struct) -> Struct:
    """The struct with each field as its type says, by way of its packed form; raises `Invalid` for one that is not."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(struct), type=type(struct))
    except msgspec.ValidationError as error:
        raise wrong(_FIELD.findall(str(error))[0]) from None
    except (TypeError, ValueError, OverflowError, RecursionError):
        for field, value in msgspec.structs.asdict(struct).items():
            _check_packs(value, field)
        raise


def _check_packs(value: object, field: str) -> None:
    try:
        msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        raise _half(field) from None
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise wrong(field) from None


def _half(field: str) -> Invalid:
    return Invalid(field, "holds half of a surrogate pair, which is no text: give whole characters")
