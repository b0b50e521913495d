"""Progress markers: how far a lane's outbox is published, committed in the same transaction as the records.

Each lane has its partition of `tidings.progress`, so that an open transaction of one lane does not block the others.
"""

from zlib import crc32

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidings.bus.kafka.client import Cluster, quiet_logger

PROGRESS = "tidings.progress"
MARKER_PARTITIONS = 16
STEP = 100
READ_S = 10.0


class Marker(msgspec.Struct, frozen=True):
    """The store of the lane, the next offset of its outbox, and the occurrence that was published last."""

    store: str
    next: int
    last: str = ""


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Marker).decode


def partition_of(key: str, partitions: int) -> int:
    """The partition for the markers of a key. It stays the same when a topic of 16 or more gets more partitions."""
    return crc32(key.encode()) % MARKER_PARTITIONS if partitions >= MARKER_PARTITIONS else 0


def read_marker(cluster: Cluster, key: str, partition: int, *, waits: bool = True) -> Marker | None:
    """The last committed marker of a key in its partition, or in partition 0, where it was while there were fewer.

    Waits for open transactions to end; without `waits`, returns the last marker that is visible now.
    """
    found = _last_of(cluster, key, partition, waits)
    return found if found is not None or partition == 0 else _last_of(cluster, key, 0, waits)


def _last_of(cluster: Cluster, key: str, partition: int, waits: bool) -> Marker | None:
    """Read near the end first, and go back in growing steps until a marker is found.

    The end is the high watermark, not the last stable offset: while the transaction of another lane is open, our own
    later markers are not visible, and an older one must not be taken for the last.
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
        logger=quiet_logger(),
    )


def _last_between(consumer: Consumer, key: str, start: TopicPartition, end: int, waits: bool) -> Marker | None:
    """The last marker of a key in a range of offsets, after the open transactions in it have ended.

    Without `waits`, the last marker before the first open transaction. Aborted ones are never visible.
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
