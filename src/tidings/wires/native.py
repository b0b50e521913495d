"""The wire of Tidings itself: `tidings.requests.<tenant>` in, any topic out.

The record's key and value are the message. All headers that begin with `tidings-` are ours and are stripped, all
others leave as they came:

    tidings-to                       the destination
    tidings-at, tidings-every, tidings-rrule, tidings-cron
                                     when, as over HTTP; none is now, and durations count from the record's timestamp
    tidings-zone, tidings-start, tidings-until, tidings-count, tidings-gap, tidings-overlap, tidings-calendar,
    tidings-on-excluded              beside them, as over HTTP; tidings-rdates and tidings-exdates with commas between
    tidings-id                       names the schedule
    tidings-action                   ADD (default), REPLACE, CANCEL, PAUSE, RESUME, FIRE
    tidings-missed                   of a RESUME: fire_all, fire_latest or skip what fell due meanwhile
    tidings-keep-count               of a REPLACE: `true` lets the numbers of a recurring schedule go on
    tidings-priority, tidings-late, tidings-late-grace, tidings-late-max, tidings-expires-after, tidings-jitter
    tidings-past                     send (default) or refuse what was due before it was sent
    tidings-labels                   a JSON object of texts
    tidings-bus                      kafka (default) or log: where the destination lies

Of a header that repeats the last counts. Those that Tidings itself puts on a released or rejected record say nothing
here, so that it can be sent again. Any other name that begins with `tidings-` is refused, so that a misspelt one does
not go unnoticed.
"""

from typing import Any, ClassVar

import msgspec

from tidings.domain.command import Priority
from tidings.domain.destination import Bus
from tidings.domain.errors import Invalid
from tidings.domain.lateness import Policy
from tidings.domain.message import Headers
from tidings.domain.request import Past, Request, Timing
from tidings.wires.destinations import NATIVE
from tidings.wires.document import BUS_WORDS, PAST_WORDS, POLICIES, PRIORITIES, TIMING
from tidings.wires.headers import Found, derived_id, id_of, required, text_of, verb_of
from tidings.wires.moments import Times, again, once, since_of
from tidings.wires.record import Ask, Record, Verb
from tidings.wires.refusal import refused_words, shorten, unknown_field
from tidings.wires.wire import REJECT_REASON, SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_TOPIC, Wire, affixed

REQUESTS = f"{NATIVE}requests."
REJECTED = f"{NATIVE}rejections."

PREFIX = "tidings-"
TO = "tidings-to"
AT = "tidings-at"
EVERY = "tidings-every"
ID = "tidings-id"
ACTION = "tidings-action"
PRIORITY = "tidings-priority"
EXPIRES_AFTER = "tidings-expires-after"
LATE = "tidings-late"
LATE_GRACE = "tidings-late-grace"
LATE_MAX = "tidings-late-max"
JITTER = "tidings-jitter"
BUS = "tidings-bus"
LABELS = "tidings-labels"
PAST = "tidings-past"
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
TAKEN = (
    *(TO, AT, EVERY, *TIMES.values(), ID, ACTION, MISSED, KEEP_COUNT),
    *(PRIORITY, EXPIRES_AFTER, LATE, LATE_GRACE, LATE_MAX, JITTER, PAST, LABELS, BUS),
)
COUNT_DIGITS_MAX = 9

_RELEASED = ("tidings-occurrence", "tidings-due-at", "tidings-attempt", "tidings-final")
_REJECTED = (SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET, REJECT_REASON)
_KNOWN = frozenset({*TAKEN, *_RELEASED, *_REJECTED})
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode


class Native(Wire):
    """Reads requests in our own form."""

    name = "native"
    sources: ClassVar = {"topic": TO} | {name.removeprefix(PREFIX).replace("-", "_"): name for name in TAKEN}

    def tenant_of(self, topic: str) -> str | None:
        return affixed(topic, prefix=REQUESTS)

    def rejections(self, tenant: str) -> str:
        return REJECTED + tenant

    def ask(self, tenant: str, record: Record) -> Ask:
        found, passing = _sift(record.headers)
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
            passing,
            schedule_id,
            at=times.at,
            every=times.every,
            since=times.since,
            priority=_priority(found),
            expires_after=text_of(found, EXPIRES_AFTER),
            late=_policy(found, LATE),
            late_grace=text_of(found, LATE_GRACE),
            late_max=text_of(found, LATE_MAX),
            jitter=text_of(found, JITTER),
            labels=_labels(found),
            bus=_bus(found),
            timing=timing,
            past=_past(found),
        )
        keep_count = (text_of(found, KEEP_COUNT) or "").lower() == "true"
        return Ask(tenant, verb, schedule_id, request, reuse=given is None, keep_count=keep_count)


def _times(found: Found, record: Record, timing: Timing | None, *, as_written: bool) -> Times:
    """The instant or the interval; what is local, or a rule, is read at admission."""
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
    """What is said about time in more than one word."""
    given: dict[str, Any] = {name: text for name, header in TIMES.items() if (text := text_of(found, header))}
    for name in ("rdates", "exdates"):
        if name in given:
            given[name] = tuple(part.strip() for part in given[name].split(","))
    if "count" in given:
        if not (given["count"].isascii() and given["count"].isdigit() and len(given["count"]) <= COUNT_DIGITS_MAX):
            raise Invalid(TIMES["count"], f"{shorten(given['count'])!r} is not a whole number from 1 on")
        given["count"] = int(given["count"])
    return Timing(**given) if given else None


def _policy(found: Found, header: str) -> Policy | None:
    word = text_of(found, header)
    if word is not None and word not in POLICIES:
        raise refused_words(header, word, POLICIES)
    return None if word is None else POLICIES[word]


def _sift(headers: Headers) -> tuple[Found, Headers]:
    """Our own headers by lower-case name, and the others in order."""
    found: Found = {}
    passing = []
    for name, value in headers:
        lower = name.lower()
        if not lower.startswith(PREFIX):
            passing.append((name, value))
        elif lower not in _KNOWN:
            raise unknown_field(lower, TAKEN)
        else:
            found[lower] = value
    return found, tuple(passing)


def _priority(found: Found) -> Priority:
    word = text_of(found, PRIORITY)
    if word is None:
        return Priority.NORMAL
    if word not in PRIORITIES:
        raise refused_words(PRIORITY, word, PRIORITIES)
    return PRIORITIES[word]


def _bus(found: Found) -> Bus | None:
    word = text_of(found, BUS)
    if word is None:
        return None
    if word not in BUS_WORDS:
        raise refused_words(BUS, word, BUS_WORDS)
    return BUS_WORDS[word]


def _past(found: Found) -> Past | None:
    word = text_of(found, PAST)
    if word is None:
        return None
    if word not in PAST_WORDS:
        raise refused_words(PAST, word, PAST_WORDS)
    return PAST_WORDS[word]


def _labels(found: Found) -> dict[str, str] | None:
    text = text_of(found, LABELS)
    if text is None:
        return None
    try:
        return _decode_labels(text)
    except (msgspec.MsgspecError, RecursionError):
        raise Invalid(LABELS, 'write a JSON object of texts, for example {"campaign": "autumn"}') from None
