"""The paths of topics, consumer groups, API keys, nodes and monitoring."""

from typing import Any

from tidings.domain.fleet import ROLES
from tidings.domain.names import BUSES
from tidings.edges.http.openapi.operations import (
    IDEMPOTENCY,
    LIMIT,
    Schema,
    answer,
    choice,
    header,
    in_path,
    operation,
    query,
    sent,
)
from tidings.edges.http.openapi.schedule_paths import adding
from tidings.shapes.fields import INSTANT

_TOPIC = in_path("topic", "Name of the topic.")
_GROUP = "/v1/topics/{topic}/groups/{group}"

_RECORD = {
    "topic": "greetings",
    "partition": 2,
    "offset": 0,
    "key": "order-42",
    "value": '{"hello":"world"}',
    "headers": [["trace", "abc"], ["empty", None]],
    "id": "order-42-reminder",
    "occurrence": "order-42-reminder/1/1",
    "due_at": INSTANT,
    "released_at": "2026-11-20T09:00:00.000800Z",
}
_EVENTS = 'retry: 1000\nid: lAAAAAA\n\nid: lAAAAQA\ndata: {"topic":"greetings","partition":2,"offset":0}\n\n'
_TOPICS = {
    "topics": [
        {
            "name": "greetings",
            "records": 1,
            "bytes": 64,
            "partitions": [{"partition": n, "first": 0, "next": int(n == 2)} for n in range(4)],
        }
    ],
    "bus": "log",
}
_MEMBER = {"member": "worker-1", "generation": 1}
_KEY = {"name": "laptop", "tenant": "default", "admin": False}
_NODE = {
    "id": "6f1c2d3e4b5a69788796a5b4c3d2e1f0",
    "name": "north",
    "state": "alive",
    "roles": list(ROLES),
    "url": "http://10.0.0.1:8460",
    "version": "0.1.0",
    "since": INSTANT,
    "lease_until": "2026-11-20T09:00:03.000000Z",
    "owns": [{"lane": 0, "since": INSTANT, "overdue_ms": 0.0}],
    "lateness": {"released": 1200, "p50_ms": 1.4, "p99_ms": 3.2, "max_ms": 9.8},
    "clock_ahead_ms": 0.3,
}
_NODES = {"nodes": [_NODE], "lanes": 2, "free_lanes": [{"lane": 1, "since": None, "overdue_ms": 0.0}]}


def topic_paths() -> dict[str, Schema]:
    """Topics, and everything about the server itself."""
    bus = choice("bus", "Bus that the topic is on; the one that schedules are released to if it is left out.", BUSES)
    cursor = query("cursor", "Position to start at; the beginning if it is left out, `latest` is the end.")
    wait = query("wait", "How long to wait for the first record: seconds or `30s`, at most 60 s.")
    page = {200: answer("Records, and the cursor behind them.", "RecordPage", _page())}
    events = "Server-sent events: `data` is a record, `id` the cursor behind it."
    stream = {200: answer(events, "", _EVENTS, "text/event-stream")}
    last = header("Last-Event-ID", "Continue after this event; takes precedence over `cursor`.")
    topics = {200: answer("All topics.", "Topics", _TOPICS)}
    reading = [_TOPIC, cursor, LIMIT, wait, bus]
    publishing = adding("NewRecord", {"key": "order-42", "value": {"hello": "world"}})
    return {
        "/v1/topics": {"get": operation("Topics", "listTopics", "Topics and their sizes", topics, parameters=[bus])},
        "/v1/topics/{topic}/records": {
            "get": operation("Topics", "readRecords", "Read from a position", page, parameters=reading),
            "post": operation(
                "Topics",
                "publishRecords",
                "Publish now: one, an array or lines",
                **publishing,
                parameters=[_TOPIC, IDEMPOTENCY],
            ),
        },
        "/v1/topics/{topic}/stream": {
            "get": operation("Topics", "followTopic", "Follow", stream, parameters=[_TOPIC, cursor, last, bus])
        },
        **_group_paths(),
        **_key_paths(),
        "/v1/nodes": {"get": operation("Nodes", "listNodes", "The nodes of the store", _nodes())},
        **_monitoring_paths(),
    }


