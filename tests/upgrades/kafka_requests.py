"""Requests that version 0.1 read from Kafka, and records that it has released to Kafka but not sent."""

import asyncio
from collections.abc import Callable

from confluent_kafka import Producer

from tests.kafka.site import expect_progress
from tests.servers.kafka import Broker
from tests.upgrades.node import Client
from tests.upgrades.requests import Requests
from tests.upgrades.schedules import FAR, SOON, WAIT_S, add, in_state, path_of
from tidings.testing import eventually

SEND_S_MAX = 30.0
FAR_S = "1893456000"  # of FAR
TOPICS = (
    "there",
    "executions.acme",
    "tidings.requests.acme",
    "tidings.notify.acme",
    "tidings.rejections.acme",
    "assignments.acme",
    "rejections.acme",
    "shop-schedule-requests",
    "shop-schedule-rejections",
    "schedules",
    "rejections.default",
)
NOTIFICATION = b"""{"id": "kafka-notification", "to": "ada@example.com", "channel": "email",
    "at": "2030-01-01T00:00:00Z", "words": {"title": "Tea", "text": "Tea at nine."}}"""
# Of each request: its topic, key, value and headers.
REQUESTS: tuple[tuple[str, bytes | None, bytes | None, dict[str, str]], ...] = (
    (
        "tidings.requests.acme",
        b"k",
        b"native",
        {"tidings-to": "there", "tidings-at": FAR, "tidings-id": "native-far", "x-own": "kept"},
    ),
    (
        "tidings.requests.acme",
        None,
        b"rule",
        {
            "tidings-to": "there",
            "tidings-id": "native-rule",
            "tidings-cron": "0 9 * * *",
            "tidings-zone": "Asia/Tokyo",
            "tidings-start": "2027-01-01",
            "tidings-priority": "low",
            "tidings-labels": '{"campaign": "autumn"}',
        },
    ),
    ("tidings.requests.acme", b"k", b"now", {"tidings-to": "there", "tidings-id": "native-now"}),
    (
        "tidings.requests.acme",
        None,
        b"soon, on the log",
        {"tidings-to": "greetings", "tidings-at": SOON, "tidings-id": "native-soon", "tidings-bus": "log"},
    ),
    ("tidings.requests.acme", None, b"without an id", {"tidings-to": "there", "tidings-at": FAR}),
    ("tidings.requests.acme", None, b"refused", {"tidings-at": FAR}),
    ("assignments.acme", b"k", b"intervals", {"intervals-schedule": FAR, "intervals-id": "intervals-far"}),
    ("assignments.acme", None, b"refused", {"intervals-schedule": "never"}),
    (
        "shop-schedule-requests",
        b"k",
        b"kaspr",
        {
            "x-scheduler-deliver-at": FAR,
            "x-scheduler-deliver-to": "there",
            "x-scheduler-request-id": "kaspr-far",
        },
    ),
    (
        "shop-schedule-requests",
        None,
        b"cron",
        {
            "x-scheduler-action": "CRON_ADD",
            "x-scheduler-cron-expr": "0 9 1 1 *",
            "x-scheduler-deliver-to": "there",
            "x-scheduler-request-id": "kaspr-cron",
        },
    ),
    ("schedules", b"etf1-far", b"etf1", {"scheduler-epoch": FAR_S, "scheduler-target-topic": "there"}),
    (
        "tidings.notify.acme",
        None,
        NOTIFICATION,
        {},
    ),
)


def settings(broker: Broker) -> str:
    """The settings of a node that is connected to the broker, and creates no topics."""
    expect_progress(broker)
    for topic in TOPICS:
        broker.create_topic(topic)
    broker.create_topic("small", max_message_bytes="2000")
    return f'[kafka]\nservers = "{broker.bootstrap}"\ntopics = "expect"\n'


async def make(client: Client, requests: Requests, broker: Broker, crash: Callable[[], None]) -> None:
    """Accept and refuse requests of every wire, release some, and crash with a record that is not sent yet."""
    await asyncio.to_thread(_send, broker)
    for tenant, schedule in (
        ("acme", "native-far"),
        ("acme", "native-rule"),
        ("acme", "intervals-far"),
        ("shop", "kaspr-far"),
        ("shop", "kaspr-cron"),
        ("default", "etf1-far"),
    ):
        await in_state(client, schedule, "pending", tenant)
    await in_state(client, "native-now", "released", "acme")
    await add(client, requests, "once-kafka", bus="kafka", at=FAR, value="to Kafka")
    await add(client, requests, "every-kafka", bus="kafka", every="R/2027-01-01T09:00:00Z/P1D", priority="low")
    await add(client, requests, "sent-to-kafka", bus="kafka", topic="there", value="sent")
    await in_state(client, "sent-to-kafka", "released")
    await add(client, requests, "too-large", bus="kafka", topic="small", value="x" * 5_000)
    await in_state(client, "too-large", "missed")
    await add(client, requests, "held", bus="kafka", topic="not.there", value="held back")

    async def held_back() -> bool:
        return "reason" in (await client.get(path_of("held"))).document

    await eventually(held_back, WAIT_S)
    broker.pause()
    try:
        await add(client, requests, "handed", bus="kafka", topic="there", value="on its way")
        await in_state(client, "handed", "in_flight")
        await asyncio.to_thread(crash)
    finally:
        broker.resume()


def _send(broker: Broker) -> None:
    producer = Producer(broker.client(linger_ms=0))
    for topic, key, value, headers in REQUESTS:
        producer.produce(topic, value, key, headers=list(headers.items()))
    assert producer.flush(SEND_S_MAX) == 0
