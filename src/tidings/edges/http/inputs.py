"""The inputs of a request: query, headers and body, each checked against its limits."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.types import Receive, Scope

from tidings.domain.errors import Invalid
from tidings.domain.names import check_storable
from tidings.domain.schedules import iso8601
from tidings.domain.schedules.when import SECOND_US, advance
from tidings.edges.http.problems import Refusal
from tidings.ports import IdempotencyKey
from tidings.shapes.refusal import EMPTY_BODY, refusals, refused_words, shorten

SMALL_BODY_BYTES_MAX = 64 * 1024
QUERY_BYTES_MAX = 8 * 1024
IDEMPOTENCY_KEY_CHARS_MAX = 255
DIGEST_BYTES = 16
DRAINED_BYTES_MAX = 32 << 20

JSON_TYPE = "application/json"
NDJSON_TYPE = "application/x-ndjson"
_NDJSON_TYPES = frozenset({NDJSON_TYPE, "application/ndjson", "application/jsonl", "application/json-lines"})

T = TypeVar("T")


class Disconnected(Exception):
    """The client disconnected before it had sent everything."""


# Headers


def body_kind(headers: Mapping[bytes, bytes]) -> Literal["json", "ndjson"]:
    """Whether the body is declared as JSON or NDJSON; anything else is refused."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Refusal(
            "media_type",
            "compressed bodies are not accepted: leave Content-Encoding out and send the body uncompressed",
        )
    sent = headers.get(b"content-type", b"")
    if sent == b"application/json":
        return "json"
    media = sent.partition(b";")[0].strip().lower().decode("latin-1")
    if media == JSON_TYPE or (media.startswith("application/") and media.endswith("+json")):
        return "json"
    if media in _NDJSON_TYPES:
        return "ndjson"
    got = f"{shorten(media)!r}" if media else "none"
    raise Refusal("media_type", f"got {got}: send 'Content-Type: {JSON_TYPE}', or {NDJSON_TYPE} for many lines")


def accepts_ndjson(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the client asks for lines instead of one document."""
    wanted = headers.get(b"accept", b"").decode("latin-1").lower()
    return any(part.partition(";")[0].strip() in _NDJSON_TYPES for part in wanted.split(","))


def idempotency_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The caller's key for this request, None without one."""
    sent = headers.get(b"idempotency-key")
    if sent is None:
        return None
    key = sent.decode("latin-1").strip()
    if not key or len(key) > IDEMPOTENCY_KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        bound = f"1 to {IDEMPOTENCY_KEY_CHARS_MAX} printable ASCII characters"
        raise Invalid("Idempotency-Key", f"use {bound}, for example a random UUID")
    return key


def idempotency_for(tenant: str, key: str | None, *parts: bytes) -> IdempotencyKey | None:
    """The idempotency key of a request, with the digest that identifies the request; None if it has no key."""
    if key is None:
        return None
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return IdempotencyKey(tenant, key, digest.digest())


def derived_id(key: str) -> str:
    """The id of a schedule that was sent without one, derived from the idempotency key: a repeat has the same id."""
    return f"idem_{blake2b(key.encode(), digest_size=DIGEST_BYTES).hexdigest()}"


# Body


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, bytes_max: int, instead: str = "send less"
) -> bytes:
    """The whole body; refused if it is larger than the limit.

    A body that is too large is read and discarded, up to a limit: closing the connection while the client still sends
    would reset it, and the answer would be lost. A client that waits for `100 Continue` is answered at once.
    """
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > bytes_max:
        if int(declared) <= DRAINED_BYTES_MAX and b"expect" not in headers:
            await _drain(receive, 0)
        raise too_large(bytes_max, instead)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
    else:
        body = await _read_on(message, receive, bytes_max)
    if len(body) > bytes_max:
        raise too_large(bytes_max, instead)
    return body


async def refuse_body(headers: Mapping[bytes, bytes], receive: Receive, instead: str = "leave it out") -> None:
    """Refuse a body where none is used: what it says would be ignored. An empty object says nothing."""
    if (await read_body(headers, receive, SMALL_BODY_BYTES_MAX)).strip() not in {b"", b"{}"}:
        raise Invalid("body", f"must be empty here: {instead}")


