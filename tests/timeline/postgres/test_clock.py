"""Engines with wrong wall clocks that are also set during the test: only the clock of the server counts."""

import asyncio

from tests.contract.factories import SECOND, add
from tests.timeline.postgres.conftest import OpenStore
from tests.timeline.postgres.test_engines import until_left
from tidings.clock import SystemClock
from tidings.engine import Engine
from tidings.testing import eventually
from tidings.timeline.postgres.store import PostgresStore

MINUTE = 60 * SECOND
WRONG = (-2 * MINUTE, 0, 2 * MINUTE)


class WrongClock(SystemClock):
    """A machine whose wall clock is off, and can be set."""

    def __init__(self, off: int) -> None:
        super().__init__()
        self.off = off

    def now(self) -> int:
        return super().now() + self.off


async def see_when(store: PostgresStore) -> None:
    """Let the server record when each record appears."""
    for statement in (
        "ALTER TABLE tidings.log ADD COLUMN seen bigint",
        "ALTER TABLE tidings.log ALTER COLUMN seen SET DEFAULT tidings.now()",
    ):
        await store._pool.call(store._context.inside(statement))


async def lateness(store: PostgresStore) -> list[int]:
    found = await store._pool.read(store._context.inside("SELECT seen - due FROM tidings.log ORDER BY 1"))
    return [late for (late,) in found]


async def test_no_node_is_early_or_late_by_its_own_clock(open_store: OpenStore) -> None:
    clocks = [WrongClock(off) for off in WRONG]
    stores = [await open_store(clock, lanes=4) for clock in clocks]
    await see_when(stores[0])
    engines = [Engine(store, clock) for store, clock in zip(stores, clocks, strict=True)]
    for engine in engines:
        await engine.start()
    await eventually(lambda: sorted(len(store.lanes()) for store in stores) == [1, 1, 2], 10)
    for engine, clock in zip(engines, clocks, strict=True):
        assert abs(engine.clock.now() - SystemClock().now()) < SECOND // 5, "they agree, whatever their own clocks say"
        assert abs(engine.report().at - engine.clock.now()) < SECOND
        assert abs(stores[clocks.index(clock)].clock.ahead_us() - clock.off) < SECOND // 5

    begun = engines[0].clock.now()
    wanted = 0
    for number in range(40):
        due = begun + SECOND // 2 + number * 100_000
        for which, engine in enumerate(engines):
            await engine.submit([add(f"s{number}-{which}", due)])
            wanted += 1
        if number == 15:
            for clock in clocks:
                clock.off = -clock.off + MINUTE
        await asyncio.wait({asyncio.create_task(until_due(engines[0], due - SECOND // 2))})
    await until_left(stores[0], wanted)
    late = await lateness(stores[0])
    assert len(late) == wanted
    assert late[0] >= 0, "nothing was early by the server's clock"
    assert late[len(late) // 2] < SECOND // 10, late[-20:]
    assert late[-1] < 2 * SECOND, late[-20:]
    for engine in engines:
        await engine.stop()


async def until_due(engine: Engine, moment: int) -> None:
    await eventually(lambda: engine.clock.now() >= moment, 10)
