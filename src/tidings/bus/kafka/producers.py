"""Producers of released records, and the records as they are written to Kafka.

A record keeps its key, value and headers, followed by the headers that identify the occurrence. `TransactionalProducer`
publishes a batch of the outbox in one transaction with a progress marker. `IdempotentProducer` works without
transactions, and may send some records again after a crash.

A batch is durable in the outbox before anything of it is published. The outbox has one order, and no record in it can
be cancelled. So the marker needs to hold only the next offset, and the next owner of the lane continues from there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidings import crash
from tidings.bus.kafka.client import Cluster, Watch
from tidings.bus.kafka.progress_marker import MARKER_PARTITIONS, PROGRESS, Marker, encode, partition_of, read_marker
from tidings.bus.kafka.topics import ABOUT_THE_TOPIC, OF_THE_RECORD, Topics
from tidings.domain.errors import TidingsError
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.schedule import DUE_SECONDS, ORIGIN, Outgoing, unpack
from tidings.domain.schedules.schedule import Message as StoredMessage
from tidings.domain.schedules.when import SECOND_US

Header = tuple[str, str | bytes | None]

ID = "tidings-id"
OCCURRENCE = "tidings-occurrence"
DUE_AT = "tidings-due-at"
ATTEMPT = ("tidings-attempt", b"1")
FINAL = ("tidings-final", b"true")
# Headers of these names in the message are dropped: they may come from an earlier release, or be forged.
OURS = frozenset({ID, OCCURRENCE, DUE_AT, ATTEMPT[0], FINAL[0], ORIGIN})
# On rejection topics, which only Tidings writes, a refused request keeps its id so that it can be sent again.
REFUSED = "tidings.rejections."
_OF_THE_REFUSAL = OURS - {ID}

TRANSACTION_MS = 10_000
INIT_S = 30.0
COMMIT_S = 15.0
SLICE_S = 1.0
QUEUE_RECORDS_MAX = 200_000
MESSAGE_BYTES_MAX = 16 * 1024 * 1024  # the broker decides what a topic accepts
# Topic, partition (-1: by the key), key, value, headers.
ProducerRecord = tuple[str, int, bytes | None, bytes | None, list[Header]]
NO_PREDECESSORS: Mapping[str, int] = MappingProxyType({})


class RecordBuilder:
    """Builds Kafka records; caches the header of the last due time."""

    def __init__(self) -> None:
        self._due = -1
        self._due_header: Header = (DUE_AT, b"")

    def record(self, outgoing: Outgoing) -> tuple[bytes | None, bytes | None, list[Header]]:
        """The key, value and headers of a released record."""
        message = unpack(outgoing.message)
        if DUE_SECONDS in outgoing.message:
            message = _timed(message, outgoing.due)
        if outgoing.due != self._due:
            self._due, self._due_header = outgoing.due, (DUE_AT, format_instant(outgoing.due).encode())
        refused = outgoing.topic.startswith(REFUSED)
        ours = _OF_THE_REFUSAL if refused else OURS
        headers: list[Header] = [
            *(header for header in message.headers if header[0] not in ours),
            *(() if refused else ((ID, outgoing.id.encode()),)),
            (OCCURRENCE, outgoing.occurrence.encode()),
            self._due_header,
            ATTEMPT,
        ]
        if outgoing.final and outgoing.number > 1:
            headers.append(FINAL)
        return message.key, message.value, headers


def _timed(message: StoredMessage, due: int) -> StoredMessage:
    """Put the due time into headers that ask for it."""
    seconds = str(due // SECOND_US).encode()
    headers = [(name, seconds if value == DUE_SECONDS else value) for name, value in message.headers]
    return StoredMessage(message.key, message.value, tuple(headers))


class Refusals:
    """What Kafka refused: topics, and single records by their offset in the outbox, each with the reason.

    `transient` has the topics that timed out: they may accept the same records later.
    """

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}
        self.transient: set[str] = set()
        self.records: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self.topics or self.records)

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys([*self.topics.values(), *self.records.values()]))


class ProducerFailed(TidingsError):
    """It is unknown whether the batch was committed: call `take_over` again and read the marker.

    With refusals, nothing of the batch was committed, and they say why.
    """

    def __init__(self, text: str, refusals: Refusals | None = None) -> None:
        super().__init__(text)
        self.refusals = refusals or Refusals()


class ProgressMismatch(TidingsError):
    """The progress on Kafka does not match this store: going on would lose or duplicate records."""


class TransactionalProducer:
    """A transactional producer for the outbox of one lane. It blocks: use it on a thread of its own.

    `one_by_one`: each record is a request of its own, so that a refusal concerns that record only.
    `predecessors`: stores that were moved into this one, each with the offset up to which all of it is on Kafka.
    """

    has_markers = True

    def __init__(
        self,
        cluster: Cluster,
        store: str,
        name: str = "0",
        *,
        one_by_one: bool = False,
        predecessors: Mapping[str, int] = NO_PREDECESSORS,
    ) -> None:
        self._cluster = cluster
        self.store = store
        self.key = f"{cluster.name}/{name}"
        self._one_by_one = one_by_one
        self._predecessors = predecessors
        self._partition = 0
        self._refusals = Refusals()
        self._producer: Producer | None = None
        self._watch = Watch()
        self._topics = Topics(cluster)
        self._builder = RecordBuilder()
        self._stopping = False

    def stop(self) -> None:
        """End waits for Kafka early. May be called on any thread."""
        self._stopping = True

    def peek(self) -> None:
        """Check that the progress on Kafka is ours, before another producer is fenced.

        Does not wait for the open transaction of a dead owner, which ends only by fencing or by its timeout.
        """
        self._partition = partition_of(self.key, self._topics.prepare(PROGRESS, MARKER_PARTITIONS))
        self.marker(self.key, waits=False)

    def take_over(self) -> Marker | None:
        """Fence the former producer, end its open transaction, and read its last marker."""
        self._renew()
        return self.marker(self.key)

    def marker(self, key: str, *, waits: bool = True) -> Marker | None:
        """The last committed marker of a key. Without `waits`: the last that is visible while transactions are open."""
        try:
            marker = read_marker(self._cluster, key, self._partition, waits=waits)
        except (KafkaException, SystemError) as error:
            raise ProducerFailed(str(error.__cause__ or error)) from None
        crash.point("kafka.taken")
        if marker is None or marker.store == self.store:
            return marker
        if marker.next <= self._predecessors.get(marker.store, -1):
            return None  # everything of the former store is on Kafka: this store starts at its first offset
        if marker.store in self._predecessors:
            raise ProgressMismatch(
                f"Kafka has records up to {marker.next} of the store that was moved into this one ({marker.store}),"
                " which did not know of them: it had been put back to an older state before it was copied. Start"
                " with an empty store and another kafka.name"
            )
        raise ProgressMismatch(
            f"the progress on Kafka belongs to another store ({marker.store}): start with that one, or give this"
            " one a name of its own (kafka.name). A new store then reads every request that is still on the topics"
            " and releases what is overdue at once; set kafka.start to latest to skip them"
        )

    def check(self) -> None:
        """Raise `ProducerFailed` if a connection was lost, so that it is noticed before something is due."""
        if self._producer is not None:
            self._producer.poll(0)
        if self._watch.lost:
            raise ProducerFailed(self._watch.lost)

    def publish(
        self,
        records: Sequence[Outgoing],
        key: str | None = None,
        instead: Mapping[int, Sequence[ProducerRecord]] | None = None,
    ) -> Refusals:
        """Publish a batch in one transaction; returns refusals, which are always empty here.

        `key` is that of the marker. `instead` has, by offset, what is written in place of the records themselves.
        Raises `TopicUnavailable` before the transaction begins, and `ProducerFailed` if anything goes wrong, even if
        the commit was acknowledged.
        """
        producer = self._producer
        assert producer is not None, "call take_over first"
        self.check()
        self._topics.ensure(_topics_of(records, instead))
        self._refusals = Refusals()
        try:
            producer.begin_transaction()
            self._produce(producer, self._built(records, instead))
            crash.point("kafka.produced")
            self._flush(producer)
            if self._refusals:
                raise ProducerFailed(str(self._refusals), self._refusals)
            self._mark(producer, key or self.key, records[-1])
            crash.point("kafka.marked")
            self._in_slices(producer.commit_transaction, COMMIT_S)
            crash.point("kafka.committed")
            producer.poll(0)
        except (KafkaException, SystemError) as error:
            self._topics.forget()
            raise ProducerFailed(str(error.__cause__ or error), self._refusals) from None
        if self._watch.lost:
            raise ProducerFailed(self._watch.lost)
        return self._refusals

    def close(self) -> None:
        """Drop the producer. Its open transaction is ended by the next `take_over`."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _renew(self) -> None:
        self.close()
        self._partition = partition_of(self.key, self._topics.prepare(PROGRESS, MARKER_PARTITIONS))
        self._watch = Watch()
        producer = Producer(self._options(), logger=self._watch.logger)
        self._producer = producer
        try:
            self._in_slices(producer.init_transactions, INIT_S)
        except (KafkaException, SystemError) as error:
            raise ProducerFailed(str(error.__cause__ or error)) from None
        crash.point("kafka.initialised")

    def _in_slices(self, step: Callable[[float], object], seconds: float) -> None:
        """Call with short timeouts, so that a node that stops does not wait for a broker that is down."""
        for _ in range(int(seconds / SLICE_S)):
            try:
                step(SLICE_S)
                return
            except KafkaException as error:
                if self._stopping or not error.args[0].retriable():
                    raise
        raise ProducerFailed("Kafka does not answer")

    def _flush(self, producer: Producer) -> None:
        for _ in range(int(COMMIT_S / SLICE_S)):
            if not producer.flush(SLICE_S):
                return
            if self._stopping:
                break
        raise ProducerFailed("the broker did not acknowledge the records in time")

    def _built(
        self, records: Sequence[Outgoing], instead: Mapping[int, Sequence[ProducerRecord]] | None
    ) -> Iterator[tuple[int, ProducerRecord]]:
        """What is written for each record, with the record's offset. Lazy: sending overlaps with building."""
        for record in records:
            if instead is None:
                yield record.offset, (record.topic, -1, *self._builder.record(record))
            else:
                for each in instead[record.offset]:
                    yield record.offset, each

    def _produce(self, producer: Producer, batch: Iterator[tuple[int, ProducerRecord]]) -> None:
        for offset, (topic, partition, key, value, headers) in batch:
            on_delivery = partial(self._delivered, offset) if self._one_by_one else self._batch_delivered
            while True:
                try:
                    producer.produce(topic, value, key, partition, headers=headers, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.1)
                except KafkaException as error:
                    if error.args[0].code() not in ABOUT_THE_TOPIC:
                        raise
                    self._note(offset if self._one_by_one else None, topic, error.args[0].str())
                    break

    def _batch_delivered(self, error: KafkaError | None, message: Message) -> None:
        self._delivered(None, error, message)

    def _delivered(self, offset: int | None, error: KafkaError | None, message: Message) -> None:
        """The delivery report of a record that was refused; there is none of others.

        A timeout while the broker is connected is a fault of the topic: it has no leader, or too few replicas.
        """
        if error is None:
            return
        is_late = error.code() == KafkaError._MSG_TIMED_OUT and not self._watch.lost
        if is_late or error.code() in ABOUT_THE_TOPIC:
            self._note(offset, message.topic() or "", error.str())
        if is_late:
            self._refusals.transient.add(message.topic() or "")

    def _note(self, offset: int | None, topic: str, reason: str) -> None:
        if offset is not None and reason in OF_THE_RECORD:
            self._refusals.records[offset] = reason
        else:
            self._refusals.topics[topic] = reason

    def _mark(self, producer: Producer, key: str, last: Outgoing) -> None:
        marker = Marker(self.store, last.offset + 1, last.occurrence)
        producer.produce(PROGRESS, encode(marker), key, partition=self._partition)

    def _options(self) -> dict[str, object]:
        options = {"error_cb": self._watch.error} | self._cluster.options(
            transactional_id=self.key,
            delivery_report_only_error=True,
            message_max_bytes=MESSAGE_BYTES_MAX,
            transaction_timeout_ms=TRANSACTION_MS,
            message_timeout_ms=TRANSACTION_MS,
            partitioner="murmur2_random",
            linger_ms=50,  # it delays nothing: a flush follows at once; records are sent in large batches
            queue_buffering_max_messages=QUEUE_RECORDS_MAX,
            queue_buffering_max_kbytes=1_048_576,
        )
        return options | {"batch.num.messages": 1} if self._one_by_one else options


