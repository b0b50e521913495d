"""What two stores exchange when everything moves from one to the other, and what each of them must be able to do.

Items are domain values, not table rows, so every store can read what another one wrote. The source is closed and marked
as moved before the first item leaves it. The target commits its progress in the same transaction as the items, so an
interrupted transfer resumes where it stopped, and nothing that the target has released since comes back. `Exporter`
reads the chunks of a source.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar
from zlib import crc32

import msgspec

from tidings.domain.errors import StoreError
from tidings.domain.fleet import Predecessor
from tidings.domain.notifications.tables import TABLES
from tidings.domain.schedules.command import FINISHED, Priority, State
from tidings.domain.schedules.recurrence_state import RecurrenceState, decode_state
from tidings.domain.schedules.schedule import Event, unpack
from tidings.domain.schedules.when import is_once
from tidings.ports import ApiKey
from tidings.ports import tables as row_store

NAMED_CONFLICTS_MAX = 1_000
CHUNK_COST = 4 * 1024 * 1024
ITEM_COST = 4 * 1024  # so that a chunk has about 1,000 small items
LEAST = -(1 << 62)
ROWS = "rows_"  # the name of the stage of a table is this and the name of the table
# A stage of version 0.1. A transfer that was interrupted there resumes with the first row: both stores have migrated
# their documents to rows since, and a row that the target has already is left as it is.
DOCUMENTS = "documents"
FIRST_RULE = '["calendars", []]'  # the cursor before the first calendar

# `receipts` are idempotency keys: the stored progress of a transfer has this name. `documents` were moved by version
# 0.1, which stored notifications in them: a transfer that it began may be resumed.
Kind = Literal["positions", "keys", "receipts", "documents", "one_shots", "recurring", "paused", "finished", "rows"]
ImportResult = Literal["moved", "existing", "conflict"]
Role = Literal["source", "target"]

RowPosition = tuple[Any, ...]  # the first columns of a row, in the order of its stage
Row = tuple[Any, ...]
AnyRow = TypeVar("AnyRow")
Id = tuple[str, str]  # the tenant, and the id of a schedule
Fetch = Callable[[str, RowPosition], Awaitable[Sequence[Row]]]
FetchHistories = Callable[[Sequence[Id]], Awaitable[Mapping[Id, Sequence[Event]]]]


class ScheduleItem(msgspec.Struct, gc=False, kw_only=True):
    """The newest schedule of an id, with its history. One-shots have a deadline; recurring and paused ones have terms.

    `extras` are records fired by hand that are not released yet: the due time and number of each.
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
    terms: RecurrenceState | None = None
    fires: int = 0
    released: int = 0
    at: int | None = None
    extras: Sequence[tuple[int, int]] = ()
    history: Sequence[Event] = ()

    @property
    def kind(self) -> Kind:
        """The kind it is counted as."""
        if self.state in FINISHED:
            return "finished"
        if self.state == "paused":
            return "paused"
        return "one_shots" if self.terms is None or is_once(self.terms.when) else "recurring"

    @property
    def partition_hash(self) -> int:
        """The hash that selects its partition: of its key, or of its id if it has no key."""
        key = None if self.message is None else unpack(self.message).key
        return crc32(self.id.encode() if key is None else key)


class AnswerItem(msgspec.Struct, frozen=True, gc=False):
    """The answer stored for an idempotency key; every store encodes outcomes in the same way."""

    tenant: str
    key: str
    body: bytes
    outcomes: bytes
    at: int


class PositionItem(msgspec.Struct, frozen=True, gc=False):
    """The next offset to read from a partition of a Kafka request topic."""

    topic: str
    partition: int
    next: int


class CalendarItem(msgspec.Struct, frozen=True, gc=False):
    """A calendar of days off; every store encodes the days in the same way."""

    tenant: str
    name: str
    days: bytes
    changed: int


class ZoneItem(msgspec.Struct, frozen=True, gc=False):
    """The time zone rules by which pending occurrences were computed."""

    name: str
    digest: str
    version: str
    content: bytes


