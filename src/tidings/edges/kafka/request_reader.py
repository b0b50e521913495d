"""The reader of request topics. Positions and partitions come from the store, not from a Kafka consumer group.

A single process reads all partitions; a fleet shares them. When a node dies, another continues from the stored
positions at once, without waiting for a group to rebalance. A node that reads a partition for too long commits nothing,
because its expected positions are no longer the stored ones.

A topic with a problem is suspended while the others are read: one that we may not read, for a while; one that was
deleted, until it exists again; one without our position, until we know whether it was created again.
"""

import logging
from collections.abc import Callable, Set
from operator import methodcaller
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidings.bus.kafka.topics import Cluster, quiet_logger
from tidings.clock import Clock
from tidings.edges.kafka.request_topics import PartitionId, Positions, ReadFailed, Sources
from tidings.wires.record import Record

WAIT_S = 0.2
ASK_S = 3.0
REFRESH_US = 2_000_000
REASSIGN_US = 100_000
UNREADABLE_US = 30_000_000
SILENCE_US = 100_000  # the client takes longer to find a topic that was created again

BAD_HEADER_NAME = "has a header whose name is not UTF-8: send names as text"

logger = logging.getLogger("tidings.kafka")

# The client fails without raising properly; called through methodcaller, Python notices it at once.
_headers_of: Callable[[Message], list[tuple[str, bytes | None]] | None] = methodcaller("headers")


class Reading(NamedTuple):
    """Records, and the position of each partition before them."""

    records: list[Record]
    starts: dict[PartitionId, int]


