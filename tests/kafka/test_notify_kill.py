"""A node killed between accepting notifications and committing positions: each is delivered once."""

from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.delivery.test_nodes import all_are, put_ada, started
from tests.kafka.site import read_all
from tests.kafka.test_notify import TENANT, TOPIC, mails_in, send
from tests.servers.kafka import Broker
from tidings.crash import ACCEPT_POINTS
from tidings.testing import eventually

pytestmark = [pytest.mark.slow]

COUNT = 20


@pytest.mark.parametrize("point", ACCEPT_POINTS)
async def test_a_notification_accepted_before_a_kill_is_delivered_once(
    broker: Broker, tmp_path: Path, point: str
) -> None:
    producer = Producer(broker.client(linger_ms=0))
    async with started(tmp_path, "--kafka", broker.bootstrap, TIDINGS_CRASH_AT=point) as client:
        await put_ada(client)
        broker.create_topic(TOPIC)
        for number in range(COUNT):
            send(producer, content={"title": f"{number}", "text": "Tea."})
        send(producer, user="nobody")
        assert await client.node.ended(30)
    async with started(tmp_path, "--kafka", broker.bootstrap) as client:
        await eventually(lambda: len(mails_in(tmp_path)) == COUNT, 30)
        await eventually(partial(all_are, client, COUNT, "sent"), 30)
        await eventually(lambda: len(read_all(broker, f"tidings.rejections.{TENANT}")) == 1, 30)
        assert len(mails_in(tmp_path)) == COUNT
        await client.stop()
