"""Schedules, messages and destinations as they are stored and read: schedules, history, calendars, records, pages."""

import base64
import binascii
import re
import struct
from typing import NamedTuple

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.limits import DAY_S, LIMITS_MOST, Limits
from tidings.domain.names import Bus, Past, Policy, Priority
from tidings.domain.schedules.command import State
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.when import When

# A generated id contains its arrival number and its due time, so that it can be found without an index entry.
MADE_PREFIX = "tid_"
MADE_ID = re.compile(MADE_PREFIX + r"([0-9]{16})([0-9]{16})([012])\Z")


def make_id(arrival: int, due: int, priority: int) -> str:
    """Generate an id; ids sort by arrival."""
    return f"{MADE_PREFIX}{arrival:016d}{due:016d}{int(priority)}"


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """The current state of one schedule: pending, paused, or finished and still remembered.

    `due` is the due time of the pending occurrence, or of the last one if it is finished; `occurrence` is its number.
    `message` is packed, None once it is deleted. `partition` and `offset` are the position of a released one-shot in
    the log. `tzdata` is the version of the time zone rules by which `due` was computed, if it has a zone.
    `jitter_window_us` is the jitter of a recurring schedule; of a one-shot only the resulting due time is stored.
    """

    tenant: str
    id: str
    generation: int
    topic: str
    state: State
    due: int
    accepted: int
    priority: Priority = Priority.NORMAL
    occurrence: int = 1
    when: When | None = None
    lateness: Lateness | None = None
    labels: str | None = None
    message: bytes | None = None
    finished: int | None = None
    reason: str | None = None
    partition: int | None = None
    offset: int | None = None
    tzdata: str | None = None
    jitter_window_us: int = 0


class Event(msgspec.Struct, frozen=True, gc=False):
    """One entry of a schedule's history."""

    at: int
    event: str
    occurrence: int | None = None
    due: int | None = None
    reason: str | None = None
    count: int | None = None


class Moved(msgspec.Struct, frozen=True, gc=False):
    """A pending occurrence that moved with its calendar or its zone's rules; `after` is None if none is left."""

    at: int
    cause: str
    tenant: str
    id: str
    occurrence: int
    before: int
    after: int | None


class Calendar(msgspec.Struct, frozen=True, gc=False):
    """A tenant's named set of days (since 1970) on which nothing is released."""

    name: str
    days: tuple[int, ...]
    changed: int


class KeptZone(msgspec.Struct, frozen=True, gc=False):
    """The rules of a time zone by which pending occurrences were computed: the version of tzdata, and the TZif file."""

    name: str
    version: str
    content: bytes


class Query(msgspec.Struct, frozen=True, gc=False):
    """The conditions of a list; all must hold. `after` is the cursor of the previous page."""

    topic: str | None = None
    state: State | None = None
    due_from: int | None = None
    due_to: int | None = None
    prefix: str | None = None
    label: tuple[str, str] | None = None
    after: str | None = None
    limit: int = 100


class Page(msgspec.Struct, frozen=True, gc=False):
    """Some schedules, those to come first, and where to go on (None: that was all). May be short with more to come."""

    schedules: tuple[Schedule, ...]
    cursor: str | None


