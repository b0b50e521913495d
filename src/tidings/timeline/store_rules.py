"""Rules that all stores share: single-process stores, rows of schedules and notifications, calendars and histories."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from threading import Lock
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tidings.domain.changes import Current
from tidings.domain.errors import Invalid
from tidings.domain.names import is_storable
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.tables import TABLES, Table
from tidings.domain.recurrence import timezone
from tidings.domain.schedules.command import Add, Command, Outcome, Replace, State
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.lateness import Lateness, bounded_by
from tidings.domain.schedules.recurrence_state import RecurrenceState, single
from tidings.domain.schedules.reschedule import zone_of
from tidings.domain.schedules.schedule import KeptZone
from tidings.domain.schedules.when import Cron, Rule, When
from tidings.ports import GroupMembership
from tidings.ports.tables import KEY_BYTES_MAX, BulkGroups, ChangeGroup, Put, RowKey

OUTBOX_ROWS_MAX = 16_000
OUTBOX_BYTES_MAX = 32 * 1024 * 1024
RECORD_BYTES = 64  # size of a record besides its message and id


Sizes = npt.NDArray[np.int64]


class OutboxCapacity:
    """Counts the records in an outbox that are not known to be on Kafka and not held back. Thread-safe.

    Records that entered together are one block: the offset of the first, and the sizes as an array, with 0 for one that
    does not count any more.
    """

    def __init__(self, rows_max: int = OUTBOX_ROWS_MAX, bytes_max: int = OUTBOX_BYTES_MAX) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._blocks: deque[tuple[int, Sizes]] = deque()
        self._records = self._bytes = 0
        self._is_shut = False
        self.arrived = 0

    @property
    def rows(self) -> int:
        """How many more records fit; 0 while it is shut, or full in rows or bytes."""
        with self._lock:
            return self._rows()

    @property
    def bytes(self) -> int:
        """How many more bytes fit; the last record may exceed it."""
        with self._lock:
            return max(0, self._bytes_max - self._bytes)

    def begin(self, blocks: Iterable[tuple[int, Sequence[int] | Sizes]]) -> None:
        """Start counting again with these blocks, in order."""
        with self._lock:
            self._blocks.clear()
            self._records = self._bytes = 0
            for first, sizes in blocks:
                self._put(first, sizes)
            self._pass()

    def put(self, first: int, sizes: Sequence[int] | Sizes) -> None:
        """Records of these sizes were added, starting at this offset."""
        with self._lock:
            self._put(first, sizes)

    def _put(self, first: int, sizes: Sequence[int] | Sizes) -> None:
        added = np.array(sizes, dtype=np.int64)
        if len(added):
            self._blocks.append((first, added))
            self._count(added, 1)

    def _count(self, sizes: Sizes, sign: int) -> None:
        self._records += sign * int(np.count_nonzero(sizes))
        self._bytes += sign * int(sizes.sum())

    def arrive(self, offset: int) -> bool:
        """Everything before this offset is on Kafka; True if the outbox was full and has room again."""
        with self._lock:
            was_full = not self._rows()
            self.arrived = max(self.arrived, offset)
            self._pass()
            return was_full and self._rows() > 0

    def _pass(self) -> None:
        """Forget the records that have arrived."""
        while self._blocks and self._blocks[0][0] < self.arrived:
            first, sizes = self._blocks.popleft()
            gone, left = sizes[: self.arrived - first], sizes[self.arrived - first :]
            self._count(gone, -1)
            if len(left):
                self._blocks.appendleft((self.arrived, left))

    def shut(self, is_shut: bool) -> bool:
        """Stop or resume accepting records; True if there is room again."""
        with self._lock:
            was_full, self._is_shut = not self._rows(), is_shut
            return was_full and self._rows() > 0

    def leave(self, offsets: Iterable[int]) -> None:
        """These records are held back or deleted, and do not count any more."""
        with self._lock:
            firsts = [first for first, _ in self._blocks]
            for offset in offsets:
                index = bisect_right(firsts, offset) - 1
                first, sizes = self._blocks[index] if index >= 0 else (0, np.zeros(0, dtype=np.int64))
                gone = sizes[offset - first : offset - first + 1]
                self._count(gone, -1)
                gone[:] = 0

    def _rows(self) -> int:
        if self._is_shut or self._bytes >= self._bytes_max:
            return 0
        return max(0, self._rows_max - self._records)


MOVED_MAX = 10_000  # moves that are remembered for each tenant
CALENDARS_MAX = 1_000
TOPICS_PER_TENANT_MAX = 10_000

NUMBER_MIN = -(1 << 63)
NUMBER_MAX = (1 << 63) - 1

encode_days = msgspec.msgpack.Encoder().encode
decode_days = msgspec.msgpack.Decoder(tuple[int, ...]).decode


class SingleProcess:
    """The methods that concern other processes, for a store that only one process at a time works on."""

    group_membership: GroupMembership | None = None

    async def subscribe(self, tenant: str, topic: str) -> None:
        """Nothing to do: there is no other process that appends records."""

    def unsubscribe(self, tenant: str, topic: str) -> None:
        """Nothing to do."""

    def on_records(self, listener: Callable[[frozenset[tuple[str, str]]], None]) -> None:
        """Nothing to do: a standby polls."""

    def reads(self, source: str, partition: int, channel: ChannelName | None = None) -> bool:
        """The one process reads all partitions."""
        del source, partition, channel
        return True


# Topics


def topic_refusal(command: Command, may_open: Callable[[str, str], bool]) -> Outcome | None:
    """The rejection of a schedule whose topic would be one too many for its tenant, None if there is room for it."""
    add = command.add if isinstance(command, Replace) else command
    if not isinstance(add, Add) or may_open(add.tenant, add.topic):
        return None
    reason = f"topic: there are {TOPICS_PER_TENANT_MAX} already, use one of them"
    return Outcome(add.id or "", "rejected", reason=reason)


# Rows of schedules in a database


class StoredSchedule(Protocol):
    """The columns of a schedule's row that have the same meaning in every database; `at` is when it finished."""

    id: str
    state: State
    content: bytes
    generation: int
    n: int
    due: int
    accepted: int
    message: bytes | None
    reason: str | None
    terms: RecurrenceState | None
    at: int | None

    @property
    def last_moment(self) -> int | None:
        """The deadline of a one-shot; None without one."""
        ...


