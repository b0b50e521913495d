"""The description of the API: OpenAPI 3.1, complete; tests compare it with the application."""

from tidings.edges.http.openapi import dates, fleet, people, records, schedules, telling, ways
from tidings.edges.http.openapi.more_paths import group_paths, key_paths, watch_paths
from tidings.edges.http.openapi.notify_paths import callback_paths, delivery_paths, notification_paths, template_paths
from tidings.edges.http.openapi.operations import problem_responses
from tidings.edges.http.openapi.paths import planning_paths, schedule_paths, topic_paths
from tidings.edges.http.openapi.shapes import Schema

_ABOUT = (
    "Tidings holds messages until their time and releases each one on time, once. Times are RFC 3339, UTC, "
    "with microseconds. Errors are RFC 9457 problems whose `detail` says what to change. Unknown fields and "
    "parameters are refused by name. Lists go on with `cursor`. HEAD works wherever GET does."
)
_TAGS = {
    "Schedules": "What is to be released, and when.",
    "Planning": "Looking ahead.",
    "Calendars": "What recurring schedules depend on: days off, and the rules of zones.",
    "Topics": "Where released records appear.",
    "Groups": "Consumers that share a topic's partitions. A dead member's partitions move within 5 s.",
    "Users": "Who can be told something.",
    "Templates": "What people are told, in Liquid, by channel and language.",
    "Notifications": "Telling people something, at a time.",
    "Deliveries": "What became of it, and the ways out.",
    "Inbox": "What a person was told inside the product.",
    "Suppressions": "Addresses that nothing goes to.",
    "Callbacks": "Without a key, by a signature: what providers tell later, and people who want no more.",
    "Keys": "Who may use this server.",
    "Nodes": "Who shares the store, and how late each runs.",
    "Watching": "For those who watch over the process.",
}


def describe(version: str) -> Schema:
    """The whole description."""
    paths = {
        **schedule_paths(),
        **planning_paths(),
        **dates.date_paths(),
        **topic_paths(),
        **group_paths(),
        **people.user_paths(),
        **template_paths(),
        **notification_paths(),
        **delivery_paths(),
        **people.inbox_paths(),
        **people.suppression_paths(),
        **callback_paths(),
        **key_paths(),
        **fleet.node_paths(),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidings", "version": version, "description": _ABOUT, "license": _LICENSE},
        "servers": [{"url": "/"}],
        "security": [{"key": []}, {}],
        "tags": [{"name": name, "description": meaning} for name, meaning in _TAGS.items()],
        "paths": {**paths, **watch_paths()},
        "components": {
            "schemas": {name: shape for part in _PARTS for name, shape in part.SCHEMAS.items()},
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


_PARTS = (schedules, records, dates, fleet, people, telling, ways)
_LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
