"""The limits of the machine: the least possible work for the same bytes, in the same durable transactions."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import msgspec

from bench.requests import TENANT
from tidings.clock import SystemClock
from tidings.domain.schedules.command import Add
from tidings.domain.schedules.schedule import Limits, Request, make_id
from tidings.intake.admission import Admission
from tidings.timeline.sqlite.database import WAL_PAGES_MAX, Checkpointer, connect
from tidings.timeline.sqlite.pending.packed_rows import NO_DEADLINE

Row = tuple[int, int, int, int, int, int, int, int, bytes, str, None, bytes]

_PLAIN = """
CREATE TABLE plain (
    arrival INTEGER PRIMARY KEY,
    due INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    reason INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    n INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    content BLOB NOT NULL,
    id TEXT NOT NULL,
    labels TEXT,
    message BLOB NOT NULL
)"""
_APPEND = (
    "INSERT INTO plain"
    " (due, stream, partition, deadline, reason, generation, n, accepted, content, id, labels, message)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LOG = """
CREATE TABLE log (
    position INTEGER PRIMARY KEY,
    due INTEGER NOT NULL,
    released INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    n INTEGER NOT NULL,
    final INTEGER NOT NULL,
    id TEXT NOT NULL,
    message BLOB NOT NULL
)"""
_MOVE = (
    "INSERT INTO log (due, released, generation, n, final, id, message)"
    " SELECT due, ?, generation, n, 1, id, message FROM plain WHERE arrival > ? AND arrival <= ?"
)
_LEAVE = "DELETE FROM plain WHERE arrival > ? AND arrival <= ?"


class Took(msgspec.Struct, frozen=True):
    """How long a number of rows took, and the longest of their batches."""

    rows: int
    seconds: float
    longest_ms: float

    @property
    def per_s(self) -> float:
        return self.rows / self.seconds


def rows_of(batches: Sequence[Sequence[Request]]) -> list[list[Row]]:
    """The rows that Tidings writes for these requests: the same columns, the same bytes."""
    admission, now = Admission(Limits()), SystemClock().now()
    arrival = 0
    rows = []
    for batch in batches:
        adds = [admission.admit(TENANT, request, now) for request in batch]
        rows.append([_row(add, arrival + index, now) for index, add in enumerate(adds)])
        arrival += len(batch)
    return rows


def append(path: Path, batches: Sequence[Sequence[Row]], warm_up: int = 0) -> Took:
    """Write batches into one plain append-only table, a durable transaction each; the first ones are not timed."""
    with _Bare(path) as bare:
        bare.connection.execute(_PLAIN)
        for batch in batches[:warm_up]:
            bare.append(batch)
        longest = 0.0
        started = last = time.perf_counter()
        for batch in batches[warm_up:]:
            bare.append(batch)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return Took(sum(map(len, batches[warm_up:])), last - started, longest * 1_000)


def move(path: Path, batches: Sequence[Sequence[Row]], rows: int) -> Took:
    """Move rows from one plain table to another in SQL, so many in each durable transaction."""
    with _Bare(path) as bare:
        bare.connection.execute(_PLAIN)
        bare.connection.execute(_LOG)
        for batch in batches:
            bare.append(batch)
        total = sum(map(len, batches))
        longest = 0.0
        started = last = time.perf_counter()
        for low in range(0, total, rows):
            bare.move(low, low + rows)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        moved = int(bare.connection.execute("SELECT count(*) FROM log").get)
        assert moved == total, f"{moved} of {total} were moved"
        return Took(total, last - started, longest * 1_000)


class _Bare:
    """A connection with the pragmas and the checkpoints of ours, and nothing else of ours."""

    def __init__(self, path: Path) -> None:
        self._grown = False
        self.connection = connect(str(path))
        self.connection.pragma("journal_mode", "wal")
        self.connection.set_wal_hook(self._committed)
        self._checkpointer = Checkpointer(str(path), self._finish)

    def __enter__(self) -> "_Bare":
        return self

    def __exit__(self, *_error: object) -> None:
        self._checkpointer.close()
        self.connection.close()

    def append(self, rows: Sequence[Row]) -> None:
        with self._transaction() as connection:
            connection.executemany(_APPEND, rows)

    def move(self, low: int, high: int) -> None:
        with self._transaction() as connection:
            connection.execute(_MOVE, (0, low, high))
            connection.execute(_LEAVE, (low, high))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[apsw.Connection]:
        self.connection.execute("BEGIN IMMEDIATE")
        yield self.connection
        self.connection.execute("COMMIT")
        if self._grown:
            self._grown = False
            with contextlib.suppress(apsw.BusyError):  # the other thread is at it again
                self.connection.wal_checkpoint()

    def _committed(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages >= WAL_PAGES_MAX:
            self._checkpointer.wake()
        return int(apsw.SQLITE_OK)

    def _finish(self) -> None:
        """The rest of a checkpoint is the writer's, between two transactions."""
        self._grown = True


def _row(add: Add, arrival: int, now: int) -> Row:
    schedule_id = make_id(arrival, add.due, add.priority) if add.id is None else add.id
    return add.due, 1, 16, NO_DEADLINE, 0, 1, 1, now, add.content, schedule_id, None, add.message
