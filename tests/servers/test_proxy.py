"""The proxy: counts, cuts and delays requests."""

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.servers.frames import Api
from tests.servers.kafka import Broker
from tests.servers.proxy import Proxy
from tests.servers.transactions import TRANSACTION_S_MAX, commit, read, transactional, values, write

pytestmark = pytest.mark.slow

NO_ERROR = 0
INVALID_PRODUCER_EPOCH = 47


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    with Proxy(broker) as made:
        yield made


@pytest.fixture
def producer(broker: Broker, proxy: Proxy) -> Producer:
    """A producer that reaches the broker only through the proxy."""
    return transactional(broker, bootstrap=proxy.bootstrap)


def test_the_proxy_counts_requests(producer: Producer, proxy: Proxy, broker: Broker, topic: str) -> None:
    for value in (b"one", b"two", b"three"):
        commit(producer, topic, value)
    for api in (Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE, Api.END_TXN):
        assert proxy.requests[api] >= 3  # again while the one before is not quite finished
    assert values(read(broker, topic, 3)) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_is_cut_is_retried(
    producer: Producer, proxy: Proxy, broker: Broker, topic: str, when: str
) -> None:
    commit(producer, topic, b"one")
    cut = proxy.cut(Api.END_TXN, "before" if when == "before" else "after", nth=2)
    commit(producer, topic, b"two")
    assert cut.strikes == 0
    commit(producer, topic, b"three")
    assert cut.strikes == 1
    assert [answer.error for answer in cut.answers] == ([] if when == "before" else [NO_ERROR])
    assert proxy.requests[Api.END_TXN] == 4
    assert values(read(broker, topic, 3)) == [b"one", b"two", b"three"]


def test_a_delayed_commit_commits_half_of_the_next_batch(
    producer: Producer, proxy: Proxy, broker: Broker, topic: str
) -> None:
    """A fault that Tidings must withstand: the producer gets a success."""
    late = proxy.hold(Api.END_TXN)
    commit(producer, topic, b"first")
    assert (late.strikes, late.answers) == (1, [])
    write(producer, topic, b"half of the second")
    late.release()
    assert late.wait_for_answers()[0].error == NO_ERROR
    assert values(read(broker, topic, 2)) == [b"first", b"half of the second"]


def test_a_commit_delayed_past_a_take_over_is_refused(proxy: Proxy, broker: Broker, topic: str) -> None:
    settings = broker.client(bootstrap=proxy.bootstrap, transactional_id=f"tests-{uuid.uuid4()}") | {"log_level": 0}
    first, second = Producer(settings), Producer(settings)
    first.init_transactions(TRANSACTION_S_MAX)
    late = proxy.hold(Api.END_TXN)
    commit(first, topic, b"first")
    second.init_transactions(TRANSACTION_S_MAX)
    write(second, topic, b"second")
    late.release()
    assert late.wait_for_answers()[0].error == INVALID_PRODUCER_EPOCH
    second.abort_transaction(TRANSACTION_S_MAX)
    commit(second, topic, b"third")
    assert values(read(broker, topic, 2)) == [b"first", b"third"]


def test_a_delayed_request_without_a_cut_is_only_slow(
    producer: Producer, proxy: Proxy, broker: Broker, topic: str
) -> None:
    slow = proxy.hold(Api.PRODUCE, 0.2, cuts=False)
    commit(producer, topic, b"one")
    assert (slow.strikes, len(slow.answers), proxy.requests[Api.PRODUCE]) == (1, 1, 1)
    assert values(read(broker, topic, 1)) == [b"one"]


def test_nothing_is_lost_when_connections_are_cut_at_random(
    producer: Producer, proxy: Proxy, broker: Broker, topic: str
) -> None:
    cut = proxy.cut(Api.PRODUCE, "after", times=None, chance=0.3, seed=1)
    sent = [str(number).encode() for number in range(20)]
    for value in sent:
        commit(producer, topic, value)
    assert cut.strikes > 1
    assert values(read(broker, topic, len(sent))) == sent


def test_all_clients_can_be_cut_off_at_once(producer: Producer, proxy: Proxy, broker: Broker, topic: str) -> None:
    commit(producer, topic, b"one")
    assert proxy.cut_all() > 0
    commit(producer, topic, b"two")
    assert values(read(broker, topic, 2)) == [b"one", b"two"]


def test_rules_may_be_for_one_client(proxy: Proxy, broker: Broker) -> None:
    cut = proxy.cut(Api.METADATA, times=None, client_id="unlucky")
    settings = broker.client(bootstrap=proxy.bootstrap) | {"log_level": 0}
    assert AdminClient(settings | {"client.id": "lucky"}).list_topics(timeout=10).brokers
    assert cut.strikes == 0
    unlucky = AdminClient(settings | {"client.id": "unlucky"})
    cut.wait_for_strikes()
    proxy.clear()
    assert any(_answers(unlucky) for _ in range(5)), "the connection that was cut last may take a question with it"


def _answers(client: AdminClient) -> bool:
    try:
        return bool(client.list_topics(timeout=10).brokers)
    except KafkaException:
        return False


def test_close_does_not_wait_for_held_requests(broker: Broker) -> None:
    with Proxy(broker) as proxy:
        held = proxy.hold(Api.METADATA)
        client = AdminClient(broker.client(bootstrap=proxy.bootstrap) | {"log_level": 0})
        held.wait_for_strikes()
    assert client is not None
    assert held.answers == []
