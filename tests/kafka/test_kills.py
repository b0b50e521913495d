"""Kills of nodes and of the broker under load; `python -m tests.kafka.faults.loop` runs longer ones."""

import random
import time
from pathlib import Path

import pytest

from tests.kafka.faults import disabled_safeguards
from tests.kafka.faults.loop import POINTS, Loop, Plan, run
from tidings.crash import KAFKA_POINTS

pytestmark = [pytest.mark.slow, pytest.mark.kill]

KILLS = 60
ZOMBIES = 5
MESSAGES = 20_000
OF_THE_LANE = (*KAFKA_POINTS, "kafka.committed", "kafka.committed", "kafka.committed")


async def kill(plan: Plan, folder: Path, capsys: pytest.CaptureFixture[str]) -> Loop:
    begun = time.monotonic()
    try:
        loop = await run(plan, folder)
    except BaseException as error:
        error.add_note(str(plan))
        raise
    with capsys.disabled():
        print(f"\n{plan}\n{loop.report()}\n{time.monotonic() - begun:.0f} s")
    return loop


async def test_no_kill_loses_or_duplicates_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(KILLS + 8, ZOMBIES + 1, messages=MESSAGES, rate=250, seed=random.randrange(1_000_000))
    loop = await kill(plan, tmp_path, capsys)
    assert loop.verdict.is_clean, str(loop.verdict)
    assert loop.counts.kills.total() >= KILLS
    assert loop.counts.zombies >= ZOMBIES
    assert loop.verdict.schedules >= MESSAGES
    assert {point for point in POINTS if loop.counts.kills[point]} == set(POINTS)


async def test_an_outbox_without_markers_duplicates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same kills with progress kept only in the store, after the commit: a crash in between duplicates."""
    seed = random.randrange(1_000_000)
    plan = Plan(16, 0, 0, 0, rate=200, seed=seed, without=disabled_safeguards.MARKER, points=OF_THE_LANE)
    verdict = (await kill(plan, tmp_path, capsys)).verdict
    with capsys.disabled():
        print(f"the usual outbox: {len(verdict.lost)} lost, {len(verdict.twice)} twice of {verdict.records}")
    assert verdict.twice
