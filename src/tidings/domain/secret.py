"""A secret that cannot slip out: it shows as `***` wherever a value is shown, and only `reveal` gives it away."""

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import NoReturn
from urllib.parse import quote

from tidings.domain.errors import Invalid

HIDDEN = "***"
SHORTEST = 4  # a shorter text is no secret, and hiding it would hide ordinary words


class Secret:
    """A text from the environment or from a file. It is neither compared, stored nor written by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one place that needs it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not stored")


def hide(text: str, secrets: Iterable[Secret]) -> str:
    """A text of somebody else (a provider's answer, an error) without the secrets that it may repeat."""
    for secret in secrets:
        plain = secret.reveal()
        if len(plain) >= SHORTEST:
            text = text.replace(plain, HIDDEN).replace(quote(plain, safe=""), HIDDEN)
    return text


PREFIX = "whsec_"
KEY_BYTES_LEAST, KEY_BYTES_MOST = 24, 64
TOLERANCE_S = 300


def read_key(secret: Secret, field: str) -> bytes:
    """The bytes of a secret."""
    try:
        key = b64decode(secret.reveal().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not KEY_BYTES_LEAST <= len(key) <= KEY_BYTES_MOST:
        raise Invalid(field, f"is not {PREFIX} and base64 of {KEY_BYTES_LEAST} to {KEY_BYTES_MOST} bytes")
    return key


def derive(master: bytes, tenant: str, origin: str) -> bytes:
    """The key for one receiver: who knows it can check what comes to him, and forge nothing for another."""
    return hmac.digest(master, f"{tenant}\n{origin}".encode(), hashlib.sha256)


def written(key: bytes) -> str:
    """A key as a receiver configures it."""
    return PREFIX + b64encode(key).decode()


def sign(keys: Iterable[bytes], message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The three headers. Several keys, while one replaces another, give several signatures."""
    signed = f"{message_id}.{at_s}.".encode() + body
    signatures = [b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def verify(keys: Iterable[bytes], headers: Mapping[str, str], body: bytes, now_s: int) -> str:
    """The id of a message that was signed with one of the keys, not long ago; `Invalid` says what is wrong."""
    message_id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not message_id or not (at.isascii() and at.isdigit() and len(at) <= 12):
        raise Invalid("webhook-timestamp", "or webhook-id is missing, or no number of seconds")
    if abs(now_s - int(at)) > TOLERANCE_S:
        raise Invalid("webhook-timestamp", f"is more than {TOLERANCE_S} s away from now: check the clocks")
    signed = f"{message_id}.{at}.".encode() + body
    given = [text[3:] for text in headers.get("webhook-signature", "").split() if text.startswith("v1,")]
    for key in keys:
        expected = b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        if any(hmac.compare_digest(expected.encode(), text.encode()) for text in given):
            return message_id
    raise Invalid("webhook-signature", "is not of this message: check the secret")
