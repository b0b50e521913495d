"""A rendered message for one channel and one address, validated when it is built; and the segments of text messages.

`id` is the same in every attempt, so that a provider which supports idempotency delivers the message once.
"""

from typing import Literal

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device, check_email, check_line, check_phone, check_url

ChannelName = Literal["email", "sms", "push", "webhook", "in_app"]
Urgency = Literal["high", "normal"]
Encoding = Literal["GSM-7", "UCS-2"]

CHANNEL_NAMES: tuple[ChannelName, ...] = ("email", "sms", "push", "webhook", "in_app")

ID_BYTES_MAX = 256
SUBJECT_CHARACTERS_MAX = 500
BODY_BYTES_MAX = 1 << 20
CHARACTER_BYTES_MAX = 4  # in UTF-8
SMS_CHARACTERS_MAX = 1_600  # ten segments; Twilio refuses more
GSM_ALONE, GSM_PART = 160, 153  # septets; each of several parts uses seven for its header
UCS_ALONE, UCS_PART = 70, 67  # units of 16 bits

_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENDED = frozenset("\f^{}\\[~]|€")  # each is preceded by an escape, and the two are not split


class Email(msgspec.Struct, frozen=True, gc=False):
    """An e-mail; `unsubscribe_url` becomes the one-click header of RFC 8058."""

    id: str
    to: str
    subject: str
    text: str
    html: str | None = None
    to_name: str | None = None
    unsubscribe_url: str | None = None
    tenant: str = "default"

    def __post_init__(self) -> None:
        _check_id(self.id)
        check_email(self.to, "to")
        _check_title(self.subject, "subject")
        _check_body(self.text, "text")
        if self.html is not None:
            _check_body(self.html, "html")
        if self.to_name is not None:
            _check_title(self.to_name, "to_name")
        if self.unsubscribe_url is not None and not check_url(self.unsubscribe_url, "unsubscribe_url").path.isascii():
            raise Invalid("unsubscribe_url", "is not ASCII: write it percent-encoded")


class Sms(msgspec.Struct, frozen=True, gc=False):
    """A text message."""

    id: str
    to: str
    text: str
    tenant: str = "default"

    def __post_init__(self) -> None:
        _check_id(self.id)
        check_phone(self.to, "to")
        if "\x00" in self.text or not self.text.strip():
            raise Invalid("text", "is empty or has a NUL character: write some text")
        if len(self.text) > SMS_CHARACTERS_MAX:
            raise Invalid("text", f"has {len(self.text)} characters, more than {SMS_CHARACTERS_MAX}")


class Push(msgspec.Struct, frozen=True, gc=False):
    """A push notification for one device. Of several with the same `collapse` key the device shows the latest."""

    id: str
    to: Device
    title: str
    body: str
    data: dict[str, str] = {}
    collapse: str | None = None
    urgency: Urgency = "high"
    expires: int | None = None
    tenant: str = "default"

    def __post_init__(self) -> None:
        _check_id(self.id)
        _check_title(self.title, "title")
        _check_body(self.body, "body")
        if self.collapse is not None:
            check_line(self.collapse, "collapse")


class Webhook(msgspec.Struct, frozen=True, gc=False):
    """A call of a webhook URL; `body` is JSON as bytes, because the bytes are signed."""

    id: str
    to: str
    tenant: str
    body: bytes

    def __post_init__(self) -> None:
        _check_id(self.id)
        check_url(self.to, "to")
        if len(self.body) > BODY_BYTES_MAX:
            raise Invalid("body", f"has {len(self.body)} bytes, more than {BODY_BYTES_MAX}")


class InApp(msgspec.Struct, frozen=True, gc=False):
    """An entry in a user's inbox."""

    id: str
    to: str
    tenant: str
    title: str
    body: str

    def __post_init__(self) -> None:
        _check_id(self.id)
        _check_title(self.title, "title")
        _check_body(self.body, "body")


Rendered = Email | Sms | Push | Webhook | InApp


def channel_of(message: Rendered) -> ChannelName:
    """The channel that a message is rendered for."""
    match message:
        case Email():
            return "email"
        case Sms():
            return "sms"
        case Push():
            return "push"
        case Webhook():
            return "webhook"
        case InApp():
            return "in_app"


def _check_id(text: str) -> None:
    if not text or not text.isascii() or len(text) > ID_BYTES_MAX:
        raise Invalid("id", f"is empty, not ASCII, or longer than {ID_BYTES_MAX} bytes")
    check_line(text, "id")


def _check_title(text: str, field: str) -> None:
    check_line(text, field)
    if len(text) > SUBJECT_CHARACTERS_MAX:
        raise Invalid(field, f"has {len(text)} characters, more than {SUBJECT_CHARACTERS_MAX}")


def _check_body(text: str, field: str) -> None:
    if "\x00" in text:
        raise Invalid(field, "has a NUL character: leave it out")
    if len(text) <= BODY_BYTES_MAX // CHARACTER_BYTES_MAX:
        return
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > BODY_BYTES_MAX:
        raise Invalid(field, f"has {size} bytes, more than {BODY_BYTES_MAX}")


class Segments(msgspec.Struct, frozen=True, gc=False):
    """The size of a text message: `units` are septets of GSM-7, or 16-bit units of UCS-2."""

    encoding: Encoding
    units: int
    count: int


def segments(text: str) -> Segments:
    """Count segments as networks do: an escape sequence or surrogate pair is not split over two segments."""
    encoding: Encoding
    if all(character in _BASIC or character in _EXTENDED for character in text):
        encoding, alone, part = "GSM-7", GSM_ALONE, GSM_PART
        widths = [1 if character in _BASIC else 2 for character in text]
    else:
        encoding, alone, part = "UCS-2", UCS_ALONE, UCS_PART
        widths = [1 if ord(character) < 0x10000 else 2 for character in text]
    units = sum(widths)
    return Segments(encoding, units, 1 if units <= alone else _parts(widths, part))


def _parts(widths: list[int], size: int) -> int:
    count, used = 1, 0
    for width in widths:
        if used + width > size:
            count, used = count + 1, 0
        used += width
    return count
