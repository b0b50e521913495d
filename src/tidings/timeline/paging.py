"""The order of a list of schedules, and where a page of it ends, as text for whoever asks for the next one.

What is still to come is first, the next due first; what is finished follows, the latest due first.
"""

import base64
import binascii
import struct
from typing import NamedTuple

from tidings.domain.errors import Invalid

Key = tuple[int, int]  # due time and arrival


class Place(NamedTuple):
    """Where a schedule stands in a list."""

    finished: bool
    due: int
    arrival: int

    def order(self) -> tuple[bool, int, int]:
        """What lists are sorted by."""
        return (True, -self.due, -self.arrival) if self.finished else self


_FORM = struct.Struct(">?qq")


def encode_cursor(place: Place) -> str:
    """The text for a place."""
    return base64.urlsafe_b64encode(_FORM.pack(*place)).decode().rstrip("=")


def decode_cursor(text: str) -> Place:
    """The place that a text stands for; raises `Invalid`."""
    try:
        return Place(*_FORM.unpack(base64.urlsafe_b64decode(text + "==")))
    except (binascii.Error, struct.error, ValueError):
        raise Invalid("cursor", "is not one that Tidings gave out: leave it out to begin anew") from None