class Record(msgspec.Struct, frozen=True, gc=False):
    """One released occurrence in the log. `message` is packed."""

    topic: str
    partition: int
    offset: int
    id: str
    generation: int
    number: int
    due: int
    released: int
    message: bytes
    final: bool = False

    @property
    def occurrence(self) -> str:
        """The id of the occurrence, the same after every retry and crash."""
        return f"{self.id}/{self.generation}/{self.number}"


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """One released occurrence on its way to Kafka; `offset` is its position in the outbox. `message` is packed.

    `expires` is the last instant at which a one-shot with `expires_after` may be published.
    """

    offset: int
    tenant: str
    topic: str
    id: str
    generation: int
    number: int
    due: int
    released: int
    message: bytes
    final: bool = False
    expires: int | None = None

    @property
    def occurrence(self) -> str:
        """The id of the occurrence, the same after every retry and crash."""
        return f"{self.id}/{self.generation}/{self.number}"


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The record on a request topic from which a released occurrence came."""

    topic: str
    partition: int
    offset: int
    key: bytes


class Topic(msgspec.Struct, frozen=True, gc=False):
    """A topic of the log: the first and the next offset of each partition, and its size."""

    name: str
    first: tuple[int, ...]
    next: tuple[int, ...]
    bytes: int


Headers = tuple[tuple[str, bytes | None], ...]


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Key, value and headers of a record. Headers keep their order, repeats and nulls."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)

pack = _encoder.encode
unpack = _decoder.decode


# A header of the stored message: "partition/offset" of the request it came with. It is removed at the release, except
# from tombstones, by which Tidings recognizes its own.
ORIGIN = "tidings-origin"

# A placeholder for the value of a header: it is replaced at the release by the due time in seconds since the epoch.
DUE_SECONDS = b"\0tidings due in seconds\0"


KAFKA = "kafka:"


def join(bus: Bus, topic: str) -> str:
    """The destination for a bus and a topic."""
    return KAFKA + topic if bus == "kafka" else topic


def split(destination: str) -> tuple[Bus, str]:
    """The bus and the topic of a destination."""
    return ("kafka", destination[len(KAFKA) :]) if is_kafka(destination) else ("log", destination)


def is_kafka(destination: str) -> bool:
    """Whether the destination is a Kafka topic."""
    return destination.startswith(KAFKA)


Key = tuple[int, int]  # due time and arrival


class ListPosition(NamedTuple):
    """The position of a schedule in a list."""

    finished: bool
    due: int
    arrival: int

    def order(self) -> tuple[bool, int, int]:
        """The sort key of lists."""
        return (True, -self.due, -self.arrival) if self.finished else self


_FORM = struct.Struct(">?qq")


def encode_cursor(position: ListPosition) -> str:
    """The cursor of a position in a list."""
    return base64.urlsafe_b64encode(_FORM.pack(*position)).decode().rstrip("=")


def decode_cursor(text: str) -> ListPosition:
    """The position that a cursor encodes; raises `Invalid`."""
    try:
        return ListPosition(*_FORM.unpack(base64.urlsafe_b64decode(text + "==")))
    except (binascii.Error, struct.error, ValueError):
        raise Invalid("cursor", "is not valid: leave it out to start from the beginning") from None


__all__ = ["DAY_S", "LIMITS_MOST", "Limits", "Request", "Timing"]


class Timing(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The fields that say when a schedule is due besides `at` and `every`, as sent; see docs/reference/rules.md."""

    rrule: str | None = None
    cron: str | None = None
    zone: str | None = None
    start: str | None = None
    until: str | None = None
    count: int | None = None
    rdates: tuple[str, ...] = ()
    exdates: tuple[str, ...] = ()
    gap: str | None = None
    overlap: str | None = None
    calendar: str | None = None
    on_excluded: str | None = None


# A request for one instant, of normal priority and without any other field: id, topic, the time as it was sent (a text,
# microseconds, or None for now), the instant, key, value, headers, and whether a finished id may be used again. A plain
# tuple, because one is built for each request.
PlainRequest = tuple[str | None, str, int | str | None, int, bytes | None, bytes | None, Headers, bool]


class Request(msgspec.Struct, frozen=True, gc=False):
    """A schedule before admission. `at` is an instant in microseconds, or a text as it was sent; None is now.

    Durations count from `since`; None is now. The fields after `timing` have the names and values of the HTTP API
    (`shapes.schedule.NewSchedule`) and are passed on as they were sent: a new optional field goes at the end. They
    are positional because `wires.document.read` builds one for each request, and keyword arguments are slower.
    """

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()
    id: str | None = None
    at: int | str | None = None
    priority: Priority = Priority.NORMAL
    since: int | None = None
    timing: Timing | None = None
    every: str | None = None
    expires_after: str | None = None
    late: Policy | None = None
    late_grace: str | None = None
    late_max: str | None = None
    jitter: str | None = None
    labels: dict[str, str] | None = None
    bus: Bus | None = None
    past: Past | None = None
