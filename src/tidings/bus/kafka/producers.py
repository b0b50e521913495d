"""A record as it leaves: its own key, value and headers, and after them the headers that say what it is."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidings import crash
from tidings.bus.kafka.client import Cluster, Watch
from tidings.bus.kafka.progress_marker import HOMES, PROGRESS, Marker, encode, home_of, read_marker
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
# Whoever passes on what was released before says nothing about this one, and nobody can claim to be another.
OURS = frozenset({ID, OCCURRENCE, DUE_AT, ATTEMPT[0], FINAL[0], ORIGIN})
# Where only Tidings writes: a request that was refused keeps the id that it came with, so that it can be sent again.
REFUSED = "tidings.rejections."
_OF_THE_REFUSAL = OURS - {ID}


class RecordBuilder:
    """Makes records; remembers how the last due time is written."""

    def __init__(self) -> None:
        self._due = -1
        self._due_header: Header = (DUE_AT, b"")

    def record(self, outgoing: Outgoing) -> tuple[bytes | None, bytes | None, list[Header]]:
        """Key, value and headers."""
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
    """With the due time where a header asks for it."""
    seconds = str(due // SECOND_US).encode()
    headers = [(name, seconds if value == DUE_SECONDS else value) for name, value in message.headers]
    return StoredMessage(message.key, message.value, tuple(headers))


TRANSACTION_MS = 10_000
INIT_S = 30.0
COMMIT_S = 15.0
SLICE_S = 1.0
QUEUE_RECORDS_MAX = 200_000
MESSAGE_BYTES_MAX = 16 * 1024 * 1024  # what a topic takes is for the broker to say
Sent = tuple[
    str, int, bytes | None, bytes | None, list[Header]
]  # topic, partition (-1: by its key), key, value, headers
NOBODY: Mapping[str, int] = MappingProxyType({})


class Refusals:
    """What Kafka did not take: topics, and single records by their offset, each with the reason."""

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}
        self.records: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self.topics or self.records)

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys([*self.topics.values(), *self.records.values()]))


class LaneLost(TidingsError):
    """What was sent may or may not have been committed: take the lane over again and look.

    With refusals it is known that nothing of the batch was committed, and why.
    """

    def __init__(self, text: str, refusals: Refusals | None = None) -> None:
        super().__init__(text)
        self.refusals = refusals or Refusals()


class Estranged(TidingsError):
    """The progress on Kafka does not fit this store: going on would lose or double records."""


class TransactionalProducer:
    """One transactional producer. Blocking: all of it belongs on a thread of its own.

    `singly`: records go one by one, so that a refusal is that of one record and not of all that went with it.
    `former`: stores whose place ours has taken, each with the offset up to which all of it is on Kafka.
    """

    is_marked = True

    def __init__(
        self, cluster: Cluster, store: str, name: str = "0", *, singly: bool = False, former: Mapping[str, int] = NOBODY
    ) -> None:
        self._cluster = cluster
        self.store = store
        self.key = f"{cluster.name}/{name}"
        self._singly = singly
        self._former = former
        self._home = 0
        self._refusals = Refusals()
        self._producer: Producer | None = None
        self._watch = Watch()
        self._topics = Topics(cluster)
        self._released = RecordBuilder()
        self.make: Callable[[Outgoing], Sequence[Sent]] | None = None  # what is sent instead of the record itself
        self.stopping = False

    def peek(self) -> None:
        """See that the progress is ours, before anybody is fenced.

        What a dead owner left open ends only when it is fenced, or after its timeout: that is not waited for.
        """
        self._home = home_of(self.key, self._topics.prepare(PROGRESS, HOMES))
        self.marker(self.key, waits=False)

    def take_over(self) -> Marker | None:
        """Fence whoever had the lane, end what it left open, and read how far it came."""
        self._renew()
        return self.marker(self.key)

    def marker(self, key: str, *, waits: bool = True) -> Marker | None:
        """The last committed marker of this key; without waiting, the last that shows while something is open."""
        try:
            marker = read_marker(self._cluster, key, self._home, waits=waits)
        except (KafkaException, SystemError) as error:
            raise LaneLost(str(error.__cause__ or error)) from None
        crash.point("kafka.taken")
        if marker is None or marker.store == self.store:
            return marker
        if marker.next <= self._former.get(marker.store, -1):
            return None  # all of it is there: with us something new begins
        if marker.store in self._former:
            raise Estranged(
                f"Kafka has records up to {marker.next} of the store that was moved into this one ({marker.store}),"
                " which did not know of them: it had been put back to an older state before it was copied. Start anew"
                " with an empty store and another kafka.name"
            )
        raise Estranged(
            f"the progress on Kafka belongs to another store ({marker.store}): start with that one, or give this"
            " one a name of its own (kafka.name). A new store then reads every request that is still on the topics"
            " and sends what is past at once; set kafka.start to latest to pass over them"
        )

    def check(self) -> None:
        """Notice now, and not when something is due, that a connection was lost."""
        if self._producer is not None:
            self._producer.poll(0)
        if self._watch.lost:
            raise LaneLost(self._watch.lost)

    def publish(self, records: Sequence[Outgoing], key: str | None = None) -> Refusals:
        """One transaction; `LaneLost` if anything at all went wrong, even if the commit was said to be fine.

        `NoTopic` comes before anything is begun. Answers what was not taken, which here is nothing.
        """
        producer = self._producer
        assert producer is not None, "take the lane over first"
        self.check()
        self._topics.ensure(self._topics_of(records))
        self._refusals = Refusals()
        try:
            producer.begin_transaction()
            self._produce(producer, records)
            crash.point("kafka.produced")
            self._flush(producer)
            if self._refusals:
                raise LaneLost(str(self._refusals), self._refusals)
            self._mark(producer, key or self.key, records[-1])
            crash.point("kafka.marked")
            self._patiently(producer.commit_transaction, COMMIT_S)
            crash.point("kafka.committed")
            producer.poll(0)
        except (KafkaException, SystemError) as error:
            self._topics.forget()
            raise LaneLost(str(error.__cause__ or error), self._refusals) from None
        if self._watch.lost:
            raise LaneLost(self._watch.lost)
        return self._refusals

    def close(self) -> None:
        """Let go of the producer; what it left open is ended by whoever takes over."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _renew(self) -> None:
        self.close()
        self._home = home_of(self.key, self._topics.prepare(PROGRESS, HOMES))
        self._watch = Watch()
        producer = Producer(self._options(), logger=self._watch.logger)
        self._producer = producer
        try:
            self._patiently(producer.init_transactions, INIT_S)
        except (KafkaException, SystemError) as error:
            raise LaneLost(str(error.__cause__ or error)) from None
        crash.point("kafka.initialised")

    def _patiently(self, step: Callable[[float], object], seconds: float) -> None:
        """In slices, so that a node which is to stop need not wait for a broker that is away."""
        for _ in range(int(seconds / SLICE_S)):
            try:
                step(SLICE_S)
                return
            except KafkaException as error:
                if self.stopping or not error.args[0].retriable():
                    raise
        raise LaneLost("Kafka does not answer")

    def _flush(self, producer: Producer) -> None:
        for _ in range(int(COMMIT_S / SLICE_S)):
            if not producer.flush(SLICE_S):
                return
            if self.stopping:
                break
        raise LaneLost("the records were not taken in time")

    def _produce(self, producer: Producer, records: Sequence[Outgoing]) -> None:
        for record in records:
            tell = partial(self._refuse, record.offset) if self._singly else self._tell
            for topic, partition, key, value, headers in self._sent(record):
                while True:
                    try:
                        producer.produce(topic, value, key, partition, headers=headers, on_delivery=tell)
                        break
                    except BufferError:
                        producer.poll(0.1)
                    except KafkaException as error:
                        if error.args[0].code() not in ABOUT_THE_TOPIC:
                            raise
                        self._note(record.offset if self._singly else None, topic, error.args[0].str())
                        break

    def _sent(self, record: Outgoing) -> Sequence[Sent]:
        if self.make is not None:
            return self.make(record)
        return ((record.topic, -1, *self._released.record(record)),)

    def _topics_of(self, records: Sequence[Outgoing]) -> set[str]:
        if self.make is None:
            return {record.topic for record in records}
        return {sent[0] for record in records for sent in self.make(record)}

    def _tell(self, error: KafkaError | None, message: Message) -> None:
        self._refuse(None, error, message)

    def _refuse(self, offset: int | None, error: KafkaError | None, message: Message) -> None:
        """Told of records that were not taken, and of nothing else.

        Time that ran out says something of the topic while the broker is there: it has no leader, or too few replicas.
        """
        if error is None:
            return
        is_late = error.code() == KafkaError._MSG_TIMED_OUT and not self._watch.lost
        if is_late or error.code() in ABOUT_THE_TOPIC:
            self._note(offset, message.topic() or "", error.str())

    def _note(self, offset: int | None, topic: str, reason: str) -> None:
        if offset is not None and reason in OF_THE_RECORD:
            self._refusals.records[offset] = reason
        else:
            self._refusals.topics[topic] = reason

    def _mark(self, producer: Producer, key: str, last: Outgoing) -> None:
        marker = Marker(self.store, last.offset + 1, last.occurrence)
        producer.produce(PROGRESS, encode(marker), key, partition=self._home)

    def _options(self) -> dict[str, object]:
        own = {"error_cb": self._watch.error} | self._cluster.options(
            transactional_id=self.key,
            delivery_report_only_error=True,
            message_max_bytes=MESSAGE_BYTES_MAX,
            transaction_timeout_ms=TRANSACTION_MS,
            message_timeout_ms=TRANSACTION_MS,
            partitioner="murmur2_random",
            linger_ms=50,  # nothing waits for it: a flush follows at once, and records go in large batches
            queue_buffering_max_messages=QUEUE_RECORDS_MAX,
            queue_buffering_max_kbytes=1_048_576,
        )
        return own | {"batch.num.messages": 1} if self._singly else own


class IdempotentProducer(TransactionalProducer):
    """An idempotent producer; how far it came is what the store has settled."""

    is_marked = False

    def peek(self) -> None:
        """There is no progress on Kafka, and nobody is fenced."""

    def take_over(self) -> Marker | None:
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
        """A connection that was lost does no harm here."""

    def publish(self, records: Sequence[Outgoing], key: str | None = None) -> Refusals:
        """Returns when every record is on the broker, but for what it answers."""
        del key
        producer = self._producer
        assert producer is not None, "take the lane over first"
        self._topics.ensure(self._topics_of(records))
        self._refusals, self._failed = Refusals(), []
        try:
            self._produce(producer, records)
            crash.point("kafka.produced")
            self._flush(producer)
        except (KafkaException, SystemError) as error:
            raise LaneLost(str(error.__cause__ or error)) from None
        if self._refusals.topics:
            self._topics.forget()
        if self._failed:
            raise LaneLost(self._failed[0])
        crash.point("kafka.committed")
        return self._refusals

    def _refuse(self, offset: int | None, error: KafkaError | None, message: Message) -> None:
        super()._refuse(offset, error, message)
        known = message.topic() in self._refusals.topics or offset in self._refusals.records
        if error is not None and not known:
            self._failed.append(str(error))
