"""The wire of the Kaspr Scheduler: `<app-id>-schedule-requests` in, any topic out. The tenant is the app id.

    x-scheduler-action                   ADD (default), REPLACE, CANCEL, CRON_ADD, CRON_CANCEL, CRON_PAUSE, CRON_RESUME
    x-scheduler-deliver-at               ISO 8601; without an offset it is UTC, a date alone is its midnight
    x-scheduler-deliver-to               the destination
    x-scheduler-request-id               the schedule's id; optional only for ADD
    x-scheduler-cron-expr                five fields, or six with seconds last, in UTC, from the record's timestamp on
    x-scheduler-cron-missed-fire-policy  replay (default): what was missed is delivered too; or skip
    x-scheduler-cron-fire-timestamp      on what is delivered: the nominal time, in seconds since the epoch

The last one of repeated headers counts (the original keeps headers in a mapping). These headers are removed, all
others are released as they came. A finished id may be used again.
"""

import re
from binascii import b2a_base64
from typing import Any, ClassVar

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.schedules.iso8601 import parse_instant
from tidings.domain.schedules.lateness import Policy
from tidings.domain.schedules.schedule import DUE_SECONDS, Headers, PlainRequest, Request, Timing
from tidings.shapes.refusal import refused_words, shorten
from tidings.wires.record import (
    Ask,
    Found,
    Record,
    Refusal,
    Rejection,
    Verb,
    Verbatim,
    derived_id,
    id_of,
    last_of,
    missing,
    others,
    plain_request,
    since_of,
    text_of,
)
from tidings.wires.wire import (
    INTERVALS_EXECUTIONS,
    INTERVALS_REQUESTS,
    KASPR_ACTIONS,
    KASPR_REJECTIONS,
    KASPR_REQUESTS,
    NATIVE,
    REJECTIONS,
    Wire,
    affixed,
    refusal_headers,
)

ACTION = "x-scheduler-action"
DELIVER_AT = "x-scheduler-deliver-at"
DELIVER_TO = "x-scheduler-deliver-to"
REQUEST_ID = "x-scheduler-request-id"
CRON_EXPR = "x-scheduler-cron-expr"
CRON_POLICY = "x-scheduler-cron-missed-fire-policy"
CRON_FIRE = "x-scheduler-cron-fire-timestamp"

VERBS: dict[str, Verb] = {"ADD": "add", "REPLACE": "replace", "CANCEL": "cancel"}
CRON_VERBS: dict[str, Verb] = {
    "CRON_ADD": "add",
    "CRON_CANCEL": "cancel",
    "CRON_PAUSE": "pause",
    "CRON_RESUME": "resume",
}
CRON_POLICIES: dict[str, Policy] = {"replay": "fire_all", "skip": "skip"}
CRON_FIELDS = 5

# `skip` drops occurrences that were due while no node could release them. A second node takes over within 5 s of a
# crash, and a running node is late by milliseconds, so up to 5 s of lateness count as released in time. The default
# grace of a minute, which allows for restarts, would fire missed occurrences.
SKIP_GRACE = "PT5S"

_HINT = 'write five such as "*/5 9-17 * * MON-FRI" (minute, hour, day, month, weekday), or six with seconds last'
_STEPS = re.compile(r"\*/")
_LAST = re.compile(r"\bL([0-7]|[A-Z]{3})\b", re.IGNORECASE)
_NAMES = frozenset({ACTION, DELIVER_AT, DELIVER_TO, REQUEST_ID, CRON_EXPR, CRON_POLICY, CRON_FIRE})
_OTHER_WIRES = (INTERVALS_REQUESTS, INTERVALS_EXECUTIONS, REJECTIONS, NATIVE)
_check_json = msgspec.json.Decoder(msgspec.Raw).decode


