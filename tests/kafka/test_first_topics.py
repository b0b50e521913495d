"""On a broker without automatic topic creation, request topics of known tenants exist for the first producer."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.kafka.site import READ_S_MAX, Header, expect_progress, opened
from tests.servers.kafka import Broker
from tidings.testing import eventually

pytestmark = pytest.mark.slow


def setting(broker: Broker, topic: str, name: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient(broker.client())
    return str(admin.describe_configs([resource])[resource].result(READ_S_MAX)[name].value)


async def test_the_first_request_of_each_wire_is_served(broker: Broker, tmp_path: Path) -> None:
    asked: dict[str, list[Header]] = {
        "schedules": [("scheduler-epoch", b"1"), ("scheduler-target-topic", b"out")],
        "tidings.requests.acme": [("tidings-to", b"out")],
        "acme-schedule-requests": [
            ("x-scheduler-deliver-at", b"2026-01-01T00:00:00Z"),
            ("x-scheduler-deliver-to", b"out"),
        ],
        "assignments.acme": [("intervals-schedule", b"PT0.1S")],
    }
    settings: dict[str, Any] = {"tenants": ("acme", "default"), "partitions": 2}
    async with opened(broker, tmp_path, **settings) as site:
        await eventually(lambda: asked.keys() <= broker.topics(), READ_S_MAX, poll_s=0.1)
        producer = Producer(broker.client(linger_ms=0, message_timeout_ms=5_000))
        failed: list[KafkaError] = []

        def note(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for topic, headers in asked.items():
            producer.produce(topic, topic.encode(), b"k", headers=headers, on_delivery=note)
        assert producer.flush(READ_S_MAX) == 0
        assert failed == []
        records = [*await site.read("out", 3), *await site.read("executions.acme", 1)]
        assert {record.value() for record in records} == {topic.encode() for topic in asked}
        assert setting(broker, "schedules", "cleanup.policy") == "compact"
        assert setting(broker, "schedules", "retention.ms") == "-1"
        assert setting(broker, "assignments.acme", "cleanup.policy") == "delete"
        assert "tidings.notify.acme" in broker.topics()


async def test_no_topics_are_created_when_they_are_expected(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expect_progress(broker)
    async with opened(broker, tmp_path, topics="expect", tenants=("expected",)) as site:
        broker.create_topic("assignments.expected")
        broker.create_topic("executions.expected")
        await site.joined()
        site.send("assignments.expected", b"hello", None, [("intervals-schedule", b"PT0.1S")])
        await site.read("executions.expected", 1)
        assert "tidings.requests.expected" not in broker.topics()
        assert "tidings.requests.expected" not in caplog.text
