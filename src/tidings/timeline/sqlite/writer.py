"""The writer of a SQLite file: its thread, its in-memory state and transactions, and the lease on the file."""

import asyncio
import contextlib
import queue
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.fleet import Node, Report, one_node
from tidings.domain.schedules.command import Priority
from tidings.domain.schedules.schedule import is_kafka
from tidings.tasks import show_thread_name
from tidings.timeline import store_rules
from tidings.timeline.sqlite.database import WAL_PAGES_MAX, explain
from tidings.timeline.sqlite.id_map import IdMap
from tidings.timeline.sqlite.pending.next_due import Lookahead
from tidings.timeline.sqlite.pending.packed_rows import (
    ARRIVAL_BITS,
    DAY_QUARTERS,
    QUARTER_LAST,
    QUARTER_US,
    SQL,
    FarTable,
    NearTable,
    quarters,
)
from tidings.timeline.store_rules import OUTBOX_BYTES_MAX, OUTBOX_ROWS_MAX, RECORD_BYTES, OutboxCapacity
from tidings.timeline.transfer.protocol import HasMoved, Move, decode_move, predecessors_of

Answer = TypeVar("Answer")
_Job = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]"]

PARTITIONS_MAX = 16
TOPICS_MAX = 1_000_000
OFFSET_BITS = 38
OUTBOX = 0  # the partition of the outbox; topics are numbered from 1
OFFSET_MASK = (1 << OFFSET_BITS) - 1

TOKEN_BYTES = 16
RESIGN_MS = 500

_SECRET_BYTES = 16

# The streams that have rows in `near`, each with its first due time, without reading every row.
_HEADS = """
WITH RECURSIVE present(stream) AS (
    SELECT min(stream) FROM near
    UNION ALL
    SELECT (SELECT min(near.stream) FROM near WHERE near.stream > present.stream) FROM present
    WHERE present.stream IS NOT NULL
)
SELECT stream, (SELECT min(due) FROM near WHERE near.stream = present.stream) FROM present WHERE stream IS NOT NULL
"""

# The records in the outbox, single and packed ones: the offset of the first, their number and their size.
_IN_OUTBOX = (
    f"SELECT position AS first, 1, length(message) + length(id) + {RECORD_BYTES} FROM log"
    f" WHERE position < {1 << OFFSET_BITS} UNION ALL SELECT first, count, bytes FROM packed ORDER BY first"
)
_NOT_WAITING = "SELECT offset FROM held UNION ALL SELECT offset FROM gone"

_BATCH = """
CREATE TEMP TABLE IF NOT EXISTS batch (
    ordinal INTEGER PRIMARY KEY,
    stream INTEGER,
    due INTEGER,
    arrival INTEGER,
    partition INTEGER,
    deadline INTEGER,
    n INTEGER,
    size INTEGER
);
"""


class DatabaseThread:
    """A thread that uses a connection: it runs calls in order, and the event loop awaits their results.

    An urgent call is run after the one that is running. A mark in the queue wakes the thread for it if nothing else
    does.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._jobs: queue.SimpleQueue[_Job | Literal["urgent"] | None] = queue.SimpleQueue()
        self._urgent: deque[_Job] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, call: Callable[..., Answer], *arguments: object) -> asyncio.Future[Answer]:
        """Submit a call now; it runs even if its result is not awaited."""
        return self._submit(call, arguments, is_urgent=False)

    def start_unawaited(self, call: Callable[..., object], *arguments: object) -> None:
        """The same for a call whose result, or error, nobody awaits."""
        self.start(call, *arguments).add_done_callback(_retrieve_error)

    def start_next(self, call: Callable[..., Answer], *arguments: object) -> asyncio.Future[Answer]:
        """The same, before all calls that wait. Between two of these, one of those is run."""
        return self._submit(call, arguments, is_urgent=True)

    def _submit(
        self, call: Callable[..., Answer], arguments: tuple[object, ...], *, is_urgent: bool
    ) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._loop.create_future()
        job = (call, arguments, future)
        if self._closed:
            future.set_exception(StoreError("the store is closed"))
        elif is_urgent:
            self._urgent.append(job)
            self._jobs.put("urgent")
        else:
            self._jobs.put(job)
        return future

    async def run(self, call: Callable[..., Answer], *arguments: object) -> Answer:
        """Submit a call and wait for its result."""
        return await self.start(call, *arguments)

    def post_next(self, call: Callable[[], object]) -> None:
        """Submit an urgent call from another thread, which does not wait for it."""
        self._loop.call_soon_threadsafe(self._post_here, call)

    def _post_here(self, call: Callable[[], object]) -> None:
        self.start_next(call).add_done_callback(_retrieve_error)

    async def close(self) -> None:
        """Finish all submitted calls, then stop the thread."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        show_thread_name()
        while (job := self._jobs.get()) is not None:
            if self._urgent:
                self._call(*self._urgent.popleft())
            if job != "urgent":
                self._call(*job)

    def _call(self, call: Callable[..., Any], arguments: tuple[Any, ...], future: "asyncio.Future[Any]") -> None:
        try:
            answer = call(*arguments)
        except apsw.Error as error:
            self._post(_fail, future, StoreError(explain(error)))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._post(_fail, future, error)
        else:
            self._post(_resolve, future, answer)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop is closed: no caller is left
            return