TableItem = PositionItem | ApiKey | AnswerItem | CalendarItem | ZoneItem
Item = TableItem | row_store.Put | ScheduleItem


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """The items of one transaction, all from one stage of the source, and the cursor of the next chunk."""

    items: Sequence[Item]
    after: str

    @property
    def has_rules(self) -> bool:
        """Whether its items are what recurring schedules depend on: calendars or time zones."""
        return isinstance(self.items[0], CalendarItem | ZoneItem)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a transfer, kept by the target: the cursor, and the result of every item so far, by kind."""

    after: str | None = None
    moved: dict[str, int] = {}
    existing: dict[str, int] = msgspec.field(default={}, name="left")
    conflicts: dict[str, int] = {}
    fired: int = 0
    named: tuple[str, ...] = ()
    predecessors: tuple[Predecessor, ...] = ()

    def advanced(self, chunk: Chunk, results: Sequence[ImportResult]) -> "Progress":
        """The progress after one more chunk."""
        tallies = {"moved": dict(self.moved), "existing": dict(self.existing), "conflict": dict(self.conflicts)}
        named, fired = list(self.named), self.fired
        for item, result in zip(chunk.items, results, strict=True):
            kind, name = describe(item)
            if kind is None:
                continue
            tallies[result][kind] = tallies[result].get(kind, 0) + 1
            if result == "conflict" and len(named) < NAMED_CONFLICTS_MAX:
                named.append(name)
            elif result == "moved" and isinstance(item, ScheduleItem):
                fired += len(item.extras)
        return Progress(
            after=chunk.after,
            moved=tallies["moved"],
            existing=tallies["existing"],
            conflicts=tallies["conflict"],
            fired=fired,
            named=tuple(named),
            predecessors=self.predecessors,
        )

    def seen(self, kind: str) -> int:
        """The number of items of a kind that were processed."""
        return sum(tally.get(kind, 0) for tally in (self.moved, self.existing, self.conflicts))


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The mark in a source that was closed: the target, the id of the transfer, and whether it is complete.

    `schema` is None for a file and for the default schema. `counts` is how much there was to move when it was closed.
    """

    transfer: str = msgspec.field(name="passage")  # as stored, like `left` of `Progress`
    to: str
    identity: str
    at: int
    done: bool = False
    predecessors: tuple[Predecessor, ...] = ()
    schema: str | None = None
    counts: dict[Kind, int] = {}

    @property
    def where(self) -> str:
        """The target as shown to people."""
        return located(self.to, self.schema)


class Lag(msgspec.Struct, frozen=True):
    """A consumer group that has not read all records of a topic of the built-in log."""

    tenant: str
    topic: str
    group: str
    records: int


