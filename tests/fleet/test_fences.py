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
    """What a node had sent when the network fell silent arrives when another owns its lanes; meanwhile it sleeps."""
    witness = fleet.witness
    before, begun = await witness.lanes(), time.monotonic()
    assert seat.pipe.silence() > 0
    await witness.taken_over("silence", seat.id, before, begun, 20)
    assert seat.node is not None
    seat.node.send(signal.SIGSTOP)  # what it finds out when it hears again comes too late for what is on its way
    assert seat.pipe.mend(deliver=True) > 0
    passed = seat.pipe.passed
    await eventually(lambda: seat.pipe.passed > passed, 5)
    seat.node.send(signal.SIGCONT)
    await witness.shared_evenly(lambda: 2)


@pytest.mark.parametrize("is_fenced", [True, False], ids=["fenced", "not fenced"])
async def test_a_late_write_of_a_zombie_is_fenced(
    postgres: Postgres, tmp_path: Path, is_fenced: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async with trial(Plan(nodes=2, rate=200), tmp_path, postgres) as begun:
        fleet, witness = begun.fleet, begun.fleet.witness
        if not is_fenced:
            assert await witness.take_fences_away() >= 2
        async with begun.running(tellers=2):
            for number in range(TRIES):
                await arrive_late(fleet, fleet.seats[number % 2])
                if witness.refusals() or await witness.zombie_writes():
                    break
        accepted = await witness.zombie_writes()
        with capsys.disabled():
            print(f"\n{'fenced' if is_fenced else 'not fenced'}: {witness.refusals()} late writes refused,"
                  f" {len(accepted)} accepted of {await witness.writes()}")  # fmt: skip
        if is_fenced:
            assert begun.verdict.is_clean, str(begun.verdict)
            assert witness.refusals() > 0
            assert accepted == []
        else:
            assert accepted
