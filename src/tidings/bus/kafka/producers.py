"""Producers of released records, and the records as they are written to Kafka.

A record keeps its key, value and headers, followed by the headers that identify the occurrence. `TransactionalProducer`
publishes a batch of the outbox in one transaction with a progress marker. `IdempotentProducer` works without
transactions, and may send some records again after a crash.

A batch is durable in the outbox before anything of it is published. The outbox has one order, and no record in it can
be cancelled. So the marker needs to hold only the next offset, and the next owner of the lane continues from there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from zlib import crc32

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tidings import crash
from tidings.bus.kafka.topics import ABOUT_THE_TOPIC, OF_THE_RECORD, Cluster, Topics, Watch, quiet_logger
from tidings.domain.errors import TidingsError
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.schedule import DUE_SECONDS, ORIGIN, Outgoing
from tidings.domain.schedules.when import SECOND_US

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
_OURS = b"tidings"  # in every name of `OURS`, and in `DUE_SECONDS`
_unpack = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]).decode

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
        self._due_header: Header = (DUE_AT, "")

    def record(self, outgoing: Outgoing) -> tuple[bytes | None, bytes | None, list[Header]]:
        """The key, value and headers of a released record, built straight from the packed message.

        It runs once for every release: the client encodes texts faster than we do, and headers of ours are looked for
        one by one only in a message that contains their prefix.
        """
        message, due, name = outgoing.message, outgoing.due, outgoing.id
        key, value, stored = _unpack(message)
        headers: list[Header] = [*(_cleaned(stored, outgoing) if _OURS in message else stored)]
        if due != self._due:
            self._due, self._due_header = due, (DUE_AT, format_instant(due))
        if not outgoing.topic.startswith(REFUSED):
            headers.append((ID, name))
        number = outgoing.number
        headers += (OCCURRENCE, f"{name}/{outgoing.generation}/{number}"), self._due_header, ATTEMPT
        if number > 1 and outgoing.final:
            headers.append(FINAL)
        return key, value, headers


def _cleaned(headers: Iterable[tuple[str, bytes | None]], outgoing: Outgoing) -> Iterator[tuple[str, bytes | None]]:
    """Put the due time into headers that ask for it, and leave out headers with our names."""
    seconds = str(outgoing.due // SECOND_US).encode()
    ours = _OF_THE_REFUSAL if outgoing.topic.startswith(REFUSED) else OURS
    return ((name, seconds if value == DUE_SECONDS else value) for name, value in headers if name not in ours)


class Refusals:
    """What Kafka refused: topics, and single records by their offset in the outbox, each with the reason.

    `transient` has the topics that timed out: they may accept the same records later. `are_known` is False if some
    record was refused, and only sending the batch again tells which.
    """

    def __init__(self, *, are_known: bool = True) -> None:
        self.are_known = are_known
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
    `reports`: the client reports each refused record. Without it, a batch with a refused record fails as a whole, and
    is sent again with reports; this saves the client a callback and the interpreter lock for every record.
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
        reports: bool = True,
        predecessors: Mapping[str, int] = NO_PREDECESSORS,
    ) -> None:
        self._cluster = cluster
        self.store = store
        self.key = f"{cluster.name}/{name}"
        self._one_by_one = one_by_one
        self._always_reports = self._reports = one_by_one or reports or not self.has_markers
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
        has_reports, self._reports = self._reports, True  # until it is known that this batch has none
        try:
            producer.begin_transaction()
            self._produce(producer, self._built(records, instead), has_reports)
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
            refusals = self._refusals if has_reports else Refusals(are_known=not _is_refused(error))
            raise ProducerFailed(str(error.__cause__ or error), refusals) from None
        if self._watch.lost:
            raise ProducerFailed(self._watch.lost)
        self._reports = self._always_reports
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

    def _produce(self, producer: Producer, batch: Iterator[tuple[int, ProducerRecord]], has_reports: bool) -> None:
        produce, on_delivery = producer.produce, self._batch_delivered if has_reports else None
        for offset, (topic, partition, key, value, headers) in batch:
            if self._one_by_one:
                on_delivery = partial(self._delivered, offset)
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery, headers=headers)
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


def _is_refused(error: BaseException) -> bool:
    """Whether a transaction failed because the broker or the client refused a record of it."""
    known = error.args[0] if error.args else None
    return isinstance(known, KafkaError) and known.code() in ABOUT_THE_TOPIC | {KafkaError._INCONSISTENT}


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
            self._produce(producer, self._built(records, instead), has_reports=True)
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
