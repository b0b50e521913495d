"""A schedule's row, wherever it lies, and where that is."""

from hashlib import sha256
from typing import Literal, get_args

import msgspec

from tidings.domain.changes import ahead
from tidings.domain.command import FINISHED, Priority, State
from tidings.domain.lateness import Lateness, MissedReason, bounded_by
from tidings.domain.schedule import Schedule
from tidings.domain.terms import Terms, single
from tidings.domain.when import Once
from tidings.timeline.postgres.names import PRIORITIES, SLOTS, TO_KAFKA, Names

Table = Literal["timeline", "standing", "finished"]
Place = tuple[int, int, int, int]

STATES: tuple[State, ...] = ("released", "missed", "cancelled", "ended")
REASONS = ("", *get_args(MissedReason))  # by the number that rows have; it stays when others are added
KEY_BYTES = 16


class Found(msgspec.Struct, gc=False):
    """One generation of a schedule. `flying` says that it is in the outbox and not known to be on Kafka."""

    table: Table
    arrival: int
    due: int
    lane: int
    stream: int
    topic: int
    part: int
    generation: int
    n: int
    accepted: int
    content: bytes
    id: str
    labels: str | None
    state: State = "pending"
    message: bytes | None = None
    deadline: int | None = None
    reason: str | None = None
    fires: int = 0
    released: int = 0
    terms: Terms | None = None
    at: int | None = None
    position: int | None = None
    flying: bool = False
    held: str | None = None


def key_of(tenant: str, schedule_id: str) -> bytes:
    """Under which key an id is known; `tidings.key` says the same in SQL."""
    return sha256(b"%b\0%b" % (tenant.encode(), schedule_id.encode())).digest()[:KEY_BYTES]


def slot_of(stream: int) -> int:
    """Streams share slots only where there are very many of them; a slot's remainder by three is its priority."""
    return stream % SLOTS


def place_of(found: Found | None) -> Place | None:
    """Where the timeline holds a row for a schedule: lane, slot, due time, arrival."""
    if found is None or found.table == "finished" or found.state == "paused":
        return None
    return found.lane, slot_of(found.stream), found.due, found.arrival


def way_of(found: Found) -> int:
    """The lane and the bus of a row as one number: the lane's own for the log, its complement for Kafka."""
    return ~found.lane if found.part == TO_KAFKA else found.lane


def present(names: Names, found: Found, now: int | None = None) -> Schedule:
    """A row as a reader sees it."""
    coming = ahead(found.terms if found.state == "pending" else None, found.n, found.due, now)
    on_log = found.position is not None and found.part >= 0
    return Schedule(
        names.tenant_of(found.stream),
        found.id,
        found.generation,
        names.destination(found.topic)[1],
        "in_flight" if found.flying else found.state,
        coming.due,
        found.accepted,
        Priority(found.stream % PRIORITIES),
        coming.number,
        found.terms.when if found.terms else None if found.table == "finished" else Once(found.due),
        found.terms.lateness if found.terms else lateness_of(found),
        found.labels,
        found.message,
        found.at,
        found.held if found.flying else found.reason if found.state in FINISHED else None,
        found.part if on_log else None,
        found.position if on_log else None,
        None if found.terms is None else found.terms.tzdata,
    )


def lateness_of(found: Found) -> Lateness | None:
    """The policy that a plain row's deadline came from; a finished one keeps none."""
    if found.table == "finished":
        return None
    return Lateness() if found.deadline is None else bounded_by(found.deadline - found.due, found.reason)


def effective_terms(found: Found) -> Terms | None:
    """The terms of a schedule, also of a plain row, which has none of its own; None if it is finished."""
    lateness = lateness_of(found)
    return single(found.due, lateness) if found.terms is None and lateness is not None else found.terms
