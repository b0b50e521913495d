"""Valid names and ids, and the words for priorities, policies, states and outcomes."""

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

from tidings.domain.errors import Invalid

DEFAULT_TENANT = "default"
ID_BYTES_MOST = 999  # the longest id that every store can hold
_SHORT_CHARS = ID_BYTES_MOST // 4  # a text of so many characters never exceeds ID_BYTES_MOST
SUFFIX_BYTES_MAX = 99  # what the id of a delivery appends to that of its schedule: occurrence, channel, turn

# How a refusal begins that concerns the id of a notification; the command line shows it as it is.
BELONGS = "this schedule belongs to notification"
BELONGED = "this id belonged to a notification"
NOT_RELEASED = "will not be released: missed"  # part of a note; the command line prints it instead of the due time

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ID_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def check_name(text: object, field: str) -> None:
    """Refuse an invalid name of an API key, a tenant or a calendar."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise Invalid(field, "use 1 to 63 letters, digits, '.', '_' and '-', the first a letter or digit")


def check_id(text: str, bytes_max: int, field: str = "id") -> None:
    """Refuse an invalid id of a schedule."""
    if not text or _ID_FORBIDDEN.search(text):
        raise Invalid(field, "is empty or has control characters: leave it out, or use printable text")
    if len(text.encode()) > bytes_max:
        raise Invalid(field, f"is longer than {bytes_max} bytes of UTF-8")


def is_storable(text: str) -> bool:
    """Whether every store can hold a text: PostgreSQL refuses a NUL character, and UTF-8 half of a surrogate pair."""
    return "\0" not in text if text.isascii() else _UNSTORABLE.search(text) is None


def is_storable_id(text: str) -> bool:
    """Whether every store can hold an id. A longer one would be cut off, and stored as another id."""
    return is_storable(text) and (len(text) <= _SHORT_CHARS or len(text.encode()) <= ID_BYTES_MOST)


def first_unstorable_id(ids: Sequence[str]) -> int | None:
    """The index of the first id that not every store can hold. Most ids are plain ASCII, so all are checked at once."""
    together = "".join(ids)
    if together.isascii() and "\0" not in together and max(map(len, ids), default=0) <= ID_BYTES_MOST:
        return None
    return next((index for index, text in enumerate(ids) if not is_storable_id(text)), None)


def encoded(text: str, field: str) -> bytes:
    """A text as UTF-8; `Invalid` if it holds half of a character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise half_character(field) from None


def half_character(field: str) -> Invalid:
    """The refusal of a text that UTF-8 cannot express."""
    return Invalid(field, "contains half of a surrogate pair, which is not valid text: give whole characters")


def check_storable(text: str, field: str) -> None:
    """Refuse a text that not every store can hold."""
    if not is_storable(text):
        raise Invalid(field, "holds a NUL character or half of a surrogate pair, which cannot be stored: remove it")


def check_storable_id(text: str, field: str = "id") -> None:
    """Refuse an id that not every store can hold."""
    check_storable(text, field)
    if not is_storable_id(text):
        raise Invalid(field, f"is longer than {ID_BYTES_MOST} bytes of UTF-8, the most that can be stored")


class Priority(IntEnum):
    """The order of release when more is due than one batch holds; a lower number comes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


Bus = Literal["log", "kafka"]
BUSES: tuple[Bus, ...] = ("log", "kafka")
PriorityName = Literal["high", "normal", "low"]
Policy = Literal["fire_latest", "fire_all", "skip"]
Past = Literal["send", "refuse"]  # what happens to a schedule whose time has passed
State = Literal["pending", "paused", "in_flight", "released", "missed", "cancelled", "ended"]
OutcomeWord = Literal[
    "scheduled",
    "released",
    "replaced",
    "unchanged",
    "cancelled",
    "paused",
    "resumed",
    "fired",
    "in_flight",
    "already_released",
    "unknown",
    "rejected",
]
Mark = Literal["moved", "skipped", "first", "second"]  # what a DST change did to an occurrence
