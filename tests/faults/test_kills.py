"""At least a hundred kills of a node under load; `python -m tests.faults.loop` runs longer ones."""

import contextlib
import random
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.faults.loop import FAST_POINTS, STOP_S, Loop, run
from tests.faults.node_process import start_plain
from tidings.crash import POINTS

pytestmark = pytest.mark.kill

SPEED = 3_600  # a quarter of an hour passes in a quarter of a second


async def kill(folder: Path, kills: int, plain: int, speed: int, capsys: pytest.CaptureFixture[str]) -> Loop:
    seed = random.randrange(1_000_000)
    try:
        loop = await run(kills, plain, seed, speed, folder)
    except BaseException as error:
        error.add_note(f"python -m tests.faults.loop --kills {kills} --plain {plain} --speed {speed} --seed {seed}")
        raise
    with capsys.disabled():
        print(f"\n{loop.report()}")
    assert loop.kills.total >= kills
    return loop


def check_points(loop: Loop, points: set[str]) -> None:
    """Every point was hit, with requests in progress and with records still pending."""
    assert {point for point in points if loop.kills.is_covered(point)} == points


async def test_no_kill_loses_or_duplicates_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = await kill(tmp_path, 80, 4, 1, capsys)
    check_points(loop, set(POINTS) - set(FAST_POINTS))


async def test_no_kill_loses_anything_while_rows_move_through_the_wheel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = await kill(tmp_path, 40, 0, SPEED, capsys)
    check_points(loop, set(FAST_POINTS) | {"intake.committed", "release.logged", "release.settled"})


@pytest.mark.parametrize(
    ("point", "is_kept"),
    [("intake.written:1", False), ("intake.committed:1", True), ("release.settled:1", True)],
)
async def test_the_variable_sets_the_crash_point(tmp_path: Path, point: str, is_kept: bool) -> None:
    """The plain command, crashed just before or just after a commit."""
    node = await start_plain(tmp_path, TIDINGS_CRASH_AT=point)
    await node.logged("owns the timeline")
    schedule = {"topic": "greetings", "id": "one", "value": "v"}
    async with aiohttp.ClientSession(await node.url()) as session:
        with contextlib.suppress(aiohttp.ClientError):
            await session.post("/v1/schedules", json=schedule)
    assert await node.ended(STOP_S)
    assert node.status == -signal.SIGKILL
    node = await start_plain(tmp_path)
    await node.logged("owns the timeline")
    async with aiohttp.ClientSession(await node.url()) as session:
        async with session.post("/v1/schedules", json=schedule) as response:
            assert (await response.json())["outcome"] == ("unchanged" if is_kept else "scheduled")
        async with session.get("/v1/topics/greetings/records?wait=5s") as response:
            assert [record["occurrence"] for record in (await response.json())["records"]] == ["one/1/1"]
    node.send(signal.SIGTERM)
    assert await node.ended(STOP_S)
