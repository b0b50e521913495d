"""The shapes of schedules and of what answers a change."""

from typing import get_args

from tidings.domain.command import OutcomeWord, State
from tidings.domain.destination import BUSES
from tidings.domain.recurrence.parts import GAPS, ON_EXCLUDED, OVERLAPS
from tidings.domain.request import Limits
from tidings.edges.http.openapi.shapes import Schema, array, instant, number, or_null, ref, shape, text
from tidings.wires.document import PAST_WORDS, POLICIES, PRIORITIES

_LIMITS = Limits()

_KEY = or_null(text("The record's key, as text. Equal keys share a partition."))
_KEY_BASE64 = text("The key where it is not text.", contentEncoding="base64")
_VALUE_BASE64 = text("The value where it is not text or JSON.", contentEncoding="base64")
_BASE64 = shape("Bytes that are not text.", "base64", base64=text("Standard base64.", contentEncoding="base64"))
_HEADER_VALUE: Schema = {"oneOf": [text("Text."), {"type": "null"}, _BASE64]}
_PAIRS: Schema = array(
    {"type": "array", "prefixItems": [text("Name."), _HEADER_VALUE], "minItems": 2, "maxItems": 2},
    "Pairs of name and value; order, repeats and nulls are kept.",
)
_PAIRS_SENT = _PAIRS | {"type": ["array", "null"], "maxItems": _LIMITS.headers_max}
_HEADERS: Schema = {
    "description": "Headers of the record: pairs, or an object where no name is repeated.",
    "oneOf": [_PAIRS_SENT, {"type": "object", "additionalProperties": _HEADER_VALUE}],
}
_LABELS: Schema = {
    "type": "object",
    "description": "Names and values to find it by.",
    "additionalProperties": {"type": "string"},
}


def _duration(description: str, *examples: str) -> Schema:
    return text(f"{description} ISO 8601 or short: `PT1H`, `90s`.", examples=[*examples, "PT1H"])


_POLICY: dict[str, Schema] = {
    "priority": text("Who goes first when much is due.", enum=list(PRIORITIES), default="normal"),
    "expires_after": _duration("After that it is missed rather than released."),
    "late": text(
        "What becomes of occurrences missed while nothing could run.",
        enum=list(POLICIES),
        default="fire_latest",
    ),
    "late_grace": _duration("How late `skip` still releases.", "PT60S"),
    "late_max": _duration("How late anything is still released."),
}

_MESSAGE_SENT: dict[str, Schema] = {
    "key": _KEY,
    "key_base64": or_null(_KEY_BASE64),
    "value": {"description": "Text is stored as its UTF-8 bytes, null is no value, other JSON is stored compact."},
    "value_base64": or_null(_VALUE_BASE64),
    "headers": _HEADERS,
}
MESSAGE_SHOWN: dict[str, Schema] = {
    "key": _KEY,
    "key_base64": _KEY_BASE64,
    "value": or_null(text("The value as text.")),
    "value_base64": _VALUE_BASE64,
    "headers": _PAIRS,
}

_ID = text(f"Its name, up to {_LIMITS.id_bytes_max} bytes of UTF-8. One is made if it is left out.")
TOPIC = text("Where it goes.", maxLength=_LIMITS.topic_chars_max, pattern=r"^[A-Za-z0-9._-]+$")
AT = text(
    "When: an instant with offset, a duration from now (`PT5S`, `+5s`), absent is now. One in the past: see `past`.",
    examples=["2026-11-20T09:00:00Z", "+5s"],
)
EVERY = text(
    "Again and again: a period, or an ISO 8601 repeating interval.",
    examples=["PT10M", "R5/2026-11-20T09:00:00Z/PT1H", "R/2026-11-20T09:00:00Z/P1M/2027-11-20T09:00:00Z"],
)
RULE: dict[str, Schema] = {
    "rrule": text(
        "Again and again: a rule of RFC 5545, or lines with DTSTART, RRULE, RDATE and EXDATE.",
        examples=["FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0"],
    ),
    "cron": text("Again and again: five fields, or six with seconds first.", examples=["*/5 9-17 * * MON-FRI"]),
    "zone": text(
        "The IANA zone whose clocks a local time, a rule or an expression follows.", examples=["Europe/Berlin"]
    ),
    "start": text("The anchor of a rule; without it the moment of acceptance with its seconds at zero."),
    "until": text("The last moment, inclusive; a date counts as a whole day."),
    "gap": text("A time that clocks jump over.", enum=list(GAPS), default="forward"),
    "overlap": text("A time that clocks show twice.", enum=list(OVERLAPS), default="first"),
    "rdates": array(text("A moment."), "Further moments."),
    "exdates": array(text("A moment or a date."), "Moments and days that are left out."),
    "calendar": text("The calendar on whose days nothing happens."),
    "on_excluded": text("What becomes of what falls on these days.", enum=list(ON_EXCLUDED), default="skip"),
}
COUNT = number("How many occurrences, unless the rule says it.", minimum=1)


def nullable(fields: dict[str, Schema]) -> dict[str, Schema]:
    """Fields that may be null as well as absent."""
    made = {name: or_null(schema) for name, schema in fields.items()}
    for schema in made.values():
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    return made