class Remainder(msgspec.Struct, frozen=True):
    """What a transfer does not move: records on their way to Kafka, records held back from it, and the log."""

    outgoing: int = 0
    held: int = 0
    records: int = 0
    behind: tuple[Lag, ...] = ()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A store before a transfer: `nodes` are those alive, `arrival` is at least every arrival number given out."""

    move: Move | None
    nodes: Sequence[str]
    positions: dict[tuple[str, int], int]
    remainder: Remainder
    arrival: int


class HasMoved(StoreError):
    """This store has moved or is moving; serving it as well would release everything twice."""

    def __init__(self, move: Move) -> None:
        how = "has moved" if move.done else "is moving"
        super().__init__(f"this store {how} to {move.where}")
        self.move = move


Check = Callable[[Remainder], None]


class Endpoint(Protocol):
    """A store as the source or the target of a transfer."""

    @property
    def identity(self) -> str: ...

    async def acquire(self, role: Role, elapsed: int, lease_us: int) -> bool:
        """Take or renew the lease that this role needs; False while another process holds it.

        A source that is marked as moved can be acquired too.
        """
        ...

    async def release(self) -> None:
        """Give the lease back."""
        ...

    async def status(self) -> Status:
        """Read what decides whether a transfer may start."""
        ...

    async def close(self, move: Move, check: Check) -> Move:
        """As the source: reject all writes from now on, run the check, count, and mark the store, in one transaction.

        Errors of the check roll everything back; `NotOwner` if the lease was lost. Returns the mark with the counts
        and with the predecessors of the target: those of this store, and this store itself.
        """
        ...

    async def mark(self, move: Move | None) -> None:
        """Replace the mark, or remove it so that the store accepts writes again."""
        ...

    async def export(self, after: str | None) -> Chunk | None:
        """The chunk after a cursor, in an order that never changes; None at the end."""
        ...

    async def begin(self, move: Move, arrival: int) -> Progress:
        """As the target: record a transfer and the highest arrival number of its source, or find its progress."""
        ...

    async def load(self, move: Move, before: Progress, chunk: Chunk, now: int) -> Progress:
        """Write a chunk and the new progress in one transaction; `Moved` if another process has advanced it.

        Existing data is never overwritten, and nothing that has left the target comes back.
        """
        ...


class Known(Protocol):
    """A schedule in the target, as far as it decides about one with the same id that comes from the source."""

    @property
    def generation(self) -> int: ...
    @property
    def content(self) -> bytes: ...
    @property
    def accepted(self) -> int: ...
    @property
    def at(self) -> int | None: ...


def resolve(item: ScheduleItem, known: Known | None) -> tuple[ImportResult, int]:
    """The result for a schedule, given the one with its id in the target, and the generation to write it with.

    An earlier schedule of this id that finished before this one was accepted is no obstacle; this one then gets a
    higher generation. One that is finished in the source but pending in the target, because the source was reopened
    after a first transfer, is a conflict: it would still be released there.
    """
    if known is None:
        return "moved", item.generation
    is_same = (known.generation, known.accepted) == (item.generation, item.accepted)
    if known.at is not None and known.at <= item.accepted and not is_same:
        return "moved", item.generation if item.at is not None else max(item.generation, known.generation + 1)
    if item.state in FINISHED:
        return "conflict" if known.at is None and known.accepted <= item.accepted else "existing", 0
    return "existing" if known.content == item.content else "conflict", 0


def result(is_new: bool, is_same: bool) -> ImportResult:
    """The result for an item that the target has added, or has already, the same or another one of its name."""
    return "moved" if is_new else "existing" if is_same else "conflict"


def describe(item: Item) -> tuple[Kind | None, str]:
    """The kind that an item is counted as, None if it is not counted, and its name as shown to people."""
    match item:
        case ScheduleItem():
            return item.kind, f"schedule {item.tenant}/{item.id}"
        case AnswerItem():
            return "receipts", f"idempotency key {item.tenant}/{item.key}"
        case PositionItem():
            return "positions", f"request topic {item.topic}/{item.partition}, read up to {item.next}"
        case ApiKey():
            return "keys", f"API key {item.name}"
        case row_store.Put():
            return "rows", f"{item.key.table} {item.key.tenant}/{item.key.name}"
        case CalendarItem():
            return None, f"calendar {item.tenant}/{item.name}"
        case ZoneItem():
            return None, f"time zone {item.name}"


def record_count(count: int) -> str:
    """A number of records as shown to people."""
    return f"{count:,} record{'' if count == 1 else 's'}"


def located(store: str, schema: str | None) -> str:
    """A store and its schema as shown to people."""
    return store if schema is None else f"{store}, schema {schema}"


def predecessors_of(transfers: Iterable[Sequence[Any]]) -> tuple[Predecessor, ...]:
    """The stores that one has replaced, from the rows of its table of transfers; the latest state of each."""
    known: dict[str, Predecessor] = {}
    for (progress,) in transfers:
        for each in decode_progress(progress).predecessors:
            known[each.identity] = max(each, known.get(each.identity, each), key=lambda one: one.outboxes)
    return tuple(known.values())


encode_progress = msgspec.msgpack.Encoder().encode
decode_progress = msgspec.msgpack.Decoder(Progress).decode
encode_move = msgspec.msgpack.Encoder().encode
decode_move = msgspec.msgpack.Decoder(Move).decode


# Reading a store in chunks: stage by stage, each in the order of its table

_OWN_FIELDS = {"tenant", "topic", "priority", "extras", "history"}  # which the rows of stores do not have as columns
_COLUMNS = [name for name in ScheduleItem.__struct_fields__ if name not in _OWN_FIELDS]
_decode_cursor = msgspec.json.Decoder(tuple[str, list[int | str]]).decode


class Stage(NamedTuple):
    """One table to read. Its query returns the rows after a position, which is their first columns."""

    start: RowPosition
    items: Callable[[Sequence[Row]], Sequence[Item]]


def _api_key(name: str, tenant: str, digest: bytes, admin: int, created: int) -> ApiKey:
    return ApiKey(name, tenant, digest, bool(admin), created)


def each(item: Callable[..., Item]) -> Callable[[Sequence[Row]], Sequence[Item]]:
    """The items of rows, one for each."""
    return lambda rows: [item(*row) for row in rows]


def _rows_of(table: str) -> Callable[[Sequence[Row]], Sequence[Item]]:
    """The items of rows (tenant, key, body, until, and the columns of the table)."""
    return lambda rows: [
        row_store.Put(row_store.RowKey(table, row[0], row[1]), row[2], 0, tuple(row[4:]), row[3]) for row in rows
    ]


def is_same_row(item: row_store.Put, known: row_store.Row | None) -> bool:
    """Whether the target has the same row; its columns only repeat the body."""
    return known is not None and (item.body, item.until) == (known.body, known.until)


def stages(schedules: Mapping[str, Stage]) -> dict[str, Stage]:
    """All stages of a store in their order: what schedules refer to comes before them, and positions before all.

    The name of a stage is that of its query.
    """
    tables = {f"{ROWS}{name}": Stage(("", ""), _rows_of(name)) for name in TABLES}
    return {
        "positions": Stage(("", -1), each(PositionItem)),
        "keys": Stage(("",), each(_api_key)),
        "receipts": Stage(("", ""), each(AnswerItem)),
        "calendars": Stage(("", ""), each(CalendarItem)),
        "zones": Stage(("", ""), each(ZoneItem)),
        **tables,
        **schedules,
    }


class Exporter:
    """Reads the chunks of a store: rows by the query of a stage, and histories by the ids of schedules."""

    def __init__(self, stages: Mapping[str, Stage], fetch: Fetch, histories: FetchHistories) -> None:
        self._stages = stages
        self._fetch = fetch
        self._histories = histories

    async def chunk(self, after: str | None) -> Chunk | None:
        """The chunk after a cursor: from its stage, or from the next one that has any rows."""
        names = list(self._stages)
        name, position = (names[0], []) if after is None else _decode_cursor(after)
        if name == DOCUMENTS:
            name, position = next(name for name in names if name.startswith(ROWS)), []
        for stage in names[names.index(name) :]:
            start, to_items = self._stages[stage]
            if rows := await self._fetch(stage, tuple(position) or start):
                items = to_items(rows)
                await self._add_histories([item for item in items if isinstance(item, ScheduleItem)])
                return Chunk(items, msgspec.json.encode((stage, rows[-1][: len(start)])).decode())
            position = []
        return None

    async def _add_histories(self, schedules: Sequence[ScheduleItem]) -> None:
        if schedules:
            histories = await self._histories([(item.tenant, item.id) for item in schedules])
            for item in schedules:
                item.history = histories.get((item.tenant, item.id), ())


def bounded(rows: Iterable[AnyRow], cost: Callable[[AnyRow], int]) -> Iterator[AnyRow]:
    """As many rows as fit in one chunk, and at least one."""
    total = 0
    for row in rows:
        yield row
        total += cost(row)
        if total >= CHUNK_COST:
            return


def kind_counts(totals: Sequence[Any], terms: Iterable[Sequence[Any]]) -> dict[Kind, int]:
    """The number of items of each kind, from a store's totals and the terms of its pending schedules with a rule."""
    kinds: tuple[Kind, ...] = ("positions", "keys", "receipts", "paused", "finished", "one_shots", "rows")
    recurring = sum(not is_once(decode_state(each).when) for (each,) in terms)
    counts = dict(zip(kinds, totals, strict=True))
    return counts | {"recurring": recurring, "one_shots": counts["one_shots"] - recurring}


def columns(schedule: object) -> dict[str, Any]:
    """The columns that a schedule's row and its item have in common."""
    return {name: getattr(schedule, name) for name in _COLUMNS}
