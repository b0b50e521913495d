"""Markers: how far a lane has come, committed together with the records themselves.

Each lane has a partition of `tidings.progress` for its home, so that what another left open there holds nobody up.
"""

from zlib import crc32

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidings.bus.kafka.client import Cluster, quiet

PROGRESS = "tidings.progress"
HOMES = 16
STEP = 100
READ_S = 10.0


class Marker(msgspec.Struct, frozen=True):
    """The store that the lane belongs to, the next offset of its outbox, and which occurrence was published last."""

    store: str
    next: int
    last: str = ""


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Marker).decode


def home_of(lane: str, partitions: int) -> int:
    """The partition for the markers of a lane: it stays where it is when a topic of 16 or more is given more."""
    return crc32(lane.encode()) % HOMES if partitions >= HOMES else 0


def read_marker(cluster: Cluster, key: str, home: int, *, waits: bool = True) -> Marker | None:
    """The last committed marker of this key, at the home of its lane or where that was while there were fewer.

    It waits for what is open to end; otherwise the answer is the last one that shows now.
    """
    found = _last_of(cluster, key, home, waits)
    return found if found is not None or home == 0 else _last_of(cluster, key, 0, waits)


def _last_of(cluster: Cluster, key: str, partition: int, waits: bool) -> Marker | None:
    """Looks near the end first, and steps back while there is none.

    The end is that of the log, not of what is committed: while the transaction of another lane is open, our own later
    markers do not show, and an older one must not be taken for the last.
    """
    consumer = _consumer(cluster, "read_uncommitted")
    try:
        low, start = consumer.get_watermark_offsets(TopicPartition(PROGRESS, partition), READ_S)
    finally:
        consumer.close()
    consumer = _consumer(cluster, "read_committed")
    try:
        step = STEP
        while start > low:
            end, start, step = start, max(low, start - step), step * 2
            found = _last_between(consumer, key, TopicPartition(PROGRESS, partition, start), end, waits)
            if found is not None:
                return found
        return None
    finally:
        consumer.close()


def _consumer(cluster: Cluster, isolation_level: str) -> Consumer:
    return Consumer(
        cluster.options(
            group_id=f"{cluster.name}-markers",
            isolation_level=isolation_level,
            enable_auto_commit=False,
            fetch_wait_max_ms=10,
            enable_partition_eof=True,
        ),
        logger=quiet(),
    )


def _last_between(consumer: Consumer, key: str, start: TopicPartition, end: int, waits: bool) -> Marker | None:
    """The last marker of a key in a span of offsets, once nothing in it is open; what was aborted does not show.

    Without waiting, that of the part before what is open.
    """
    consumer.assign([start])
    found = None
    while True:
        record = consumer.poll(READ_S)
        if record is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer while reading tidings.progress"))
        error = record.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if (record.offset() or 0) >= end or (error is not None and not waits):
            return found
        if error is None and record.key() == key.encode():
            found = _decode(record.value() or b"")
