"""A node that stops writes down what a provider is just being told: nobody is told twice after the next start."""

import asyncio
from pathlib import Path

from tests.delivery.world import QUICK, SECOND, Recorder, World, ada, changed, words
from tidings.clock import SystemClock
from tidings.delivery.handling import Terms
from tidings.testing import eventually
from tidings.timeline.sqlite.store import SqliteStore

PATIENT = changed(QUICK, send_s=30.0, terms=Terms(QUICK.terms.backoff, claim_us=35 * SECOND))


async def started(path: Path, mail: Recorder) -> World:
    """A node with a worker, as a whole one has it."""
    world = World(await SqliteStore.open(path), SystemClock())
    world.engine.add_service(world.worker({"mail": mail}, PATIENT), stops_first=True)
    await world.engine.start()
    return world


async def test_a_call_in_hand_is_written_down(tmp_path: Path) -> None:
    mail = Recorder("email", deduplicates=False)
    mail.gate = asyncio.Event()
    world = await started(tmp_path / "t.db", mail)
    await world.put_user(ada())
    await world.notify(words("hi"))
    await eventually(lambda: mail.calls)
    stopping = asyncio.create_task(world.engine.stop())
    await asyncio.wait({stopping}, timeout=0.3)  # as far as it comes while the provider is silent
    mail.gate.set()
    await stopping
    world = await started(tmp_path / "t.db", mail)
    [delivery] = await world.settled("hi/1")
    await world.engine.stop()
    assert (delivery.state, [attempt.outcome for attempt in delivery.attempts]) == ("sent", ["accepted"])
    assert list(mail.accepted.values()) == [1]
