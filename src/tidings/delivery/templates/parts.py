"""A template as it is written and stored, and how much of it there may be."""

from typing import Any

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import encoded
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


VALUES_MAX = 5_000  # texts, and what else a webhook's document has
TAGS_MAX = 10_000
TEMPLATE_BYTES_MAX = 512 * 1024
SMALL = 100  # values and tags that are parsed in a few milliseconds


class Extent(msgspec.Struct, frozen=True):
    """Of all parts in all languages together."""

    values: int
    tags: int

    @property
    def is_small(self) -> bool:
        return self.values + self.tags <= SMALL


def check_extent(template: Template) -> Extent:
    """Refuse what would take long to parse."""
    values = tags = size = 0
    left: list[Any] = [msgspec.to_builtins(template.parts)]
    while left:
        value = left.pop()
        values += 1
        if isinstance(value, str):
            size += len(encoded(value, "parts"))
            tags += value.count("{{") + value.count("{%")
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        for many, most, what in ((values, VALUES_MAX, "values"), (size, TEMPLATE_BYTES_MAX, "bytes")):
            if many > most:
                raise Invalid("parts", f"have more than {most:,} {what} in all: split it into several templates")
        if tags > TAGS_MAX:
            raise Invalid("parts", f"have more than {TAGS_MAX:,} tags and variables in all: simplify it")
    return Extent(values, tags)
