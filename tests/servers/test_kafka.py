"""The test broker: durable commits and authentication."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, TopicPartition

from tests.servers.downloads import ROOT, Missing
from tests.servers.fixtures import leave_out
from tests.servers.java import kafka_version
from tests.servers.kafka import Broker, PortTaken
from tests.servers.security import Login
from tests.servers.transactions import commit, read, transactional, values, write

HEADERS = [("trace", b"1"), ("trace", b"2"), ("nothing", None), ("bytes", bytes(range(256)))]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that wants a name, a password and TLS."""
    try:
        started = Broker.start(tmp_path_factory.mktemp("guarded"), sasl=Login(), tls=True)
    except Missing as missing:
        leave_out(missing)
    with started:
        started.create_topic("guarded")
        yield started


@pytest.mark.slow
def test_a_transaction_is_read_back_with_its_headers(broker: Broker, topic: str) -> None:
    commit(transactional(broker), topic, b"one", b"two", headers=HEADERS)
    found = read(broker, topic, 2)
    assert values(found) == [b"one", b"two"]
    assert [(message.key(), message.headers()) for message in found] == [(b"key", HEADERS)] * 2


@pytest.mark.slow
def test_a_client_that_is_not_librdkafka_reads_the_same(broker: Broker, topic: str) -> None:
    commit(transactional(broker), topic, b"one", headers=HEADERS)
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        record = next(consumer)
    finally:
        consumer.close()
    assert (record.key, record.value, list(record.headers)) == (b"key", b"one", HEADERS)


@pytest.mark.slow
def test_uncommitted_records_are_not_read(broker: Broker, topic: str) -> None:
    given_up = transactional(broker)
    write(given_up, topic, b"given up")
    given_up.abort_transaction(30)
    commit(transactional(broker), topic, b"committed")
    assert values(read(broker, topic, 1)) == [b"committed"]


@pytest.mark.slow
def test_a_topic_is_not_created_by_asking_for_it(broker: Broker) -> None:
    Producer(broker.client()).list_topics("unheard-of", timeout=10)
    assert "unheard-of" not in broker.topics()


@pytest.mark.slow
@pytest.mark.kill
def test_committed_records_survive_a_kill_and_a_stop(broker: Broker, topic: str) -> None:
    commit(transactional(broker), topic, b"before the kill")
    first = broker.pid
    broker.kill()
    assert not broker.is_alive
    broker.restart()
    assert broker.pid != first
    commit(transactional(broker), topic, b"before the stop")
    broker.stop()
    broker.restart()
    assert values(read(broker, topic, 2)) == [b"before the kill", b"before the stop"]


@pytest.mark.slow
def test_a_paused_broker_is_silent_until_it_is_resumed(broker: Broker) -> None:
    admin = AdminClient(broker.client())
    admin.list_topics(timeout=10)
    broker.pause()
    try:
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=0.5)
    finally:
        broker.resume()
    assert admin.list_topics(timeout=30).brokers


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_the_right_password_is_accepted(guarded: Broker, mechanism: str) -> None:
    assert "guarded" in AdminClient(guarded.client(mechanism=mechanism)).list_topics(timeout=10).topics


@pytest.mark.slow
def test_transactions_work_behind_a_password(guarded: Broker) -> None:
    commit(transactional(guarded), "guarded", b"secret")
    assert values(read(guarded, "guarded", 1, mechanism="PLAIN")) == [b"secret"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        {"sasl.password": "a guess"},
        {"sasl.username": "somebody"},
        {"sasl.mechanism": "PLAIN", "sasl.password": "a guess"},
    ],
    ids=str,
)
def test_a_wrong_login_is_refused(guarded: Broker, wrong: dict[str, str]) -> None:
    assert KafkaError._AUTHENTICATION in refusals(guarded.client() | wrong)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", "SSL"])
def test_a_missing_or_plaintext_password_is_refused(guarded: Broker, protocol: str) -> None:
    assert refusals(guarded.client() | {"security.protocol": protocol})


def refusals(settings: dict[str, Any]) -> set[int]:
    """The errors of a client that does not get in."""
    errors: list[KafkaError] = []
    admin = AdminClient(settings | {"log_level": 0, "error_cb": errors.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    admin.poll(0)
    return {error.code() for error in errors}


@pytest.mark.slow
def test_a_port_in_use_is_reported_with_the_end_of_the_log(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(PortTaken, match=r"the broker ended before it answered:\n(.|\n)*Address already in use"):
        Broker.start(tmp_path, port=broker.ports.direct)


def test_the_image_for_docker_has_the_same_version() -> None:
    image = re.search(r"image: apache/kafka:(\S+)", (ROOT / "compose.yaml").read_text("utf-8"))
    assert image is not None
    assert image[1] == kafka_version()
