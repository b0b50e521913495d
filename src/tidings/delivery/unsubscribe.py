"""The link that ends a category for one address with one click (RFC 8058): signed, so that it needs no login.

It carries what it ends, not in secret but unforgeable. It does not expire: an e-mail may lie unread for years.
"""

import binascii
import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.rendered import ChannelName

TAG_BYTES = 16
TOKEN_CHARACTERS_MAX = 2_048
ONE_CLICK = b"List-Unsubscribe=One-Click"  # the body that RFC 8058 prescribes
_PURPOSE = b"tidings unsubscribe 1\n"  # the same key may sign other things


class Unsubscription(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Who does not want what any more."""

    tenant: str
    channel: ChannelName
    address: str
    category: str


def link(base_url: str, key: bytes, wish: Unsubscription) -> str:
    """The URL for one message."""
    content = msgspec.json.encode(wish)
    return f"{base_url}/{urlsafe_b64encode(_tag(key, content) + content).rstrip(b'=').decode()}"


def read(keys: list[bytes], token: str) -> Unsubscription:
    """What a link stands for, if we made it; several keys while one replaces another."""
    try:
        if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii():
            raise ValueError
        raw = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        tag, content = raw[:TAG_BYTES], raw[TAG_BYTES:]
        if not any(hmac.compare_digest(tag, _tag(key, content)) for key in keys):
            raise ValueError
        return msgspec.json.decode(content, type=Unsubscription)
    except (ValueError, binascii.Error):
        raise Invalid("link", "is not one of ours: use the link of the message as it is") from None


def is_one_click(body: bytes) -> bool:
    """Whether a POST is what a mailbox sends by itself; a GET, or anything else, only shows a page with a button."""
    return body.strip() == ONE_CLICK


def _tag(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + content, hashlib.sha256)[:TAG_BYTES]
