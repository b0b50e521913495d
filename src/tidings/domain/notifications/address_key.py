"""The key of an address: one text for all ways of writing the address, for comparison; and its digest, which identifies
an address after its user was erased.

Suppressions, searches, unsubscriptions, receipts and erasures compare addresses by these keys only.
"""

import re
from functools import lru_cache
from hashlib import blake2b
from unicodedata import normalize
from urllib.parse import quote, urlsplit

from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import (
    Device,
    check_email,
    check_phone,
    check_url,
    domain_to_ascii,
    domain_to_unicode,
    url_origin,
)
from tidings.domain.notifications.message import ChannelName

DIGEST_BYTES = 16
DIGESTS_MAX = 8_192  # in memory: a delivery needs those of its address several times

_PHONE_SEPARATORS = re.compile(r"[\s().\u00b7/\u2010-\u2015-]+")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")  # RFC 3986
_RESERVED = "!#$%&'()*+,/:;=?@[]~"  # not percent-encoded


def address_key(channel: ChannelName, to: str | Device) -> str:
    """The same text for all addresses that reach the same mailbox, telephone, device or receiver.

    The local part of an e-mail address is compared without regard to case, as mailboxes in use do and as is the
    practice for suppressions; messages are sent to the address as it was written.
    """
    if isinstance(to, Device):
        return f"{to.platform}:{to.token}"
    match channel:
        case "email":
            return _email_key(to)
        case "sms":
            return _PHONE_SEPARATORS.sub("", to)
        case "webhook":
            return _url_key(to)
        case _:
            return to


def former_keys(channel: ChannelName, to: str | Device) -> tuple[str, ...]:
    """Other keys under which version 0.1 may have stored an address: as it is written, and for e-mail with its domain
    in Unicode. Empty for most addresses, whose key has not changed."""
    if isinstance(to, Device) or channel not in {"email", "webhook"}:
        return ()
    key = address_key(channel, to)
    former = [to.lower() if channel == "email" else to]
    if channel == "email" and ("xn--" in key or not to.isascii()):
        local, _, domain = key.rpartition("@")
        former.append(f"{local}@{domain_to_unicode(domain)}")
    return tuple(dict.fromkeys(each for each in former if each != key))


def digest(channel: ChannelName, to: str | Device) -> str:
    """The digest of an address, for places where the address itself must not be readable."""
    return _digest(channel, address_key(channel, to))


@lru_cache(DIGESTS_MAX)
def digests(channel: ChannelName, to: str | Device) -> tuple[str, ...]:
    """The digest of an address, then those under which version 0.1 may have stored it."""
    return (digest(channel, to), *(_digest(channel, key) for key in former_keys(channel, to)))


def looks_like(to: str) -> ChannelName:
    """The channel that an address belongs to, by its form; a device is written `apns:<token>` or `fcm:<token>`."""
    if to.startswith(("apns:", "fcm:")):
        return "push"
    if to.lower().startswith(("https://", "http://")):
        return "webhook"
    return "email" if "@" in to else "sms"


def check_channel_address(channel: ChannelName, to: str | Device, field: str) -> None:
    """Refuse an address that is not valid for this channel."""
    if channel == "push" or isinstance(to, Device):
        if channel != "push" or not isinstance(to, Device):
            wanted = "give the platform and the token of the device" if channel == "push" else "give a text"
            raise Invalid(field, f"is not an address for {channel}: {wanted}")
        return
    match channel:
        case "email":
            check_email(to, field)
        case "sms":
            check_phone(to, field)
        case "webhook":
            check_url(to, field)
        case "in_app":
            raise Invalid(field, "only a user has an inbox: give 'user'")


def _digest(channel: ChannelName, key: str) -> str:
    return blake2b(f"{channel}/{key}".encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()


def _email_key(text: str) -> str:
    local, _, domain = text.rpartition("@")
    try:
        domain = domain_to_ascii(domain)
    except ValueError:
        domain = domain.lower()
    if not local.isascii():
        local = normalize("NFC", normalize("NFC", local).lower())
    return f"{local.lower()}@{domain}"


def _url_key(text: str) -> str:
    """A URL normalized by RFC 3986 (6.2.2 and 6.2.3), with its host in ASCII."""
    try:
        parts = urlsplit(text)
        origin = url_origin(text)
    except ValueError:
        return text
    path = _without_dot_segments(_normal_escapes(parts.path))
    return f"{origin}{path}?{_normal_escapes(parts.query)}" if parts.query else f"{origin}{path}"


def _normal_escapes(text: str) -> str:
    """Percent-encoding in upper case, and only where it is needed."""

    def normal(found: re.Match[str]) -> str:
        character = chr(int(found[1], 16))
        return character if character in _UNRESERVED else found[0].upper()

    return _ESCAPED.sub(normal, quote(text, safe=_RESERVED, errors="surrogatepass"))


def _without_dot_segments(path: str) -> str:
    """RFC 3986, 5.2.4: `/a/b/../c/./d` is `/a/c/d`, and no path is `/`."""
    segments = path.split("/")[1:]
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            kept = kept[:-1]
        elif segment != ".":
            kept.append(segment)
    if segments and segments[-1] in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept)
