"""Readers of the built-in log: pages of records from a cursor on, with long polling and streaming.

A cursor is a position over all partitions of a topic, encoded as an opaque text that is safe in a URL. A page takes
fair shares of the partitions. A wait registers before it reads, so no wake-up is lost.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated

import msgspec

from tidings.domain.errors import Invalid

LATEST = "latest"
CURSOR_CHARS_MAX = 4_096

_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_decoder = msgspec.msgpack.Decoder(tuple[_Offset, ...])
_HINT = "send a cursor exactly as a response returned it, `latest`, or none to start at the beginning"


def encode(positions: tuple[int, ...]) -> str:
    """Encode the next offset of every partition as a cursor."""
    return urlsafe_b64encode(msgspec.msgpack.encode(positions)).rstrip(b"=").decode("ascii")


def positions_of(text: str) -> tuple[int, ...]:
    """Decode a cursor into positions; raises `Invalid` for any text that `encode` did not produce."""
    if len(text) > CURSOR_CHARS_MAX:
        raise Invalid("cursor", f"is longer than {CURSOR_CHARS_MAX} characters: {_HINT}")
    try:
        positions = _decoder.decode(urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, msgspec.MsgspecError):
        raise Invalid("cursor", f"cannot be read: {_HINT}") from None
    if encode(positions) != text:  # the base64 decoder skips unknown characters and ignores trailing bits
        raise Invalid("cursor", f"cannot be read: {_HINT}")
    return positions


def decode(text: str, partitions: int) -> tuple[int, ...]:
    """Decode a cursor and check that it is for a topic with this many partitions."""
    positions = positions_of(text)
    if len(positions) != partitions:
        raise Invalid(
            "cursor",
            f"is for {len(positions)} partitions, but this topic has {partitions}: leave it out to start again",
        )
    return positions
