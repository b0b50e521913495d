"""The one writer: its connection, its transactions, and what it keeps in memory between them."""

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from tidings.domain.command import Priority
from tidings.domain.destination import is_kafka
from tidings.domain.errors import NotOwner
from tidings.timeline.room import OUTBOX_BYTES_MAX, OUTBOX_ROWS_MAX, RECORD_BYTES, Room
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.far import DAY_QUARTERS, QUARTER_LAST, QUARTER_US, Far, quarters
from tidings.timeline.sqlite.heads import Lookahead
from tidings.timeline.sqlite.idmap import IdMap
from tidings.timeline.sqlite.parcels import Rows
from tidings.timeline.sqlite.rows import ARRIVAL_BITS
from tidings.timeline.transfer.protocol import predecessors_of

PARTITIONS_MAX = 16
TOPICS_PER_TENANT_MAX = 10_000
TOPICS_MAX = 1_000_000
OFFSET_BITS = 38
OUTBOX = 0  # the partition of what is released to Kafka; topics count from one
OFFSET_MASK = (1 << OFFSET_BITS) - 1

_SECRET_BYTES = 16
_ROWS = queries("rows")

# The streams that have rows near, each with its first due time, without looking at every row.
_HEADS = """
WITH RECURSIVE present(stream) AS (
    SELECT min(stream) FROM near
    UNION ALL
    SELECT (SELECT min(near.stream) FROM near WHERE near.stream > present.stream) FROM present
    WHERE present.stream IS NOT NULL
)
SELECT stream, (SELECT min(due) FROM near WHERE near.stream = present.stream) FROM present WHERE stream IS NOT NULL
"""

# What is in the outbox from a position on, without what is kept back: offsets and sizes.
_IN_OUTBOX = (
    f"SELECT position & {OFFSET_MASK}, length(message) + length(id) + {RECORD_BYTES} FROM log"
    f" WHERE position >= ? AND position < {(OUTBOX + 1) << OFFSET_BITS} AND position NOT IN (SELECT offset FROM held)"
    " ORDER BY position"
)

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


class Options(msgspec.Struct, frozen=True):
    """What can be chosen for a store. `partitions` is fixed once the file exists."""

    partitions: int = 4
    id_retention_us: int = 7 * 86_400 * 1_000_000
    retention_us: int | None = 7 * 86_400 * 1_000_000
    retention_bytes: int | None = None
    receipt_retention_us: int = 86_400 * 1_000_000
    created: int = 0
    outbox_rows_max: int = OUTBOX_ROWS_MAX
    outbox_bytes_max: int = OUTBOX_BYTES_MAX


