"""What the declarations of fields are written with: base classes, common types, and `about`.

A field is declared as `name: Annotated[type, about("What it is.", "an example")] = default`. The first sentence of the
description is its help text on the command line.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

INSTANT = "2026-11-20T09:00:00.000000Z"


class Sent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of request bodies: unknown fields are refused by name."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of response bodies. A field that does not apply is UNSET and left out."""


def about(
    description: str, *examples: object, absent: str | None = None, send: str | None = None, **schema: Any
) -> Meta:
    """The description of a field and examples of it; `schema` is added to its JSON Schema and not checked on decoding.

    `absent` says what holds if the field is left out, where that is not its default; `send` says what to send, in a
    refusal, where that does not follow from the type and the examples.
    """
    extra = {"absent": absent, "send": send}
    return Meta(
        description=description,
        examples=list(examples) or None,
        extra_json_schema=schema or None,
        extra={name: text for name, text in extra.items() if text is not None} or None,
    )


Instant = Annotated[str, Meta(examples=[INSTANT], extra_json_schema={"format": "date-time"})]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
Duration = Annotated[str, Meta(examples=["PT1H", "90s"], extra_json_schema={"x-kind": "duration"})]
AlwaysTrue = Annotated[bool, Meta(extra_json_schema={"const": True})]
Cursor = Annotated[str | None, about("Cursor of the next page; null on the last page.")]
