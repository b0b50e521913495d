"""A notification that comes by Kafka is told by the workers, once however often it is sent; and one over HTTP too."""

from email import message_from_bytes, policy
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from tests.delivery.test_nodes import Client, all_are, put_ada, started
from tests.servers.kafka import Broker
from tidings.testing import eventually

pytestmark = [pytest.mark.slow]

TENANT = "default"


def send(producer: Producer, **notification: Any) -> None:
    given = {"user": "ada", "channels": ["email"], "words": {"title": "Tea", "text": "Tea at nine."}, **notification}
    producer.produce(f"tidings.notify.{TENANT}", msgspec.json.encode(given))
    assert producer.flush(10) == 0


async def test_a_notification_that_comes_by_kafka(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic(f"tidings.notify.{TENANT}")
    producer = Producer(broker.client(linger_ms=0))
    async with started(tmp_path, "--kafka", broker.bootstrap) as client:
        await put_ada(client)
        send(producer, id="tea")
        send(producer, id="tea")
        send(producer, words={"title": "Cake", "text": "Cake at ten."})
        send(producer, channels=["pigeon"])
        await client.notify(1, "email", words={"title": "Milk", "text": "By HTTP."})
        await eventually(lambda: len(list((tmp_path / "outbox").glob("*.eml"))) == 3, 30)
        mails = [message_from_bytes(file.read_bytes(), policy=policy.default) for file in mails_in(tmp_path)]
        assert sorted(mail["Subject"] for mail in mails) == ["Cake", "Milk", "Tea"]
        await eventually(partial(all_are, client, 3, "sent"))
        await eventually(partial(rejected, client), 20)
        await client.stop()


def mails_in(folder: Path) -> list[Path]:
    return sorted((folder / "outbox").iterdir())


async def rejected(client: Client) -> bool:
    return await client.figure("tidings_kafka_rejected_total") == ["tidings_kafka_rejected_total 1"]
