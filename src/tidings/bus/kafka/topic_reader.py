"""Following a topic of Kafka for one reader at a time: what is committed, from a position on, with its own consumer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient

from tidings.bus.kafka.client import Cluster, quiet
from tidings.bus.log_reader import LATEST, encode, positions_of
from tidings.clock import Clock
from tidings.domain.errors import BusError, Invalid
from tidings.domain.schedules.schedule import Message

PREFIX = "kafka."  # a position on Kafka is none on the log
READERS_MAX = 32
ASK_S = 10.0
SLICE_S = 0.5
SETTLE_S = 0.1
SILENCE_US_MAX = 10_000_000
LOOK_AGAIN_US = 2_000_000  # for a topic that comes later, or gets more partitions

_UNLED = {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
_SETTLING = _UNLED | {KafkaError.UNKNOWN_TOPIC_OR_PART}  # a topic that was just made, or whose leader moves
_PASSING = _UNLED | {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
}

T = TypeVar("T")


class Seen(NamedTuple):
    """A record as a reader of Kafka sees it, and the cursor behind it."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int | None
    message: Message
    cursor: str


class KafkaTopicReader:
    """Readers of Kafka's topics. What they may read is for the edges to say."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._readers = 0

    async def topics(self) -> dict[str, int]:
        """How many partitions each topic has, by name."""

        def ask() -> dict[str, int]:
            found = AdminClient(self._cluster.options(), logger=quiet()).list_topics(timeout=ASK_S).topics
            return {name: len(topic.partitions) for name, topic in found.items()}

        try:
            return await asyncio.to_thread(ask)
        except KafkaException as error:
            raise BusError(f"Kafka does not answer: {error.args[0]}") from None

    @asynccontextmanager
    async def open(self, topic: str, cursor: str | None) -> AsyncIterator["Follower"]:
        """A reader of a topic from a cursor on; raises `Invalid` for a cursor that is none of this topic."""
        wanted = decode(cursor)
        if self._readers >= READERS_MAX:
            raise BusError(f"{READERS_MAX} readers of Kafka are served already: try again later, or read from Kafka")
        self._readers += 1
        thread = ThreadPoolExecutor(1, "tidings-kafka-follow")
        follower = Follower(_Reading(self._cluster, topic), thread, self._clock)
        try:
            await follower.begin(wanted)
            yield follower
        finally:
            self._readers -= 1
            follower.close()


class Follower:
    """One topic from one position on."""

    def __init__(self, reading: "_Reading", thread: ThreadPoolExecutor, clock: Clock) -> None:
        self._reading = reading
        self._thread = thread
        self._clock = clock
        self._looked_at = clock.elapsed()

    @property
    def cursor(self) -> str:
        """The position behind everything that was read."""
        return self._reading.cursor

    async def begin(self, wanted: tuple[int, ...] | str | None) -> None:
        """Find the position, once every partition has its leader; raises `BusError` if one stays without."""
        begun = self._clock.elapsed()
        while True:
            try:
                return await self._on_thread(self._reading.begin, wanted)
            except _Settling as error:
                if self._clock.elapsed() - begun >= SILENCE_US_MAX:
                    raise BusError(str(error)) from None
            await asyncio.sleep(SETTLE_S)

    async def read(self, limit: int, wait_us: int, bytes_max: int) -> list[Seen]:
        """What is there, at most so many and about so many bytes; waits for the first that long.

        Empty at the end of the topic only.
        """
        begun = self._clock.elapsed()
        while True:
            if self._clock.elapsed() - self._looked_at > LOOK_AGAIN_US:
                await self._on_thread(self._reading.grow)
                self._looked_at = self._clock.elapsed()
            found = await self._on_thread(self._reading.look, limit, bytes_max)
            waited = self._clock.elapsed() - begun
            if found or (self._reading.at_end and waited >= wait_us):
                return found
            if not self._reading.at_end and waited >= max(wait_us, SILENCE_US_MAX):
                raise BusError("Kafka does not answer: try again")

    def close(self) -> None:
        """Let go of the consumer, after the look in hand."""
        self._thread.submit(self._reading.close)
        self._thread.shutdown(wait=False)

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except KafkaException as error:
            kind = _Settling if error.args[0].code() in _SETTLING else BusError
            raise kind(f"Kafka does not answer: {error.args[0]}") from None


class _Settling(BusError):
    """A partition has no leader yet."""


class _Reading:
    """One consumer without a group. Blocking: it belongs on a thread of its own."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self._positions: list[int] = []
        self._ended: set[int] = set()
        self._consumer = Consumer(
            cluster.options(
                group_id=f"{cluster.name}-follow",  # librdkafka wants one; nothing is ever committed to it
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",  # what retention took is passed over
                enable_partition_eof=True,
                fetch_wait_max_ms=100,
                fetch_queue_backoff_ms=10,
                queued_max_messages_kbytes=2_048,
            ),
            logger=quiet(),
        )

    @property
    def cursor(self) -> str:
        return PREFIX + encode(tuple(self._positions))

    @property
    def at_end(self) -> bool:
        """Whether every partition was read to its end, as it was then."""
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
        """Take what has come into being since: the topic itself, or more partitions of it."""
        more = self._partitions() - len(self._positions)
        if more > 0:
            self._positions += [0] * more
            self._assign()

    def look(self, limit: int, bytes_max: int) -> list[Seen]:
        """What has come, after a short wait if nothing has; ends once it has that many bytes."""
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
            # Behind it may lie marks of transactions, which are no records.
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
            return Seen(self._topic, partition, offset, at, content, self.cursor)
        return None

    def _partitions(self) -> int:
        """How many there are; to ask for the topic by name might make it."""
        found = self._consumer.list_topics(timeout=ASK_S).topics.get(self._topic)
        return 0 if found is None else len(found.partitions)

    def _span(self, partition: int) -> tuple[int, int]:
        low, high = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), ASK_S)
        return low, high

    def _assign(self) -> None:
        self._ended.clear()
        places = [TopicPartition(self._topic, number, offset) for number, offset in enumerate(self._positions)]
        self._consumer.assign(places)


def decode(cursor: str | None) -> tuple[int, ...] | str | None:
    """The positions that a cursor stands for, `latest`, or None for the beginning."""
    if cursor is None or cursor == LATEST:
        return cursor
    if not cursor.startswith(PREFIX):
        raise Invalid("cursor", "is not one of Kafka: leave it out, or ask with bus=log for the log's")
    return positions_of(cursor[len(PREFIX) :])


def _checked(wanted: tuple[int, ...], spans: list[tuple[int, int]]) -> list[int]:
    if len(wanted) > len(spans):
        raise Invalid("cursor", f"is for {len(wanted)} partitions, this topic has {len(spans)}: leave it out")
    positions = [*wanted, *(0 for _ in spans[len(wanted) :])]
    if any(position > high for position, (_, high) in zip(positions, spans, strict=True)):
        raise Invalid("cursor", "lies beyond the end of this topic: leave it out, or start with `latest`")
    return [max(position, low) for position, (low, _) in zip(positions, spans, strict=True)]
