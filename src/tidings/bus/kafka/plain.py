"""The idempotent producer: lower latency without transactions, but a crash may send some records again."""

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidings import crash
from tidings.bus.kafka.client import Watch
from tidings.bus.kafka.lane import Lane, ProducerFailed, ProducerRecord, Refusals, _topics_of
from tidings.bus.kafka.markers import Marker
from tidings.domain.schedule import Outgoing


class PlainLane(Lane):
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
