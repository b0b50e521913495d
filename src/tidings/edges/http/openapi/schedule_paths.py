"""The paths of schedules and topics in the OpenAPI document."""

from typing import Any, get_args

from tidings.domain.fleet import ROLES
from tidings.domain.names import BUSES
from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.domain.schedules.command import State
from tidings.edges.http.openapi.operations import (
    CURSOR,
    ETAG,
    IDEMPOTENCY,
    IF_MATCH,
    IF_NONE_MATCH,
    JSON,
    LIMIT,
    LOCATION,
    MISSED,
    NDJSON,
    Schema,
    answer,
    choice,
    content,
    header,
    in_path,
    one_or_many,
    operation,
    patch,
    query,
    ref,
    sent,
    switch,
)
from tidings.shapes.fields import INSTANT
from tidings.shapes.schedule import Width

_ID = in_path("id", "Id of the schedule, percent-encoded.")
_NAME = in_path("name", "Name of the calendar.")
_NEW = {
    "id": "order-42-reminder",
    "topic": "greetings",
    "at": "+5s",
    "key": "order-42",
    "value": {"hello": "world"},
    "headers": [["trace", "abc"], ["trace", "def"], ["empty", None]],
    "priority": "normal",
    "expires_after": "PT1H",
    "late": "fire_latest",
    "labels": {"campaign": "autumn"},
}
_REPLACEMENT = {"topic": "greetings", "every": "R/2026-11-20T09:00:00Z/P1D", "value": "good morning"}
_SCHEDULED = {"id": "order-42-reminder", "outcome": "scheduled", "due_at": INSTANT}
_SUMMARY = {
    "id": "order-42-reminder",
    "topic": "greetings",
    "bus": "log",
    "state": "pending",
    "due_at": INSTANT,
    "at": INSTANT,
    "occurrence": 1,
    "generation": 1,
    "accepted_at": "2026-11-20T08:59:55.000000Z",
    "priority": "normal",
    "late": "fire_latest",
    "expires_after": "PT1H",
    "labels": {"campaign": "autumn"},
    "key": "order-42",
}
_SCHEDULE = _SUMMARY | {"value": '{"hello":"world"}', "headers": [["trace", "abc"], ["empty", None]]}
_EXPLANATION = _SUMMARY | {
    "state": "released",
    "finished_at": "2026-11-20T09:00:00.000800Z",
    "history": [
        {"at": "2026-11-20T08:59:55.000000Z", "event": "accepted", "due_at": INSTANT},
        {
            "at": "2026-11-20T09:00:00.000800Z",
            "event": "released",
            "occurrence": 1,
            "due_at": INSTANT,
            "late_ms": 0.8,
        },
    ],
}
_MOMENTS = {
    "moments": [
        {"occurrence": 1, "due_at": INSTANT},
        {"occurrence": 2, "due_at": "2026-12-20T09:00:00.000000Z"},
    ],
    "more": True,
}
_FORECAST = {
    "by": "minute",
    "from": INSTANT,
    "to": "2026-11-20T10:00:00.000000Z",
    "steps": [{"at": INSTANT, "pending": 120}],
    "complete": True,
}
_CALENDAR = {"name": "holidays", "days": 2, "changed_at": INSTANT}
_DATES = ["2026-12-25", "2027-01-01"]
_MOVED = {
    "at": INSTANT,
    "cause": "tzdata 2026a to 2026b",
    "id": "report",
    "occurrence": 7,
    "before": "2026-11-23T08:00:00.000000Z",
    "after": "2026-11-23T09:00:00.000000Z",
}
_ZONE = {"name": "Europe/Berlin", "version": "2026b", "changed": False}


def schedule_paths() -> dict[str, Schema]:
    """Everything about schedules."""
    one = "/v1/schedules/{id}"
    explained = {200: answer("The schedule with its history.", "Explanation", _EXPLANATION)}
    explain = operation(
        "Schedules", "explainSchedule", "What happened to it, when, and how late", explained, "404", parameters=[_ID]
    )
    return {
        "/v1/schedules": {"post": _add_schedules(), "get": _list_schedules()},
        one: _one_schedule(),
        f"{one}/explain": {"get": explain},
        f"{one}/pause": {"post": _change("pauseSchedule", "Pause it", "paused")},
        f"{one}/resume": {"post": _change("resumeSchedule", "Resume it", "resumed", MISSED)},
        f"{one}/fire": {"post": _change("fireSchedule", "Release it now", "fired")},
        **_planning_paths(),
        **_calendar_paths(),
    }


def adding(schema: str, example: object) -> Schema:
    """The request body and the responses of a path that adds one, an array or lines."""
    named = {"one": {"value": example}, "many": {"value": [example]}}
    media = {JSON: {"schema": one_or_many(schema), "examples": named}, NDJSON: content("", "{...}\n{...}\n")}
    unchanged = _SCHEDULED | {"outcome": "unchanged"}
    known = answer("One: it exists already. Many: an outcome for each, in order.", "Outcome", unchanged)
    known["content"][JSON]["schema"] = one_or_many("Outcome", "Line")
    known["content"][NDJSON] = {"schema": ref("Line"), "example": _SCHEDULED | {"line": 1}}
    new = answer("Scheduled and stored durably.", "Outcome", _SCHEDULED, Location=LOCATION)
    return {
        "answers": {201: new, 200: known},
        "problems": "409 413 415 422 429",
        "body": {"required": True, "content": media},
    }


def _add_schedules() -> Schema:
    summary = "Add one schedule, or many as an array or as lines, each with its own outcome"
    return operation("Schedules", "addSchedules", summary, **adding("NewSchedule", _NEW), parameters=[IDEMPOTENCY])


