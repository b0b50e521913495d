"""A node that stops records provider calls in progress: nothing is sent twice after the next start."""

import asyncio
from pathlib import Path

from tests.delivery.world import QUICK, SECOND, Recorder, World, ada, changed, words
from tidings.clock import SystemClock
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.testing import eventually
from tidings.timeline.sqlite.store import SqliteStore

PATIENT = changed(QUICK, send_s=30.0, policy=RetryPolicy(QUICK.policy.backoff, claim_us=35 * SECOND))


async def started(path: Path, mail: Recorder) -> World:
    """An engine with a worker, as in a node."""
    world = World(await SqliteStore.open(path), SystemClock())
    world.engine.add_service(world.worker({"mail": mail}, PATIENT), stops_first=True)
    await world.engine.start()
    return world


async def test_a_provider_call_in_progress_is_recorded_at_stop(tmp_path: Path) -> None:
    mail = Recorder("email", deduplicates=False)
    mail.gate = asyncio.Event()
    world = await started(tmp_path / "t.db", mail)
    await world.put_user(ada())
    await world.notify(words("hi"))
    await eventually(lambda: mail.calls)
    stopping = asyncio.create_task(world.engine.stop())
    await asyncio.wait({stopping}, timeout=0.3)  # as far as possible while the provider does not answer
    mail.gate.set()
    await stopping
    world = await started(tmp_path / "t.db", mail)
    [delivery] = await world.settled("hi/1")
    await world.engine.stop()
    assert (delivery.state, [attempt.outcome for attempt in delivery.attempts]) == ("sent", ["accepted"])
    assert list(mail.accepted.values()) == [1]
