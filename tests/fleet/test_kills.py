"""At least forty faults over twenty thousand messages; `python -m tests.fleet.loop` runs longer ones."""

import random
import time
from pathlib import Path
from typing import Literal

import pytest

from tests.fleet.faults import CRASHES, FAULTS
from tests.fleet.loop import Plan, run

pytestmark = [pytest.mark.slow, pytest.mark.kill]

FAULTS_EACH = 21
MESSAGES_EACH = 10_200
CRASH_S_MAX = 5.0  # until others own its lanes, stalls of the machine left out: 3.75 s by the lease


@pytest.mark.parametrize("bus", ["log", "kafka"])
async def test_no_fault_loses_or_duplicates_anything(
    bus: Literal["log", "kafka"], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(FAULTS_EACH, 2, MESSAGES_EACH, bus, rate=150, seed=random.randrange(1_000_000))
    begun = time.monotonic()
    try:
        outcome = await run(plan, tmp_path)
    except AssertionError as error:
        error.add_note(str(plan))
        raise
    with capsys.disabled():
        print(f"\n{outcome}\n{time.monotonic() - begun:.0f} s")
    assert outcome.trial.verdict.is_clean, f"{plan}\n{outcome.trial.verdict}"
    assert outcome.zombie_writes == 0
    assert outcome.faults.done.total() >= FAULTS_EACH
    assert set(FAULTS) <= set(outcome.faults.done)
    assert outcome.trial.verdict.schedules >= MESSAGES_EACH
    worst_s = outcome.faults.worst_s(*CRASHES)
    assert worst_s <= CRASH_S_MAX, f"a take-over took {worst_s:.2f} s\n{plan}\n{outcome.faults.table()}"
