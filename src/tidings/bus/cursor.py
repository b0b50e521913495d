"""Cursors: a position over all partitions of a topic, as opaque text that fits into a URL."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated

import msgspec

from tidings.domain.errors import Invalid

LATEST = "latest"
CURSOR_CHARS_MAX = 4_096

_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_decoder = msgspec.msgpack.Decoder(tuple[_Offset, ...])
_HINT = "send back a cursor just as an answer gave it, `latest`, or none to start at the beginning"


def encode(positions: tuple[int, ...]) -> str:
    """The cursor for the next offset of every partition."""
    return urlsafe_b64encode(msgspec.msgpack.encode(positions)).rstrip(b"=").decode("ascii")


def positions_of(text: str) -> tuple[int, ...]:
    """The positions that a cursor stands for; raises `Invalid` for anything that `encode` did not make."""
    if len(text) > CURSOR_CHARS_MAX:
        raise Invalid("cursor", f"is longer than {CURSOR_CHARS_MAX} characters: {_HINT}")
    try:
        positions = _decoder.decode(urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, msgspec.MsgspecError):
        raise Invalid("cursor", f"cannot be read: {_HINT}") from None
    if encode(positions) != text:  # characters that base64 passes over, or bits that it ignores
        raise Invalid("cursor", f"cannot be read: {_HINT}")
    return positions


def decode(text: str, partitions: int) -> tuple[int, ...]:
    """The same, for so many partitions."""
    positions = positions_of(text)
    if len(positions) != partitions:
        raise Invalid(
            "cursor",
            f"is for {len(positions)} partitions, this topic has {partitions}: leave it out to start again",
        )
    return positions
