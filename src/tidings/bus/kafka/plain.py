"""The lane for those who want the last millisecond: no transactions, and a crash may send some records again."""

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidings import crash
from tidings.bus.kafka.client import Watch
from tidings.bus.kafka.lane import Lane, LaneLost
from tidings.bus.kafka.markers import Marker
from tidings.domain.schedule import Outgoing


class PlainLane(Lane):
    """An idempotent producer; how far it came is what the store has settled."""

    def take_over(self) -> Marker | None:
        self.close()
        options = self._options() | {"enable.idempotence": True}
        for name in ("transactional.id", "transaction.timeout.ms"):
            del options[name]
        self._watch = Watch()
        self._producer = Producer(options | {"error_cb": self._watch.error}, logger=self._watch.logger)
        self._failed: list[str] = []
        return None

    def marker(self, key: str) -> Marker | None:
        del key
        return None

    def publish(self, records: Sequence[Outgoing], key: str | None = None) -> None:
        """Returns when every record is on the broker."""
        del key
        producer = self._producer
        assert producer is not None, "take the lane over first"
        self._topics.ensure({record.topic for record in records})
        self._refused, self._failed = {}, []
        try:
            self._produce(producer, records)
            crash.point("kafka.produced")
            self._flush(producer)
        except (KafkaException, SystemError) as error:
            raise LaneLost(str(error.__cause__ or error), self._refused) from None
        if self._refused or self._failed:
            self._topics.forget()
            raise LaneLost("; ".join([*self._refused.values(), *self._failed[:1]]), self._refused)
        crash.point("kafka.committed")

    def _refuse(self, error: KafkaError | None, message: Message) -> None:
        super()._refuse(error, message)
        if error is not None and message.topic() not in self._refused:
            self._failed.append(str(error))
