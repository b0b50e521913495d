"""The OpenAPI 3.1 description of the API. Its schemas are derived from the shapes; tests compare it with the routes."""

import re
from typing import Any

import msgspec

from tidings.edges.http.openapi.notification_paths import notification_paths
from tidings.edges.http.openapi.operations import REFERENCE, Schema, problem_responses
from tidings.edges.http.openapi.schedule_paths import schedule_paths, topic_paths
from tidings.shapes import admin, notification, schedule, topic, user
from tidings.shapes.fields import Answer, Sent, fields_of, names_of

_ABOUT = (
    "Tidings holds messages and notifications until their time and releases each one on time, once. Times are RFC 3339 "
    "in UTC with microseconds. Errors are RFC 9457 problems whose `detail` says what to change. Unknown fields and "
    "parameters are refused by name. Lists are paged with `cursor`. HEAD is accepted wherever GET is."
)
_TAGS = {
    "Schedules": "What is released, and when.",
    "Planning": "Previews and forecasts.",
    "Calendars": "Excluded days and time zone rules, on which recurring schedules depend.",
    "Topics": "Where released records appear.",
    "Groups": "Consumers that share the partitions of a topic. Partitions of a dead member move within 5 s.",
    "Users": "People who can be notified.",
    "Templates": "What messages say, in Liquid, by channel and language.",
    "Notifications": "Messages to people, at a time.",
    "Deliveries": "What happened to each message, and the providers.",
    "Inbox": "Messages inside the product.",
    "Suppressions": "Addresses that nothing is sent to.",
    "Callbacks": "Calls without a key, authenticated by a signature: receipts of providers, and unsubscribe links.",
    "Keys": "API keys.",
    "Nodes": "The nodes that share the store, and how late each one is.",
    "Monitoring": "Health, readiness and metrics.",
}
_LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
_BASES = (Sent, Answer, schedule.When, schedule.Timed, schedule.MessageShown, schedule.TimeShown, user.Profile)


def describe(version: str) -> Schema:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidings", "version": version, "description": _ABOUT, "license": _LICENSE},
        "servers": [{"url": "/"}],
        "security": [{"key": []}, {}],
        "tags": [{"name": name, "description": meaning} for name, meaning in _TAGS.items()],
        "paths": {**schedule_paths(), **topic_paths(), **notification_paths()},
        "components": {
            "schemas": components(),
            "responses": problem_responses(),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key. A server on loopback without keys needs none.",
                }
            },
        },
    }


def components() -> dict[str, Schema]:
    """The schema of every shape, by its name."""
    _, found = msgspec.json.schema_components(shapes(), ref_template=REFERENCE)
    schemas = {name: _plain(schema) for name, schema in found.items()}
    for shape in shapes():
        _complete(shape, schemas[shape.__name__])
    new = schemas["NewSchedule"]
    new["required"] = ["topic"]
    new["properties"]["topic"]["type"] = "string"
    timing = {*names_of(schedule.When), "count"}
    record = {name: field for name, field in new["properties"].items() if name not in timing}
    schemas["NewRecord"] = _object("A record to publish now.", record)
    changes = {name: _or_null(field) for name, field in schemas["NewUser"]["properties"].items() if name != "id"}
    schemas["UserChanges"] = _object("Fields to change (RFC 7396): null removes one, objects are merged.", changes)
    return schemas


def shapes() -> list[type[msgspec.Struct]]:
    """Every shape that the API sends or receives."""
    modules = (schedule, topic, admin, user, notification)
    found = {each for module in modules for each in vars(module).values() if _is_shape(each)}
    return sorted(found - set(_BASES), key=lambda shape: shape.__name__)


def _is_shape(each: object) -> bool:
    return isinstance(each, type) and issubclass(each, msgspec.Struct) and "Limits" not in each.__name__


def _object(description: str, properties: dict[str, Schema]) -> Schema:
    made: Schema = {"type": "object", "description": description, "properties": properties, "required": []}
    return made | {"additionalProperties": False}


def _plain(schema: Any) -> Any:
    """A schema as people write it: without titles and null defaults, unions with null as a list of types."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "properties" in schema:
        properties = {name: _plain(each) for name, each in schema["properties"].items()}
        kept = {name: value for name, value in schema.items() if name not in {"title", "properties"}}
        return kept | {"properties": properties}
    made = {name: _inner(name, value) for name, value in schema.items() if name not in {"title", "x-kind"}}
    if made.get("default", 0) in (None, [], {}):
        del made["default"]
    if "enum" in made and "type" not in made:
        made["type"] = "string"
    return _union(made) if "anyOf" in made else made


def _inner(name: str, value: Any) -> Any:
    return _plain(value) if name in {"items", "prefixItems", "additionalProperties", "anyOf"} else value


def _union(schema: Schema) -> Schema:
    """`anyOf` where there are several types beside null; else the one type, or null."""
    options = [option for option in schema["anyOf"] if option != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    if len(options) == 1 and "$ref" not in options[0]:
        only = options[0] | rest
        return _or_null(only) if len(options) < len(schema["anyOf"]) else only
    return rest | {"anyOf": schema["anyOf"]}


def _or_null(schema: Schema) -> Schema:
    if "anyOf" in schema:
        options = schema["anyOf"]
        return schema if {"type": "null"} in options else schema | {"anyOf": [*options, {"type": "null"}]}
    if isinstance(schema.get("type"), list):
        return schema
    made = schema | {"type": [schema["type"], "null"]}
    return made | {"enum": [*schema["enum"], None]} if "enum" in schema else made


def _complete(shape: type[msgspec.Struct], schema: Schema) -> None:
    """Choices in the order in which they were declared (the generator sorts them), and defaults that are not null."""
    for name, field in fields_of(shape).items():
        written = schema["properties"][name]
        if field.choices and "enum" in written:
            written["enum"] = [*field.choices, *([None] if None in written["enum"] else [])]
        if field.default is None and re.fullmatch("`[^` ]+`", field.absent):
            written["default"] = field.absent.strip("`")