async def _read_on(message: Any, receive: Receive, bytes_max: int) -> bytes:
    parts, size = [], 0
    while message["type"] == "http.request":
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > bytes_max and message.get("more_body"):
            await _drain(receive, size)
        if size > bytes_max or not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise Disconnected


async def _drain(receive: Receive, size: int) -> None:
    while size <= DRAINED_BYTES_MAX:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            return


def too_large(bytes_max: int, instead: str = "send less") -> Refusal:
    """The refusal of a body above the limit."""
    detail = f"the body is larger than {bytes_max} bytes: {instead}"
    return Refusal("too_large", detail, headers={"connection": "close"})


def decode(decoder: msgspec.json.Decoder[T], body: bytes, shape: type[msgspec.Struct]) -> T:
    """A JSON object of this shape; an empty body is refused, because it is more often a mistake than an object."""
    if not body.strip():
        raise Invalid("body", EMPTY_BODY)
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusals(error, shape, decoder.decode, body) from None


# Path and query


def path_text(raw: str, field: str) -> str:
    """A path segment, percent-decoded."""
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Invalid(field, "is not valid UTF-8: percent-encode its UTF-8 bytes in the path") from None
    check_storable(text, field)
    return text


def query_of(scope: Scope, *allowed: str) -> dict[str, str]:
    """The parameters of the query; one that is unknown, or given twice, is refused by name."""
    raw: bytes = scope["query_string"]
    if not raw:
        return {}
    if len(raw) > QUERY_BYTES_MAX:
        raise Invalid("query", f"is longer than {QUERY_BYTES_MAX} bytes: ask for less at once")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeError:
        raise Invalid("query", "is not valid UTF-8: percent-encode its UTF-8 bytes") from None
    query: dict[str, str] = {}
    for name, value in pairs:
        if name not in allowed:
            known = f"use {', '.join(allowed)}" if allowed else "this call takes none, leave it out"
            raise Invalid(shorten(name), f"is not a parameter of this call: {known}")
        if name in query:
            raise Invalid(name, "is given twice: give it once")
        check_storable(value, name)
        query[name] = value
    return query


def whole_number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """A whole number within limits."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most):
        raise Invalid(name, f"{shorten(text)!r} is not a whole number from {least} to {most}")
    return int(text)


def yes_or_no(query: Mapping[str, str], name: str) -> bool:
    """A switch: `true` or `false`; false if it is absent."""
    text = query.get(name, "false")
    if text not in {"true", "false"}:
        raise refused_words(name, text, ("true", "false"))
    return text == "true"


def one_of(query: Mapping[str, str], name: str, words: Mapping[str, T]) -> T | None:
    """The value that a word stands for; None if it is absent."""
    text = query.get(name)
    if text is None:
        return None
    if text not in words:
        raise refused_words(name, text, words)
    return words[text]


def moment(query: Mapping[str, str], name: str, now: int) -> int | None:
    """An instant, or a duration from now such as `+1h`, or before now such as `-1h`."""
    text = query.get(name)
    if text is None:
        return None
    if text[:1] == " " or text[-6:-5] == " ":  # a plus sign that was not percent-encoded
        text = text[:-6].replace(" ", "+", 1) + text[-6:].replace(" ", "+", 1)
    if text[:1] == "-":
        return max(0, advance(now, iso8601.parse_duration(text[1:], name), -1))
    if text[:1] in {"+", "P"} or text[-1:] in {"s", "m", "h", "d", "w"}:
        return advance(now, iso8601.parse_duration(text, name))
    return iso8601.parse_instant(text, name)


def window(query: Mapping[str, str], now: int) -> tuple[int | None, int | None]:
    """The moments `from` and `to`, in that order."""
    start, end = moment(query, "from", now), moment(query, "to", now)
    if start is not None and end is not None and start > end:
        raise Invalid("to", "is before 'from': swap them, or change one")
    return start, end


def seconds(text: str | None, name: str, most_s: int) -> int:
    """A short duration in microseconds, from `30s`, `PT30S` or plain seconds; 0 if it is absent."""
    if text is None or text in {"0", "0s", "PT0S"}:
        return 0
    us = iso8601.parse_exact_duration(f"{text}s" if text.isascii() and text.isdigit() else text, name)
    if us > most_s * SECOND_US:
        raise Invalid(name, f"is above the maximum of {most_s} s: wait for less, and repeat the request")
    return us
