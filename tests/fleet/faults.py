"""Faults of a fleet: each is injected, verified and healed; each take-over is timed."""

import asyncio
import contextlib
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from tests.fleet.database_monitor import Owned, Taken
from tests.fleet.fleet import Fleet, Seat
from tidings.testing import eventually

KILL = "kill -9"
ZOMBIE = "zombie"
TERMINATE = "backends terminated"
RESTART = "server restarted"
CUT = "network cut"
SILENCE = "network silent, then late"
STOP = "clean stop"
FAULTS = (KILL, ZOMBIE, TERMINATE, RESTART, CUT, SILENCE)
AMONG_OTHERS = ", among others"
CRASHES = (KILL, ZOMBIE, CUT, SILENCE)

TAKE_OVER_S_MAX = 60.0  # then it will never happen; what is asserted in the end is less
OWN_S_MAX = 60.0
PAUSE_S = (0.1, 0.6)
AWAKE_S = (0.3, 1.0)
SHORT_S = (0.1, 1.0)


def ignore(text: str) -> None:
    """Report nothing."""


class Faults:
    """Injects faults into nodes, some at the same time; a fault of the server is never combined with others."""

    def __init__(self, fleet: Fleet, seed: int, report: Callable[[str], None] = ignore) -> None:
        self.done: Counter[str] = Counter()
        self.times: list[Taken] = []
        self.refusals: Counter[str] = Counter()
        self._report = report
        self._begun = 0
        self._fleet = fleet
        self._monitor = fleet.monitor
        self._random = random.Random(seed)
        self._turns = max(1, len(fleet.seats) // 2)  # at a time
        self._free = asyncio.Semaphore(self._turns)
        self._hurt: set[int] = set()
        self._acts: dict[str, Callable[[Seat], Awaitable[None]]] = {
            KILL: self._kill,
            ZOMBIE: self._stand_still,
            TERMINATE: self._terminate,
            CUT: self._cut,
            SILENCE: self._silence,
            STOP: self._stop,
        }

    async def inject(self, count: int, stops: int = 0) -> None:
        """Inject this many faults, every kind in turn, in random order."""
        kinds = [FAULTS[index % len(FAULTS)] for index in range(count)] + [STOP] * stops
        self._random.shuffle(kinds)
        async with asyncio.TaskGroup() as tasks:
            for kind in kinds:
                await asyncio.sleep(self._random.uniform(*PAUSE_S))
                if kind == RESTART:
                    async with self._alone():
                        await self._restart()
                    self.done[kind] += 1
                else:
                    await self._free.acquire()
                    tasks.create_task(self._inject(kind)).add_done_callback(lambda _: self._free.release())

    async def one(self, kind: str) -> None:
        """One fault of a node, while nothing else is wrong; afterwards lanes are shared evenly again."""
        async with self._alone():
            await self._inject(kind)
        await self._monitor.shared_evenly(lambda: len(self._fleet.seats))

    async def _inject(self, kind: str) -> None:
        healthy = [seat for seat in self._fleet.living if seat.number not in self._hurt]
        seat = self._random.choice(healthy)
        self._hurt.add(seat.number)
        await self._owns_something(seat)
        before, begun = self._monitor.refusals(), time.monotonic()
        try:
            await self._acts[kind](seat)
        finally:
            self._hurt.discard(seat.number)
        self.refusals[kind] += self._monitor.refusals() - before
        self.done[kind] += 1
        self._report(f"{kind} of {seat.incarnation}: {time.monotonic() - begun:.1f} s")

    async def _owns_something(self, seat: Seat) -> None:
        async def owns() -> bool:
            _check_alive(seat)
            return any(owned.node == seat.id for owned in (await self._monitor.lanes()).values())

        try:
            await eventually(owns, OWN_S_MAX)
        except AssertionError as error:
            error.add_note(f"{seat.incarnation} owns no lane")
            raise

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        for _ in range(self._turns):
            await self._free.acquire()
        try:
            yield
        finally:
            for _ in range(self._turns):
                self._free.release()

    # Of a node

    async def _kill(self, seat: Seat) -> None:
        before, begun = await self._monitor.lanes(), time.monotonic()
        await self._fleet.kill(seat)
        await self._time(KILL, seat, before, begun)
        await self._fleet.start(seat)

    async def _stop(self, seat: Seat) -> None:
        before, begun = await self._monitor.lanes(), time.monotonic()
        await asyncio.gather(self._fleet.stop(seat), self._time(STOP, seat, before, begun))
        await self._fleet.start(seat)

    async def _stand_still(self, seat: Seat) -> None:
        """Suspend it until others own all of its lanes, then resume it."""
        assert seat.node is not None
        before, begun = await self._monitor.lanes(), time.monotonic()
        seat.node.send(signal.SIGSTOP)
        await eventually(lambda: _is_stopped(seat), 20)
        await self._time(ZOMBIE, seat, before, begun)
        seat.node.send(signal.SIGCONT)
        await asyncio.sleep(self._random.uniform(*AWAKE_S))
        assert seat.node.status is None, f"the zombie ended\n{seat.node.tail}"

    async def _terminate(self, seat: Seat) -> None:
        # A node that has just started may not be connected yet.
        backends = await eventually(lambda: self._monitor.backends(seat.incarnation), 20)
        some = self._random.sample(backends, self._random.randint(1, len(backends)))
        ended = await self._monitor.terminate(some)
        assert ended > 0

        async def are_gone() -> bool:
            return not set(some) & set(await self._monitor.backends(seat.incarnation))

        await eventually(are_gone, 60)

    async def _cut(self, seat: Seat) -> None:
        """Every connection ends and no new one is made: for a moment, or until others have taken over."""
        before, begun = await self._monitor.lanes(), time.monotonic()
        assert seat.pipe.cut() > 0
        passed = seat.pipe.passed
        await self._out_of_reach(CUT, seat, before, begun)
        assert seat.pipe.passed == passed, "bytes passed a cut"
        seat.pipe.mend()
        await eventually(lambda: seat.pipe.passed > passed, 60)

    async def _silence(self, seat: Seat) -> None:
        """Nothing passes; bytes in transit arrive late, when another node owns the lanes, or never."""
        before, begun = await self._monitor.lanes(), time.monotonic()
        assert seat.pipe.silence() > 0
        passed = seat.pipe.passed
        was_long = await self._out_of_reach(SILENCE, seat, before, begun)
        assert seat.pipe.passed == passed, "bytes passed a silence"
        held = seat.pipe.mend(deliver=self._random.random() < 0.75)
        assert held > 0 or not was_long, "nothing was on its way"
        await eventually(lambda: seat.pipe.passed > passed, 60)

    async def _out_of_reach(self, kind: str, seat: Seat, before: dict[int, Owned], begun: float) -> bool:
        """For a moment, or until others have taken over: True."""
        if self._random.random() < 0.3:
            await asyncio.sleep(self._random.uniform(*SHORT_S))
            return False
        await self._time(kind, seat, before, begun)
        return True

    # Of the server

    async def _restart(self) -> None:
        """The server crashes without closing connections, and recovers from its log."""
        started, pid = await self._monitor.started(), self._fleet.postgres.pid
        await asyncio.to_thread(self._fleet.postgres.restart, immediate=True)
        assert self._fleet.postgres.pid != pid
        assert await self._monitor.started() != started

    async def _time(self, kind: str, seat: Seat, before: dict[int, Owned], begun: float) -> None:
        """Measure the time until others have taken over; separately if there are other faults at that time."""
        self._begun += 1
        turn, alone = self._begun, len(self._hurt) == 1
        taken = await self._monitor.taken_over(kind, seat.id, before, begun, TAKE_OVER_S_MAX)
        self.times.append(taken if alone and turn == self._begun else replace(taken, kind=f"{kind}{AMONG_OTHERS}"))
        self._report(str(self.times[-1]))

    # Results

    def worst_s(self, *kinds: str) -> float:
        """The longest time that lanes had no owner, while nothing else was wrong, without stalls of this machine."""
        timed = [taken for taken in self.times if taken.kind in kinds and taken.lanes]
        return max((taken.owned_s - taken.stall_s for taken in timed), default=0.0)

    def longest_free_s(self, kind: str) -> float:
        """The longest time that handed-over lanes had no owner, while nothing else was wrong, likewise."""
        timed = [taken for taken in self.times if taken.kind == kind and taken.lanes]
        return max((taken.free_s - taken.stall_s for taken in timed), default=0.0)

    def table(self) -> str:
        """Faults by kind, and how long lanes were without an owner and without a release."""
        lines = [f"{'fault':<42}{'times':>6}{'refused':>9}"]
        lines += [f"{kind:<42}{self.done[kind]:>6}{self.refusals[kind]:>9}" for kind in sorted(self.done)]
        lines += [f"{'in all':<42}{self.done.total():>6}", f"{'take-over, s: median / worst':<42}{'times':>6}"]
        lines[-1] += f"{'owned again':>16}{'released again':>18}{'stalls':>16}"
        for kind in sorted({taken.kind for taken in self.times if taken.lanes}):
            timed = [taken for taken in self.times if taken.kind == kind and taken.lanes]
            owned, working = [taken.owned_s for taken in timed], [taken.working_s for taken in timed]
            stalls = [taken.stall_s for taken in timed]
            lines.append(f"{kind:<42}{len(timed):>6}{_spread(owned):>16}{_spread(working):>18}{_spread(stalls):>16}")
        return "\n".join(lines)


def _spread(spans: list[float]) -> str:
    return f"{statistics.median(spans):.2f} / {max(spans):.2f}"


def _check_alive(seat: Seat) -> None:
    assert seat.node is not None
    assert seat.node.status is None, f"{seat.incarnation} ended by itself\n{seat.node.tail}"


def _is_stopped(seat: Seat) -> bool:
    assert seat.node is not None
    return Path(f"/proc/{seat.node.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
