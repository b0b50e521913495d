"""A rolling restart under load."""

from pathlib import Path

import aiohttp
import pytest

from tests.fleet.fleet import Seat
from tests.fleet.loop import Plan, trial
from tests.servers.postgres import Postgres
from tidings.testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timed]

MESSAGES = 3_000
LATE_MS_MAX = 5_000.0  # as long as it takes after a crash, and nothing crashes here


async def until_ready(seat: Seat) -> None:
    async def is_ready() -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{seat.url}/readyz") as answer:
            return answer.status == 200

    await eventually(is_ready, 20)


async def test_a_rolling_restart_loses_nothing(
    postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with trial(Plan(nodes=3, rate=100), tmp_path, postgres) as begun:
        fleet = begun.fleet
        async with begun.running(clients=4):
            for seat in fleet.seats:
                await fleet.stop(seat)
                await fleet.start(seat)
                await until_ready(seat)
            await begun.sent(MESSAGES)
        with capsys.disabled():
            print(f"\na rolling restart of three nodes\n{begun.report()}")
        assert begun.verdict.is_clean, str(begun.verdict)
        assert await fleet.monitor.zombie_writes() == []
        assert begun.verdict.late_ms(0.99) < LATE_MS_MAX
