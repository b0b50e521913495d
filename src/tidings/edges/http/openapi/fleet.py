"""The fleet in the API's description: its path and its shapes."""

from tidings.domain.fleet import ROLES
from tidings.edges.http.openapi.operations import answer, operation
from tidings.edges.http.openapi.shapes import INSTANT, Schema, array, instant, number, or_null, ref, shape, text


def _ms(description: str) -> Schema:
    return {"type": "number", "description": f"{description} In milliseconds."}


SCHEMAS: dict[str, Schema] = {
    "Nodes": shape(
        "Who shares the store.",
        "nodes lanes free_lanes",
        nodes=array(ref("Node"), "Those that live, and those that ended without a word in the last minute."),
        lanes=number("How many lanes the store has."),
        free_lanes=array(ref("OwnedLane"), "Those that nobody owns at the moment; they have no `since`."),
    ),
    "Node": shape(
        "One node, as it said last.",
        "id name state roles url version since lease_until owns lateness clock_ahead_ms",
        id=text("What tells it from others of the same name; empty where there can be only one."),
        name=text("Its name: `node.name`, or host and process."),
        state=text("`gone` if its lease has run out.", enum=["alive", "gone"]),
        roles=array(text("A role.", examples=list(ROLES)), "What it does."),
        url=or_null(text("Where it listens.")),
        version=text("The version of Tidings."),
        since=instant("Since when it lives."),
        lease_until=instant("Until when it lives unless it says so again."),
        owns=array(ref("OwnedLane"), "The lanes that it releases."),
        lateness=shape(
            "How late it ran in the last minute.",
            "released p50_ms p99_ms max_ms",
            released=number("How many it released."),
            p50_ms=or_null(_ms("Half of them were at most so late; null if there were none.")),
            p99_ms=or_null(_ms("99 of 100 were at most so late.")),
            max_ms=or_null(_ms("The latest.")),
        ),
        clock_ahead_ms=_ms("How far its own clock is ahead of the store's, which counts; negative: behind."),
    ),
    "OwnedLane": shape(
        "One lane.",
        "lane since overdue_ms",
        lane=number("Its number."),
        since=or_null(instant("Since when its owner has it.")),
        overdue_ms=_ms("For how long the first that waits there is due; 0 if nothing is."),
    ),
}

_LANE = {"lane": 0, "since": INSTANT, "overdue_ms": 0.0}
_NODE = {
    "id": "6f1c2d3e4b5a69788796a5b4c3d2e1f0",
    "name": "north",
    "state": "alive",
    "roles": list(ROLES),
    "url": "http://10.0.0.1:8460",
    "version": "0.1.0",
    "since": INSTANT,
    "lease_until": "2026-11-20T09:00:03.000000Z",
    "owns": [_LANE],
    "lateness": {"released": 1200, "p50_ms": 1.4, "p99_ms": 3.2, "max_ms": 9.8},
    "clock_ahead_ms": 0.3,
}


def node_paths() -> dict[str, Schema]:
    """For an admin key, or on a machine without keys."""
    example = {"nodes": [_NODE], "lanes": 2, "free_lanes": [{"lane": 1, "since": None, "overdue_ms": 0.0}]}
    shown = answer("The nodes and their lanes.", "Nodes", example)
    return {"/v1/nodes": {"get": operation("Nodes", "listNodes", "Who shares the store", {200: shown})}}
