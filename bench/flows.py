"""A steady flow of schedules, and the lateness of each at its reader."""

import asyncio
import random
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from bench.requests import TENANT, request
from tidings.engine import Engine
from tidings.testing import eventually

STEP_US = 50_000
AHEAD_US = 1_000_000
PATIENCE_S = 15.0

_SECOND_US = 1_000_000


class Flow(msgspec.Struct, frozen=True):
    """So many a second from a moment on, due at random microseconds."""

    rate: int
    start: int
    seconds: float
    topic: str
    tenant: str = TENANT

    @property
    def end(self) -> int:
        return self.start + round(self.seconds * _SECOND_US)

    @property
    def count(self) -> int:
        """How many there are in all."""
        return sum(len(moments) for _, moments in self.steps(drawn=False))

    def steps(self, *, drawn: bool = True) -> Iterator[tuple[int, Sequence[int]]]:
        """Small batches: when each is to be sent, well ahead, and the due times in it."""
        size = max(1, self.rate * STEP_US // _SECOND_US)
        width = size * _SECOND_US // self.rate
        for start in range(self.start, self.end - width + 1, width):
            moments = [start + random.randrange(width) for _ in range(size)] if drawn else range(size)
            yield start - AHEAD_US, moments


class Seen:
    """What a reader got: when each was due, and how many microseconds later it was there."""

    def __init__(self) -> None:
        self.due: list[int] = []
        self.late_us: list[int] = []


class Lateness(msgspec.Struct, frozen=True):
    """The lateness of a flow in milliseconds, and the number of early records."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    early: int
    count: int


async def produce(engine: Engine, flow: Flow, over: asyncio.Event | None = None) -> int:
    """Schedule a flow ahead of its time in small batches, all of it or until it is over; answers how many."""
    sent = 0
    for at, moments in flow.steps():
        await asyncio.sleep(max(0, at - engine.clock.now()) / _SECOND_US)
        if over is not None and over.is_set():
            break
        await engine.submit([engine.admit(flow.tenant, request(due, topic=flow.topic)) for due in moments])
        sent += len(moments)
    return sent


async def watch(engine: Engine, flow: Flow, seen: Seen) -> None:
    """Follow a flow without end."""
    async with engine.follow(flow.tenant, flow.topic) as batches:
        async for records, _ in batches:
            now = engine.clock.now()
            seen.due += [record.due for record in records]
            seen.late_us += [now - record.due for record in records]


async def run_flow(engine: Engine, flow: Flow) -> Seen:
    """Produce a flow and follow it to its end, in this process."""
    seen = Seen()
    watching = asyncio.create_task(watch(engine, flow, seen))
    try:
        sent = await produce(engine, flow)
        await eventually(lambda: len(seen.due) >= sent, (flow.end - engine.clock.now()) / _SECOND_US + PATIENCE_S)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    if len(seen.due) != sent:
        raise RuntimeError(f"{len(seen.due)} of {sent} arrived")
    return seen


def lateness(late_us: Sequence[int]) -> Lateness:
    """The percentiles of lateness."""
    values = np.asarray(late_us, dtype=np.int64)
    p50, p99, p999 = (float(value) / 1_000 for value in np.percentile(values, (50, 99, 99.9)))
    return Lateness(p50, p99, p999, int((values < 0).sum()), len(values))
