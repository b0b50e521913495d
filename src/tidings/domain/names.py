"""Names and ids: what they may be made of, everywhere the same."""

import re

from tidings.domain.errors import Invalid

DEFAULT_TENANT = "default"
ID_BYTES_MOST = 999  # what every store can hold
BEHIND_BYTES_MAX = 99  # what a delivery has behind an id: its occurrence, its channel, its turn

# How a refusal begins that concerns the id of a notification; the command line shows it as it is.
BELONGS = "this schedule belongs to notification"
BELONGED = "this id belonged to a notification"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ID_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def check_name(text: object, field: str) -> None:
    """Refuse what cannot be the name of a key or a tenant."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise Invalid(field, "use 1 to 63 letters, digits, '.', '_' and '-', the first a letter or digit")


def check_id(text: str, bytes_max: int, field: str = "id") -> None:
    """Refuse what cannot be the id of a schedule, nor a part of one."""
    if not text or _ID_FORBIDDEN.search(text):
        raise Invalid(field, "is empty or holds control characters: leave it out, or use printable text")
    if len(text.encode()) > bytes_max:
        raise Invalid(field, f"is longer than {bytes_max} bytes of UTF-8")
