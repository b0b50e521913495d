"""Where a page of schedules ends, as text for whoever asks for the next one."""

import base64
import binascii
import struct

from tidings.domain.errors import Invalid

Key = tuple[int, int]  # due time and arrival, the order of pages


def encode_cursor(key: Key) -> str:
    """The text for a key."""
    return base64.urlsafe_b64encode(struct.pack(">qq", *key)).decode().rstrip("=")


def decode_cursor(text: str) -> Key:
    """The key that a text stands for; raises `Invalid`."""
    try:
        due, arrival = struct.unpack(">qq", base64.urlsafe_b64decode(text + "=="))
    except (binascii.Error, struct.error, ValueError):
        raise Invalid("cursor", "is not one that Tidings gave out: leave it out to begin anew") from None
    return due, arrival
