"""Validates addresses: e-mail addresses, telephone numbers, device tokens and webhook URLs.

Line breaks and NUL are refused everywhere, because they would allow header injection. A domain that DNS cannot
represent is refused too, because a message to it could only fail while it is sent.
"""

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Meta

from tidings.domain.errors import Invalid

Platform = Literal["apns", "fcm"]

PLATFORMS: tuple[Platform, ...] = ("apns", "fcm")

EMAIL_BYTES_MAX = 254  # RFC 5321, a path without its angle brackets
LOCAL_BYTES_MAX = 64
DOMAIN_BYTES_MAX = 253
LABEL_BYTES_MAX = 63
URL_BYTES_MAX = 2_048
ORIGINS_MAX = 4_096  # in memory: the same receivers are called again and again
DOMAINS_MAX = 4_096  # in memory: most addresses have one of a few domains
DEFAULT_PORTS = {"https": 443, "http": 80}

_CONTROL = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LOCAL = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u00a1-\U0010ffff-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u00a1-\U0010ffff-]+)*"
)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")  # 63 bytes at most (RFC 1035)
_DOTS = re.compile(r"[.\u3002\uff0e\uff61]")  # all characters that UTS 46 treats as a dot
_A_LABEL = "xn--"
_CODE_POINT = re.compile(r"U\+([0-9A-F]{4,6})")
_LABEL_TOO_LONG = f"a part between dots is longer than {LABEL_BYTES_MAX} bytes"
_PHONE = re.compile(r"\+[1-9][0-9]{6,14}")
_TOKENS: dict[Platform, re.Pattern[str]] = {
    "apns": re.compile(r"(?:[0-9a-fA-F]{2}){32,100}"),
    "fcm": re.compile(r"[A-Za-z0-9_:.-]{16,4096}"),
}
_TOKEN_FORMS: dict[Platform, str] = {
    "apns": "64 to 200 hexadecimal digits",
    "fcm": "16 to 4096 letters, digits and _ : . -",
}
# Hosts that some resolvers read as an IPv4 address: 0x7f, 0177, 2130706433.
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)")
_AFTER_HOST = re.compile(r"[/?#]")


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One installation of an app, by the token that its push service gave it."""

    platform: Annotated[Platform, Meta(description="The push service.")]
    token: Annotated[str, Meta(description="The token, as the app received it.")]

    def __post_init__(self) -> None:
        if not _TOKENS[self.platform].fullmatch(self.token):
            problem = f"is not a device token of {self.platform}, which has {_TOKEN_FORMS[self.platform]}"
            raise Invalid("token", f"{problem}: send it exactly as the app received it")


def check_line(text: str, field: str) -> str:
    """Refuse a text that cannot be a header or a single line: line breaks, control characters, half surrogate pairs."""
    if text.isprintable():  # then it has none of them; a few other texts, such as those with U+00A0, have none either
        return text
    if _CONTROL.search(text):
        raise Invalid(field, "has a line break or a control character: write it in one line")
    if not text.isascii() and _SURROGATE.search(text):
        raise Invalid(field, "has half of a surrogate pair, which is not a character: write it in UTF-8")
    return text


def check_email(text: str, field: str = "email") -> str:
    """A bare e-mail address, such as `ada@example.com`; without a name, comments or quotes."""
    check_line(text, field)
    local, at, domain = text.rpartition("@")
    if not at or not _LOCAL.fullmatch(local):
        raise Invalid(field, f"{text[:80]!r} is not an e-mail address: write one such as ada@example.com")
    try:
        encoded = domain_to_ascii(domain)
    except ValueError as error:
        problem = f"the domain {domain[:80]!r} is not valid ({error})"
        raise Invalid(
            field, f"{text[:80]!r} is not an e-mail address: {problem}; write one such as ada@example.com"
        ) from None
    local_bytes = len(local) if local.isascii() else len(local.encode())
    if local_bytes + 1 + len(encoded) > EMAIL_BYTES_MAX or local_bytes > LOCAL_BYTES_MAX:
        raise Invalid(field, f"is longer than {EMAIL_BYTES_MAX} bytes, or {LOCAL_BYTES_MAX} before the @")
    return text


def check_phone(text: str, field: str = "phone") -> str:
    """A telephone number in E.164 format."""
    if not _PHONE.fullmatch(text):
        raise Invalid(field, f"{text[:40]!r} is not a telephone number: write + and 7 to 15 digits, such as +15550100")
    return text


@lru_cache(1_024)
def check_url(text: str, field: str = "url") -> SplitResult:
    """The URL of a webhook: http or https, a host, no user, no fragment. Whether it may be called is checked later."""
    check_line(text, field)
    if len(text.encode()) > URL_BYTES_MAX:
        raise Invalid(field, f"is longer than {URL_BYTES_MAX} bytes")
    if re.search(r"[\s\\]", text):
        raise Invalid(field, "has a space or a backslash: write it percent-encoded")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise Invalid(field, f"{text[:80]!r} is not a URL: write one such as https://example.com/hook") from None
    if parts.scheme not in {"http", "https"}:
        raise Invalid(field, "has a scheme other than http and https: write one such as https://example.com/hook")
    if "@" in parts.netloc:
        raise Invalid(field, "carries a user name or a password: leave them out, each call is signed")
    if parts.fragment or "#" in text:
        raise Invalid(field, "has a fragment (#...): leave it out")
    if not _is_host(host):
        raise Invalid(field, f"has no host that can be called: {host[:80]!r}")
    return parts


def literal_ip(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that the host of a URL is, in its canonical form; None if it is a name."""
    try:
        return IPv6Address(host) if ":" in host else IPv4Address(host)
    except AddressValueError:
        return None


