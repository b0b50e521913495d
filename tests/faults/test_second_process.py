"""Two processes on one file: one owns it, the other is standby and takes over; nothing is lost or released twice."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from tests.faults.loop import check_file
from tests.faults.node_process import NodeProcess, Pace, node_factory, start_plain
from tests.faults.trial import Trial, trial
from tests.faults.zombie import stop_between_transactions
from tidings.testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timed]

TAKE_OVER_S = 5.0
HAND_OVER_S = 1.5
STOP_S = 5.0
OWNER = "owns the timeline"
FAILOVERS = 10
LEASE_US = 1_000_000


@pytest.fixture
async def load() -> AsyncIterator[Trial]:
    async with trial(random.randrange(1_000_000)) as begun:
        yield begun


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[NodeProcess]]]:
    nodes: list[NodeProcess] = []

    async def started() -> NodeProcess:
        nodes.append(await start_plain(tmp_path))
        return nodes[-1]

    yield started
    for node in nodes:
        node.send(signal.SIGKILL)
        await node.ended(STOP_S)
        assert "Traceback" not in node.log, node.log


Start = Callable[[], Awaitable[NodeProcess]]


async def is_ready(url: str) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as response:
        return response.status == 200


async def pair(start: Start) -> tuple[NodeProcess, NodeProcess]:
    """An owner and a standby."""
    first = await start()
    await first.logged(OWNER)
    second = await start()
    await second.logged("standing by: another process owns this store")
    return first, second


async def seconds_until_owner(node: NodeProcess) -> float:
    """How long it takes until it takes over."""
    begun = time.monotonic()
    await node.logged(OWNER, 2 * TAKE_OVER_S)
    return time.monotonic() - begun


async def busy(load: Trial, records: int = 300) -> None:
    """Wait until the load is in full swing."""
    goal = load.journal.records + records
    await eventually(lambda: load.journal.records >= goal, 20.0)


async def test_the_second_process_stands_by(start: Start, load: Trial) -> None:
    first, second = await pair(start)
    url = await second.url()
    load.requests.open(await first.url())
    async with load.running():
        await busy(load)
        async with aiohttp.ClientSession(url) as session:
            for method, path in (
                ("GET", "/readyz"),
                ("POST", "/v1/schedules"),
                ("PUT", "/v1/schedules/one"),
                ("DELETE", "/v1/schedules/one"),
                ("POST", "/v1/schedules/one/pause"),
                ("POST", "/v1/topics/greetings/records"),
            ):
                body = {"topic": "greetings", "value": "v"} if method == "PUT" or path.endswith("schedules") else None
                body = {"value": "v"} if path.endswith("records") else body
                async with session.request(method, path, json=body) as response:
                    problem = await response.json(content_type=None)
                    assert response.status == 503, (method, path, problem)
                    assert int(response.headers["Retry-After"]) >= 1
                    assert "another process owns this store" in problem["detail"]
            async with session.get("/v1/schedules?limit=5") as response:
                assert len((await response.json())["schedules"]) == 5
            async with session.get("/v1/topics/greetings/records?limit=100") as response:
                records = (await response.json())["records"]
                assert len(records) == 100
            async with session.get(f"/v1/schedules/{records[-1]['id'].replace('/', '%2F')}") as response:
                assert response.status == 200
        assert not await is_ready(url)
        await load.finish()


async def test_a_standby_takes_over_from_a_dead_owner(start: Start, load: Trial, tmp_path: Path) -> None:
    first, second = await pair(start)
    load.requests.open(await first.url())
    async with load.running():
        await busy(load)
        first.send(signal.SIGKILL)
        assert await seconds_until_owner(second) <= TAKE_OVER_S
        load.requests.open(await second.url())
        assert await is_ready(await second.url())
        await busy(load)
        await load.finish()
    second.send(signal.SIGTERM)
    assert await second.ended(STOP_S)
    check_file(str(tmp_path / "tidings.db"))


async def test_a_zombie_changes_nothing(start: Start, load: Trial, tmp_path: Path) -> None:
    first, second = await pair(start)
    load.requests.open(await first.url())
    async with load.running():
        await busy(load)
        await stop_between_transactions(first, str(tmp_path / "tidings.db"))
        assert await seconds_until_owner(second) <= TAKE_OVER_S
        load.requests.open(await second.url())
        await busy(load, 100)
        first.send(signal.SIGCONT)
        await first.logged("stands by", TAKE_OVER_S)
        assert not await is_ready(await first.url())
        assert await is_ready(await second.url())
        await busy(load, 100)
        second.send(signal.SIGKILL)  # and it can take over again
        await eventually(lambda: first.log.count(OWNER) == 2, TAKE_OVER_S)
        load.requests.open(await first.url())
        await busy(load, 100)
        await load.finish()


async def test_a_clean_stop_hands_over_at_once(start: Start, load: Trial) -> None:
    first, second = await pair(start)
    load.requests.open(await first.url())
    async with load.running():
        await busy(load)
        first.send(signal.SIGTERM)
        assert await first.ended(STOP_S)
        assert first.status == 0, first.log
        assert await seconds_until_owner(second) <= HAND_OVER_S
        load.requests.open(await second.url())
        await busy(load, 100)
        await load.finish()


async def test_many_processes_may_start_at_once_on_a_new_file(start: Start) -> None:
    nodes = await asyncio.gather(*(start() for _ in range(4)))
    urls = [await node.url() for node in nodes]

    async def owners() -> int:
        return sum([await is_ready(url) for url in urls])

    async def one_owns() -> bool:
        return await owners() == 1

    await eventually(one_owns, TAKE_OVER_S)
    for node in nodes:
        assert node.status is None, node.log


async def test_repeated_failovers(load: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With shorter leases and always a standby."""
    pace = Pace()
    environment = {"TIDINGS_STORE_PATH": str(tmp_path / "tidings.db")}
    async with (
        node_factory(tmp_path, pace, LEASE_US) as one,
        node_factory(tmp_path, pace, LEASE_US) as other,
        load.running(),
    ):
        owner = await one.start(environment=environment)
        for _ in range(FAILOVERS):
            await owner.logged(OWNER)
            standby = await other.start(environment=environment)
            await standby.logged("standing by")
            load.requests.open(await owner.url())
            await busy(load, random.choice((5, 50, 200)))
            owner.send(random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
            assert await owner.ended(STOP_S)
            assert "Traceback" not in owner.log, owner.log
            owner, one, other = standby, other, one
        load.requests.open(await owner.url())
        await load.finish()
    with capsys.disabled():
        print(f"\n{FAILOVERS} failovers\n{load.report()}")
