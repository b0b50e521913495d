"""Every path of the API with its operations."""

from typing import get_args

from tidings.domain.command import State
from tidings.domain.destination import BUSES
from tidings.edges.http.openapi import examples as e
from tidings.edges.http.openapi.operations import (
    JSON,
    NDJSON,
    answer,
    content,
    header,
    in_path,
    operation,
    query,
    sent,
)
from tidings.edges.http.openapi.shapes import Schema, array, number, ref
from tidings.edges.http.planning import WIDTHS_US
from tidings.wires.document import POLICIES

_ID = in_path("id", "The schedule's id, percent-encoded.")
_TOPIC = in_path("topic", "The topic.")
_IDEMPOTENCY = header("Idempotency-Key", "Kept for 24 h: a repeat is answered like the first.")
_IF_MATCH = header("If-Match", "Only if the ETag is still this one.")
_IF_NONE_MATCH = header("If-None-Match", "`*`: only if there is none yet.")
_LIMIT = query("limit", "At most so many.", number("", minimum=1, maximum=1000, default=100))
_MISSED = query(
    "missed",
    "What becomes of what fell due while it was held, instead of what its `late` says.",
    {"type": "string", "enum": list(POLICIES)},
)
_LOCATION = "Where it is found from now on."
_ETAG = "Its version, for `If-Match`."


def _many(schema: str, example: object) -> Schema:
    """What is sent to add: one, an array, or lines."""
    one = {"schema": {"oneOf": [ref(schema), array(ref(schema))]}}
    named = {"one": {"value": example}, "many": {"value": [example]}}
    return {
        "required": True,
        "content": {JSON: one | {"examples": named}, NDJSON: content("", "{...}\n{...}\n")},
    }


def _outcomes() -> Schema:
    """The answers to one that was there already, and to many."""
    unchanged = e.SCHEDULED | {"outcome": "unchanged"}
    response = answer("One: it was there already. Many: an outcome for each, in order.", "Outcome", unchanged)
    response["content"][JSON]["schema"] = {"oneOf": [ref("Outcome"), array(ref("Line"))]}
    response["content"][NDJSON] = {"schema": ref("Line"), "example": e.LINES[0]}
    return response


_ADDED = {
    201: answer("Scheduled, and on disk.", "Outcome", e.SCHEDULED, Location=_LOCATION),
    200: _outcomes(),
}
_ADD_PROBLEMS = "409 413 415 422 429"


def _change(name: str, summary: str, example: object, *more: Schema) -> Schema:
    done = answer("Done, and on disk.", "Outcome", example)
    parameters = [_ID, *more, _IDEMPOTENCY, _IF_MATCH]
    return operation("Schedules", name, summary, {200: done}, "404 409 412 422", parameters=parameters)


def schedule_paths() -> dict[str, Schema]:
    """Schedules, and what lies below one."""
    explained = answer("The schedule with its history.", "Explanation", e.EXPLANATION)
    explain = operation(
        "Schedules",
        "explainSchedule",
        "What happened to it, when, and how late",
        {200: explained},
        "404",
        parameters=[_ID],
    )
    return {
        "/v1/schedules": {"post": _add_schedules(), "get": _list_schedules()},
        "/v1/schedules/{id}": _one_schedule(),
        "/v1/schedules/{id}/explain": {"get": explain},
        "/v1/schedules/{id}/pause": {"post": _change("pauseSchedule", "Hold it", e.PAUSED)},
        "/v1/schedules/{id}/resume": {"post": _change("resumeSchedule", "Let it go on", e.RESUMED, _MISSED)},
        "/v1/schedules/{id}/fire": {"post": _change("fireSchedule", "Release it now", e.FIRED)},
    }


def _add_schedules() -> Schema:
    summary = "Add one schedule, or many as an array or as lines, each with its own outcome"
    body = _many("NewSchedule", e.NEW_SCHEDULE)
    parameters = [_IDEMPOTENCY]
    return operation("Schedules", "addSchedules", summary, _ADDED, _ADD_PROBLEMS, parameters=parameters, body=body)


