"""The link that ends a category for one address with one click (RFC 8058): unforgeable, so that it needs no login.

It carries what it ends, sealed: links are written to the logs of proxies, where nobody's address belongs. The same
request has the same link in every attempt (AES-SIV needs no nonce). It does not expire: an e-mail may be opened after
years.
"""

import binascii
import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import ChannelName

NO_LINK = (
    "e-mail of categories other than transactional is sent without an unsubscribe link (List-Unsubscribe), which large "
    "mailbox providers require of bulk mail: set delivery.public_url and delivery.link_key"
)
TOKEN_CHARACTERS_MAX = 2_048
ONE_CLICK = b"List-Unsubscribe=One-Click"  # the body that RFC 8058 prescribes
_PURPOSE = b"tidings unsubscribe 2\n"  # the same key may serve other things


class Unsubscription(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Who does not want what any more."""

    tenant: str
    channel: ChannelName
    address: str
    category: str


def link(base_url: str, key: bytes, unsubscription: Unsubscription) -> str:
    """The URL for one message."""
    sealed = _seal(key).encrypt(msgspec.json.encode(unsubscription), None)
    return f"{base_url}/{urlsafe_b64encode(sealed).rstrip(b'=').decode()}"


def read(keys: list[bytes], token: str) -> Unsubscription:
    """What a link stands for, if we made it; several keys while one replaces another."""
    try:
        if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii():
            raise ValueError
        sealed = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        content = next(filter(None, (_opened(key, sealed) for key in keys)), None)
        if content is None:
            raise ValueError
        return msgspec.json.decode(content, type=Unsubscription)
    except (ValueError, binascii.Error):
        raise Invalid("link", "is not a valid unsubscribe link: use the link from the message unchanged") from None


def is_one_click(body: bytes) -> bool:
    """Whether a POST is what a mailbox sends by itself; a GET, or anything else, only shows a page with a button."""
    return body.strip() == ONE_CLICK


@lru_cache(maxsize=4)
def _seal(key: bytes) -> AESSIV:
    return AESSIV(hmac.digest(key, _PURPOSE, hashlib.sha512))


def _opened(key: bytes, sealed: bytes) -> bytes | None:
    try:
        return _seal(key).decrypt(sealed, None)
    except InvalidTag:
        return None
