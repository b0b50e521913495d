"""Examples of what is sent and answered; a test checks each against its shape."""

from tidings.edges.http.openapi.shapes import INSTANT

NEW_SCHEDULE = {
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
REPLACEMENT = {"topic": "greetings", "every": "R/2026-11-20T09:00:00Z/P1D", "value": "good morning"}
NEW_RECORD = {"key": "order-42", "value": {"hello": "world"}}
SCHEDULED = {"id": "order-42-reminder", "outcome": "scheduled", "due_at": INSTANT}
LINES = [
    SCHEDULED | {"line": 1},
    {
        "outcome": "rejected",
        "errors": [{"field": "topic", "detail": 'is missing: say where it goes, for example "topic": "greetings"'}],
        "line": 2,
    },
]
REPLACED = SCHEDULED | {"outcome": "replaced"}
CANCELLED = {"id": "order-42-reminder", "outcome": "cancelled"}
PAUSED = SCHEDULED | {"outcome": "paused"}
RESUMED = SCHEDULED | {"outcome": "resumed"}
FIRED = SCHEDULED | {"outcome": "fired"}
_MESSAGE = {"key": "order-42", "value": '{"hello":"world"}', "headers": [["trace", "abc"], ["empty", None]]}
SUMMARY = {
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
SCHEDULE = SUMMARY | _MESSAGE
EXPLANATION = SUMMARY | {
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
SCHEDULE_PAGE = {"schedules": [SUMMARY], "cursor": None}
RECORD = {
    "topic": "greetings",
    "partition": 2,
    "offset": 0,
    **_MESSAGE,
    "id": "order-42-reminder",
    "occurrence": "order-42-reminder/1/1",
    "due_at": INSTANT,
    "released_at": "2026-11-20T09:00:00.000800Z",
}
RECORD_PAGE = {"records": [RECORD], "cursor": "lAAAAQA", "bus": "log"}
EVENTS = 'retry: 1000\nid: lAAAAAA\n\nid: lAAAAQA\ndata: {"topic":"greetings","partition":2,"offset":0}\n\n'
TOPICS = {
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
MEMBER = {"member": "worker-1", "generation": 1}
MEMBERSHIP = MEMBER | {"partitions": [0, 1, 2, 3], "session_ms": 4000}
FETCH = MEMBER | {"limit": 100, "wait": "2s"}
COMMIT = MEMBER | {"offsets": {"2": 1}}
PREVIEW = {"every": "R/2026-11-20T09:00:00Z/P1M", "count": 2}
MOMENTS = {
    "moments": [
        {"occurrence": 1, "due_at": INSTANT},
        {"occurrence": 2, "due_at": "2026-12-20T09:00:00.000000Z"},
    ],
    "more": True,
}
FORECAST = {
    "by": "minute",
    "from": INSTANT,
    "to": "2026-11-20T10:00:00.000000Z",
    "steps": [{"at": INSTANT, "pending": 120}],
    "complete": True,
}
NEW_KEY = {"name": "laptop", "tenant": "default", "admin": False}
KEY = NEW_KEY | {"created_at": INSTANT}
NEW_KEY_SHOWN = KEY | {"key": "tdk_4Hk2..."}
METRICS = "# TYPE tidings_released_total counter\ntidings_released_total 1\n"
INVALID = {
    "type": "urn:tidings:problem:invalid",
    "title": "The request cannot be accepted as it stands",
    "status": 400,
    "detail": "at: give either 'at' or 'every', not both",
    "errors": [{"field": "at", "detail": "give either 'at' or 'every', not both"}],
}
CONFLICT = {
    "type": "urn:tidings:problem:conflict",
    "title": "It is not in a state for this",
    "status": 409,
    "detail": "it has left already: PUT it with ?reuse=true to start it anew, or use another id",
    "id": "order-42-reminder",
    "outcome": "already_released",
    "state": "released",
}
UNKNOWN = {
    "type": "urn:tidings:problem:unknown",
    "title": "No such schedule",
    "status": 404,
    "detail": "there is no such schedule, or it is no longer remembered: check the id and the tenant",
    "id": "order-42-reminder",
    "outcome": "unknown",
    "remembered_since": "2026-11-13T09:00:00.000000Z",
}
