"""How much there is to read in a template: looked at before anything is parsed, which takes far longer."""

from typing import Any

import msgspec

from tidings.delivery.templates.parts import Template
from tidings.domain.errors import Invalid

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
            size += len(value.encode("utf-8", "replace"))
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
