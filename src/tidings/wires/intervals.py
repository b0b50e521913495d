"""The wire of Intervals: `assignments.<tenant>` in, `executions.<tenant>` out.

    intervals-schedule   an instant, a duration from the record's timestamp, or a repeating interval of ISO 8601
    intervals-tenant-id  may be left out; has to be the topic's tenant
    intervals-id         names the schedule, so that it can be changed (of Tidings, not of the original)
    intervals-action     ADD (default), REPLACE, CANCEL, PAUSE, RESUME (of Tidings, not of the original)

Of a header that repeats the last counts: who sends a delivered record again adds to its headers. Every header leaves
as it came. To replace what is finished is refused, as over HTTP: the message is out.
"""

from typing import ClassVar

from tidings.domain.errors import Invalid
from tidings.domain.request import Request
from tidings.wires.destinations import INTERVALS_EXECUTIONS, INTERVALS_REQUESTS, REJECTIONS
from tidings.wires.headers import derived_id, id_of, last_of, required, text_of, verb_of
from tidings.wires.moments import again, once
from tidings.wires.record import Ask, Record, Verb
from tidings.wires.refusal import shorten
from tidings.wires.wire import Wire, affixed

SCHEDULE = "intervals-schedule"
TENANT_ID = "intervals-tenant-id"
ID = "intervals-id"
ACTION = "intervals-action"

VERBS: dict[str, Verb] = {
    "ADD": "add",
    "REPLACE": "replace",
    "CANCEL": "cancel",
    "PAUSE": "pause",
    "RESUME": "resume",
}

_NAMES = frozenset({SCHEDULE, TENANT_ID, ID, ACTION})


class Intervals(Wire):
    """Reads what clients of Intervals send."""

    name = "intervals"
    sources: ClassVar = {"at": SCHEDULE, "every": SCHEDULE, "id": ID}

    def tenant_of(self, topic: str) -> str | None:
        return affixed(topic, prefix=INTERVALS_REQUESTS)

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
        read = again if when.startswith("R") else once
        times = read(when, record.timestamp_us, SCHEDULE, as_written=given is not None and verb == "add")
        message = record.value, record.key, record.headers
        at, every, since = times
        request = Request(INTERVALS_EXECUTIONS + tenant, *message, schedule_id, at=at, every=every, since=since)
        return Ask(tenant, verb, schedule_id, request, reuse=given is None)
