"""Secrets that are not shown in logs or `explain`, and the signatures of messages that are made with them."""

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NoReturn
from urllib.parse import quote

from tidings.domain.errors import Invalid

HIDDEN = "***"
SHORTEST = 4  # shorter texts are not hidden: they occur in ordinary words


class Secret:
    """A secret from the environment or from a file. It prints as `***` and cannot be pickled; `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The secret itself, for the one place that needs it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def hide(text: str, secrets: Iterable[Secret]) -> str:
    """A foreign text (a provider's response, an error) with the secrets in it replaced by `***`."""
    for secret in secrets:
        plain = secret.reveal()
        if len(plain) >= SHORTEST:
            text = text.replace(plain, HIDDEN).replace(quote(plain, safe=""), HIDDEN)
    return text


PREFIX = "whsec_"
KEY_BYTES_LEAST, KEY_BYTES_MOST = 24, 64
TOLERANCE_S = 300
KEYS_KEPT = 1_024  # ready to sign
BLOCK_BYTES = 64  # of SHA-256


def read_key(secret: Secret, field: str) -> bytes:
    """The key in a secret, decoded from base64."""
    try:
        key = b64decode(secret.reveal().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not KEY_BYTES_LEAST <= len(key) <= KEY_BYTES_MOST:
        raise Invalid(field, f"is not {PREFIX} and the base64 of {KEY_BYTES_LEAST} to {KEY_BYTES_MOST} bytes")
    return key


def derive(master: bytes, tenant: str, origin: str) -> bytes:
    """The key for one receiver, which can verify its own messages with it but cannot forge those for another."""
    return hmac.digest(master, f"{tenant}\n{origin}".encode(), "sha256")


def written(key: bytes) -> str:
    """The secret of a key, as a receiver configures it."""
    return PREFIX + b64encode(key).decode()


def sign(keys: Iterable[bytes], message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The three headers of a signed message. During key rotation there are several keys, and a signature by each."""
    signed = f"{message_id}.{at_s}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join([f"v1,{_signature(key, signed)}" for key in keys]),
    }


def _signature(key: bytes, signed: bytes) -> str:
    """HMAC-SHA256 (RFC 2104) in base64.

    It is `sha256(outer pad + sha256(inner pad + text))`. `hmac.digest` gives up the interpreter lock for every text,
    and the event loop then has to wait for it; `hashlib` does so only above 2,047 bytes.
    """
    inner, outer = (pad.copy() for pad in _pads(key))
    inner.update(signed)
    outer.update(inner.digest())
    return binascii.b2a_base64(outer.digest(), newline=False).decode()


@lru_cache(KEYS_KEPT)
def _pads(key: bytes) -> tuple["hashlib._Hash", "hashlib._Hash"]:
    """The hashes of the inner and the outer pad of a key, ready to be copied: most messages share their key."""
    block = (key if len(key) <= BLOCK_BYTES else hashlib.sha256(key).digest()).ljust(BLOCK_BYTES, b"\0")
    return hashlib.sha256(bytes(each ^ 0x36 for each in block)), hashlib.sha256(bytes(each ^ 0x5C for each in block))


def verify(keys: Iterable[bytes], headers: Mapping[str, str], body: bytes, now_s: int) -> str:
    """The id of a message with a recent signature by one of the keys; otherwise `Invalid` says what is wrong."""
    message_id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not message_id or not (at.isascii() and at.isdigit() and len(at) <= 12):
        raise Invalid("webhook-timestamp", "is not a number of seconds, or it or webhook-id is missing: send both")
    if abs(now_s - int(at)) > TOLERANCE_S:
        raise Invalid("webhook-timestamp", f"is more than {TOLERANCE_S} s away from now: check the clocks")
    signed = f"{message_id}.{at}.".encode() + body
    given = [text[3:] for text in headers.get("webhook-signature", "").split() if text.startswith("v1,")]
    for key in keys:
        expected = _signature(key, signed).encode()
        if any(hmac.compare_digest(expected, text.encode()) for text in given):
            return message_id
    raise Invalid("webhook-signature", "does not match this message: check the secret")


DETAIL_CHARACTERS_MAX = 300


def shortened(text: str, secrets: Iterable[Secret] = ()) -> str:
    """A foreign text fit for a log: one line, bounded, without our secrets."""
    line = " ".join("".join(c if c.isprintable() else " " for c in hide(text, secrets)).split())
    return line if len(line) <= DETAIL_CHARACTERS_MAX else line[: DETAIL_CHARACTERS_MAX - 3] + "..."
