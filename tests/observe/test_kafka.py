"""Metrics of Kafka."""

import logging

import pytest

from tidings.domain.facts import Changed, Released
from tidings.domain.schedules.command import Add, Outcome
from tidings.domain.schedules.when import Once
from tidings.observe.metrics import KafkaMetrics, KafkaStats
from tidings.ports import Count

AT = 1_795_165_200_000_000


class Status:
    problem: str | None = None
    failures = 2
    lag = 7
    rejected = 4
    waiting = 5


def add(topic: str = "kafka:orders", schedule_id: str | None = "a") -> Add:
    return Add("t", schedule_id, topic, Once(AT), b"", bytes(16), AT)


@pytest.fixture
def metrics() -> KafkaMetrics:
    status = Status()
    return KafkaMetrics(status, status, lambda: 3)


def values(metrics: KafkaMetrics, count: Count | None = None) -> dict[str, str]:
    pairs = (line.rpartition(" ") for line in metrics.lines(count) if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def test_only_releases_to_kafka_are_counted(metrics: KafkaMetrics) -> None:
    metrics(Released(AT, [1_500, 2_500], frozenset({("t", "kafka:orders")})))
    metrics(Released(AT, [9_000_000], frozenset({("t", "orders")})))
    found = values(metrics)
    assert found["tidings_kafka_release_seconds_count"] == "2"
    assert found["tidings_kafka_release_seconds_sum"] == "0.004"


def test_kafka_gauges() -> None:
    status = Status()
    metrics = KafkaMetrics(status, status, lambda: 3)
    found = values(metrics)
    assert found["tidings_kafka_up"] == "1"
    assert found["tidings_kafka_consumer_lag"] == "7"
    assert found["tidings_kafka_transaction_failures_total"] == "2"
    assert found["tidings_kafka_rejected_total"] == "4"
    assert found["tidings_kafka_waiting"] == "5"
    assert found["tidings_kafka_facts_dropped_total"] == "3"
    status.problem = "away"
    assert values(metrics)["tidings_kafka_up"] == "0"


async def test_a_line_of_statistics(metrics: KafkaMetrics, caplog: pytest.LogCaptureFixture) -> None:
    stats = KafkaStats(metrics, every_s=60)
    metrics(Released(AT, [1_500, 2_500], frozenset({("t", "kafka:orders")})))
    metrics(Changed(AT, [add()], [Outcome("a", "scheduled", due=AT + 1)]))
    with caplog.at_level(logging.INFO, "tidings.kafka"):
        stats.tick()
        stats.stop()
        await stats.run()
    [line] = caplog.records
    assert line.__dict__["kafka"] == {
        "up": True,
        "scheduled": 1,
        "rejected": 4,
        "released": 2,
        "late_us_max": 2_500,
        "lag": 7,
        "transaction_failures": 2,
    }
    assert "took 1, rejected 4, released 2" in line.getMessage()
