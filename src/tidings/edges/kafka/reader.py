"""Reading the request topics. Where to begin is for the store to say, not for Kafka's consumer groups.

Only the owner of the store reads, all partitions: nobody has to be waited for when it dies, as a group would.

A topic that was deleted and made anew is another source, although it has the same name: it is read from its beginning.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tidings.bus.kafka.client import Cluster, quiet
from tidings.clock import Clock
from tidings.domain.errors import TidingsError
from tidings.wires.record import Record

WAIT_S = 0.2
ASK_S = 3.0
LOOK_US = 2_000_000

Place = tuple[str, int]
Positions = Mapping[Place, int]


class ReadFailed(TidingsError):
    """The request topics cannot be read now; a new reader may."""


class Reader:
    """One consumer. Blocking: it belongs on a thread of its own."""

    def __init__(self, cluster: Cluster, patterns: list[str], positions: Callable[[], Positions], clock: Clock) -> None:
        self._pattern = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
        self._takes = cluster.takes
        self._positions = positions
        self._clock = clock
        self._look_at = 0
        self._starts: dict[Place, int] = {}
        self._sources: dict[str, str] = {}  # by topic
        self._told = ""
        self._admin = AdminClient(cluster.options(), logger=quiet())
        self._consumer = Consumer(
            {"error_cb": self._hear}
            | cluster.options(
                group_id=f"{cluster.name}-intake",
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                queued_max_messages_kbytes=65_536,
                fetch_wait_max_ms=20,
                fetch_queue_backoff_ms=10,
            ),
            logger=quiet(),
        )

    def read(self, records_max: int) -> list[Record]:
        """What has come, after a short wait if nothing has."""
        if self._clock.elapsed() >= self._look_at:
            self._look()
            self._look_at = self._clock.elapsed() + LOOK_US
        records = []
        first = self._consumer.poll(WAIT_S)
        for message in [] if first is None else [first, *self._consumer.consume(records_max - 1, 0)]:
            error = message.error()
            if error is None:
                records.append(_record(message))
            elif error.code() not in {KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART}:
                raise ReadFailed(str(error))
        return records

    @property
    def topics(self) -> set[str]:
        """The request topics that are read now."""
        return {topic for topic, _ in list(self._starts)}

    def start_of(self, place: Place) -> int:
        """The position from which a partition is read."""
        return self._starts[place]

    def source_of(self, topic: str) -> str:
        """The name under which the store keeps the positions of a topic: its own, and which of that name it is."""
        return self._sources[topic]

    def commit(self, positions: Positions) -> None:
        """Tell Kafka how far we are, for those who look at the group's lag; we do not rely on it."""
        offsets = [TopicPartition(*place, position) for place, position in positions.items()]
        if offsets:
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def lag(self, positions: Positions) -> int:
        """How many records wait to be read, as far as is known."""
        total = 0
        for place, start in list(self._starts.items()):
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            total += max(0, high - positions.get(place, start))
        return total

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()

    def _look(self) -> None:
        """Read those partitions too that have appeared since."""
        there = {name: topic for name, topic in self._all().items() if self._is_ours(name)}
        self._identify([name for name, topic in there.items() if topic.error is None])
        found = [
            (name, number)
            for name in self._sources.keys() & there.keys()
            for number in there[name].partitions
            if (name, number) not in self._starts
        ]
        if found:
            known = self._positions()
            stored = {(name, number): known.get((self._sources[name], number)) for name, number in found}
            places = [TopicPartition(*place, OFFSET_BEGINNING if at is None else at) for place, at in stored.items()]
            self._consumer.incremental_assign(places)
            self._starts |= {place: at or 0 for place, at in stored.items()}

    def _is_ours(self, topic: str) -> bool:
        return self._pattern.fullmatch(topic) is not None and self._takes(topic)

    def _identify(self, topics: list[str]) -> None:
        """Learn which topics these are; one that is no longer the same ends this reader."""
        if not topics:
            return
        for topic, asked in self._admin.describe_topics(TopicCollection(topics), request_timeout=ASK_S).items():
            try:
                source = f"{topic}@{asked.result().topic_id}"
            except KafkaException:
                continue  # gone meanwhile, or not for us to see: it is asked again
            if self._sources.setdefault(topic, source) != source:
                raise ReadFailed(f"{topic} was made anew")

    def _all(self) -> dict[str, Any]:
        """Every topic of the cluster. That nobody answers says little; what the client was told before says why."""
        try:
            topics: dict[str, Any] = self._consumer.list_topics(timeout=ASK_S).topics
        except KafkaException as error:
            self._consumer.poll(0)  # it tells now; a record that it may give is read again by the next reader
            raise ReadFailed(self._told or str(error.args[0])) from None
        self._told = ""
        return topics

    def _hear(self, error: KafkaError) -> None:
        """What the client reports by itself; the first of it, for then it says only that all brokers are down."""
        self._told = self._told or str(error)


def _record(message: Message) -> Record:
    kind, stamp_ms = message.timestamp()
    headers = message.headers()
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        stamp_ms * 1_000 if kind else -1,
        message.key(),
        message.value(),
        tuple(headers) if headers else (),  # type: ignore[arg-type]  # a consumer gives a list of names and bytes
    )