def _topics_of(records: Sequence[Outgoing], instead: Mapping[int, Sequence[ProducerRecord]] | None) -> set[str]:
    if instead is None:
        return {record.topic for record in records}
    return {topic for record in records for topic, *_ in instead[record.offset]}


class IdempotentProducer(TransactionalProducer):
    """An idempotent producer. Its progress is what the store has recorded, not a marker on Kafka."""

    has_markers = False

    def peek(self) -> None:
        """Nothing to check: there is no progress on Kafka."""

    def take_over(self) -> Marker | None:
        """Open a new producer. Nothing is fenced, and there is no marker."""
        self.close()
        self._watch = Watch()
        options = self._options() | {"enable.idempotence": True}
        for name in ("transactional.id", "transaction.timeout.ms"):
            del options[name]
        self._producer = Producer(options, logger=self._watch.logger)
        self._failed: list[str] = []
        return None

    def marker(self, key: str, *, waits: bool = True) -> Marker | None:
        del key, waits
        return None

    def check(self) -> None:
        """Nothing to check: a lost connection does no harm without transactions."""

    def publish(
        self,
        records: Sequence[Outgoing],
        key: str | None = None,
        instead: Mapping[int, Sequence[ProducerRecord]] | None = None,
    ) -> Refusals:
        """Publish a batch; returns once the broker has every record except the refusals."""
        del key
        producer = self._producer
        assert producer is not None, "call take_over first"
        self._topics.ensure(_topics_of(records, instead))
        self._refusals, self._failed = Refusals(), []
        try:
            self._produce(producer, self._built(records, instead))
            crash.point("kafka.produced")
            self._flush(producer)
        except (KafkaException, SystemError) as error:
            raise ProducerFailed(str(error.__cause__ or error)) from None
        if self._refusals.topics:
            self._topics.forget()
        if self._failed:
            raise ProducerFailed(self._failed[0])
        crash.point("kafka.committed")
        return self._refusals

    def _delivered(self, offset: int | None, error: KafkaError | None, message: Message) -> None:
        super()._delivered(offset, error, message)
        known = message.topic() in self._refusals.topics or offset in self._refusals.records
        if error is not None and not known:
            self._failed.append(str(error))