def _retrieve_error(future: "asyncio.Future[Any]") -> None:
    """Retrieve an error that no caller awaits; the call will be repeated."""
    future.exception()


def _resolve(future: "asyncio.Future[Any]", answer: object) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a store. `partitions` is fixed once the file exists."""

    partitions: int = 4
    id_retention_us: int = 7 * 86_400 * 1_000_000
    retention_us: int | None = 7 * 86_400 * 1_000_000
    retention_bytes: int | None = None
    idempotency_retention_us: int = 86_400 * 1_000_000
    created: int = 0
    outbox_rows_max: int = OUTBOX_ROWS_MAX
    outbox_bytes_max: int = OUTBOX_BYTES_MAX


# A one-shot in the outbox: topic * 16, id, generation, number, due time, arrival, expiry, message.
Member = tuple[int, str, int, int, int, int, int | None, bytes]


class Handed(NamedTuple):
    """One-shots that entered the outbox in one transaction, as rows in memory; `first` is the offset of the first."""

    first: int
    released: int
    members: list[Member]
    bytes: int

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return self.first + len(self.members)

    def split(self, rows: int) -> "tuple[Handed, Handed]":
        """The first rows, and the others."""
        size = self.bytes * rows // len(self.members)
        first = Handed(self.first, self.released, self.members[:rows], size)
        return first, Handed(first.end, self.released, self.members[rows:], self.bytes - size)


class Handover:
    """Passes what was released to Kafka on in memory, after the commit, so that it is not read back. Thread-safe.

    It may be empty at any time: everything in it is in the outbox too. The capacity of the outbox limits it.
    """

    def __init__(self) -> None:
        self._batches: deque[Handed] = deque()
        self._lock = threading.Lock()

    def put(self, batch: Handed) -> None:
        """Add what a transaction has committed."""
        with self._lock:
            self._batches.append(batch)

    def take(self, offset: int, rows_max: int, bytes_max: int) -> list[Handed]:
        """Take what follows from this offset on without gaps; nothing if it must be read from the outbox."""
        taken: list[Handed] = []
        with self._lock:
            while self._batches and self._batches[0].end <= offset:
                self._batches.popleft()
            while self._batches and self._batches[0].first == offset and rows_max > 0 and bytes_max > 0:
                batch = self._batches.popleft()
                if len(batch.members) > rows_max:
                    batch, rest = batch.split(rows_max)
                    self._batches.appendleft(rest)
                taken.append(batch)
                offset, rows_max, bytes_max = batch.end, rows_max - len(batch.members), bytes_max - batch.bytes
        return taken

    def clear(self) -> None:
        """Forget everything: it will be read from the outbox."""
        with self._lock:
            self._batches.clear()


class Writer:
    """Owns the in-memory state of a file and its transactions.

    All state in memory can be loaded again from the file. Only the writer thread changes it, through the methods here.
    Other threads may read the names and the id map, which only grow or are replaced as a whole.
    """

    def __init__(self, connection: apsw.Connection, options: Options) -> None:
        self.connection = connection
        self.options = options
        self.token: bytes | None = None
        self.arrival = self.pending = self.near_until = self.split_until = 0
        self.room = OutboxCapacity(options.outbox_rows_max, options.outbox_bytes_max)
        self.handover = Handover()
        self.next_far: int | None = None
        self._next_near: tuple[int | None, int | None] = (None, None)
        self.streams: dict[tuple[str, int, bool], int] = {}
        self.stream_names: dict[int, tuple[str, Priority]] = {}
        self.streams_on_kafka: set[int] = set()
        self.topics: dict[tuple[str, str], int] = {}
        self.topic_counts: Counter[str] = Counter()
        self.stale = False
        self.topic_names: dict[int, tuple[str, str]] = {}
        self.on_kafka: set[int] = set()
        self.held: dict[int, str] = {}
        self.zones: set[tuple[str, str]] = set()
        self.unfinished: set[int] = set()  # lists that are written in parts, by their first version
        connection.execute(_BATCH)
        self._begin()
        self.load()

    def _begin(self) -> None:
        """Write the row of counters if the file is new."""
        sql = "INSERT OR IGNORE INTO tally VALUES (1, ?, ?, ?, 0, 0, 0, 0)"
        secret = secrets.token_bytes(_SECRET_BYTES)
        self.connection.execute(sql, (self.options.created, secret, self.options.partitions))

    def load(self) -> None:
        """Load the in-memory state; other threads see the old state until the new one is complete."""
        connection = self.connection
        row = connection.execute(
            "SELECT created, secret, partitions, arrival, pending, near_until, split_until FROM tally"
        ).fetchone()
        self.identity = blake2b(row[1], digest_size=8, person=b"identity").hexdigest()
        self.predecessors = predecessors_of(connection.execute("SELECT progress FROM carried"))
        streams = connection.execute("SELECT stream, tenant, priority, to_kafka FROM stream").fetchall()
        streams_on_kafka = {stream for stream, _, _, to_kafka in streams if to_kafka}
        idmap, lookahead = IdMap(row[1]), Lookahead(streams_on_kafka)
        idmap.load(connection)
        for stream, due in connection.execute(_HEADS):
            lookahead.set(stream, due)
        topics = connection.execute("SELECT topic, tenant, name FROM topic").fetchall()
        self.stream_names = {stream: (tenant, Priority(priority)) for stream, tenant, priority, _ in streams}
        self.streams = {(tenant, priority, to_kafka == 1): stream for stream, tenant, priority, to_kafka in streams}
        self.streams_on_kafka = streams_on_kafka
        self.topic_names = {topic: (tenant, name) for topic, tenant, name in topics}
        self.topics = {(tenant, name): topic for topic, tenant, name in topics}
        self.topic_counts = Counter(tenant for _, tenant, _ in topics)
        self.on_kafka = {topic for topic, _, name in topics if is_kafka(name)}
        settled = connection.execute(f"SELECT first FROM partition WHERE partition = {OUTBOX}").get
        self.held = dict(connection.execute("SELECT offset, reason FROM held").fetchall())
        self.zones = set(connection.execute("SELECT name, digest FROM zone").fetchall())
        self.room.arrive(settled)
        in_outbox = connection.execute(_IN_OUTBOX).fetchall()
        self.room.begin((first, np.full(count, size // count)) for first, count, size in in_outbox)
        self.room.leave([offset for (offset,) in connection.execute(_NOT_WAITING)])
        self.handover.clear()
        self.created, _, self.partitions, self.arrival, self.pending, self.near_until, self.split_until = row
        self.idmap, self.lookahead = idmap, lookahead
        self.near, self.far = NearTable(connection, lookahead), FarTable(connection)
        self.look_ahead()
        self._saved = (self.arrival, self.pending)
        self.stale = False

    def on_long_log(self, checkpoint: Callable[[], None]) -> None:
        """Call `checkpoint` after each commit that leaves a long write-ahead log."""

        def committed(_connection: apsw.Connection, _name: str, pages: int) -> int:
            if pages >= WAL_PAGES_MAX:
                checkpoint()
            return int(apsw.SQLITE_OK)

        self.connection.set_wal_hook(committed)

    def refresh(self) -> None:
        """Load the in-memory state again if it is stale. Call it before relying on anything in memory."""
        if self.stale:
            self.load()

    # Ownership

    def own(self, token: bytes, *, is_new: bool) -> None:
        """This process owns the file under a token. Ownership that is new makes the in-memory state stale."""
        self.token = token
        self.stale = self.stale or is_new

    def disown(self) -> bytes | None:
        """This process does not own the file any more; returns the token it had."""
        token, self.token = self.token, None
        return token

    # Counters and other state that changes inside a transaction

    def next_arrival(self) -> int:
        """Take the next arrival number."""
        self.arrival += 1
        return self.arrival

    def take_arrivals(self, count: int) -> int:
        """Take that many consecutive arrival numbers; returns the first."""
        first = self.arrival + 1
        self.arrival += count
        return first

    def skip_arrivals(self, last: int) -> None:
        """Never give out an arrival number up to this one."""
        self.arrival = max(self.arrival, last)

    def add_pending(self, count: int) -> None:
        """Change the number of pending schedules."""
        self.pending += count

    def set_horizons(self, split_until: int, near_until: int) -> None:
        """Route new rows by these limits: up to `near_until` into `near`, up to `split_until` by quarter of an hour."""
        self.connection.execute("UPDATE tally SET split_until = ?, near_until = ?", (split_until, near_until))
        self.split_until, self.near_until = split_until, near_until

    def add_zone(self, name: str, digest: str) -> None:
        """The rules of this time zone are stored."""
        self.zones.add((name, digest))

    def remove_zone(self, name: str, digest: str) -> None:
        """The rules of this time zone are not stored any more."""
        self.zones.discard((name, digest))

    def hold(self, offsets: Iterable[int], reason: str) -> None:
        """Records of the outbox are held back from Kafka."""
        self.held |= dict.fromkeys(offsets, reason)

    def unhold(self, offsets: Iterable[int]) -> None:
        """Records of the outbox are not held back any more."""
        for offset in offsets:
            self.held.pop(offset, None)

    # What is pending

    @property
    def arrived(self) -> int:
        """Everything in the outbox before this offset is on Kafka."""
        return self.room.arrived

    def next_due(self) -> int | None:
        """When the next release has work to do; rows for Kafka count only while there is room in the outbox."""
        near, on_kafka = self._next_near
        dues = (near, on_kafka if on_kafka is not None and self.room.rows else None, self.next_far)
        return min((due for due in dues if due is not None), default=None)

    @property
    def first_due(self) -> int | None:
        """The earliest due time of all pending rows, even if there is no room for them. It may be too early."""
        return min((due for due in (*self._next_near, self.next_far) if due is not None), default=None)

    def may_open(self, tenant: str, topic: str) -> bool:
        """Whether a topic exists, or the tenant may have one more."""
        return (tenant, topic) in self.topics or (
            self.topic_counts[tenant] < store_rules.TOPICS_PER_TENANT_MAX and len(self.topics) < TOPICS_MAX
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """A durable transaction of the owner. If it fails, the in-memory state is loaded again from the file."""
        connection = self.connection
        self.refresh()
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._check_owner()
            yield connection
            self._save_tally()
            connection.execute("COMMIT")
        except BaseException:
            self.stale = True
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self.load()
            raise
        self.stale = True  # until the lookahead is complete
        self.look_ahead()
        self.stale = False

    @contextlib.contextmanager
    def not_durable(self) -> Iterator[None]:
        """The transactions inside are durable with the next one after them."""
        self.connection.execute("PRAGMA synchronous = NORMAL", can_cache=False)
        try:
            yield
        finally:
            self.connection.execute("PRAGMA synchronous = FULL", can_cache=False)

    def look_ahead(self) -> None:
        """Find out when there is work to do: a row in `near` is due, or a bucket of `far` begins."""
        place: int | None = self.connection.execute(SQL["first_from"], (0,)).get
        self.next_far = None if place is None else (place >> ARRIVAL_BITS) * QUARTER_US
        self._next_near = self.lookahead.log.first, self.lookahead.kafka.first

    def is_behind(self, now: int) -> bool:
        """Whether a due row may still be in `far` or `parcel`."""
        return self.next_far is not None and self.next_far <= now

    def refresh_next_due(self, stream: int) -> None:
        """Read the due time of the first row of a stream, after rows of it were removed."""
        sql = "SELECT due FROM near WHERE stream = ? ORDER BY due, arrival LIMIT 1"
        row = self.connection.execute(sql, (stream,)).fetchone()
        self.lookahead.set(stream, None if row is None else row[0])

    def _check_owner(self) -> None:
        row = self.connection.execute("SELECT token FROM lease").fetchone()
        if self.token is None or row is None or row[0] != self.token:
            self.disown()
            raise NotOwner("another process owns this store")

    def _save_tally(self) -> None:
        if self._saved != (self.arrival, self.pending):
            self.connection.execute("UPDATE tally SET arrival = ?, pending = ?", (self.arrival, self.pending))
            self._saved = (self.arrival, self.pending)

    def stream_of(self, tenant: str, priority: int, topic: str) -> int:
        """The number of the stream for a topic; both are created if they are new."""
        to_kafka = self.topic_of(tenant, topic) // PARTITIONS_MAX in self.on_kafka
        stream = self.streams.get((tenant, priority, to_kafka))
        if stream is None:
            sql = "INSERT INTO stream (tenant, priority, to_kafka) VALUES (?, ?, ?) RETURNING stream"
            stream = int(self.connection.execute(sql, (tenant, int(priority), to_kafka)).get)
            if to_kafka:
                self.streams_on_kafka.add(stream)
            self.streams[tenant, priority, to_kafka] = stream
            self.stream_names[stream] = (tenant, Priority(priority))
        return stream

    def topic_of(self, tenant: str, name: str) -> int:
        """The number of the first partition of a topic; the topic is created if it is new."""
        topic = self.topics.get((tenant, name))
        if topic is None:
            sql = "INSERT INTO topic (tenant, name) VALUES (?, ?) RETURNING topic"
            topic = int(self.connection.execute(sql, (tenant, name)).get)
            if is_kafka(name):
                self.on_kafka.add(topic)
            for index in range(0 if is_kafka(name) else self.partitions):
                partition = topic * PARTITIONS_MAX + index
                self.connection.execute("INSERT INTO partition VALUES (?, 0, 0, 0)", (partition,))
            self.topics[tenant, name] = topic
            self.topic_names[topic] = (tenant, name)
            self.topic_counts[tenant] += 1
        return topic * PARTITIONS_MAX

    def routes(self, tenant: str, wanted: Iterable[tuple[int, str]]) -> dict[tuple[int, str], tuple[int, int]]:
        """The stream and the first partition of each (priority, topic); created if they are new."""
        return {
            (priority, topic): (self.stream_of(tenant, priority, topic), self.topic_of(tenant, topic))
            for priority, topic in wanted
        }

    def bucket(self, due: int) -> int:
        """The bucket of `far` for a due time: its quarter of an hour if the day is split already, else its day."""
        quarter = min(due // QUARTER_US, QUARTER_LAST)
        return quarter if due < self.split_until else quarter - quarter % DAY_QUARTERS

    def buckets(self, dues: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The same for a whole batch."""
        fine = quarters(dues)
        return np.where(dues < self.split_until, fine, fine - fine % DAY_QUARTERS)


