"""An engine in this process, as a node runs it: its loop, housekeeping and thread switch interval."""

import asyncio
import contextlib
import gc
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvloop

import tidings
from bench.limits import Took
from bench.requests import TENANT
from tidings.domain.schedules.command import Command, CommandBatch, Outcome
from tidings.domain.schedules.schedule import Request
from tidings.engine import Engine
from tidings.node import SWITCH_INTERVAL_S

# One batch is being committed and one waits: more would be committed together, in larger transactions than the limit's.
IN_FLIGHT = 2
TURN_REQUESTS = 100  # a producer on the same loop lets others have their turn

Answer = TypeVar("Answer")


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a benchmark on the loop that a node runs on."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder for the data, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="tidings-bench-") as folder:
        yield Path(folder)


@contextlib.asynccontextmanager
async def engine_on(path: Path) -> AsyncIterator[Engine]:
    """A running engine on a file."""
    async with tidings.open(str(path), tenant=TENANT) as opened:
        yield opened.engine


def settle() -> None:
    """Collect garbage and flush pages, so that one measurement does not affect the next."""
    gc.collect()
    os.sync()


def remove(path: Path) -> None:
    """Delete a store."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


async def admit(engine: Engine, tenant: str, requests: Sequence[Request]) -> Sequence[Command]:
    """The commands of a batch, admitted as the library does, in turns with other work on the loop."""
    batch = CommandBatch()
    for start in range(0, len(requests), TURN_REQUESTS):
        for request in requests[start : start + TURN_REQUESTS]:
            engine.admit_into(batch, tenant, request)
        await asyncio.sleep(0)
    return batch


async def send(
    engine: Engine, batches: Iterable[Sequence[Request]], *, tenant: str = TENANT, in_flight: int = IN_FLIGHT
) -> Took:
    """Schedule batches as a bulk producer does: the next one is admitted while one commits.

    `in_flight` 1 sends the next batch only once the one before it is answered.
    """
    sending = _Sending(engine, in_flight)
    started = time.perf_counter()
    for batch in batches:
        if in_flight == 1:
            await sending.room()
        commands = await admit(engine, tenant, batch)
        await sending.room()
        sending.put(commands)
    await sending.finish()
    return Took(sending.rows, time.perf_counter() - started, sending.longest_s * 1_000)


class _Sending:
    """Batches in flight, and their durations."""

    def __init__(self, engine: Engine, in_flight: int) -> None:
        self._engine = engine
        self._in_flight = in_flight
        self._waiting: deque[asyncio.Task[list[Outcome]]] = deque()
        self._last_s = 0.0
        self.longest_s = 0.0
        self.rows = 0

    async def room(self) -> None:
        """Wait until one more may be sent."""
        while len(self._waiting) >= self._in_flight:
            self._check(await self._waiting.popleft())

    def put(self, commands: Sequence[Command]) -> None:
        self._waiting.append(asyncio.create_task(self._submit(commands)))

    async def finish(self) -> None:
        """Wait for the missing answers."""
        while self._waiting:
            self._check(await self._waiting.popleft())

    async def _submit(self, commands: Sequence[Command]) -> list[Outcome]:
        """A batch's own time begins when it is handed over, but not before the one ahead of it is done."""
        started = time.perf_counter()
        outcomes = await self._engine.submit(commands)
        now = time.perf_counter()
        self.longest_s = max(self.longest_s, now - max(started, self._last_s))
        self._last_s = now
        return outcomes

    def _check(self, outcomes: Sequence[Outcome]) -> None:
        self.rows += len(outcomes)
        words = {outcome.outcome for outcome in outcomes}
        if not words <= {"scheduled", "released"}:
            raise RuntimeError(f"a batch was answered with {words}")
