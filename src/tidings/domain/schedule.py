"""Schedules, messages and destinations as they are stored and read: schedules, history, calendars, records, pages."""

import re

import msgspec

from tidings.domain.command import Priority, State
from tidings.domain.lateness import Lateness
from tidings.domain.when import When

# A generated id contains its arrival number and its due time, so that it can be found without an index entry.
MADE_ID = re.compile(r"tid_([0-9]{16})([0-9]{16})([012])\Z")


def make_id(arrival: int, due: int, priority: int) -> str:
    """Generate an id; ids sort by arrival."""
    return f"tid_{arrival:016d}{due:016d}{int(priority)}"


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """The current state of one schedule: pending, paused, or finished and still remembered.

    `due` is the due time of the pending occurrence, or of the last one if it is finished; `occurrence` is its number.
    `message` is packed, None once it is deleted. `partition` and `offset` are the position of a released one-shot in
    the log. `tzdata` is the version of the time zone rules by which `due` was computed, if it has a zone.
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
    """One released occurrence on its way to Kafka; `offset` is its position in the outbox. `message` is packed."""

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
