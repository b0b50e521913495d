"""The seam between two stores when everything moves from one to the other: what is carried, and who carries it.

What is carried are values of the domain, never rows of a table. The source stands still: it is marked as moved before
the first of them leaves. The target keeps how far a passage has come in the same transaction as what came with it, so
that a passage which was cut off goes on where it was, and nothing comes back that has left the target since.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args
from zlib import crc32

import msgspec

from tidings.domain.command import FINISHED, Priority, State
from tidings.domain.errors import StoreError
from tidings.domain.fleet import Predecessor
from tidings.domain.message import unpack
from tidings.domain.schedule import Calendar, Event, KeptZone
from tidings.domain.terms import Terms
from tidings.domain.when import is_once
from tidings.ports import ApiKey, Document

LOAD_ROWS = 1_000
LOAD_BYTES_MAX = 4 * 1024 * 1024
NAMED_MAX = 1_000  # conflicts that are told by name

Kind = Literal["positions", "keys", "receipts", "documents", "one_shots", "recurring", "paused", "finished"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Landing = Literal["moved", "left", "conflict"]


class Carried(msgspec.Struct, gc=False):
    """The newest schedule of an id, with its history. `terms` are those of a standing one; a one-shot has its deadline.

    `extras` are records fired by hand that have not left: when each was due, and its number.
    """

    tenant: str
    id: str
    topic: str
    priority: Priority
    state: State
    due: int
    accepted: int
    content: bytes
    generation: int
    n: int
    labels: str | None
    message: bytes | None
    deadline: int | None = None
    reason: str | None = None
    terms: Terms | None = None
    fires: int = 0
    released: int = 0
    at: int | None = None
    extras: Sequence[tuple[int, int]] = ()
    history: Sequence[Event] = ()

    @property
    def kind(self) -> Kind:
        """Under what it is counted."""
        if self.state in FINISHED:
            return "finished"
        if self.state == "paused":
            return "paused"
        return "one_shots" if self.terms is None or is_once(self.terms.when) else "recurring"

    @property
    def partition_hash(self) -> int:
        """What chooses its partition: its key, or its id where there is none."""
        key = None if self.message is None else unpack(self.message).key
        return crc32(self.id.encode() if key is None else key)


class CarriedReceipt(msgspec.Struct, frozen=True, gc=False):
    """What was answered to an idempotency key; the outcomes as every store encodes them."""

    tenant: str
    key: str
    body: bytes
    outcomes: bytes
    at: int


class CarriedPosition(msgspec.Struct, frozen=True, gc=False):
    """How far a partition of a request topic was taken in."""

    topic: str
    partition: int
    next: int


Thing = Carried | CarriedReceipt | CarriedPosition | ApiKey | Document


class Load(msgspec.Struct, frozen=True, gc=False):
    """What is carried in one transaction, and where the next load begins. `highest` is an arrival number above all."""

    things: Sequence[Thing]
    after: str
    highest: int = 0


class Progress(msgspec.Struct, frozen=True):
    """How far a passage has come: what was moved, what was there already, what stood in the way, by kind."""

    after: str | None = None
    moved: dict[str, int] = {}
    left: dict[str, int] = {}
    conflicts: dict[str, int] = {}
    fired: int = 0
    named: tuple[str, ...] = ()
    predecessors: tuple[Predecessor, ...] = ()

    def landed(self, load: Load, landings: Sequence[Landing]) -> "Progress":
        """The same after one more load."""
        moved, left, conflicts = dict(self.moved), dict(self.left), dict(self.conflicts)
        tallies = {"moved": moved, "left": left, "conflict": conflicts}
        named, fired = list(self.named), self.fired
        for thing, landing in zip(load.things, landings, strict=True):
            kind, tally = kind_of(thing), tallies[landing]
            tally[kind] = tally.get(kind, 0) + 1
            if landing == "conflict" and len(named) < NAMED_MAX:
                named.append(name_of(thing))
            elif landing == "moved" and isinstance(thing, Carried):
                fired += len(thing.extras)
        return Progress(load.after, moved, left, conflicts, fired, tuple(named), self.predecessors)

    def seen(self, kind: Kind) -> int:
        """How many of a kind have been looked at."""
        return sum(tally.get(kind, 0) for tally in (self.moved, self.left, self.conflicts))


class Move(msgspec.Struct, frozen=True):
    """Written into the source before anything leaves it: where it goes, by which passage, whether all is there.

    `schema` is None of a file, and where it is the usual one.
    """

    passage: str
    to: str
    identity: str
    at: int
    done: bool = False
    predecessors: tuple[Predecessor, ...] = ()
    schema: str | None = None

    @property
    def where(self) -> str:
        """Where it goes, for people to read."""
        return placed(self.to, self.schema)


class Behind(msgspec.Struct, frozen=True):
    """A consumer group that has not read all of a topic of the log."""

    tenant: str
    topic: str
    group: str
    records: int


class Rest(msgspec.Struct, frozen=True):
    """What a passage does not carry: what is on its way to Kafka, what is kept back from it, what is on the log."""

    outgoing: int = 0
    held: int = 0
    records: int = 0
    behind: tuple[Behind, ...] = ()


class HasMoved(StoreError):
    """This store has moved, or is moving: whoever served it would release everything a second time."""

    def __init__(self, move: Move) -> None:
        how = "has moved" if move.done else "is moving"
        super().__init__(f"this store {how} to {move.where}")
        self.move = move


class CarriedDates(NamedTuple):
    """What recurring schedules depend on: calendars with their tenants, and the rules of zones."""

    calendars: Sequence[tuple[str, Calendar]]
    zones: Sequence[KeptZone]


class Carrier(Protocol):
    """A store from which or into which everything can be carried."""

    @property
    def identity(self) -> str: ...

    async def seize(self, elapsed: int, lease_us: int) -> bool:
        """Own all of it, or go on owning it; False while somebody else does. Holds for a store that has moved too."""
        ...

    async def enter(self, elapsed: int, lease_us: int) -> bool:
        """Be let in to write, now and for a while; False while that would disturb somebody."""
        ...

    async def let_go(self) -> None:
        """Give back what was seized."""
        ...

    async def nodes(self) -> list[str]:
        """The names of nodes that live on this store."""
        ...

    async def moved(self) -> Move | None:
        """Where it has moved to."""
        ...

    async def leave(self, move: Move, check: Callable[[Rest], None]) -> Move:
        """Close it to everybody, look what would be left behind, and mark it as moved, in one transaction.

        What the check raises undoes all of it; `NotOwner` if it is no longer seized. Answers the mark with the
        predecessors that the target will have: those of this store, and itself.
        """
        ...

    async def move(self, move: Move | None) -> None:
        """Change the mark of one that has moved, or take it back; then everybody may change it again."""
        ...

    async def rest(self) -> Rest:
        """What would be left behind."""
        ...

    async def cargo(self) -> dict[Kind, int]:
        """How much of each kind there is to carry, counted exactly."""
        ...

    async def positions(self) -> dict[tuple[str, int], int]:
        """Where Kafka intake stands, by topic and partition."""
        ...

    async def dates(self) -> CarriedDates:
        """What recurring schedules depend on."""
        ...

    async def take_dates(self, dates: CarriedDates) -> None:
        """The same from another store; calendars that are there already stay as they are."""
        ...

    async def carry_out(self, after: str | None) -> Load | None:
        """The load that follows a place, in an order that stays the same; None at the end."""
        ...

    async def begin(self, passage: str, predecessors: Sequence[Predecessor]) -> None:
        """A passage into this store begins, or goes on: note whose place it takes."""
        ...

    async def progress(self, passage: str) -> Progress:
        """How far a passage into this store has come."""
        ...

    async def carry_in(self, passage: str, before: Progress, load: Load, now: int) -> Progress:
        """Take a load in, and note the new progress, in one transaction; `Moved` if it has come further than `before`.

        What is there already is left as it is, whatever became of it: nothing is overwritten, nothing comes back.
        """
        ...


def records_of(count: int) -> str:
    """So many records, for people to read."""
    return f"{count:,} record{'' if count == 1 else 's'}"


def placed(store: str, schema: str | None) -> str:
    """A store and its schema, for people to read."""
    return store if schema is None else f"{store}, schema {schema}"


def kind_of(thing: Thing) -> Kind:
    """Under what a thing is counted."""
    match thing:
        case Carried():
            return thing.kind
        case CarriedReceipt():
            return "receipts"
        case CarriedPosition():
            return "positions"
        case ApiKey():
            return "keys"
        case Document():
            return "documents"


def name_of(thing: Thing) -> str:
    """How a thing is told to people."""
    match thing:
        case Carried():
            return f"schedule {thing.tenant}/{thing.id}"
        case CarriedReceipt():
            return f"idempotency key {thing.tenant}/{thing.key}"
        case CarriedPosition():
            return f"request topic {thing.topic}/{thing.partition}, read up to {thing.next}"
        case ApiKey():
            return f"API key {thing.name}"
        case Document():
            return f"{thing.key.kind} {thing.key.tenant}/{thing.key.name}"


def land(brought: Carried, generation: int, content: bytes, accepted: int, at: int | None) -> Landing:
    """What becomes of a schedule whose id the target knows: what it knows has this generation, content and times.

    An earlier life of the id, over before this one was accepted, does not stand in the way. One that is over in the
    source and goes on in the target, after the source was taken back, is told: it would leave there all the same.
    """
    if at is not None and at <= brought.accepted and (generation, accepted) != (brought.generation, brought.accepted):
        return "moved"
    if brought.state in FINISHED:
        return "conflict" if at is None and accepted <= brought.accepted else "left"
    return "left" if content == brought.content else "conflict"


def predecessors_of(passages: Iterable[Sequence[Any]]) -> tuple[Predecessor, ...]:
    """Whose place a store takes, by the rows that it keeps of passages into it; of each store what it was last."""
    known: dict[str, Predecessor] = {}
    for (passage,) in passages:
        for each in decode_progress(passage).predecessors:
            known[each.identity] = max(each, known.get(each.identity, each), key=lambda one: one.outboxes)
    return tuple(known.values())


encode_progress = msgspec.msgpack.Encoder().encode
decode_progress = msgspec.msgpack.Decoder(Progress).decode
encode_move = msgspec.msgpack.Encoder().encode
decode_move = msgspec.msgpack.Decoder(Move).decode