def _page() -> Schema:
    return {"records": [_RECORD], "cursor": "lAAAAQA", "bus": "log"}


def _nodes() -> dict[int, Schema]:
    return {200: answer("The nodes and their lanes.", "Nodes", _NODES)}


def _group_paths() -> dict[str, Schema]:
    member = {200: answer("Its partitions.", "Membership", _MEMBER | {"partitions": [0, 1, 2, 3], "session_ms": 4000})}
    fetched = {200: answer("Records of its partitions.", "Fetched", {"records": [_RECORD]})}
    kept = {200: answer("Stored durably.", "Committed", {"member": "worker-1", "committed": {"2": 1}})}
    left = {200: answer("Its partitions move at once.", "Left", {"member": "worker-1", "left": True})}
    fetch = "The next records. If a fetch fails, join again: its records are then fetched again"
    fetching, committing = _MEMBER | {"limit": 100, "wait": "2s"}, _MEMBER | {"offsets": {"2": 1}}
    return {
        f"{_GROUP}/join": _group("joinGroup", "Become a member", member, "Join", {"member": "worker-1"}),
        f"{_GROUP}/heartbeat": _group("heartbeat", "Stay a member, get the partitions", member, "Member", _MEMBER),
        f"{_GROUP}/fetch": _group("fetchRecords", fetch, fetched, "Fetch", fetching),
        f"{_GROUP}/commit": _group("commitOffsets", "Store how far the group is", kept, "Commit", committing),
        f"{_GROUP}/leave": _group("leaveGroup", "Give the partitions back", left, "Member", _MEMBER),
    }


def _group(name: str, summary: str, answers: dict[int, Schema], schema: str, example: Any) -> Schema:
    place = [_TOPIC, in_path("group", "Name of the group.")]
    body = sent(schema, example, required=schema != "Join")
    return {"post": operation("Groups", name, summary, answers, "409 413 415", parameters=place, body=body)}


def _key_paths() -> dict[str, Schema]:
    shown = _KEY | {"created_at": INSTANT}
    keys = {200: answer("All keys, without the keys themselves.", "Keys", {"keys": [shown]})}
    made = {201: answer("Created. The key is shown only this once.", "Key", shown | {"key": "tdk_4Hk2..."})}
    revoked = {200: answer("It is no longer accepted.", "Revoked", {"name": "laptop", "revoked": True})}
    named = [in_path("name", "Name of the key.")]
    return {
        "/v1/keys": {
            "get": operation("Keys", "listKeys", "List", keys),
            "post": operation("Keys", "createKey", "Create", made, "413 415", body=sent("NewKey", _KEY)),
        },
        "/v1/keys/{name}": {"delete": operation("Keys", "revokeKey", "Revoke", revoked, "404", parameters=named)},
    }


def _monitoring_paths() -> dict[str, Schema]:
    """Health, metrics and this description. They need no key."""
    alive = answer("The process answers.", "Status", {"status": "ok", "version": "0.1.0"})
    ready = answer("It accepts changes.", "Status", {"status": "ready", "detail": "ready"})
    metrics = "# TYPE tidings_released_total counter\ntidings_released_total 1\n"
    figures = answer("In the text format of Prometheus.", "", metrics, "text/plain")
    described: Schema = {"description": "OpenAPI 3.1.", "content": {"application/json": {"schema": {"type": "object"}}}}
    page = answer("A page to try the API.", "", "<!doctype html>", "text/html")
    way = answer("The path of that page.", "", "see /docs\n", "text/plain", Location="`/docs`.")
    return {
        "/healthz": _monitor("health", "Whether the process is alive", alive),
        "/readyz": _monitor("readiness", "Whether it accepts changes now", ready, "503"),
        "/metrics": _monitor("metrics", "Metrics for Prometheus", figures, "404"),
        "/openapi.json": _monitor("openapi", "This description", described),
        "/docs": _monitor("docs", "A page to try the API", page),
        "/": {"get": operation("Monitoring", "home", "Redirect to that page", {307: way}, guarded=False)},
    }


def _monitor(name: str, summary: str, done: Schema, problems: str = "") -> Schema:
    return {"get": operation("Monitoring", name, summary, {200: done}, problems, guarded=False)}
