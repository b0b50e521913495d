"""Notifications over Kafka are like those over HTTP: validated, delivered once, found, cancelled, erased."""

import asyncio
from email import message_from_bytes, policy
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from tests.delivery.test_nodes import Client, all_are, put_ada, started
from tests.kafka.site import headers_of, read_all
from tests.servers.kafka import Broker
from tidings.testing import eventually

pytestmark = [pytest.mark.slow]

TENANT = "default"
TOPIC = f"tidings.notify.{TENANT}"
WRONG: dict[str, dict[str, Any]] = {
    "channels[0]: ": {"channels": ["pigeon"]},
    "channels: names one twice": {"channels": ["email", "email"]},
    "to: 'a@xn--a' is not an e-mail address: the domain 'xn--a'": {"user": None, "to": "a@xn--a"},
    "to: 'not an address'": {"user": None, "to": "not an address"},
    "content.title: ": {"content": {"title": "a\r\nBcc: eve@example.com", "text": "x"}},
    "id: contains '~'": {"id": "n/1~2"},
    "user: unknown user 'nobody'": {"user": "nobody"},
    "template: unknown template 'none'": {"content": None, "template": "none"},
    "expires_after: ": {"expires_after": "-PT5S"},
}


def send(producer: Producer, **notification: Any) -> None:
    given = {"user": "ada", "channels": ["email"], "content": {"title": "Tea", "text": "Tea at nine."}, **notification}
    producer.produce(TOPIC, msgspec.json.encode(given))
    assert producer.flush(10) == 0


async def test_a_notification_requested_over_kafka(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic(TOPIC)
    producer = Producer(broker.client(linger_ms=0))
    async with started(tmp_path, "--kafka", broker.bootstrap) as client:
        await put_ada(client)
        send(producer, id="tea")
        send(producer, id="tea")
        send(producer, content={"title": "Cake", "text": "Cake at ten."})
        for wrong in WRONG.values():
            send(producer, **wrong)
        send(producer, id="late", at="+1h")
        send(producer, id="later", at="+1h")
        await client.notify(1, "email", content={"title": "Milk", "text": "By HTTP."})
        await eventually(lambda: len(mails_in(tmp_path)) == 3, 30)
        mails = [message_from_bytes(file.read_bytes(), policy=policy.default) for file in mails_in(tmp_path)]
        assert sorted(mail["Subject"] for mail in mails) == ["Cake", "Milk", "Tea"]
        await eventually(partial(all_are, client, 3, "sent"))
        reasons = await eventually(partial(rejected, broker), 20)
        assert [reason.startswith(said) for reason, said in zip(sorted(reasons), sorted(WRONG), strict=True)] == [
            True for _ in WRONG
        ]
        assert await client.figure("tidings_kafka_rejected_total") == [f"tidings_kafka_rejected_total {len(WRONG)}"]
        await look_at(client)
        await client.stop()


async def look_at(client: Client) -> None:
    """A notification requested over Kafka can be read, cancelled and erased."""
    tea = await client.get("/v1/notifications/tea/explain")
    assert (tea["state"], tea["user"]) == ("sent", "ada")
    assert tea["history"]
    assert (await client.get(f"/v1/notifications/{TOPIC}.0.2"))["state"] == "sent"
    assert (await client.send("DELETE", "/v1/notifications/late", None))["outcome"] == "cancelled"
    assert (await client.get("/v1/notifications/later"))["state"] == "pending"
    records = (await client.get("/v1/topics/notify.email/records?bus=log"))["records"]
    assert len(records) == 3
    assert {tuple(msgspec.json.decode(record["value"])) for record in records} == {("notification",)}
    await client.send("POST", "/v1/users/ada/erase", None)
    assert [(await client.get(f"/v1/notifications/{name}"))["status"] for name in ("tea", "later")] == [404, 404]


def mails_in(folder: Path) -> list[Path]:
    return sorted((folder / "outbox").glob("*.eml"))


async def rejected(broker: Broker) -> list[str]:
    """The reasons of the rejections, once there are enough."""
    found = await asyncio.to_thread(read_all, broker, f"tidings.rejections.{TENANT}")
    headers = [dict(headers_of(message))["tidings-reject-reason"] for message in found]
    reasons = [reason.decode() if isinstance(reason, bytes) else str(reason) for reason in headers]
    return reasons if len(reasons) >= len(WRONG) else []
