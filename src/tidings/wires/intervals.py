"""The wire of Intervals: `assignments.<tenant>` in, `executions.<tenant>` out.

    intervals-schedule   an instant, a duration from the record's timestamp, or a repeating interval of ISO 8601;
                         also an RRULE or a cron expression (added by Tidings)
    intervals-zone       the time zone of a rule, an expression or a local time (added by Tidings)
    intervals-tenant-id  optional; must be the tenant of the topic
    intervals-id         the schedule's id, with which it can be changed (added by Tidings)
    intervals-action     ADD (default), REPLACE, CANCEL, PAUSE, RESUME (added by Tidings)

The last one of repeated headers counts, because a client that resends a delivered record appends headers. All headers
are released as they came. Replacing a finished schedule is refused, as over HTTP.
"""

import re
from typing import ClassVar

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.rrule import quoted
from tidings.domain.schedules.schedule import PlainRequest, Request, Timing
from tidings.shapes.refusal import shorten
from tidings.wires.record import (
    Ask,
    Record,
    Times,
    Verb,
    again,
    derived_id,
    id_of,
    last_of,
    once,
    plain_request,
    required,
    since_of,
    text_of,
    verb_of,
)
from tidings.wires.wire import INTERVALS_EXECUTIONS, INTERVALS_REQUESTS, REJECTIONS, Wire, affixed

SCHEDULE = "intervals-schedule"
TENANT_ID = "intervals-tenant-id"
ID = "intervals-id"
ACTION = "intervals-action"
ZONE = "intervals-zone"

VERBS: dict[str, Verb] = {
    "ADD": "add",
    "REPLACE": "replace",
    "CANCEL": "cancel",
    "PAUSE": "pause",
    "RESUME": "resume",
}

CRON_FIELDS = {5, 6}

_CRON_BEGINS = frozenset("0123456789*?")
_DATED = re.compile(r"\d{4}-?\d\d")
_FORMS = (
    "is not a time: write an instant such as 2026-11-20T09:00:00Z, a duration such as PT10M, an interval such as "
    'R5/2026-11-20T09:00:00Z/PT1H, a rule such as FREQ=DAILY;BYHOUR=9, or a cron expression such as "0 9 * * MON-FRI"'
)
_NAMES = frozenset({SCHEDULE, TENANT_ID, ID, ACTION, ZONE})


class Intervals(Wire):
    """Decodes requests of Intervals clients."""

    name = "intervals"
    sources: ClassVar = {
        "at": SCHEDULE,
        "every": SCHEDULE,
        "rrule": SCHEDULE,
        "cron": SCHEDULE,
        "zone": ZONE,
        "id": ID,
    }

    def tenant_of(self, topic: str) -> str | None:
        return affixed(topic, prefix=INTERVALS_REQUESTS)

    def requests(self, tenant: str) -> tuple[str, ...]:
        return (INTERVALS_REQUESTS + tenant,)

    def rejections(self, tenant: str) -> str:
        return REJECTIONS + tenant

    def topics(self, tenant: str) -> tuple[str, ...]:
        return INTERVALS_EXECUTIONS + tenant, self.rejections(tenant)

    def ask(self, tenant: str, record: Record) -> Ask:
        found = last_of(record.headers, _NAMES)
        claimed = text_of(found, TENANT_ID)
        if claimed not in {None, tenant}:
            raise Invalid(TENANT_ID, f"{shorten(claimed)!r} is not the tenant of the topic, {tenant}: leave it out")
        verb = verb_of(found, ACTION, VERBS)
        given = id_of(found, ID, verb)
        schedule_id = given or derived_id(record)
        if verb not in {"add", "replace"}:
            return Ask(tenant, verb, schedule_id)
        when = required(found, SCHEDULE)
        timing = _timing(when, text_of(found, ZONE))
        times = Times(since=since_of(record))
        if timing is None:
            times = _times(when, record.timestamp_us, as_written=given is not None and verb == "add")
        elif timing.rrule is None and timing.cron is None:
            times = Times(when)
        message = record.value, record.key, record.headers
        at, every, since = times
        destination = INTERVALS_EXECUTIONS + tenant
        request = Request(destination, *message, schedule_id, at=at, every=every, since=since, timing=timing)
        return Ask(tenant, verb, schedule_id, request, reuse=given is None)

    def plain(self, tenant: str, record: Record) -> PlainRequest | None:
        given = when = None
        for name, value in record.headers:
            lower = name.lower()
            if lower not in _NAMES:
                continue
            if lower == SCHEDULE:
                when = value
            elif lower == ID:
                given = value
            elif lower != TENANT_ID or value != tenant.encode():
                return None
        return plain_request(record, given, when, INTERVALS_EXECUTIONS + tenant, record.headers)


def _times(when: str, since: int, *, as_written: bool) -> Times:
    """The forms of time that Intervals itself has; the error for other texts lists all forms."""
    if when.startswith("R"):
        return again(when, since, SCHEDULE, as_written=as_written)
    try:
        return once(when, since, SCHEDULE, as_written=as_written)
    except Invalid as invalid:
        if _DATED.match(when) or when[:1] in {"P", "+"}:
            raise
        raise Invalid(SCHEDULE, f"{quoted(when)} {_FORMS}") from invalid


def _timing(when: str, zone: str | None) -> Timing | None:
    """An RRULE, a cron expression, or the zone of a local time; None for the forms of Intervals itself."""
    if "FREQ=" in when.upper():
        return Timing(rrule=when, zone=zone)
    if when.startswith("@") or (when[:1] in _CRON_BEGINS and len(when.split()) in CRON_FIELDS):
        return Timing(cron=when, zone=zone)
    return None if zone is None else Timing(zone=zone)