class Kaspr(Wire):
    """Decodes requests of Kaspr Scheduler clients."""

    name = "kaspr"
    sources: ClassVar = {
        "at": DELIVER_AT,
        "topic": DELIVER_TO,
        "id": REQUEST_ID,
        "cron": CRON_EXPR,
        "late": CRON_POLICY,
    }

    def tenant_of(self, topic: str) -> str | None:
        return None if topic.startswith(_OTHER_WIRES) else affixed(topic, suffix=KASPR_REQUESTS)

    def requests(self, tenant: str) -> tuple[str, ...]:
        return (tenant + KASPR_REQUESTS,)

    def rejections(self, tenant: str) -> str:
        return tenant + KASPR_REJECTIONS

    def topics(self, tenant: str) -> tuple[str, ...]:
        return tenant + KASPR_ACTIONS, self.rejections(tenant)

    def ask(self, tenant: str, record: Record) -> Ask | Refusal:
        found = last_of(record.headers, _NAMES)
        action = (text_of(found, ACTION) or "ADD").upper()
        if action in CRON_VERBS:
            return self._cron(tenant, record, found, action)
        verb = VERBS.get(action)
        if verb is None:
            raise refused_words(ACTION, action, (*VERBS, *CRON_VERBS))
        schedule_id = id_of(found, REQUEST_ID, verb) or derived_id(record)
        if verb == "cancel":
            return Ask(tenant, verb, schedule_id)
        at, to = text_of(found, DELIVER_AT), text_of(found, DELIVER_TO)
        if at is None or to is None:
            absent = [name for name, text in ((DELIVER_AT, at), (DELIVER_TO, to)) if text is None]
            return Refusal(tenant, tuple(missing(name) for name in absent))
        request = Request(
            self.destination(tenant, to, DELIVER_TO),
            record.value,
            record.key,
            others(record.headers, _NAMES),
            schedule_id,
            at=_instant(at),
        )
        return Ask(tenant, verb, schedule_id, request, reuse=True)

    def plain(self, tenant: str, record: Record) -> PlainRequest | None:
        given = at = to = None
        others = []
        for header in record.headers:
            lower, value = header[0].lower(), header[1]
            if lower not in _NAMES:
                others.append(header)
            elif lower == DELIVER_AT:
                at = value
            elif lower == DELIVER_TO:
                to = value
            elif lower == REQUEST_ID:
                given = value
            elif lower != ACTION or value != b"ADD":
                return None
        topic = to.decode() if to and to.isascii() else ""
        if not self.may_write(tenant, topic):
            return None
        asked = plain_request(record, given, at, topic, tuple(others))
        return None if asked is None else (*asked[:-1], True)

    def _cron(self, tenant: str, record: Record, found: Found, action: str) -> Ask | Refusal:
        """Decode a cron action, or refuse it with the reasons of the original."""
        needed = (REQUEST_ID, CRON_EXPR, DELIVER_TO) if action == "CRON_ADD" else (REQUEST_ID,)
        absent = [name for name in needed if text_of(found, name) is None]
        if absent:
            absent = absent[:1] if absent[0] == REQUEST_ID else absent
            return Refusal(tenant, tuple(missing(name, action) for name in absent))
        verb = CRON_VERBS[action]
        schedule_id = id_of(found, REQUEST_ID, verb) or ""
        if verb != "add":
            return Ask(tenant, verb, schedule_id)
        expression, policy = text_of(found, CRON_EXPR) or "", text_of(found, CRON_POLICY) or "replay"
        if policy.lower() not in CRON_POLICIES:
            raise refused_words(CRON_POLICY, policy, CRON_POLICIES)
        late = CRON_POLICIES[policy.lower()]
        request = Request(
            self.destination(tenant, text_of(found, DELIVER_TO) or "", DELIVER_TO),
            record.value,
            record.key,
            (*others(record.headers, _NAMES), (CRON_FIRE, DUE_SECONDS)),
            schedule_id,
            late=late,
            late_grace=SKIP_GRACE if late == "skip" else None,
            since=since_of(record),
            timing=Timing(cron=_read_by_croniter(expression)),
        )
        return Ask(tenant, verb, schedule_id, request, reuse=True)

    def rejection(self, record: Record, refusal: Refusal) -> Rejection:
        """A JSON object with the members `key`, `value`, `headers` and `errors`, as in the original.

        A value that is a JSON object or array is embedded as it is, any other as text. Bytes that are not UTF-8 are
        null, and follow as `key_base64` or `value_base64`. Headers are an object by name: a text, null, or
        {"base64": ...}, and an array of these for a repeated name. The position is in headers, as on every wire.
        """
        document: dict[str, Any] = {
            "key": _text(record.key),
            "value": _shown(record.value),
            "headers": _headers(record.headers),
            "errors": refusal.reasons,
        }
        for name, content in (("key", record.key), ("value", record.value)):
            if content is not None and document[name] is None:
                document[f"{name}_base64"] = _base64(content)
        value = msgspec.json.encode(document)
        headers = refusal_headers(record, refusal)
        return Rejection(self.rejections(refusal.tenant), record.key, value, headers)


def _instant(text: str) -> int:
    """The time to deliver; Python clients often send UTC without an offset."""
    problems = []
    for written in (text, f"{text}Z", f"{text}T00:00:00Z"):
        try:
            return parse_instant(written, DELIVER_AT)
        except Invalid as invalid:
            problems.append(invalid.detail)
    raise Verbatim(DELIVER_AT, f"Invalid timestamp format for `{DELIVER_AT}`: {problems[0]}")


def _read_by_croniter(expression: str) -> str:
    """Translate an expression of croniter, which Kaspr uses, into the syntax of our own parser.

    In croniter seconds are the last field, `L5` is the last Friday, and `*/2` in a day field restricts it like
    `1-31/2`, so that a day matches if either the day of month or the weekday does.
    """
    if "=" in expression:
        raise Invalid(CRON_EXPR, f"{shorten(expression)!r} names a zone, and cron jobs run in UTC: {_HINT}")
    if expression.startswith("@"):
        return expression
    fields = expression.split()
    if len(fields) not in {CRON_FIELDS, CRON_FIELDS + 1}:
        raise Invalid(CRON_EXPR, f"has {len(fields)} fields: {_HINT}")
    minute, hour, day, month, weekday, *second = fields
    every_day = "*" if "*" in weekday else "1-31"
    every_weekday = "*" if "*" in day else "0-6"
    day = every_day if day == "*/1" else _STEPS.sub("1-31/", day)
    weekday = every_weekday if weekday == "*/1" else _LAST.sub(r"\1L", _STEPS.sub("0-6/", weekday))
    return " ".join((*second, minute, hour, day, month, weekday))


def _shown(content: bytes | None) -> msgspec.Raw | str | None:
    """A JSON object or array as it is, other content as text, None if it is not UTF-8."""
    text = _text(content)
    if content is None or text is None or content.lstrip()[:1] not in {b"{", b"["}:
        return text
    try:
        return _check_json(content)
    except (msgspec.MsgspecError, RecursionError):
        return text


def _headers(headers: Headers) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for name, content in headers:
        shown = {"base64": _base64(content)} if content is not None and _text(content) is None else _text(content)
        values.setdefault(name, []).append(shown)
    return {name: shown if len(shown) > 1 else shown[0] for name, shown in values.items()}


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def _base64(content: bytes) -> str:
    return b2a_base64(content, newline=False).decode()
