"""Records of request topics, what a wire decodes them into, and helpers to read their headers and times.

Header names are matched case-insensitively, and values are UTF-8. A null or empty header counts as absent. Durations
count from the record's own timestamp, so the same record means the same times however often it is read.
"""

from collections.abc import Mapping, Set
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import ID_BYTES_MOST
from tidings.domain.schedules.iso8601 import (
    format_instant,
    is_duration,
    parse_duration,
    parse_instant,
    parse_interval,
    usual_instant,
)
from tidings.domain.schedules.lateness import Policy
from tidings.domain.schedules.schedule import Headers, Limits, PlainRequest, Request
from tidings.domain.schedules.when import LAST_INSTANT, Period, advance
from tidings.shapes.refusal import refused_words

Verb = Literal["add", "replace", "cancel", "pause", "resume", "fire"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a request topic. Headers keep their order, repetitions and nulls; a negative timestamp is none.

    `life` tells a topic that was deleted and created again from the former one. `unreadable` is the reason why the
    headers could not be read.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    life: str = ""
    unreadable: str = ""


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A command in a record. `request` is set for `add` and `replace`, with the message exactly as it will be released.

    `reuse` allows a new generation of a finished id; an add with the same content as the finished schedule is still a
    repetition. `keep_count` is for `replace`, `missed` for `resume` of a recurring schedule.
    """

    tenant: str
    verb: Verb
    id: str
    request: Request | None = None
    reuse: bool = False
    keep_count: bool = False
    missed: Policy | None = None


class NotifyAsk(msgspec.Struct, frozen=True, gc=False):
    """A notification in a record, as JSON.

    `id` is used unless the JSON has one; durations count from `since`, or from now if it is None.
    """

    tenant: str
    id: str
    value: bytes
    since: int | None = None


class Nothing(msgspec.Struct, frozen=True, gc=False):
    """A record without a request, written by Tidings itself."""

    tenant: str


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The reasons why a record is refused, each with what to change."""

    tenant: str
    reasons: tuple[str, ...]


class Rejection(NamedTuple):
    """The record that reports a refusal, and its topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


Found = dict[str, bytes | None]

_DERIVED_BYTES_MAX = Limits().id_bytes_max
_DIGEST_BYTES = 16


class Verbatim(Invalid):
    """A refusal whose detail is the whole reason."""

    def __str__(self) -> str:
        return self.detail


def last_of(headers: Headers, names: Set[str]) -> Found:
    """The headers with these names, given in lower case; the last one of repeated headers."""
    return {lower: value for name, value in headers if (lower := name.lower()) in names}


def others(headers: Headers, names: Set[str]) -> Headers:
    """All headers except those with these names, in order."""
    return tuple([header for header in headers if header[0].lower() not in names])


def text_of(found: Found, name: str) -> str | None:
    """The text of a header, None if it is absent."""
    value = found.get(name)
    if not value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Invalid(name, "is not UTF-8: send it as text") from None


def required(found: Found, name: str) -> str:
    """The text of a required header."""
    text = text_of(found, name)
    if text is None:
        raise Verbatim(name, missing(name))
    return text


def missing(name: str, action: str | None = None) -> str:
    """The reason for a missing header, in Kaspr's wording."""
    return f"Missing required header `{name}`" + (f" for {action} action" if action else "")


def verb_of(found: Found, name: str, verbs: Mapping[str, Verb]) -> Verb:
    """The verb in a header; `add` if it is absent."""
    word = text_of(found, name)
    if word is None:
        return "add"
    verb = verbs.get(word.upper())
    if verb is None:
        raise refused_words(name, word, verbs)
    return verb


def id_of(found: Found, name: str, verb: Verb) -> str | None:
    """The schedule id in a header; it may be absent only for `add`."""
    schedule_id = text_of(found, name)
    if schedule_id is None and verb != "add":
        raise Verbatim(name, missing(name, verb.upper()))
    # Other verbs may name any id that a store can hold; new schedules are checked against the limits of the node.
    if schedule_id is not None and len(schedule_id.encode()) > ID_BYTES_MOST:
        raise Invalid(name, f"is longer than {ID_BYTES_MOST} bytes of UTF-8")
    return schedule_id


def plain_request(
    record: Record, given: bytes | None, at: bytes | None, topic: str, headers: Headers
) -> PlainRequest | None:
    """A request with the id and the time of these headers; None if either is not in its usual form."""
    due = None if at is None else usual_instant(at.decode("ascii", "replace"))
    if due is None or (given is not None and not given.isascii()):
        return None
    schedule_id = given.decode() if given else derived_id(record)
    return schedule_id, topic, due, due, record.key, record.value, headers, not given


def derived_id(record: Record, bytes_max: int = _DERIVED_BYTES_MAX) -> str:
    """An id from the record's topic, partition and offset, so that the same record is the same schedule.

    Offsets are used again when a topic is deleted and created again; `life` makes the ids differ.
    """
    suffix = f"/{record.partition}/{record.offset}"
    if record.life:
        suffix += f"@{record.life}"
    if len(record.topic) + len(suffix) <= bytes_max:
        return record.topic + suffix
    return blake2b(record.topic.encode(), digest_size=_DIGEST_BYTES).hexdigest() + suffix


class Times(NamedTuple):
    """The time fields of a request."""

    at: int | str | None = None
    every: str | None = None
    since: int | None = None


def since_of(record: Record) -> int | None:
    """The start of a rule without one: the record's timestamp; None (the time of acceptance) if it has none."""
    return record.timestamp_us if 0 <= record.timestamp_us <= LAST_INSTANT else None


def once(text: str, since: int, field: str, *, as_written: bool) -> Times:
    """A single time. `as_written` keeps a duration as text, so that a repeated request has the same content."""
    at = moment(text, since, field)
    return Times(text, since=since) if as_written and is_duration(text) else Times(at)


def again(text: str, since: int, field: str, *, as_written: bool) -> Times:
    """A repeating interval; `as_written` as for `once`."""
    every = interval(text, since, field)
    return Times(every=text, since=since) if as_written else Times(every=every)


def moment(text: str, since: int, field: str) -> int:
    """Parse an instant, or a duration such as PT10M or +5s after `since`."""
    if is_duration(text):
        return _after(since, parse_duration(text, field), field)
    return parse_instant(text, field)


def interval(text: str, since: int, field: str) -> str:
    """A repeating interval with an explicit start: PT10M starts ten minutes after `since`."""
    head, slash, period = text.partition("/")
    if not slash and not head.startswith("R"):
        head, period = "R", text
    if period and "/" not in period:
        text = f"{head}/{format_instant(_after(since, parse_duration(period, field), field))}/{period}"
    parse_interval(text, 0, field)
    return text


def _after(since: int, period: Period, field: str) -> int:
    if not 0 <= since <= LAST_INSTANT:
        raise Invalid(field, "is a duration, but the record has no timestamp to count from: write an instant")
    at = advance(since, period)
    if at > LAST_INSTANT:
        raise Invalid(field, "is after the year 9999: write a shorter duration")
    return at
