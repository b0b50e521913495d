"""Readers of Kafka topics for the HTTP API: committed records from a position on, with one consumer per reader."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient

from tidings.bus.kafka.topics import Cluster, quiet_logger
from tidings.bus.log_reader import LATEST, encode, positions_of
from tidings.clock import Clock
from tidings.domain.errors import BusError, Invalid
from tidings.domain.schedules.schedule import Message

PREFIX = "kafka."  # so that a cursor of Kafka is not taken for one of the log
READERS_MAX = 32
ASK_S = 10.0
SLICE_S = 0.5
SETTLE_S = 0.1
SILENCE_US_MAX = 10_000_000
LOOK_AGAIN_US = 2_000_000  # for topics that are created later, and new partitions

_UNLED = {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
_SETTLING = _UNLED | {KafkaError.UNKNOWN_TOPIC_OR_PART}  # a topic that was just created, or whose leader moves
_PASSING = _UNLED | {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
}

T = TypeVar("T")


class Seen(NamedTuple):
    """A record of a Kafka topic, and the cursor after it."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int | None
    message: Message
    cursor: str


class KafkaTopicReader:
    """Opens readers of Kafka topics. The edges decide which topics a caller may read."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._readers = 0

    async def topics(self) -> dict[str, int]:
        """The number of partitions of every topic."""

        def ask() -> dict[str, int]:
            found = AdminClient(self._cluster.options(), logger=quiet_logger()).list_topics(timeout=ASK_S).topics
            return {name: len(topic.partitions) for name, topic in found.items()}

        try:
            return await asyncio.to_thread(ask)
        except KafkaException as error:
            raise BusError(f"Kafka does not answer: {error.args[0]}") from None

    @asynccontextmanager
    async def open(self, topic: str, cursor: str | None) -> AsyncIterator["Follower"]:
        """Open a reader of a topic at a cursor; raises `Invalid` if the cursor is not one of this topic."""
        wanted = decode(cursor)
        if self._readers >= READERS_MAX:
            raise BusError(f"{READERS_MAX} readers of Kafka are open, the maximum: try again later, or read from Kafka")
        self._readers += 1
        thread = ThreadPoolExecutor(1, "tidings-kafka-follow")
        follower = Follower(_TopicConsumer(self._cluster, topic), thread, self._clock)
        try:
            await follower.begin(wanted)
            yield follower
        finally:
            self._readers -= 1
            follower.close()


class Follower:
    """A reader of one topic from a position on."""

    def __init__(self, consumer: "_TopicConsumer", thread: ThreadPoolExecutor, clock: Clock) -> None:
        self._consumer = consumer
        self._thread = thread
        self._clock = clock
        self._looked_at = clock.elapsed()

    @property
    def cursor(self) -> str:
        """The position after everything that was read."""
        return self._consumer.cursor

    async def begin(self, wanted: tuple[int, ...] | str | None) -> None:
        """Set the start position once every partition has a leader; raises `BusError` if one has none for too long."""
        started = self._clock.elapsed()
        while True:
            try:
                return await self._on_thread(self._consumer.begin, wanted)
            except _Settling as error:
                if self._clock.elapsed() - started >= SILENCE_US_MAX:
                    raise BusError(str(error)) from None
            await asyncio.sleep(SETTLE_S)

    async def read(self, limit: int, wait_us: int, bytes_max: int) -> list[Seen]:
        """Read up to `limit` records and about `bytes_max` bytes, waiting `wait_us` for the first.

        Empty only at the end of the topic.
        """
        started = self._clock.elapsed()
        while True:
            if self._clock.elapsed() - self._looked_at > LOOK_AGAIN_US:
                await self._on_thread(self._consumer.grow)
                self._looked_at = self._clock.elapsed()
            found = await self._on_thread(self._consumer.look, limit, bytes_max)
            waited = self._clock.elapsed() - started
            if found or (self._consumer.at_end and waited >= wait_us):
                return found
            if not self._consumer.at_end and waited >= max(wait_us, SILENCE_US_MAX):
                raise BusError("Kafka does not answer: try again")

    def close(self) -> None:
        """Close the consumer after the read in progress."""
        self._thread.submit(self._consumer.close)
        self._thread.shutdown(wait=False)

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except KafkaException as error:
            kind = _Settling if error.args[0].code() in _SETTLING else BusError
            raise kind(f"Kafka does not answer: {error.args[0]}") from None


class _Settling(BusError):
    """A partition has no leader yet."""


class _TopicConsumer:
    """A Kafka consumer without a group. It blocks: use it on a thread of its own."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self._positions: list[int] = []
        self._ended: set[int] = set()
        self._consumer = Consumer(
            cluster.options(
                group_id=f"{cluster.name}-follow",  # librdkafka requires one; nothing is committed to it
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",  # skip what retention has deleted
                enable_partition_eof=True,
                fetch_wait_max_ms=100,
                fetch_queue_backoff_ms=10,
                queued_max_messages_kbytes=2_048,
            ),
            logger=quiet_logger(),
        )

    @property
    def cursor(self) -> str:
        return PREFIX + encode(tuple(self._positions))

    @property
    def at_end(self) -> bool:
        """Whether every partition was read to what was its end."""
        return len(self._ended) == len(self._positions)

    def begin(self, wanted: tuple[int, ...] | str | None) -> None:
        spans = [self._span(partition) for partition in range(self._partitions())]
        if wanted == LATEST:
            self._positions = [high for _, high in spans]
        elif isinstance(wanted, tuple):
            self._positions = _checked(wanted, spans)
        else:
            self._positions = [low for low, _ in spans]
        self._assign()

    def grow(self) -> None:
        """Add partitions that were created since, also those of a topic that did not exist."""
        more = self._partitions() - len(self._positions)
        if more > 0:
            self._positions += [0] * more
            self._assign()

    def look(self, limit: int, bytes_max: int) -> list[Seen]:
        """Poll for records, with a short wait for the first, until they have `bytes_max` bytes."""
        found: list[Seen] = []
        size, message = 0, self._consumer.poll(SLICE_S)
        for _ in range(limit):
            if message is None:
                break
            seen = self._seen(message)
            if seen is not None:
                found.append(seen)
                size += len(message)
            if size >= bytes_max:
                break
            message = self._consumer.poll(0.0)
        return found

    def close(self) -> None:
        self._consumer.close()

    def _seen(self, message: KafkaMessage) -> Seen | None:
        partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            # The end may lie after transaction markers, which are not records.
            self._positions[partition] = max(self._positions[partition], offset)
            self._ended.add(partition)
        elif error is not None:
            if error.code() not in _PASSING:
                raise KafkaException(error)
        else:
            self._positions[partition] = offset + 1
            self._ended.discard(partition)
            kind, stamp_ms = message.timestamp()
            headers = tuple(message.headers() or ())
            content = Message(message.key(), message.value(), headers)  # type: ignore[arg-type]  # names and bytes
            at = stamp_ms * 1_000 if kind else None
            return Seen(self._topic, partition, offset, at, message=content, cursor=self.cursor)
        return None

    def _partitions(self) -> int:
        """How many partitions there are. Lists all topics: asking for one by name might create it."""
        found = self._consumer.list_topics(timeout=ASK_S).topics.get(self._topic)
        return 0 if found is None else len(found.partitions)

    def _span(self, partition: int) -> tuple[int, int]:
        low, high = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), ASK_S)
        return low, high

    def _assign(self) -> None:
        self._ended.clear()
        self._consumer.assign(
            [TopicPartition(self._topic, number, offset) for number, offset in enumerate(self._positions)]
        )


def decode(cursor: str | None) -> tuple[int, ...] | str | None:
    """Decode a cursor: positions, `latest`, or None for the beginning."""
    if cursor is None or cursor == LATEST:
        return cursor
    if not cursor.startswith(PREFIX):
        raise Invalid("cursor", "is not a cursor of a Kafka topic: leave it out, or read the log with bus=log")
    return positions_of(cursor[len(PREFIX) :])


def _checked(wanted: tuple[int, ...], spans: list[tuple[int, int]]) -> list[int]:
    if len(wanted) > len(spans):
        raise Invalid("cursor", f"is for {len(wanted)} partitions, but this topic has {len(spans)}: leave it out")
    positions = [*wanted, *(0 for _ in spans[len(wanted) :])]
    if any(position > high for position, (_, high) in zip(positions, spans, strict=True)):
        raise Invalid("cursor", "is beyond the end of this topic: leave it out, or start with `latest`")
    return [max(position, low) for position, (low, _) in zip(positions, spans, strict=True)]
