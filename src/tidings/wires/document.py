"""The JSON document of a schedule as clients send it, read into a request; what was sent is stored."""

import binascii
from typing import Any, get_args

import msgspec

from tidings.domain.command import Priority
from tidings.domain.destination import BUSES, Bus
from tidings.domain.errors import Invalid
from tidings.domain.lateness import Policy
from tidings.domain.message import Headers
from tidings.domain.request import Past, Request, Timing
from tidings.wires.refusal import refusal, refused_words

PRIORITIES = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}
BUS_WORDS: dict[str, Bus] = {word: word for word in BUSES}
PAST_WORDS: dict[str, Past] = {word: word for word in get_args(Past)}
POLICIES: dict[str, Policy] = {word: word for word in ("fire_latest", "fire_all", "skip")}

# As numbers: looking for a byte by its number is ten times as fast as by a bytes of length one.
_QUOTE, _BACKSLASH, _SPACE, _TAB, _LINE, _RETURN = b'"\\ \t\n\r'
_NULL = b"null"


class Binary(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Bytes that are not text, in the place of a header's value."""

    base64: str


HeaderValue = str | Binary | None
HeaderPairs = list[tuple[str, HeaderValue]] | dict[str, HeaderValue]


class Document(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A schedule as it is sent. `at` and `scheduled_at` are two names of one thing."""

    topic: str | None = None
    id: str | None = None
    at: str | None = None
    scheduled_at: str | None = None
    every: str | None = None
    key: str | None = None
    key_base64: str | None = None
    value: msgspec.Raw = msgspec.Raw()
    value_base64: str | None = None
    headers: HeaderPairs | None = None
    priority: str | None = None
    expires_after: str | None = None
    late: str | None = None
    late_grace: str | None = None
    late_max: str | None = None
    jitter: str | None = None
    labels: dict[str, str] | None = None
    bus: str | None = None
    rrule: str | None = None
    cron: str | None = None
    zone: str | None = None
    start: str | None = None
    until: str | None = None
    count: int | None = None
    rdates: tuple[str, ...] | None = None
    exdates: tuple[str, ...] | None = None
    gap: str | None = None
    overlap: str | None = None
    calendar: str | None = None
    on_excluded: str | None = None
    past: str | None = None


class Named(msgspec.Struct, frozen=True, gc=False):
    """As much of a document as says which one it is."""

    id: str | None = None


_EMPTY = 'is empty: send a JSON object, for example {"topic": "greetings", "value": "hello"}'

FIELDS = tuple(field.name for field in msgspec.structs.fields(Document))
TIMING = tuple(field.name for field in msgspec.structs.fields(Timing))

_decode = msgspec.json.Decoder(Document).decode
_decode_id = msgspec.json.Decoder(Named).decode
_decode_text = msgspec.json.Decoder(str).decode


def read(body: bytes, topic: str | None = None, schedule_id: str | None = None) -> Request:
    """The request that a document makes; raises `Invalid` with the field and what to change.

    `topic` (publishing: it is due now) and `schedule_id` come from a path; the document may only repeat them.
    """
    try:
        document = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise (refusal(error, FIELDS) if body.strip() else Invalid("body", _EMPTY)) from None
    named, key, headers = document.topic, document.key, document.headers
    priority, late = document.priority, document.late
    return Request(
        named if topic is None and named is not None else _topic(document, topic),
        _value(document),
        key.encode() if key is not None and document.key_base64 is None else _key_base64(document),
        _headers(headers) if headers else (),
        document.id if schedule_id is None else _same_id(document, schedule_id),
        document.at if document.scheduled_at is None else _scheduled_at(document),
        document.every,
        Priority.NORMAL if priority is None else _priority(priority),
        document.expires_after,
        None if late is None else _policy(late),
        document.late_grace,
        document.late_max,
        document.jitter,
        document.labels,
        None if document.bus is None else _bus(document.bus),
        timing=timing_of(document),
        past=None if document.past is None else _past(document.past),
    )


def timing_of(document: "Document") -> Timing | None:
    """What a document says about time in more than one word; None if that is nothing."""
    if (
        document.rrule is None
        and document.cron is None
        and document.zone is None
        and document.start is None
        and document.until is None
        and document.count is None
        and not document.rdates
        and not document.exdates
        and document.gap is None
        and document.overlap is None
        and document.calendar is None
        and document.on_excluded is None
    ):
        return None
    given: dict[str, Any] = {name: value for name in TIMING if (value := getattr(document, name)) is not None}
    return Timing(**given)


def id_of(body: bytes) -> str | None:
    """The id that a document gives, whatever else is wrong with it; None if it cannot be made out."""
    try:
        return _decode_id(body).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def compact(raw: bytes, field: str = "value") -> bytes:
    """The same JSON without insignificant whitespace; keys keep their order and numbers their digits."""
    if not raw.isascii():
        _check_utf8(raw, field)
    if _SPACE in raw or _LINE in raw or _TAB in raw or _RETURN in raw:
        return msgspec.json.format(raw, indent=-1)
    return raw


def from_base64(text: str, field: str) -> bytes:
    """The bytes that standard base64 stands for."""
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Invalid(
            field, "is not base64: use the alphabet A-Z a-z 0-9 + / and '=' at the end, without spaces"
        ) from None


def _value(document: Document) -> bytes | None:
    raw = bytes(document.value)
    if document.value_base64 is not None:
        if raw and raw != _NULL:
            raise Invalid("value", "give either 'value' or 'value_base64', not both")
        return from_base64(document.value_base64, "value_base64")
    if not raw or raw == _NULL:
        return None
    if raw[0] != _QUOTE:
        return compact(raw)
    if _BACKSLASH in raw:
        return _text(raw).encode()
    if not raw.isascii():
        _check_utf8(raw, "value")
    return raw[1:-1]


def _text(raw: bytes) -> str:
    try:
        return _decode_text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refusal(error, FIELDS, "value") from None


def _check_utf8(raw: bytes, field: str) -> None:
    """JSON is UTF-8; what is passed on without being looked at must be so too."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise refusal(error, FIELDS, field) from None


def _key_base64(document: Document) -> bytes | None:
    if document.key_base64 is None:
        return None
    if document.key is not None:
        raise Invalid("key", "give either 'key' or 'key_base64', not both")
    return from_base64(document.key_base64, "key_base64")


def _headers(headers: HeaderPairs) -> Headers:
    pairs: Any = headers.items() if type(headers) is dict else headers
    return tuple([(name, value.encode() if type(value) is str else _binary(name, value)) for name, value in pairs])


def _binary(name: str, value: Binary | None) -> bytes | None:
    return None if value is None else from_base64(value.base64, f"headers.{name[:48]}")


def _topic(document: Document, topic: str | None) -> str:
    if topic is None:
        if document.topic is None:
            raise Invalid("topic", 'is missing: say where it goes, for example "topic": "greetings"')
        return document.topic
    if document.topic not in {None, topic}:
        raise Invalid("topic", "is not the one in the path: leave it out here")
    given = ["at"] if document.scheduled_at is not None else []
    given += [name for name in ("at", "every", *TIMING) if getattr(document, name) not in {None, ()}]
    for field in given:
        raise Invalid(field, "publishing is now: leave it out, or use POST /v1/schedules to say when")
    return topic


def _same_id(document: Document, schedule_id: str) -> str:
    if document.id not in {None, schedule_id}:
        raise Invalid("id", "is not the one in the path: leave it out here")
    return schedule_id


def _scheduled_at(document: Document) -> str | None:
    if document.at is not None:
        raise Invalid("scheduled_at", "is another name of 'at': give one of the two")
    return document.scheduled_at


def _priority(word: str) -> Priority:
    priority = PRIORITIES.get(word)
    if priority is None:
        raise refused_words("priority", word, PRIORITIES)
    return priority


def _bus(word: str) -> Bus:
    if word not in BUS_WORDS:
        raise refused_words("bus", word, BUS_WORDS)
    return BUS_WORDS[word]


def _past(word: str) -> Past:
    if word not in PAST_WORDS:
        raise refused_words("past", word, PAST_WORDS)
    return PAST_WORDS[word]


def _policy(word: str) -> Policy:
    policy = POLICIES.get(word)
    if policy is None:
        raise refused_words("late", word, POLICIES)
    return policy
