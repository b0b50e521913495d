"""The wire of Intervals: `assignments.<tenant>` in, `executions.<tenant>` out.

    intervals-schedule   an instant, a duration from the record's timestamp, or a repeating interval of ISO 8601;
                         also a rule of RFC 5545 or a cron expression (of Tidings, not of the original)
    intervals-zone       the zone of a rule, an expression or a local time (of Tidings, not of the original)
    intervals-tenant-id  may be left out; has to be the topic's tenant
    intervals-id         names the schedule, so that it can be changed (of Tidings, not of the original)
    intervals-action     ADD (default), REPLACE, CANCEL, PAUSE, RESUME (of Tidings, not of the original)

Of a header that repeats the last counts: who sends a delivered record again adds to its headers. Every header leaves
as it came. To replace what is finished is refused, as over HTTP: the message is out.
"""

import re
from typing import ClassVar

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.rrule import quoted
from tidings.domain.schedules.request import Request, Timing
from tidings.wires.document import shorten
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
    """Reads what clients of Intervals send."""

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
            raise Invalid(TENANT_ID, f"{shorten(claimed)!r} is not the topic's tenant {tenant}: leave it out")
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


def _times(when: str, since: int, *, as_written: bool) -> Times:
    """What Intervals itself knows; where it is none of these, all that may stand there is told."""
    if when.startswith("R"):
        return again(when, since, SCHEDULE, as_written=as_written)
    try:
        return once(when, since, SCHEDULE, as_written=as_written)
    except Invalid as invalid:
        if _DATED.match(when) or when[:1] in {"P", "+"}:
            raise
        raise Invalid(SCHEDULE, f"{quoted(when)} {_FORMS}") from invalid


def _timing(when: str, zone: str | None) -> Timing | None:
    """A rule, an expression, or the zone of a local time; None for what Intervals itself knows."""
    if "FREQ=" in when.upper():
        return Timing(rrule=when, zone=zone)
    if when.startswith("@") or (when[:1] in _CRON_BEGINS and len(when.split()) in CRON_FIELDS):
        return Timing(cron=when, zone=zone)
    return None if zone is None else Timing(zone=zone)
