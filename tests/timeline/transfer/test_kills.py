"""A copy is killed at named points and at random times while nodes release in the target: each record once."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.factories import ACME, HOUR, SECOND, add, drain, left, listed
from tests.contract.stores import Served
from tidings.clock import SystemClock
from tidings.crash import TRANSFER_POINTS
from tidings.domain.schedules.command import Cancel
from tidings.domain.schedules.schedule import Query
from tidings.engine import Engine
from tidings.testing import eventually
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

ROWS = 5_000
KILLS_MAX = 12
SEED = int(os.environ.get("TIDINGS_SEED", "1"))
RUN = """
import asyncio, sys
from tidings.clock import SystemClock
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore
from tidings.timeline.transfer.run import Transfer
async def run(path, dsn, schema):
    clock = SystemClock()
    source = await SqliteStore.open(path, moved_too=True)
    target = await PostgresStore.open(dsn, clock, schema=schema)
    begin, end = source.transfer_endpoint(), target.transfer_endpoint()
    done = await Transfer(begin, end, to="there", clock=clock, on_progress=lambda *_: None).run()
    print(sum(done.progress.moved.values()), done.progress.existing, done.progress.conflicts)
asyncio.run(run(*sys.argv[1:]))
"""

pytestmark = [pytest.mark.slow]


async def make_source(path: Path, now: int) -> None:
    """Half of it is due while it is copied, the other half much later."""
    store = await SqliteStore.open(path)
    assert await store.acquire(SystemClock().elapsed(), SECOND)
    rows = [add(f"s{number}", now + (number * 2_000 if number % 2 else HOUR + number)) for number in range(ROWS)]
    await store.apply(rows, now)
    await store.close()


def copy(command: list[str], crash: str | None = None, kill_after_s: float | None = None) -> tuple[int, str]:
    """Run the copy as a process of its own; returns its exit code and output."""
    output = os.environ if crash is None else os.environ | {"TIDINGS_CRASH_AT": crash}
    process = subprocess.Popen(command, env=output, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=kill_after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    assert process.returncode in {0, -signal.SIGKILL}, err
    return process.returncode, out


async def test_no_kill_loses_or_duplicates_anything(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    clock, schema, path = SystemClock(), f"kills_{os.getpid()}", tmp_path / "old.db"
    target = await PostgresStore.open(Served.dsn(), clock, schema=schema, lanes=4)
    engine = Engine(target, clock)
    await engine.start()
    await make_source(path, clock.now())
    command = [sys.executable, "-c", RUN, str(path), Served.dsn(), schema]
    crashes = [f"{point}:{rng.randint(1, 3 if point != 'transfer.marked' else 1)}" for point in TRANSFER_POINTS]
    code, output, cancelled = -signal.SIGKILL, "", set[str]()
    for number in range(KILLS_MAX):
        crash = crashes[number] if number < len(crashes) else None
        code, output = await asyncio.to_thread(copy, command, crash, None if crash else rng.uniform(0.8, 2.5))
        if code == 0:
            break
        name = f"s{rng.randrange(0, ROWS, 2)}"
        if [outcome.outcome for outcome in await engine.submit([Cancel(ACME, name)])] == ["cancelled"]:
            cancelled.add(name)
    if code != 0:
        code, output = await asyncio.to_thread(copy, command)
    assert (code, output.split()[0]) == (0, str(ROWS))

    async def all_due_left() -> bool:
        topic = await target.topic(ACME, "greetings")
        return topic is not None and sum(topic.next) >= ROWS // 2

    await eventually(all_due_left, 40)
    await engine.stop()
    again = await PostgresStore.open(Served.dsn(), clock, schema=schema)
    assert await again.acquire(clock.elapsed(), SECOND * 60)
    pending = {schedule.id for schedule in await listed(again, Query(state="pending", limit=1_000), clock.now())}
    assert pending == {f"s{number}" for number in range(0, ROWS, 2)} - cancelled
    await drain(again, clock.now() + 2 * HOUR)
    expected = [f"s{number}" for number in range(ROWS) if f"s{number}" not in cancelled]
    assert await left(again) == sorted(expected), "each once"
    await again.close()