def _list_schedules() -> Schema:
    filters = [
        query("topic", "Only of this topic."),
        query("state", "Only in this state.", {"type": "string", "enum": list(get_args(State))}),
        query("from", "Due at or after: an instant, or a duration from now such as `+1h`, or before it such as `-1h`."),
        query("to", "Due before."),
        query("prefix", "Only ids that begin with this."),
        query("label", "Only with this label: `name=value`."),
        query("cursor", "Where the page before ended."),
        _LIMIT,
    ]
    page = answer("A page.", "SchedulePage", e.SCHEDULE_PAGE)
    return operation("Schedules", "listSchedules", "List and search", {200: page}, parameters=filters)


def _one_schedule() -> Schema:
    shown = {
        200: answer("The schedule.", "Schedule", e.SCHEDULE, ETag=_ETAG),
        304: {"description": "It is what `If-None-Match` names."},
    }
    replaced = {
        201: answer("There was none: scheduled.", "Outcome", e.SCHEDULED, Location=_LOCATION),
        200: answer("`replaced`, or `unchanged` where the content is the same.", "Outcome", e.REPLACED),
    }
    cancelled = {200: answer("Nothing of it leaves any more.", "Outcome", e.CANCELLED)}
    known = header("If-None-Match", "The ETag that is known.")
    reuse = query("reuse", "Start a finished id anew.", {"type": "boolean", "default": False})
    replace = "Add it, or put it in place of what the id holds"
    keep = query(
        "keep_count",
        "Numbers go on, and what was given before counts against the end.",
        {"type": "boolean", "default": False},
    )
    changing = [_ID, reuse, keep, _IF_MATCH, _IF_NONE_MATCH]
    body = sent("NewSchedule", e.REPLACEMENT)
    return {
        "get": operation("Schedules", "showSchedule", "Show one", shown, "404", parameters=[_ID, known]),
        "put": operation(
            "Schedules", "replaceSchedule", replace, replaced, "409 412 413 415 429", parameters=changing, body=body
        ),
        "delete": operation(
            "Schedules", "cancelSchedule", "Cancel", cancelled, "404 409 412", parameters=[_ID, _IF_MATCH]
        ),
    }


def planning_paths() -> dict[str, Schema]:
    """Looking ahead."""
    moments = answer("The moments; nothing is stored.", "Moments", e.MOMENTS)
    forecast = answer("How many are pending in each step.", "Forecast", e.FORECAST)
    width = {"type": "string", "enum": list(WIDTHS_US), "default": "minute"}
    steps = [
        query("by", "The width of a step.", width),
        query("from", "Now by default."),
        query("to", "The end."),
    ]
    return {
        "/v1/preview": {
            "post": operation(
                "Planning",
                "preview",
                "The next moments of a `when`",
                {200: moments},
                "413 415",
                body=sent("Preview", e.PREVIEW),
            )
        },
        "/v1/forecast": {
            "get": operation("Planning", "forecast", "Pending by time", {200: forecast}, parameters=steps)
        },
    }


def topic_paths() -> dict[str, Schema]:
    """Topics and their records."""
    bus = query("bus", "Where it lies; absent: where schedules go.", {"type": "string", "enum": list(BUSES)})
    cursor = query("cursor", "A position; absent: the beginning, `latest`: the end.")
    wait = query("wait", "How long to wait for the first record: seconds or `30s`, at most 60 s.")
    page = answer("Some records, and where to go on.", "RecordPage", e.RECORD_PAGE)
    stream = answer(
        "Server-sent events: `data` is a record, `id` the cursor behind it.",
        "",
        e.EVENTS,
        "text/event-stream",
    )
    last = header("Last-Event-ID", "Goes on behind this event; goes before `cursor`.")
    topics = answer("Every topic.", "Topics", e.TOPICS)
    return {
        "/v1/topics": {"get": operation("Topics", "listTopics", "Names with sizes", {200: topics}, parameters=[bus])},
        "/v1/topics/{topic}/records": {
            "get": operation(
                "Topics",
                "readRecords",
                "Read from a position on",
                {200: page},
                parameters=[_TOPIC, cursor, _LIMIT, wait, bus],
            ),
            "post": operation(
                "Topics",
                "publishRecords",
                "Publish now: one, an array or lines",
                _ADDED,
                _ADD_PROBLEMS,
                parameters=[_TOPIC, _IDEMPOTENCY],
                body=_many("NewRecord", e.NEW_RECORD),
            ),
        },
        "/v1/topics/{topic}/stream": {
            "get": operation("Topics", "followTopic", "Follow", {200: stream}, parameters=[_TOPIC, cursor, last, bus])
        },
    }
