"""A template as it is written and stored: for each channel, in each language, the Liquid of its parts."""

from typing import Any, Literal

import msgspec

Urgency = Literal["asap", "time_sensitive", "digest"]

MINUTE_US = 60_000_000
STALE_AFTER_US: dict[Urgency, int | None] = {
    "asap": None,
    "time_sensitive": 30 * MINUTE_US,
    "digest": 24 * 60 * MINUTE_US,
}


class EmailPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A subject, and a body as HTML, as text, or both. Without a text the HTML's own words are taken."""

    subject: str
    html: str | None = None
    text: str | None = None


class SmsPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The words of a text message."""

    text: str


class PushPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a device shows, and what its app gets."""

    title: str
    body: str
    data: dict[str, str] = {}


class WebhookPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON document; every text in it is Liquid, so that no value can break out of its place."""

    body: dict[str, Any]


class InAppPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line in the inbox, and what it opens to."""

    title: str
    body: str


Part = EmailPart | SmsPart | PushPart | WebhookPart | InAppPart


class Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts by channel and language."""

    email: dict[str, EmailPart] = {}
    sms: dict[str, SmsPart] = {}
    push: dict[str, PushPart] = {}
    webhook: dict[str, WebhookPart] = {}
    in_app: dict[str, InAppPart] = {}


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a template. `locale` is the language for whom there is no better one."""

    name: str
    parts: Parts
    version: int = 1
    locale: str = "en"
    urgency: Urgency | None = None
    expires_after_us: int | None = None

    @property
    def stale_after_us(self) -> int | None:
        """How late it may still be sent; None: at any time."""
        if self.expires_after_us is not None:
            return self.expires_after_us
        return STALE_AFTER_US[self.urgency] if self.urgency is not None else None
