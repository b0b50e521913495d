"""An owner that is suspended during a transaction and resumes after a take-over changes nothing."""

import asyncio
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.faults.node_process import NodeProcess
from tests.faults.zombie import stop_between_transactions
from tests.kafka.faults.nodes import OWNER, STANDBY, environment, kill, node_factory
from tests.kafka.site import read_all
from tests.servers.frames import Api
from tests.servers.kafka import Broker
from tests.servers.proxy import Proxy
from tidings.bus.kafka.producers import ProgressMismatch, TransactionalProducer
from tidings.bus.kafka.topics import Cluster
from tidings.testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kill]

INVALID_PRODUCER_EPOCH = 47
MESSAGES = 200
LEASE_US = 1_000_000
FENCED_TIMES = 8


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    with Proxy(broker) as made:
        yield made


async def send(node: NodeProcess, topic: str, start: int) -> None:
    """Schedule this many messages, due now; retried until the node owns the store."""
    lines = "".join(f'{{"topic":"{topic}","id":"m{start + n}","value":"m{start + n}"}}\n' for n in range(MESSAGES))
    headers = {"Content-Type": "application/x-ndjson"}

    async def is_taken() -> bool:
        async with (
            aiohttp.ClientSession(await node.url()) as session,
            session.post("/v1/schedules", data=lines, headers=headers) as response,
        ):
            return response.status == 200 and '"status":503' not in await response.text()

    await eventually(is_taken, timeout_s=10)


async def arrived(broker: Broker, topic: str, count: int) -> Counter[bytes | None]:
    """The count of each value, once there are this many records."""

    async def found() -> Counter[bytes | None]:
        values = Counter(message.value() for message in await asyncio.to_thread(read_all, broker, topic))
        return values if len(values) >= count else Counter()

    return await eventually(found, timeout_s=30)


async def test_a_zombie_with_a_commit_in_progress(broker: Broker, proxy: Proxy, tmp_path: Path) -> None:
    topic = f"zombies-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 3)
    settings = environment(tmp_path, proxy.bootstrap, topic)

    async with node_factory(tmp_path, LEASE_US) as one, node_factory(tmp_path, LEASE_US) as other:
        first = await one.start(environment=settings)
        await first.logged(OWNER)
        await send(first, topic, 0)
        await arrived(broker, topic, MESSAGES)
        second = await other.start(environment=settings)
        await second.logged(STANDBY)
        held = proxy.hold(Api.END_TXN, cuts=False)
        await send(first, topic, MESSAGES)
        await asyncio.to_thread(held.wait_for_strikes)
        await stop_between_transactions(first, settings["TIDINGS_STORE_PATH"])
        await second.logged(OWNER)
        await send(second, topic, 2 * MESSAGES)
        await arrived(broker, topic, 3 * MESSAGES)
        held.release()
        assert [answer.error for answer in await asyncio.to_thread(held.wait_for_answers)] == [INVALID_PRODUCER_EPOCH]
        first.send(signal.SIGCONT)
        await first.logged("stands by", 10)
        await send(second, topic, 3 * MESSAGES)
        await arrived(broker, topic, 4 * MESSAGES)
        await kill(second)
        await eventually(lambda: first.log.count(OWNER) == 2, timeout_s=10)
        await send(first, topic, 4 * MESSAGES)
        values = await arrived(broker, topic, 5 * MESSAGES)
        assert set(values.values()) == {1}
        assert "Traceback" not in first.log + second.log
        await kill(first)


async def test_an_owner_fenced_by_a_zombie_takes_over_again(broker: Broker, tmp_path: Path) -> None:
    """A zombie that was about to take over fences the owner before it checks its lease."""
    topic = f"fenced-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 3)
    lane = TransactionalProducer(Cluster(broker.bootstrap, topic), "of nobody")
    async with node_factory(tmp_path, LEASE_US) as one:
        node = await one.start(environment=environment(tmp_path, broker.bootstrap, topic))
        await node.logged(OWNER)
        for times in range(1, FENCED_TIMES + 1):
            await send(node, topic, times * MESSAGES)
            values = await arrived(broker, topic, times * MESSAGES)
            assert set(values.values()) == {1}
            with pytest.raises(ProgressMismatch):  # but only after it has fenced
                await asyncio.to_thread(lane.take_over)
            assert node.status is None, node.log
        await kill(node)
        assert "Traceback" not in node.log, node.log
    lane.close()