def lateness_of(row: StoredSchedule) -> Lateness | None:
    """The lateness policy of a schedule, for a one-shot derived from its deadline; None if it is finished."""
    if row.terms is not None:
        return row.terms.lateness
    if row.at is not None:
        return None
    return Lateness() if row.last_moment is None else bounded_by(row.last_moment - row.due, row.reason)


def terms_of_row(row: StoredSchedule) -> RecurrenceState | None:
    """The terms of a schedule; a one-shot stores none, so they are derived. None if it is finished."""
    if row.terms is not None:
        return row.terms
    lateness = lateness_of(row)
    return None if lateness is None else single(row.due, lateness)


def current_of(row: StoredSchedule, topic: str, *, leaving: bool, in_flight: int | None) -> Current:
    """A row as decisions see it."""
    return Current(
        id=row.id,
        state=row.state,
        content=row.content,
        generation=row.generation,
        n=row.n,
        due=row.due,
        accepted=row.accepted,
        terms=terms_of_row(row),
        topic=topic,
        message=row.message,
        finished=row.at,
        reason=row.reason,
        leaving=leaving,
        in_flight=in_flight,
    )


# Idempotency keys


def is_remembered(outcomes: Sequence[Outcome]) -> bool:
    """Whether an idempotency key is stored with these outcomes: not for a single request that is invalid (400)."""
    return len(outcomes) != 1 or outcomes[0].field is None


# Calendars and histories


def too_many_calendars() -> Invalid:
    """The error for a tenant with too many calendars."""
    return Invalid("calendar", f"there are {CALENDARS_MAX:,} already: drop one that is not needed")


def kept_zone(name: str) -> KeptZone:
    """The current rules of a time zone, to be stored in case they change later."""
    return KeptZone(name, timezone.VERSION, timezone.content_of(name))


def moved_reason(cause: str, before: int) -> str:
    """The history text of a move: its cause, and the former due time."""
    return f"{cause}, from {format_instant(before)}"


def ended_reason(when: When) -> str | None:
    """The history text of an ended schedule: its rule, which is stored nowhere else from then on."""
    zone = zone_of(when)
    where = "" if zone is None else f" in {zone}"
    match when:
        case Rule():
            return f"rrule {when.rrule}{where}"
        case Cron():
            return f"cron {when.expression}{where}"
        case _:
            return None


# Rows of notifications


def check_groups(groups: Sequence[ChangeGroup]) -> None:
    """Raise `ValueError` if a group of row changes contradicts itself, exceeds a limit or cannot be stored."""
    changes = [change for group in groups for change in group.changes]
    keys = [change.key for change in changes]
    if not _are_plain(keys):
        for key in keys:
            _check_key(key)
    if len(set(keys)) < len(keys):  # mostly because several groups have it
        for group in groups:
            if len({change.key for change in group.changes}) < len(group.changes):
                raise ValueError(f"a group has a key twice: {[change.key for change in group.changes]}")
    _check_rows([change for change in changes if type(change) is Put])