class Reader:
    """A Kafka consumer. It blocks: use it on a thread of its own; `done`, `commit` and `lag` may be called on any."""

    def __init__(
        self, cluster: Cluster, positions: Callable[[], Positions], reads: Callable[[str, int], bool], clock: Clock
    ) -> None:
        self._positions = positions
        self._reads = reads
        self._clock = clock
        self._refresh_at = self._reassign_at = 0
        self._sources = Sources(cluster, clock)
        self.topics: frozenset[str] = frozenset()  # our request topics
        self.all_topics: frozenset[str] = frozenset()  # also those that other nodes of the fleet read
        self._present: frozenset[PartitionId] = frozenset()  # all partitions that can be read, by any node
        self._lives: dict[str, str] = {}
        self._assigned: frozenset[PartitionId] = frozenset()
        self._stored: dict[PartitionId, int] = {}  # the positions in the store, of our partitions
        self._next: dict[PartitionId, int] = {}  # the positions once everything returned is stored
        self._returned: dict[PartitionId, int] = {}  # the offset after the last record returned
        self._reached: dict[PartitionId, int] = {}  # the end of the partition, when there was nothing more to read
        self._read_at: dict[str, int] = {}  # when a topic last had records
        self._suspended: dict[str, int] = {}  # topics that are not read now, and when they are tried again
        self._unreadable: dict[str, str] = {}  # topics that could not be read when last tried, with the reason
        self._rewound: set[PartitionId] = set()
        self._committed: dict[PartitionId, int] = {}
        self._first_error = ""
        self._consumer = Consumer(
            {"error_cb": self._on_error}
            | cluster.options(
                group_id=f"{cluster.name}-intake",
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                enable_partition_eof=True,
                auto_offset_reset="error",  # we decide whether the topic was created again
                isolation_level="read_committed",
                queued_max_messages_kbytes=65_536,
                fetch_wait_max_ms=20,
                fetch_queue_backoff_ms=10,
            ),
            logger=quiet_logger(),
        )

    def read(self, records_max: int) -> Reading:
        """Poll for records, with a short wait for the first."""
        if self._clock.elapsed() >= self._refresh_at:
            self._refresh()
        if self._clock.elapsed() >= self._reassign_at:
            self._reassign()
        records: list[Record] = []
        starts: dict[PartitionId, int] = {}
        first = self._consumer.poll(WAIT_S)
        for message in [] if first is None else [first, *self._consumer.consume(records_max - 1, 0)]:
            error = message.error()
            topic = message.topic() or ""
            if error is not None:
                self._handle_error(error, topic, message)
            elif (partition := (topic, message.partition() or 0)) in self._assigned:
                record = _record(message, self._lives[topic])
                starts.setdefault(partition, self._next[partition])
                self._returned[partition] = self._next[partition] = record.offset + 1
                records.append(record)
        if records:
            self._confirm({record.topic for record in records})
        return Reading(records, starts)

    def _confirm(self, topics: set[str]) -> None:
        """After a silence, check that a topic was not deleted and created again, which the client does not report.

        Otherwise records of the new topic would be taken for those of the old one.
        """
        now = self._clock.elapsed()
        if silent := {topic for topic in topics if now - self._read_at.get(topic, -SILENCE_US) >= SILENCE_US}:
            self._sources.confirm(silent)
            now = self._clock.elapsed()
        self._read_at |= dict.fromkeys(topics, now)
        for topic in self._unreadable.keys() & topics:
            self._is_read_again(topic)

    @property
    def problem(self) -> str | None:
        """Why no topic at all can be read; None if some can."""
        if not self._unreadable or not self._unreadable.keys() >= {topic for topic, _ in self._assigned}:
            return None
        return "no request topic can be read: " + next(iter(self._unreadable.values()))

    def source_of(self, topic: str) -> str:
        """The name under which the store keeps the positions of a topic."""
        return self._sources[topic]

    def store(self, ends: Positions) -> None:
        """Note the positions that are stored."""
        self._stored |= {partition: end for partition, end in ends.items() if partition in self._assigned}

    def done(self) -> dict[PartitionId, int]:
        """How far each of our partitions is processed.

        That is after the last stored record or, if nothing came since, at the end of the partition, which may lie after
        transaction markers and deleted records.
        """
        found = {}
        for partition in self._assigned:
            reached = self._reached.get(partition, 0)  # read before `_returned`, which is written before it
            at = self._stored.get(partition)
            if at is not None:  # None if it was just given up
                found[partition] = max(at, reached) if at >= self._returned.get(partition, 0) else at
        return found

    def commit(self) -> None:
        """Commit the positions to Kafka for tools that show the group's lag; we do not rely on them."""
        moved = {partition: at for partition, at in self.done().items() if at and self._committed.get(partition) != at}
        if moved:
            self._consumer.commit(
                offsets=[TopicPartition(*partition, at) for partition, at in moved.items()], asynchronous=True
            )
            self._committed |= moved

    def lag(self) -> int:
        """How many records of our partitions are not read yet, by the cached watermarks."""
        total = 0
        for partition, at in self.done().items():
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
            total += max(0, high - max(at, low))
        return total

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    # Which partitions are read

    def _refresh(self) -> None:
        """Find topics and partitions that were created or deleted."""
        now = self._clock.elapsed()
        topics = self._all_topics()
        for topic in {topic for topic, _ in self._assigned} - topics.keys():
            self._suspend(topic, now)
        back = {topic for topic, at in self._suspended.items() if at <= now}
        known = self._sources.identify(topics, back)
        for topic in back & known:
            del self._suspended[topic]
        self._present = frozenset((name, number) for name in known for number in topics[name].partitions)
        self.all_topics = frozenset(known)
        self._refresh_at = self._clock.elapsed() + REFRESH_US
        self._reassign_at = 0

    def _reassign(self) -> None:
        """Give up partitions that are no longer ours, and read those that are now."""
        known = self._present | self._next.keys()
        ours = {(topic, number) for topic, number in known if self._reads(self._sources[topic], number)}
        if lost := self._next.keys() - ours:
            self.give_up(lost)
        found = {
            partition for partition in ours & self._present if partition[0] not in self._suspended
        } - self._assigned
        if found:
            self._assign(found)
        self._reassign_at = self._clock.elapsed() + REASSIGN_US

    def _assign(self, partitions: Set[PartitionId]) -> None:
        """Read partitions from the stored or our own position, or from the beginning if that does not exist."""
        if new := partitions - self._next.keys():
            stored = self._positions()
            self._lives |= self._sources.lives({topic for topic, _ in new}, stored)
            starts = {(topic, number): stored.get((self._sources[topic], number), 0) for topic, number in new}
            self._next |= starts
            self._stored |= starts
            self.topics |= {topic for topic, _ in new}
        offsets = []
        for partition in partitions:
            at = max(self._returned.get(partition, 0), self._reached.get(partition, 0)) or self._next[partition]
            beginning = partition in self._rewound or not at
            offsets.append(TopicPartition(*partition, OFFSET_BEGINNING if beginning else at))
        self._consumer.incremental_assign(offsets)
        self._assigned |= partitions

    def give_up(self, partitions: Set[PartitionId]) -> None:
        """Stop reading partitions that other nodes read, and forget their positions."""
        self._unassign(self._assigned & partitions)
        for partition in partitions:
            self._rewound.discard(partition)
            for known in (self._returned, self._reached, self._committed, self._stored, self._next):
                known.pop(partition, None)
        self._reassign_at = 0

    def _unassign(self, partitions: Set[PartitionId]) -> None:
        if partitions:
            self._consumer.incremental_unassign([TopicPartition(*partition) for partition in partitions])
            self._assigned -= partitions

    def _suspend(self, topic: str, retry_at: int) -> None:
        """Stop reading a topic until it is tried again."""
        self._unassign({partition for partition in self._assigned if partition[0] == topic})
        self._suspended[topic] = retry_at

    def _mark_unreadable(self, topic: str, reason: str) -> None:
        """Suspend a topic that cannot be read; logged once, not at every retry."""
        if topic not in self._unreadable:
            logger.warning("cannot read %s, trying again every %d s: %s", topic, UNREADABLE_US // 1_000_000, reason)
        self._unreadable[topic] = f"{topic}: {reason}"
        self._suspend(topic, self._clock.elapsed() + UNREADABLE_US)

    # Events and errors from Kafka

    def _handle_error(self, error: KafkaError, topic: str, message: Message) -> None:
        """Handle a message that is not a record."""
        partition = topic, message.partition() or 0
        match error.code():
            case KafkaError._PARTITION_EOF:
                self._end(partition, message.offset() or 0)
            case KafkaError.TOPIC_AUTHORIZATION_FAILED if topic:
                self._mark_unreadable(topic, error.str())
            case KafkaError._AUTO_OFFSET_RESET if topic:
                self._rewind(partition, error.str())
            case KafkaError.UNKNOWN_TOPIC_OR_PART:
                pass  # deleted, or not known to all brokers yet
            case _:
                raise ReadFailed(str(error))

    def _end(self, partition: PartitionId, offset: int) -> None:
        if partition not in self._assigned:
            return
        self._reached[partition] = offset
        self._rewound.discard(partition)
        if partition[0] in self._unreadable:
            self._is_read_again(partition[0])

    def _is_read_again(self, topic: str) -> None:
        logger.info("reads %s again", topic)
        del self._unreadable[topic]

    def _rewind(self, partition: PartitionId, reason: str) -> None:
        """Handle a position that does not exist: the topic was created again, or its records were deleted."""
        if partition not in self._next:
            return  # no longer ours
        if partition in self._rewound:
            self._mark_unreadable(partition[0], reason)
            return
        if partition[0] not in self._suspended:
            logger.warning("%s/%d has no records at our position, reading from its beginning", *partition)
        self._rewound.add(partition)
        self._returned.pop(partition, None)
        self._reached.pop(partition, None)
        self._suspend(partition[0], self._clock.elapsed())
        self._refresh_at = 0

    def _all_topics(self) -> dict[str, Any]:
        """All topics of the cluster. On a timeout, raises the client's first error, which has the cause."""
        try:
            topics: dict[str, Any] = self._consumer.list_topics(timeout=ASK_S).topics
        except KafkaException as error:
            self._consumer.poll(0)  # calls `_on_error`; a record that it returns is read again by the next reader
            raise ReadFailed(self._first_error or str(error.args[0])) from None
        self._first_error = ""
        return topics

    def _on_error(self, error: KafkaError) -> None:
        """Keep the client's first error: later ones only say that all brokers are down."""
        self._first_error = self._first_error or str(error)


def _record(message: Message, life: str) -> Record:
    kind, stamp_ms = message.timestamp()
    unreadable = ""
    try:
        headers = _headers_of(message)
    except (SystemError, UnicodeDecodeError):
        headers, unreadable = None, BAD_HEADER_NAME
    return Record(  # positional: built for every record, and keywords cost time
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        stamp_ms * 1_000 if kind else -1,
        message.key(),
        message.value(),
        tuple(headers) if headers else (),
        life,
        unreadable,
    )
