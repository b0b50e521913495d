"""Tidings' own wires on Kafka: schedules on `tidings.requests.<tenant>`, notifications on `tidings.notify.<tenant>`.

The key and value of a record on `tidings.requests.<tenant>` are the message. Headers that begin with `tidings-` are
read and removed; all others are passed on unchanged:

    tidings-to                       the destination
    tidings-at, tidings-every, tidings-rrule, tidings-cron
                                     when, as over HTTP; without one it is due now; durations count from the timestamp
                                     of the record
    tidings-zone, tidings-start, tidings-until, tidings-count, tidings-gap, tidings-overlap, tidings-calendar,
    tidings-on-excluded              as over HTTP; tidings-rdates and tidings-exdates are separated by commas
    tidings-id                       names the schedule
    tidings-action                   ADD (default), REPLACE, CANCEL, PAUSE, RESUME, FIRE
    tidings-missed                   for RESUME: fire_all, fire_latest or skip what fell due meanwhile
    tidings-keep-count               for REPLACE: `true` continues the numbering of a recurring schedule
    tidings-priority, tidings-late, tidings-late-grace, tidings-late-max, tidings-expires-after, tidings-jitter
    tidings-labels                   a JSON object of texts
    tidings-bus                      kafka (default) or log: the bus of the destination

If a header is repeated, the last one counts. Headers that Tidings puts on a released or rejected record are ignored,
so that the record can be sent again. Any other name that begins with `tidings-` is refused, so that a misspelt one is
noticed.
"""