def _change(name: str, summary: str, outcome: str, *more: Schema) -> Schema:
    done = answer("Done and stored durably.", "Outcome", _SCHEDULED | {"outcome": outcome})
    parameters = [_ID, *more, IDEMPOTENCY, IF_MATCH]
    return operation("Schedules", name, summary, {200: done}, "404 409 412 422", parameters=parameters)


def _list_schedules() -> Schema:
    filters = [
        query("topic", "Only this topic."),
        choice("state", "Only this state.", get_args(State)),
        query("from", "Due at or after: an instant, or a duration from now such as `+1h` or `-1h`."),
        query("to", "Due before."),
        query("prefix", "Only ids that start with this."),
        query("label", "Only with this label: `name=value`."),
        CURSOR,
        LIMIT,
    ]
    page = answer("A page.", "SchedulePage", {"schedules": [_SUMMARY], "cursor": None})
    return operation("Schedules", "listSchedules", "List and search", {200: page}, parameters=filters)


def _one_schedule() -> Schema:
    shown = {
        200: answer("The schedule.", "Schedule", _SCHEDULE, ETag=ETAG),
        304: {"description": "It is the version that `If-None-Match` names."},
    }
    replaced = {
        201: answer("It did not exist: scheduled.", "Outcome", _SCHEDULED, Location=LOCATION),
        200: answer(
            "`replaced`, or `unchanged` if the content is the same.", "Outcome", _SCHEDULED | {"outcome": "replaced"}
        ),
    }
    cancelled = {200: answer("Nothing more is released.", "Outcome", {"id": _NEW["id"], "outcome": "cancelled"})}
    known = header("If-None-Match", "The ETag that is known.")
    reuse = switch("reuse", "Start a finished id again.")
    keep = switch("keep_count", "Continue the numbering; earlier occurrences count towards the end.")
    changing = [_ID, reuse, keep, IF_MATCH, IF_NONE_MATCH]
    return {
        "get": operation("Schedules", "showSchedule", "Show one", shown, "404", parameters=[_ID, known]),
        "put": operation(
            "Schedules",
            "replaceSchedule",
            "Add a schedule, or replace the one with this id",
            replaced,
            "409 412 413 415 429",
            parameters=changing,
            body=sent("NewSchedule", _REPLACEMENT),
        ),
        "patch": operation(
            "Schedules",
            "patchSchedule",
            "Change the given fields; null removes one, `at` alone reschedules",
            replaced,
            "404 409 412 413 415 429",
            parameters=[_ID, IF_MATCH],
            body=patch("NewSchedule", {"at": INSTANT}),
        ),
        "delete": operation(
            "Schedules", "cancelSchedule", "Cancel", cancelled, "404 409 412", parameters=[_ID, IF_MATCH]
        ),
    }


def _planning_paths() -> dict[str, Schema]:
    moments = answer("The next moments.", "Moments", _MOMENTS)
    body = sent("Preview", {"every": "R/2026-11-20T09:00:00Z/P1M", "count": 2})
    steps = answer("What is pending, by time.", "Forecast", _FORECAST)
    window = [
        choice("by", "Width of a step.", get_args(Width), default="minute"),
        query("from", "Start: an instant or a duration from now; now if it is left out."),
        query("to", "End; 60 steps later if it is left out."),
    ]
    summary = "The next moments of a schedule that is not stored"
    return {
        "/v1/preview": {"post": operation("Planning", "preview", summary, {200: moments}, "413 415", body=body)},
        "/v1/forecast": {
            "get": operation("Planning", "forecast", "How much is pending, by time", {200: steps}, parameters=window)
        },
    }


def _calendar_paths() -> dict[str, Schema]:
    tag = "Calendars"
    listed = {200: answer("The calendars, by name.", "Calendars", {"calendars": [_CALENDAR]})}
    shown = {200: answer("The calendar with its dates.", "Calendar", _CALENDAR | {"dates": _DATES})}
    stored = {"name": "holidays", "days": 2, "moved": 1}
    kept = {200: answer("Stored, and applied to pending schedules.", "CalendarKept", stored)}
    dropped = {"name": "holidays", "dropped": True, "moved": 0}
    gone = {200: answer("Deleted; pending schedules continue without it.", "CalendarDropped", dropped)}
    put = "Store a calendar, and compute pending schedules that use it again"
    body = sent("NewCalendar", {"dates": _DATES})
    zones = {"version": "2026b", "zones": [_ZONE], "moved": [_MOVED]}
    changes = {"version": "2026b", "changed": ["Europe/Berlin"], "moved": 1, "movements": [_MOVED]}
    rules = {200: answer("The version, the time zones in use, and what moved.", "Tzdata", zones)}
    applied = {200: answer("Applied.", "TzdataApplied", changes)}
    return {
        "/v1/calendars": {"get": operation(tag, "listCalendars", "List", listed)},
        "/v1/calendars/{name}": {
            "get": operation(tag, "showCalendar", "Show one", shown, "404", parameters=[_NAME]),
            "put": operation(tag, "putCalendar", put, kept, "413 415", parameters=[_NAME], body=body),
            "delete": operation(tag, "dropCalendar", "Delete it", gone, "404", parameters=[_NAME]),
        },
        "/v1/tzdata": {
            "get": operation(tag, "showTzdata", "The time zone rules in use", rules, parameters=[LIMIT]),
            "post": operation(tag, "applyTzdata", "Apply time zone rules that have changed", applied),
        },
    }


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
    "channels": list(CHANNEL_NAMES),
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
    parameters = [_TOPIC, in_path("group", "Name of the group.")]
    body = sent(schema, example, required=schema != "Join")
    return {"post": operation("Groups", name, summary, answers, "409 413 415", parameters=parameters, body=body)}


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
