"""Release without transactions: every record arrives."""

from pathlib import Path

import pytest

from tests.kafka.site import opened
from tests.servers.kafka import Broker
from tidings.domain.schedules.schedule import Request

pytestmark = pytest.mark.slow


async def test_without_transactions_every_record_arrives(broker: Broker, tmp_path: Path) -> None:
    async with opened(broker, tmp_path, release="at_least_once") as site:
        topic = f"{site.name}-plain"
        for number in range(50):
            await site.engine.schedule("acme", Request(topic, b"%d" % number))
        records = await site.read(topic, 50)
        assert {record.value() for record in records} == {b"%d" % number for number in range(50)}