PAST = text(
    "What becomes of an `at` more than a minute ago: sent now, or refused. Absent: what the server is set to.",
    enum=[*PAST_WORDS, None],
)
_SENT = {name: or_null(schema) for name, schema in _POLICY.items()}
for _words in ("priority", "late"):
    _SENT[_words] = _SENT[_words] | {"enum": [*_POLICY[_words]["enum"], None]}
_SENT |= {
    "jitter": or_null(_duration("Spreads due times over this window, stable for an id.")),
    "past": or_null(PAST),
    "labels": _LABELS | {"type": ["object", "null"], "maxProperties": _LIMITS.labels_max},
    "bus": or_null(text("Where the topic lies; Kafka where there is one.", enum=list(BUSES))),
}

_OUTCOME: dict[str, Schema] = {
    "id": text("The schedule."),
    "outcome": text("What really happened.", enum=list(get_args(OutcomeWord))),
    "due_at": instant("When the next occurrence that can leave is due, as far as is known."),
    "state": text("Its state, where the outcome alone does not say it.", enum=list(get_args(State))),
    "reason": text("Why."),
    "in_flight": number("The occurrence that is being released; what follows it was changed."),
    "remembered_since": instant("What finished before is forgotten."),
    "note": text("What to know of its times, such as that they have passed, or that clocks jump over them."),
}
_ERROR = shape("One fault.", "field detail", field=text("The field."), detail=text("What to change."))
_STATE = text("Where it stands.", enum=list(get_args(State)))

_SCHEDULE: dict[str, Schema] = {
    "id": text("Its name."),
    "topic": TOPIC,
    "state": _STATE,
    "due_at": instant("When the pending occurrence is due, or the last one was."),
    "at": text("Its moment; one that had passed is due when it was taken. With a zone a local time."),
    "due_at_local": text("What the clocks of its zone show then, with their offset from UTC."),
    "tzdata": text("The version of the zones' rules by which that was computed."),
    "every": EVERY,
    **RULE,
    "count": COUNT,
    "anchor_at": instant("Where periods are counted from, if that is not in `every`."),
    "occurrence": number("The number of that occurrence, from 1."),
    "generation": number("How many times the id has been used."),
    "accepted_at": instant("When it was taken."),
    **_POLICY,
    "labels": _LABELS,
    "bus": text("Where the topic lies.", enum=list(BUSES)),
    **MESSAGE_SHOWN,
    "finished_at": instant("When it was over."),
    "reason": text("Why it was missed; of one in flight why it is kept back; of one that has ended what it was."),
    "note": text("That clocks jump over its time, and it will be missed; that its calendar was dropped."),
    "partition": number("Where a released one lies."),
    "offset": number("Where a released one lies."),
}
_SCHEDULE_REQUIRED = "id topic bus state due_at occurrence generation accepted_at priority"

SCHEMAS: dict[str, Schema] = {
    "NewSchedule": shape(
        "A schedule as it is sent. Unknown fields are refused by name.",
        "topic",
        topic=TOPIC,
        id=or_null(_ID),
        at=or_null(AT),
        scheduled_at=or_null(text("Another name of `at`; one of the two.")),
        every=or_null(EVERY),
        **nullable(RULE),
        count=or_null(COUNT),
        **_MESSAGE_SENT,
        **_SENT,
    ),
    "NewRecord": shape("A record to publish now.", "", id=or_null(_ID), topic=or_null(TOPIC), **_MESSAGE_SENT, **_SENT),
    "Outcome": shape("The truthful answer to a change.", "id outcome", **_OUTCOME),
    "Line": shape(
        "The outcome of one line. A refused one has `errors`; the last one is a problem if the rest could not "
        "be taken.",
        "outcome line",
        **_OUTCOME,
        errors=array(ref("Error")),
        line=number("The number of the line (blank ones count) or item, from 1.", minimum=1),
        type=text("The problem's kind."),
        title=text("The problem's title."),
        status=number("The problem's status."),
        detail=text("What to change."),
    ),
    "Error": _ERROR,
    "Problem": {
        "type": "object",
        "description": "RFC 9457. On a change that did not happen it also has the outcome's fields.",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": text("Its kind, as a URN."),
            "title": text("The kind in words."),
            "status": number("The HTTP status."),
            "detail": text("What to change."),
            "errors": array(ref("Error"), "By field."),
            **_OUTCOME,
            "state": text("Its state, where the outcome alone does not say it."),
        },
    },
    "Schedule": shape("A schedule as it stands; what it does not have is left out.", _SCHEDULE_REQUIRED, **_SCHEDULE),
    "Explanation": shape(
        "A schedule and what happened to it.",
        f"{_SCHEDULE_REQUIRED} history",
        **_SCHEDULE,
        history=array(ref("Event"), "Oldest first."),
    ),
    "Event": shape(
        "One line of a history.",
        "at event",
        at=instant("When."),
        event=text(
            "What.", examples=["accepted", "replaced", "paused", "resumed", "fired", "moved", "released", "missed"]
        ),
        occurrence=number("Which occurrence; of several the first."),
        due_at=instant("When it was due."),
        late_ms={"type": "number", "description": "How late it left."},
        reason=text("Why it was missed; what moved it, and from when; what it was that ended."),
        count=number("How many."),
    ),
    "SchedulePage": shape(
        "Some schedules, those to come first, without their values and headers.",
        "schedules cursor",
        schedules=array(ref("Schedule")),
        cursor=or_null(text("Where to go on; null: that was all.")),
    ),
}
