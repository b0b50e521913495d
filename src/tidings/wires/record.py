"""A Kafka record as it was read, and what a wire makes of it: what it asks for, or why it is refused."""

from collections.abc import Mapping, Set
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import ID_BYTES_MOST
from tidings.domain.schedules.iso8601 import format_instant, parse_duration, parse_instant, parse_interval
from tidings.domain.schedules.lateness import Policy
from tidings.domain.schedules.request import Limits, Request
from tidings.domain.schedules.schedule import Headers
from tidings.domain.schedules.when import LAST_INSTANT, Period, advance
from tidings.wires.document import refused_words

Verb = Literal["add", "replace", "cancel", "pause", "resume", "fire"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a request topic. Headers keep their order, repeats and nulls; no timestamp is a negative one.

    `life` tells a topic that was made anew from the one of its name before. `unreadable` says why there are no headers,
    if they could not be read.
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
    """What a record asks for. `request` is there to add and to replace: the message exactly as it is to leave.

    `reuse` says that an id that is finished may be used anew. An add whose content is that of the finished one is a
    repeat all the same. `keep_count` is for replacing, `missed` for resuming a recurring schedule.
    """

    tenant: str
    verb: Verb
    id: str
    request: Request | None = None
    reuse: bool = False
    keep_count: bool = False
    missed: Policy | None = None


class Tell(msgspec.Struct, frozen=True, gc=False):
    """Somebody is to be told something: the notification as JSON, which those who accept notifications read.

    `id` is its id unless it says another; `since` is what durations in it count from, None if that is now.
    """

    tenant: str
    id: str
    value: bytes
    since: int | None = None


class Nothing(msgspec.Struct, frozen=True, gc=False):
    """A record that asks for nothing, because Tidings itself wrote it."""

    tenant: str


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a record cannot be taken, in sentences that say what to change."""

    tenant: str
    reasons: tuple[str, ...]


class Rejection(NamedTuple):
    """The record that tells of a refusal, and where it goes."""

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
    """The headers with these names, which are in lower case; of repeated ones the last."""
    return {lower: value for name, value in headers if (lower := name.lower()) in names}


def others(headers: Headers, names: Set[str]) -> Headers:
    """All headers but those with these names, in order."""
    return tuple([header for header in headers if header[0].lower() not in names])


def text_of(found: Found, name: str) -> str | None:
    """The text of a header, None if it says nothing."""
    value = found.get(name)
    if not value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Invalid(name, "is not UTF-8: send it as text") from None


def required(found: Found, name: str) -> str:
    """The text of a header that has to be there."""
    text = text_of(found, name)
    if text is None:
        raise Verbatim(name, missing(name))
    return text


def missing(name: str, action: str | None = None) -> str:
    """The reason, in the words that users of Kaspr look for."""
    return f"Missing required header `{name}`" + (f" for {action} action" if action else "")


def verb_of(found: Found, name: str, verbs: Mapping[str, Verb]) -> Verb:
    """What the header of this name asks to do; to add if it says nothing."""
    word = text_of(found, name)
    if word is None:
        return "add"
    verb = verbs.get(word.upper())
    if verb is None:
        raise refused_words(name, word, verbs)
    return verb


def id_of(found: Found, name: str, verb: Verb) -> str | None:
    """The id that the header of this name gives; only to add may it be left out."""
    schedule_id = text_of(found, name)
    if schedule_id is None and verb != "add":
        raise Verbatim(name, missing(name, verb.upper()))
    # Looking up an id needs no more than any store can hold; what makes a schedule is held to the node's own limits.
    if schedule_id is not None and len(schedule_id.encode()) > ID_BYTES_MOST:
        raise Invalid(name, f"is longer than {ID_BYTES_MOST} bytes of UTF-8")
    return schedule_id


def derived_id(record: Record, bytes_max: int = _DERIVED_BYTES_MAX) -> str:
    """The id of a schedule without one: the record's place, so that the same record is the same schedule.

    A place comes again when a topic was deleted and made anew; what is asked for there is another schedule, whose id
    says in which life of the topic.
    """
    place = f"/{record.partition}/{record.offset}"
    if record.life:
        place += f"@{record.life}"
    if len(record.topic) + len(place) <= bytes_max:
        return record.topic + place
    return blake2b(record.topic.encode(), digest_size=_DIGEST_BYTES).hexdigest() + place


class Times(NamedTuple):
    """When, as a request has it."""

    at: int | str | None = None
    every: str | None = None
    since: int | None = None


def since_of(record: Record) -> int | None:
    """What a rule without a start counts from: the record's timestamp, or the moment of acceptance if it has none."""
    return record.timestamp_us if 0 <= record.timestamp_us <= LAST_INSTANT else None


def once(text: str, since: int, field: str, *, as_written: bool) -> Times:
    """A single moment. As it was written, a duration is the same again whenever it is sent: who repeats, repeats."""
    at = moment(text, since, field)
    return Times(text, since=since) if as_written and _is_duration(text) else Times(at)


def again(text: str, since: int, field: str, *, as_written: bool) -> Times:
    """A repeating interval, in the same way."""
    every = interval(text, since, field)
    return Times(every=text, since=since) if as_written else Times(every=every)


def moment(text: str, since: int, field: str) -> int:
    """The instant that the text names, or that lies a duration such as PT10M or +5s after `since`."""
    if _is_duration(text):
        return _after(since, parse_duration(text, field), field)
    return parse_instant(text, field)


def interval(text: str, since: int, field: str) -> str:
    """The repeating interval with its start written out: PT10M begins ten minutes after `since`."""
    head, slash, period = text.partition("/")
    if not slash and not head.startswith("R"):
        head, period = "R", text
    if period and "/" not in period:
        text = f"{head}/{format_instant(_after(since, parse_duration(period, field), field))}/{period}"
    parse_interval(text, 0, field)
    return text


def _is_duration(text: str) -> bool:
    return text[:1] in {"+", "P"} or (text[:1].isdigit() and text[-1:].isalpha() and text[-1:] not in {"Z", "z"})


def _after(since: int, period: Period, field: str) -> int:
    if not 0 <= since <= LAST_INSTANT:
        raise Invalid(field, "counts from the record's timestamp, and that is none: write out the instant")
    at = advance(since, period)
    if at > LAST_INSTANT:
        raise Invalid(field, "would be after the year 9999: write a shorter duration")
    return at