class Lease:
    """The lease on the file. It can be taken when it is free or expired; its time is that since the machine booted."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._boot = _boot()
        self._node: Node | None = None

    def acquire(self, elapsed: int, lease_us: int, report: Report, *, moved_too: bool = False) -> tuple[bool, bool]:
        """Take or renew the lease; returns (we own it, we did not own it before).

        `HasMoved` if the store was moved elsewhere, unless `moved_too`. A copy then takes the lease at once: another
        owner can only be another copy, and the target lets only one of them continue.
        """
        connection = self._writer.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            move = moved(connection)
            if move is not None and not moved_too:
                raise HasMoved(move)
            answer = self._take(connection, elapsed, lease_us, report, by_force=move is not None)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return answer

    def _take(
        self, connection: apsw.Connection, elapsed: int, lease_us: int, report: Report, *, by_force: bool
    ) -> tuple[bool, bool]:
        row = connection.execute("SELECT token, boot, until FROM lease").fetchone()
        mine = row is not None and row[0] is not None and row[0] == self._writer.token
        free = by_force or row is None or row[0] is None or row[1] != self._boot or row[2] <= elapsed
        if not mine and not free:
            self._writer.disown()
            return False, False
        token = row[0] if mine else secrets.token_bytes(TOKEN_BYTES)
        self._node = one_node(self._node if mine else None, report, lease_us)
        row = (token, self._boot, elapsed + lease_us, msgspec.json.encode(self._node))
        connection.execute("INSERT OR REPLACE INTO lease (one, token, boot, until, node) VALUES (1, ?, ?, ?, ?)", row)
        self._writer.own(token, is_new=not mine)
        return True, not mine

    def resign(self) -> None:
        """Give up the lease at once, if it is ours."""
        token = self._writer.disown()
        if token is not None:
            self._writer.connection.set_busy_timeout(RESIGN_MS)
            self._writer.connection.execute("UPDATE lease SET token = NULL WHERE token = ?", (token,))


def owner(connection: apsw.Connection) -> Node | None:
    """The node that owns the file, or owned it last; None if it gave up the lease."""
    found = connection.execute("SELECT node FROM lease WHERE token IS NOT NULL AND node IS NOT NULL").get
    return None if found is None else msgspec.json.decode(found, type=Node)


def _boot() -> str:
    """An id of the current boot of the machine."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def moved(connection: apsw.Connection) -> Move | None:
    """The mark of a store that has moved."""
    row = connection.execute("SELECT move FROM moved").fetchone()
    return None if row is None else decode_move(row[0])