@lru_cache(DOMAINS_MAX)
def domain_to_ascii(domain: str) -> str:
    """A domain name in ASCII and lower case, as in DNS (`Müller.de` is `xn--mller-kva.de`).

    `ValueError` with the reason if DNS cannot represent it.
    """
    labels = [_label_to_ascii(label) for label in _DOTS.split(domain)]
    name = ".".join(labels)
    if len(name) > DOMAIN_BYTES_MAX:
        raise ValueError(f"it is longer than {DOMAIN_BYTES_MAX} bytes")
    return name


def domain_to_unicode(domain: str) -> str:
    """The domain name in Unicode; an invalid name stays as it is."""
    if domain.isascii() and _A_LABEL not in domain.lower():
        return domain.lower()
    import idna  # imported late: few names need it

    try:
        return idna.decode(domain, uts46=True)
    except UnicodeError:
        return domain


def url_origin(url: str) -> str:
    """Scheme, host and port of a URL in canonical form, without the default port."""
    scheme, _, rest = url.partition("://")
    return _origin(f"{scheme}://{_AFTER_HOST.split(rest, 1)[0]}")


@lru_cache(ORIGINS_MAX)
def _origin(url: str) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").removesuffix(".")
    address = literal_ip(host)
    if isinstance(address, IPv6Address):
        host = f"[{address.compressed}]"
    elif address is None:
        try:
            host = domain_to_ascii(host)
        except ValueError:
            host = host.lower()
    is_default = parts.port in {None, DEFAULT_PORTS.get(parts.scheme)}
    return f"{parts.scheme}://{host}" if is_default else f"{parts.scheme}://{host}:{parts.port}"


def _is_host(host: str) -> bool:
    if literal_ip(host) is not None:
        return True
    last = host.rstrip(".").rpartition(".")[2]
    if _NUMBER.fullmatch(last):
        return False
    try:
        domain_to_ascii(host.removesuffix("."))
    except ValueError:
        return False
    return True


def _label_to_ascii(label: str) -> str:
    lower = label.lower()
    name = lower if label.isascii() and not lower.startswith(_A_LABEL) else _idna(label)
    if not _LABEL.fullmatch(name):
        if not name:
            raise ValueError("a part between dots is empty")
        if len(name) > LABEL_BYTES_MAX:
            raise ValueError(_LABEL_TOO_LONG)
        raise ValueError("parts consist of letters, digits, '-' and '_', and do not begin or end with '-'")
    return name


@lru_cache(1_024)
def _idna(label: str) -> str:
    import idna  # imported late: only names outside ASCII need it

    try:
        return idna.encode(label, uts46=True).decode()
    except UnicodeError as error:
        raise ValueError(_idna_problem(label, error)) from None


def _idna_problem(label: str, error: UnicodeError) -> str:
    """Why IDNA cannot represent a label, in our own words; of the library's text only the code point is used."""
    if label.lower().startswith(_A_LABEL):
        return f"{label[:80]!r} is not the Punycode of a valid name"
    if "_" in label:
        return "'_' cannot be combined with characters outside ASCII"
    if found := _CODE_POINT.search(str(error)):
        return f"{chr(int(found[1], 16))!r} (U+{found[1]}) is not allowed in domain names"
    if "too long" in str(error):
        return _LABEL_TOO_LONG
    return "its characters cannot be combined in a domain name"
