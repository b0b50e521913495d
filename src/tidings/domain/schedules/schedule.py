"""How a schedule and its history look to a reader."""

import base64
import binascii
import re
import struct

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import Bus
from tidings.domain.schedules.command import Priority, State
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.when import When

# An id that we make carries its place: arrival number and due time, so that it needs no entry in any map.
MADE_ID = re.compile(r"tid_([0-9]{16})([0-9]{16})([012])\Z")


def make_id(arrival: int, due: int, priority: int) -> str:
    """An id of our own form; sorts by arrival."""
    return f"tid_{arrival:016d}{due:016d}{int(priority)}"


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """One schedule as it stands: pending, paused, or finished and still remembered.

    `due` is the pending occurrence's moment, for a finished one that of its last. `occurrence` is that occurrence's
    number. `message` is packed, None once it is gone. `partition` and `offset` say where a released one-shot lies.
    `tzdata` is the version of the zones' rules by which `due` was computed, where it has a zone.
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


class Event(msgspec.Struct, frozen=True, gc=False):
    """One line of a schedule's history."""

    at: int
    event: str
    occurrence: int | None = None
    due: int | None = None
    reason: str | None = None
    count: int | None = None


class Moved(msgspec.Struct, frozen=True, gc=False):
    """A pending occurrence that a new calendar or new rules of its zone moved; `after` None: nothing is left."""

    at: int
    cause: str
    tenant: str
    id: str
    occurrence: int
    before: int
    after: int | None


class Calendar(msgspec.Struct, frozen=True, gc=False):
    """Days (since 1970) on which nothing may happen, under a name of the tenant's."""

    name: str
    days: tuple[int, ...]
    changed: int


class KeptZone(msgspec.Struct, frozen=True, gc=False):
    """A zone's rules by which something pending was computed: the version of tzdata, and its file."""

    name: str
    version: str
    content: bytes


class Query(msgspec.Struct, frozen=True, gc=False):
    """What to list: every condition given must hold. `after` is the cursor of the page before."""

    topic: str | None = None
    state: State | None = None
    due_from: int | None = None
    due_to: int | None = None
    prefix: str | None = None
    label: tuple[str, str] | None = None
    after: str | None = None
    limit: int = 100


class Page(msgspec.Struct, frozen=True, gc=False):
    """Some schedules in due order, and where to go on (None: that was all). May be short while there is more."""

    schedules: tuple[Schedule, ...]
    cursor: str | None


class Record(msgspec.Struct, frozen=True, gc=False):
    """One released occurrence on the log. `message` is packed."""

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
        """The occurrence's id: stable over every retry and crash."""
        return f"{self.id}/{self.generation}/{self.number}"


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """One released occurrence on its way to Kafka, at its place in the outbox. `message` is packed."""

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

    @property
    def occurrence(self) -> str:
        """The occurrence's id: stable over every retry and crash."""
        return f"{self.id}/{self.generation}/{self.number}"


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The record on a request topic that a released occurrence goes back to."""

    topic: str
    partition: int
    offset: int
    key: bytes


class Topic(msgspec.Struct, frozen=True, gc=False):
    """A topic of the log: how many records each partition holds, from which offset to which (exclusive)."""

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


# The place of the request that a message came with, "partition/offset". It is part of the stored message and is left
# out when that leaves; a tombstone has it, by which Tidings knows its own.
ORIGIN = "tidings-origin"

# In the place of a header's value: the due time in whole seconds since the epoch, written there at the release.
DUE_SECONDS = b"\0tidings due in seconds\0"


KAFKA = "kafka:"


def join(bus: Bus, topic: str) -> str:
    """The destination for a bus and a topic."""
    return KAFKA + topic if bus == "kafka" else topic


def split(destination: str) -> tuple[Bus, str]:
    """The bus and the topic of a destination."""
    return ("kafka", destination[len(KAFKA) :]) if is_kafka(destination) else ("log", destination)


def is_kafka(destination: str) -> bool:
    """Whether it lies on Kafka."""
    return destination.startswith(KAFKA)


Key = tuple[int, int]  # due time and arrival, the order of pages


def encode_cursor(key: Key) -> str:
    """The text for a key."""
    return base64.urlsafe_b64encode(struct.pack(">qq", *key)).decode().rstrip("=")


def decode_cursor(text: str) -> Key:
    """The key that a text stands for; raises `Invalid`."""
    try:
        due, arrival = struct.unpack(">qq", base64.urlsafe_b64decode(text + "=="))
    except (binascii.Error, struct.error, ValueError):
        raise Invalid("cursor", "is not one that Tidings gave out: leave it out to begin anew") from None
    return due, arrival
