"""Writing and reading in transactions, for tests."""

import time
import uuid
from collections.abc import Sequence

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.servers.kafka import Broker

TRANSACTION_S_MAX = 30.0
READ_S_MAX = 30.0
Headers = Sequence[tuple[str, bytes | None]]


def transactional(broker: Broker, *, bootstrap: str | None = None, timeout_ms: int = 10_000) -> Producer:
    """A producer with a new transactional id, ready to begin."""
    name = f"tests-{uuid.uuid4()}"
    settings = broker.client(bootstrap=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms)
    producer = Producer(settings | {"message.timeout.ms": timeout_ms, "reconnect.backoff.max.ms": 200, "log_level": 0})
    producer.init_transactions(TRANSACTION_S_MAX)
    return producer


def write(producer: Producer, topic: str, *values: bytes, headers: Headers = ()) -> None:
    """Begin a transaction with these records and see that the broker has them; it stays open."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key=b"key", headers=list(headers))
    assert producer.flush(TRANSACTION_S_MAX) == 0


def commit(producer: Producer, topic: str, *values: bytes, headers: Headers = ()) -> None:
    """A whole transaction."""
    write(producer, topic, *values, headers=headers)
    producer.commit_transaction(TRANSACTION_S_MAX)


def read(broker: Broker, topic: str, count: int, *, mechanism: str = "SCRAM-SHA-256") -> list[Message]:
    """The first committed records of a topic's first partition; fails if they do not come."""
    settings = broker.client(mechanism=mechanism, group_id=f"tests-{uuid.uuid4()}", isolation_level="read_committed")
    consumer = Consumer(settings | {"enable.auto.commit": False, "fetch.wait.max.ms": 10})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Message] = []
        deadline = time.monotonic() + READ_S_MAX
        while len(found) < count and time.monotonic() < deadline:
            found += [message for message in consumer.consume(count, 0.2) if message.error() is None]
        assert len(found) == count, f"{len(found)} of {count} records within {READ_S_MAX} s"
        return found
    finally:
        consumer.close()


def values(messages: list[Message]) -> list[bytes | None]:
    """The values of records."""
    return [message.value() for message in messages]
