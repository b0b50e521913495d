"""How a schedule and its history look to a reader."""

import re

import msgspec

from tidings.domain.command import Priority, State
from tidings.domain.lateness import Lateness
from tidings.domain.when import When

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
    """Some schedules, those to come first, and where to go on (None: that was all). May be short with more to come."""

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
