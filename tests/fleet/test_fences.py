"""Fencing tokens: a late write of a node that lost its lanes, with and without the fence."""

import signal
import time
from pathlib import Path

import pytest

from tests.fleet.fleet import Fleet, Seat
from tests.fleet.loop import Plan, trial
from tests.servers.postgres import Postgres
from tidings.testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kill]

TRIES = 6


async def arrive_late(fleet: Fleet, seat: Seat) -> None:
    """Bytes sent before the network fell silent arrive after a take-over; the node is suspended meanwhile."""
    monitor = fleet.monitor
    before, begun = await monitor.lanes(), time.monotonic()
    assert seat.pipe.silence() > 0
    await monitor.taken_over("silence", seat.id, before, begun, 20)
    assert seat.node is not None
    seat.node.send(signal.SIGSTOP)  # what it learns afterwards comes too late for the bytes in transit
    assert seat.pipe.mend(deliver=True) > 0
    passed = seat.pipe.passed
    await eventually(lambda: seat.pipe.passed > passed, 5)
    seat.node.send(signal.SIGCONT)
    await monitor.shared_evenly(lambda: 2)


@pytest.mark.parametrize("is_fenced", [True, False], ids=["fenced", "not fenced"])
async def test_a_late_write_of_a_zombie_is_fenced(
    postgres: Postgres, tmp_path: Path, is_fenced: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async with trial(Plan(nodes=2, rate=200), tmp_path, postgres) as begun:
        fleet, monitor = begun.fleet, begun.fleet.monitor
        if not is_fenced:
            assert await monitor.take_fences_away() >= 2
        async with begun.running(clients=2):
            for number in range(TRIES):
                await arrive_late(fleet, fleet.seats[number % 2])
                if monitor.refusals() or await monitor.zombie_writes():
                    break
        accepted = await monitor.zombie_writes()
        with capsys.disabled():
            print(f"\n{'fenced' if is_fenced else 'not fenced'}: {monitor.refusals()} late writes refused,"
                  f" {len(accepted)} accepted of {await monitor.writes()}")  # fmt: skip
        if is_fenced:
            assert begun.verdict.is_clean, str(begun.verdict)
            assert monitor.refusals() > 0
            assert accepted == []
        else:
            assert accepted