class Writer:
    """Whatever is in memory can be read back from the file. Only the writer's thread changes it; others may look
    at names and the map, which are replaced whole or only grow."""

    def __init__(self, connection: apsw.Connection, options: Options) -> None:
        self.connection = connection
        self.options = options
        self.token: bytes | None = None
        self.room = Room(options.outbox_rows_max, options.outbox_bytes_max)
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
        connection.execute(_BATCH)
        self._begin()
        self.load()

    def _begin(self) -> None:
        """Write the one row of counters if the file is new."""
        sql = "INSERT OR IGNORE INTO tally VALUES (1, ?, ?, ?, 0, 0, 0, 0)"
        secret = secrets.token_bytes(_SECRET_BYTES)
        self.connection.execute(sql, (self.options.created, secret, self.options.partitions))

    def load(self) -> None:
        """Read back everything that is kept in memory; readers on other threads see the old until the new is whole."""
        connection = self.connection
        row = connection.execute(
            "SELECT created, secret, partitions, arrival, pending, near_until, split_until FROM tally"
        ).fetchone()
        self.identity = blake2b(row[1], digest_size=8, person=b"identity").hexdigest()
        self.predecessors = predecessors_of(connection.execute("SELECT progress FROM carried"))
        streams = connection.execute("SELECT stream, tenant, priority, to_kafka FROM stream").fetchall()
        streams_on_kafka = {stream for stream, _, _, to_kafka in streams if to_kafka}
        idmap, heads = IdMap(row[1]), Lookahead(streams_on_kafka)
        idmap.load(connection)
        for stream, due in connection.execute(_HEADS):
            heads.set(stream, due)
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
        self.room.begin(connection.execute(_IN_OUTBOX, (OUTBOX << OFFSET_BITS | self.arrived,)))
        self.created, _, self.partitions, self.arrival, self.pending, self.near_until, self.split_until = row
        self.idmap, self.heads, self.far = idmap, heads, Far(connection)
        self.look_ahead()
        self._saved = (self.arrival, self.pending)
        self.stale = False

    def refresh(self) -> None:
        """Read it back if that failed after a transaction that failed; before anything in memory is relied on."""
        if self.stale:
            self.load()

    @property
    def arrived(self) -> int:
        """Everything in the outbox before this offset is on Kafka."""
        return self.room.arrived

    @property
    def next_due(self) -> int | None:
        """When a release has work to do: what goes to Kafka counts only while there is room for it."""
        near, on_kafka = self._next_near
        dues = (near, on_kafka if on_kafka is not None and self.room.rows else None, self.next_far)
        return min((due for due in dues if due is not None), default=None)

    @property
    def first_due(self) -> int | None:
        """When the first of all that is pending is due, whether it may leave or not; never later than the truth."""
        return min((due for due in (*self._next_near, self.next_far) if due is not None), default=None)

    def may_open(self, tenant: str, topic: str) -> bool:
        """Whether a topic is there, or the tenant may have one more."""
        return (tenant, topic) in self.topics or (
            self.topic_counts[tenant] < TOPICS_PER_TENANT_MAX and len(self.topics) < TOPICS_MAX
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """A durable transaction of the owner. If it fails, memory is read back from the file."""
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
        self.stale = True  # until it is known what comes next
        self.look_ahead()
        self.stale = False

    def look_ahead(self) -> None:
        """Note when there is work: something near falls due, or the time of a bucket of `far` begins."""
        place = self.far.first()
        self.next_far = None if place is None else (place >> ARRIVAL_BITS) * QUARTER_US
        self._next_near = self.heads.first()

    def _check_owner(self) -> None:
        row = self.connection.execute("SELECT token FROM lease").fetchone()
        if self.token is None or row is None or row[0] != self.token:
            self.token = None
            raise NotOwner("another process owns this store")

    def _save_tally(self) -> None:
        if self._saved != (self.arrival, self.pending):
            self.connection.execute("UPDATE tally SET arrival = ?, pending = ?", (self.arrival, self.pending))
            self._saved = (self.arrival, self.pending)

    def stream_of(self, tenant: str, priority: int, topic: str) -> int:
        """The number of the stream for a topic; made when it is new."""
        to_kafka = is_kafka(topic)
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
        """The number of a topic's first partition; the topic is made when it is new."""
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

    def bucket(self, due: int) -> int:
        """The bucket of `far` for a due time, as far as the wheel has been split."""
        quarter = min(due // QUARTER_US, QUARTER_LAST)
        return quarter if due < self.split_until else quarter - quarter % DAY_QUARTERS

    def buckets(self, dues: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The same for a whole batch."""
        fine = quarters(dues)
        return np.where(dues < self.split_until, fine, fine - fine % DAY_QUARTERS)

    def put_near(self, rows: Rows) -> None:
        """Put rows that are due soon into their order."""
        if not len(rows):
            return
        self.connection.execute(_ROWS["insert_near"], (apsw.carray(tuple(rows.for_near())),))
        streams = rows.heads["stream"]
        for stream in set(streams.tolist()):
            self.heads.offer(stream, int(rows.heads["due"][streams == stream].min()))
