"""Tidings on the same work, as a library in this process, one schedule after the other."""

import asyncio
import random
import time
from pathlib import Path

import msgspec

import tidings
from bench.flows import AHEAD_US, Flow, Lateness, Seen, lateness, produce, watch
from bench.requests import SPAN_US, TENANT, far_batches, instant_batches, request
from bench.rivals.rival import RUN_S_MAX, now
from tidings.engine import Engine
from tidings.testing import eventually

_SECOND_US = 1_000_000


class Figures(msgspec.Struct, frozen=True):
    """The figures measured for every rival, and the intake of batches."""

    intake: float
    burst: float
    late: Lateness
    intake_many: float


async def measure(folder: Path, count: int, rate: int, seconds: float) -> Figures:
    """Run all workloads, one after the other."""
    async with tidings.open(str(folder / "tidings.db"), tenant=TENANT) as opened:
        engine = opened.engine
        intake = await _intake(engine, count)
        many = await _intake_many(opened, count)
        return Figures(intake, await _burst(opened, count, many), await _flow(engine, rate, seconds), many)


async def _intake(engine: Engine, count: int) -> float:
    moments = [now() + AHEAD_US + random.randrange(SPAN_US) for _ in range(count)]
    started = time.perf_counter()
    for due in moments:
        await engine.schedule(TENANT, request(due))
    return count / (time.perf_counter() - started)


async def _intake_many(opened: tidings.Tidings, count: int) -> float:
    requests = [request for batch in far_batches(count, now(), with_ids=False) for request in batch]
    started = time.perf_counter()
    await opened.schedule_many(requests)
    return count / (time.perf_counter() - started)


async def _burst(opened: tidings.Tidings, count: int, intake_per_s: float) -> float:
    due = now() + round((2 + 2 * count / intake_per_s) * _SECOND_US)
    await opened.schedule_many(request for batch in instant_batches(count, due, topic="burst") for request in batch)
    if now() > due:
        raise RuntimeError("it was too slow to schedule the burst before it was due")
    async with asyncio.timeout(RUN_S_MAX):
        read = 0
        async for _ in opened.follow("burst"):
            read += 1
            if read == count:
                break
    return count / ((now() - due) / _SECOND_US)


async def _flow(engine: Engine, rate: int, seconds: float) -> Lateness:
    flow = Flow(rate, now() + 2 * _SECOND_US, seconds, "flow")
    seen = Seen()
    watching = asyncio.create_task(watch(engine, flow, seen))
    sent = await produce(engine, flow)
    await eventually(lambda: len(seen.due) >= sent, RUN_S_MAX)
    watching.cancel()
    await asyncio.wait([watching])
    return lateness(seen.late_us)
