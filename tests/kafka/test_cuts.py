"""A network that cuts and delays requests, above all commits: nothing is lost or released twice."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kafka.faults import cuts, disabled_safeguards
from tests.kafka.faults.cuts import NO_ERROR, Line
from tests.servers.frames import Api
from tests.servers.kafka import Broker
from tests.servers.proxy import Proxy
from tests.servers.rules import When
from tidings.bus.kafka.topics import Watch

pytestmark = pytest.mark.slow

INVALID_PRODUCER_EPOCH = 47
CUTS_MIN = 40
SEED = 3
SIDES: tuple[When, ...] = ("before", "after")

PUBLISHING = [Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE, Api.END_TXN]
TAKING_OVER = [Api.METADATA, Api.FIND_COORDINATOR, Api.INIT_PRODUCER_ID, Api.LIST_OFFSETS, Api.FETCH]


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    with Proxy(broker) as made:
        yield made


@pytest.fixture
async def line(broker: Broker, proxy: Proxy, tmp_path: Path) -> AsyncIterator[Line]:
    async with cuts.line(broker, proxy, tmp_path) as made:
        yield made


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the detection of lost connections."""
    for name in ("emit", "error"):
        monkeypatch.setattr(Watch, name, getattr(Watch, name))
    disabled_safeguards.apply(disabled_safeguards.WATCH)


async def test_connections_cut_at_each_request(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    await line.send(10)
    await line.arrived()
    for when in SIDES:
        for api in [*PUBLISHING, *TAKING_OVER]:
            await line.cut_at(api, when, begins_anew=api in TAKING_OVER)
    harm = await line.finish()
    with capsys.disabled():
        print(f"\nat each step: {harm}")
    assert harm.cuts == 2 * len(PUBLISHING + TAKING_OVER)
    assert (harm.lost, harm.twice) == ([], [])


async def test_connections_cut_at_random(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    await line.cut_at_random(CUTS_MIN, SEED)
    harm = await line.finish()
    with capsys.disabled():
        print(f"\nat random: {harm}")
    assert harm.cuts >= CUTS_MIN
    assert (harm.lost, harm.twice) == ([], [])


async def test_a_late_commit_changes_nothing(line: Line) -> None:
    assert await line.commit_late() == INVALID_PRODUCER_EPOCH
    harm = await line.finish()
    assert (harm.lost, harm.twice) == ([], [])


async def test_without_detection_of_lost_connections_a_late_commit_does_harm(
    unwatched: None, line: Line, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test above can fail: without the guard the same late commit commits half of a batch."""
    assert await line.commit_late() == NO_ERROR
    harm = await asyncio.wait_for(line.finish(), 120)
    with capsys.disabled():
        print(f"\nwithout the watch: {harm}")
    assert harm.lost or harm.twice