def check_bulk(groups: BulkGroups) -> None:
    """The same for groups of one kind, column by column."""
    together = "".join((*groups.names, *groups.own, groups.tenant))
    longest = max((*map(len, groups.names), *map(len, groups.own)), default=0)
    starts = accumulate((len(adds) for _, adds in groups.parts), initial=0)
    check_groups(
        [groups[start] for start in starts if start < len(groups)]
    )  # one of each part: they share their values
    if not is_storable(together) or longest * 4 > KEY_BYTES_MAX:
        check_groups(list(groups))


def _are_plain(keys: Sequence[RowKey]) -> bool:
    """Whether all keys are certainly valid: most are short, so all are checked at once."""
    names = [key.name for key in keys]
    return (
        {key.table for key in keys} <= TABLES.keys()
        and max(map(len, names), default=0) * 4 <= KEY_BYTES_MAX
        and is_storable("".join(names))
        and is_storable("".join({key.tenant for key in keys}))
    )


def _check_key(key: RowKey) -> None:
    if key.table not in TABLES:
        raise ValueError(f"there is no table {key.table!r}")
    if not is_storable(key.name) or not is_storable(key.tenant):
        raise ValueError(f"a key may have no NUL character and no half of a surrogate pair: {key}")
    if len(key.name) * 4 > KEY_BYTES_MAX and (length := len(key.name.encode())) > KEY_BYTES_MAX:
        raise ValueError(f"the key of a row may have {KEY_BYTES_MAX:,} bytes, and this one has {length:,}")


def _check_rows(puts: Sequence[Put]) -> None:
    """Most are valid, so those of a table are checked together, column by column."""
    by_table: dict[str, list[Put]] = {}
    for put in puts:
        by_table.setdefault(put.key.table, []).append(put)
    texts: list[str] = []
    numbers = [put.until or 0 for put in puts]
    for table, rows in by_table.items():
        rules = _COLUMN_RULES[table]
        columns = list(zip(*[put.values for put in rows], strict=False))  # as many as the shortest row has
        is_whole = {len(put.values) for put in rows} == {len(rules)}
        if not is_whole or not all(map(_fits, rules, columns)):
            for put in rows:
                _check_types(put)
        for (_, kind, _), column in zip(rules, columns, strict=True):
            (texts if kind is str else numbers).extend(filter(None, column))
    if not is_storable("".join(texts)) or min(numbers, default=0) < NUMBER_MIN or max(numbers, default=0) > NUMBER_MAX:
        for put in puts:
            _check_values(put)


def _fits(rule: "_ColumnRule", column: Sequence[object]) -> bool:
    """Whether the values of a column have its type."""
    _, kind, is_needed = rule
    kinds = {kind} if is_needed else {kind, type(None)}
    return kinds.issuperset(map(type, column))


def _check_values(put: Put) -> None:
    table = put.key.table
    if put.until is not None and not NUMBER_MIN <= put.until <= NUMBER_MAX:
        raise ValueError(f"the expiry of a row must fit in 64 bits: {put.until}")
    for value in put.values:
        if type(value) is str and not is_storable(value):
            raise ValueError(f"a column may have no NUL character and no half of a surrogate pair: {put.key}")
        if type(value) is int and not NUMBER_MIN <= value <= NUMBER_MAX:
            raise ValueError(f"a column of {table} must fit in 64 bits, unlike {value}")


def _check_types(put: Put) -> None:
    table, rules = put.key.table, _COLUMN_RULES[put.key.table]
    if len(put.values) != len(rules):
        raise ValueError(f"{table} has {len(rules)} columns, not {len(put.values)}")
    for (name, kind, is_needed), value in zip(rules, put.values, strict=True):
        if value is None:
            if is_needed:
                raise ValueError(f"{table}.{name} sorts an index, so it may not be NULL")
        elif type(value) is not kind:
            raise ValueError(f"{table}.{name} is of type {kind.__name__}, not {value!r}")


_ColumnRule = tuple[str, type[str] | type[int], bool]


def _column_rules(table: Table) -> list[_ColumnRule]:
    """The name of each column, the type of its values, and whether it must have one."""
    orders = {index.order for index in table.indexes}
    return [(each.name, str if each.kind == "text" else int, each.name in orders) for each in table.columns]


_COLUMN_RULES = {name: _column_rules(table) for name, table in TABLES.items()}
