"""An event loop on simulated time, and a log whose answers may take some turns of that loop."""

import asyncio
import functools
import math
import random
import selectors
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec

from tidings.domain.schedules.schedule import Record, Topic
from tidings.testing import SimulatedClock
from tidings.timeline.store_rules import SingleProcess

TENANT, TOPIC, GROUP = "default", "greetings", "workers"
SECOND_US = 1_000_000

Parameters = ParamSpec("Parameters")


class _Selector(selectors.SelectSelector):
    """Advances the time instead of waiting; fails the test where the loop would wait forever."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "everyone waits, and nothing will ever happen"
            self._clock.advance(math.ceil(timeout * SECOND_US))
        return events


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Runs on its own clock, which moves only when all tasks wait."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        super().__init__(_Selector(self.clock))

    def time(self) -> float:
        return self.clock.elapsed() / SECOND_US


def simulated(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    """Run a test on a loop of its own, on simulated time."""

    @functools.wraps(test)
    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            runner.run(test(*arguments, **named))

    return run


def the_clock() -> SimulatedClock:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop.clock


async def elapse(us: int = 1) -> None:
    """Let time pass, after all other tasks wait."""
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(us / SECOND_US, passed.set_result, None)
    await passed


class Turn:
    """Lets other tasks run once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class FakeLog(SingleProcess):
    """A minimal log. With a random source, answers take some turns of the loop."""

    def __init__(self, chance: random.Random | None = None, partitions: int = 4) -> None:
        self.partitions = partitions
        self.chance = chance
        self.records: dict[tuple[str, str], list[list[Record]]] = {}
        self.first: dict[tuple[str, str], list[int]] = {}
        self.offsets: dict[tuple[str, str, str], dict[int, int]] = defaultdict(dict)
        self.commits: list[dict[int, int]] = []
        self.looks = self.pages = 0
        self.readable = asyncio.Event()  # while clear, reads wait
        self.readable.set()
        self.writable = asyncio.Event()  # while clear, commits wait
        self.writable.set()

    def append(self, partition: int, count: int = 1, topic: str = TOPIC, tenant: str = TENANT) -> None:
        records = self.records.setdefault((tenant, topic), [[] for _ in range(self.partitions)])[partition]
        self.first.setdefault((tenant, topic), [0] * self.partitions)
        now = the_clock().now()
        for offset in range(len(records), len(records) + count):
            records.append(Record(topic, partition, offset, f"{partition}-{offset}", 1, 1, now, now, b"x" * 100))

    def trim(self, partition: int, first: int) -> None:
        self.first[TENANT, TOPIC][partition] = first

    async def pause(self) -> None:
        for _ in range(self.chance.randrange(4) if self.chance else 0):
            await Turn()

    async def topics(self, tenant: str) -> list[Topic]:
        raise NotImplementedError

    async def topics_by_prefix(self, prefix: str) -> list[tuple[str, Topic]]:
        raise NotImplementedError

    async def topic(self, tenant: str, name: str) -> Topic | None:
        self.looks += 1
        await self.pause()
        found = None
        if (parts := self.records.get((tenant, name))) is not None:
            found = Topic(name, tuple(self.first[tenant, name]), tuple(map(len, parts)), 0)
        await self.pause()
        return found

    async def read(
        self, tenant: str, topic: str, partition: int, offset: int, limit: int, bytes_max: int | None = None
    ) -> list[Record]:
        self.pages += 1
        await self.pause()
        start = max(offset, self.first[tenant, topic][partition])
        found = self.records[tenant, topic][partition][start : start + limit]
        while bytes_max is not None and len(found) > 1 and sum(len(each.message) for each in found) > bytes_max:
            found.pop()
        await self.readable.wait()
        await self.pause()
        return found

    async def committed(self, tenant: str, topic: str, group: str) -> dict[int, int]:
        await self.pause()
        found = dict(self.offsets[tenant, topic, group])
        await self.pause()
        return found

    async def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Like the thread of a store: a commit finishes even if its caller has gone."""
        await asyncio.shield(asyncio.create_task(self._write((tenant, topic, group), offsets)))

    async def _write(self, key: tuple[str, str, str], offsets: dict[int, int]) -> None:
        await self.pause()
        await self.writable.wait()
        self.offsets[key].update(offsets)
        self.commits.append(offsets)
        await self.pause()
