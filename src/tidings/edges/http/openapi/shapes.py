"""The words that the API's description is written in."""

from typing import Any

Schema = dict[str, Any]

INSTANT = "2026-11-20T09:00:00.000000Z"


def text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def number(description: str, **more: Any) -> Schema:
    return {"type": "integer", "description": description, **more}


def instant(description: str) -> Schema:
    return text(f"{description} RFC 3339, UTC, with microseconds.", format="date-time", examples=[INSTANT])


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema, description: str = "") -> Schema:
    return {"type": "array", "items": items} | ({"description": description} if description else {})


def shape(description: str, required: str, **properties: Schema) -> Schema:
    """An object with these fields and no others."""
    named = {"type": "object", "description": description, "required": required.split()}
    return named | {"properties": properties, "additionalProperties": False}


def or_null(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}
