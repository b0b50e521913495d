"""A template as it is written and stored: for each channel, in each language, the Liquid of its parts."""

import msgspec

from tidings.shapes.notification import EmailPart, InAppPart, Parts, PushPart, SmsPart, Urgency, WebhookPart

__all__ = [
    "MINUTE_US",
    "STALE_AFTER_US",
    "EmailPart",
    "InAppPart",
    "Part",
    "Parts",
    "PushPart",
    "SmsPart",
    "Template",
    "Urgency",
    "WebhookPart",
]

MINUTE_US = 60_000_000
STALE_AFTER_US: dict[Urgency, int | None] = {
    "asap": None,
    "time_sensitive": 30 * MINUTE_US,
    "digest": 24 * 60 * MINUTE_US,
}


Part = EmailPart | SmsPart | PushPart | WebhookPart | InAppPart


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