from typing import Any, ClassVar

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import DEFAULT_TENANT, Policy, Priority
from tidings.domain.schedules.schedule import Headers, PlainRequest, Request, Timing
from tidings.shapes.fields import fields_of
from tidings.shapes.refusal import refused_words, shorten, unknown_field
from tidings.shapes.schedule import NewSchedule
from tidings.wires.document import CARRIED, POLICIES, PRIORITIES, TIMING
from tidings.wires.record import (
    Ask,
    Found,
    NotifyAsk,
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
from tidings.wires.wire import (
    NATIVE,
    NATIVE_REJECTIONS,
    REJECT_REASON,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
    Wire,
    affixed,
)

REQUESTS = f"{NATIVE}requests."
REJECTED = f"{NATIVE}rejections."
NOTIFICATIONS = f"{NATIVE}notify."
NOTIFICATION_ID_BYTES_MAX = 90  # shorter than that of a schedule: deliveries append more to it

PREFIX = "tidings-"
TO = "tidings-to"
AT = "tidings-at"
EVERY = "tidings-every"
ID = "tidings-id"
ACTION = "tidings-action"
PRIORITY = "tidings-priority"
LABELS = "tidings-labels"
MISSED = "tidings-missed"
KEEP_COUNT = "tidings-keep-count"

VERBS: dict[str, Verb] = {
    "ADD": "add",
    "REPLACE": "replace",
    "CANCEL": "cancel",
    "PAUSE": "pause",
    "RESUME": "resume",
    "FIRE": "fire",
}

TIMES = {name: PREFIX + name.replace("_", "-") for name in TIMING}
POLICY = {name: PREFIX + name.replace("_", "-") for name in CARRIED if name not in {"every", "labels"}}
ACCEPTED = (TO, AT, EVERY, *TIMES.values(), ID, ACTION, MISSED, KEEP_COUNT, PRIORITY, *POLICY.values(), LABELS)
COUNT_DIGITS_MAX = 9

_RELEASED = ("tidings-occurrence", "tidings-due-at", "tidings-attempt", "tidings-final")
_REJECTED = (SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET, REJECT_REASON)
_KNOWN = frozenset({*ACCEPTED, *_RELEASED, *_REJECTED})
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode


class Native(Wire):
    """Reads schedules and changes in the format of Tidings."""

    name = "native"
    own_tenants = frozenset({DEFAULT_TENANT})
    sources: ClassVar = {"topic": TO} | {name.removeprefix(PREFIX).replace("-", "_"): name for name in ACCEPTED}

    def tenant_of(self, topic: str) -> str | None:
        return affixed(topic, prefix=REQUESTS)

    def requests(self, tenant: str) -> tuple[str, ...]:
        return (REQUESTS + tenant,)

    def rejections(self, tenant: str) -> str:
        return REJECTED + tenant

    def ask(self, tenant: str, record: Record) -> Ask:
        found, others = _split(record.headers)
        verb = verb_of(found, ACTION, VERBS)
        given = id_of(found, ID, verb)
        schedule_id = given or derived_id(record)
        if verb not in {"add", "replace"}:
            return Ask(tenant, verb, schedule_id, missed=_policy(found, MISSED))
        timing = _timing(found)
        times = _times(found, record, timing, as_written=given is not None and verb == "add")
        request = Request(
            self.destination(tenant, required(found, TO), TO),
            record.value,
            record.key,
            others,
            schedule_id,
            at=times.at,
            every=times.every,
            since=times.since,
            priority=_priority(found),
            labels=_labels(found),
            timing=timing,
            **{name: _carried(found, name, header) for name, header in POLICY.items()},
        )
        keep_count = (text_of(found, KEEP_COUNT) or "").lower() == "true"
        return Ask(tenant, verb, schedule_id, request, reuse=given is None, keep_count=keep_count)

    def plain(self, tenant: str, record: Record) -> PlainRequest | None:
        given = at = to = None
        others = []
        for header in record.headers:
            lower, value = header[0].lower(), header[1]
            if not lower.startswith(PREFIX):
                others.append(header)
            elif lower == AT:
                at = value
            elif lower == TO:
                to = value
            elif lower == ID:
                given = value
            elif lower != ACTION or value != b"ADD":
                return None
        topic = to.decode() if to and to.isascii() else ""
        if not self.may_write(tenant, topic):
            return None
        return plain_request(record, given, at, topic, tuple(others))


def _times(found: Found, record: Record, timing: Timing | None, *, as_written: bool) -> Times:
    """The instant or the interval; local times and rules are read at admission."""
    at, every = text_of(found, AT), text_of(found, EVERY)
    if at is not None and every is not None:
        raise Invalid(AT, f"give either {AT} or {EVERY}, not both")
    if timing is not None:
        return Times(at, every, since_of(record))
    if at is not None:
        return once(at, record.timestamp_us, AT, as_written=as_written)
    if every is not None:
        return again(every, record.timestamp_us, EVERY, as_written=as_written)
    return Times()


def _timing(found: Found) -> Timing | None:
    """The fields of a rule, a cron expression or a local time; None if there are none."""
    given: dict[str, Any] = {name: text for name, header in TIMES.items() if (text := text_of(found, header))}
    for name in ("rdates", "exdates"):
        if name in given:
            given[name] = tuple(part.strip() for part in given[name].split(","))
    if "count" in given:
        if not (given["count"].isascii() and given["count"].isdigit() and len(given["count"]) <= COUNT_DIGITS_MAX):
            raise Invalid(TIMES["count"], f"{shorten(given['count'])!r} is not a whole number of at least 1")
        given["count"] = int(given["count"])
    return Timing(**given) if given else None


def _policy(found: Found, header: str) -> Policy | None:
    word = text_of(found, header)
    if word is not None and word not in POLICIES:
        raise refused_words(header, word, POLICIES)
    return None if word is None else POLICIES[word]


def _split(headers: Headers) -> tuple[Found, Headers]:
    """The `tidings-` headers by lower-case name, and the others in order."""
    found: Found = {}
    others = []
    for name, value in headers:
        lower = name.lower()
        if not lower.startswith(PREFIX):
            others.append((name, value))
        elif lower not in _KNOWN:
            raise unknown_field(lower, ACCEPTED)
        else:
            found[lower] = value
    return found, tuple(others)


def _priority(found: Found) -> Priority:
    word = text_of(found, PRIORITY)
    if word is None:
        return Priority.NORMAL
    if word not in PRIORITIES:
        raise refused_words(PRIORITY, word, PRIORITIES)
    return PRIORITIES[word]


def _carried(found: Found, name: str, header: str) -> Any:
    """The text of a field that is passed on as sent; refused if the field has a list of words and this is not one."""
    word, choices = text_of(found, header), fields_of(NewSchedule)[name].choices
    if word is not None and choices and word not in choices:
        raise refused_words(header, word, choices)
    return word


def _labels(found: Found) -> dict[str, str] | None:
    text = text_of(found, LABELS)
    if text is None:
        return None
    try:
        return _decode_labels(text)
    except (msgspec.MsgspecError, RecursionError):
        raise Invalid(LABELS, 'write a JSON object of texts, for example {"campaign": "autumn"}') from None


class Notify(Wire):
    """Reads notifications; the topic names the tenant."""

    name = "notify"
    own_tenants = frozenset({DEFAULT_TENANT})
    sources: ClassVar = {}

    def tenant_of(self, topic: str) -> str | None:
        return affixed(topic, NOTIFICATIONS)

    def requests(self, tenant: str) -> tuple[str, ...]:
        return (NOTIFICATIONS + tenant,)

    def rejections(self, tenant: str) -> str:
        return NATIVE_REJECTIONS + tenant

    def ask(self, tenant: str, record: Record) -> NotifyAsk:
        given = text_of(last_of(record.headers, frozenset({ID})), ID)
        name = given or derived_id(record, NOTIFICATION_ID_BYTES_MAX).replace("/", ".")
        return NotifyAsk(tenant, name, record.value or b"", since_of(record))
