"""The lane for those who want the last millisecond: no transactions, and a crash may send some records again."""

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidings import crash
from tidings.bus.kafka.client import Watch
from tidings.bus.kafka.lane import Lane, LaneLost, Refusals
from tidings.bus.kafka.markers import Marker
from tidings.domain.schedule import Outgoing


class PlainLane(Lane):
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
