"""What requests about notifications have in common: their bodies, versions, pages, and what is not there."""

from typing import TypeVar, get_args

import msgspec

from tidings.domain.delivery import State
from tidings.domain.errors import Conflict, Invalid
from tidings.domain.rendered import CHANNEL_NAMES, ChannelName
from tidings.edges.http.inputs import body_kind, decode, one_of, read_body, whole_number
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routing import Call
from tidings.wires.refusal import refused_words, shorten

PAGE_ROWS = 100
PAGE_ROWS_MAX = 1_000
CHANNELS: dict[str, ChannelName] = {name: name for name in CHANNEL_NAMES}
STATES: dict[str, State] = {word: word for word in get_args(State)}

T = TypeVar("T")


async def sent(call: Call, decoder: msgspec.json.Decoder[T], kind: type[msgspec.Struct], bytes_max: int) -> T:
    """What a body says; a field that is not known is refused by name."""
    if body_kind(call.headers) != "json":
        raise Refusal(
            "media_type", "this endpoint takes one document, not NDJSON: send 'Content-Type: application/json'"
        )
    body = await read_body(call.headers, call.receive, bytes_max)
    return decode(decoder, body, kind)


def limit_of(query: dict[str, str]) -> int:
    """How many a page may have."""
    return whole_number(query, "limit", PAGE_ROWS, 1, PAGE_ROWS_MAX)


def channel_of(query: dict[str, str]) -> ChannelName | None:
    """The channel that is asked for."""
    return one_of(query, "channel", CHANNELS)


def channel_in_path(call: Call) -> ChannelName:
    """The channel of a path."""
    text = call.text("channel")
    if text not in CHANNELS:
        raise refused_words("channel", text, CHANNELS)
    return CHANNELS[text]


def unknown(what: str, name: str, where: str = "") -> Refusal:
    """The answer about something that is not there."""
    hint = f"GET {where} lists them" if where else "check the id and the tenant"
    return Refusal("not_found", f"unknown {what} {shorten(name)!r}: {hint}", id=name, outcome="unknown")


# Versions


def version_tag(version: int) -> bytes:
    """A version as an ETag."""
    return b'"%d"' % version


class Expected:
    """What a request expects to find: a version, anything at all, or nothing."""

    def __init__(self, call: Call) -> None:
        wanted, unwanted = call.headers.get(b"if-match"), call.headers.get(b"if-none-match")
        self.version: int | None = None
        self.is_there = wanted is not None
        self.asked = wanted is not None or unwanted is not None
        if unwanted is not None:
            if unwanted.strip() != b"*" or wanted is not None:
                raise Invalid("If-None-Match", "only '*' is supported here, and not together with If-Match")
            self.version = 0
        elif wanted is not None and wanted.strip() != b"*":
            self.version = _version(wanted)

    def failed(self, conflict: Conflict) -> Refusal:
        """The answer to a change that found something else."""
        return Refusal("precondition_failed" if self.asked else "conflict", str(conflict))


def _version(tag: bytes) -> int:
    text = tag.strip().strip(b'"')
    if not text.isdigit() or len(text) > 18:
        raise Refusal("precondition_failed", "it does not match If-Match: GET it, and send its current ETag")
    return int(text) or -1
