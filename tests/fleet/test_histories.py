"""Many clients change the same ids on different nodes when they are due: each history is linearizable."""

import random
from pathlib import Path

import pytest

from tests.fleet.faults import Faults
from tests.fleet.loop import Plan, trial
from tests.servers.postgres import Postgres
from tidings.testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kill]

CONTENDED = 150
SECONDS_MAX = 60.0


@pytest.mark.parametrize("faults", [0, 6], ids=["calm", "with faults"])
async def test_cancel_and_replace_against_release_are_linearizable(
    postgres: Postgres, tmp_path: Path, faults: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(nodes=3, rate=60, seed=random.randrange(1_000_000))
    async with trial(plan, tmp_path, postgres, programs=("contended", "recurring")) as begun:
        injected = Faults(begun.fleet, plan.seed)
        async with begun.running(clients=20, bulk_clients=1):
            await injected.inject(faults)
            await eventually(lambda: begun.load.counts["contended"] >= CONTENDED, SECONDS_MAX)
        with capsys.disabled():
            print(f"\nseed {plan.seed}\n{injected.table() if faults else ''}\n{begun.report()}")
        assert begun.verdict.is_clean, str(begun.verdict)
        assert begun.verdict.contended >= CONTENDED // 2, "many at the same time"
        assert await begun.fleet.monitor.zombie_writes() == []
