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

from tests.fleet.fleet import Fleet, Seat
from tests.fleet.witness import Owned, Taken
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

TAKE_OVER_S_MAX = 60.0  # then it will never come; what is asserted in the end is less
OWN_S_MAX = 60.0
PAUSE_S = (0.1, 0.6)
AWAKE_S = (0.3, 1.0)
SHORT_S = (0.1, 1.0)


def nobody(text: str) -> None:
    """Nobody listens."""


class Faults:
    """Injects faults into nodes, some at the same time; a fault of the server comes alone."""

    def __init__(self, fleet: Fleet, seed: int, tell: Callable[[str], None] = nobody) -> None:
        self.done: Counter[str] = Counter()
        self.times: list[Taken] = []
        self.refusals: Counter[str] = Counter()
        self._tell = tell
        self._begun = 0
        self._fleet = fleet
        self._witness = fleet.witness
        self._random = random.Random(seed)
        self._turns = max(1, len(fleet.seats) // 2)  # so many at a time
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

    async def befall(self, count: int, stops: int = 0) -> None:
        """So many faults, every kind in turn, in an order drawn at random."""
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
                    tasks.create_task(self._befall(kind)).add_done_callback(lambda _: self._free.release())

    async def one(self, kind: str) -> None:
        """One fault of a node, while nothing else is wrong; afterwards lanes are shared evenly again."""
        async with self._alone():
            await self._befall(kind)
        await self._witness.shared_evenly(lambda: len(self._fleet.seats))

    async def _befall(self, kind: str) -> None:
        healthy = [seat for seat in self._fleet.living if seat.number not in self._hurt]
        seat = self._random.choice(healthy)
        self._hurt.add(seat.number)
        await self._owns_something(seat)
        before, begun = self._witness.refusals(), time.monotonic()
        try:
            await self._acts[kind](seat)
        finally:
            self._hurt.discard(seat.number)
        self.refusals[kind] += self._witness.refusals() - before
        self.done[kind] += 1
        self._tell(f"{kind} of {seat.life}: {time.monotonic() - begun:.1f} s")

    async def _owns_something(self, seat: Seat) -> None:
        async def owns() -> bool:
            _check_alive(seat)
            return any(owned.node == seat.id for owned in (await self._witness.lanes()).values())

        try:
            await eventually(owns, OWN_S_MAX)
        except AssertionError as error:
            error.add_note(f"{seat.life} owns no lane")
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
        before, begun = await self._witness.lanes(), time.monotonic()
        await self._fleet.kill(seat)
        await self._time(KILL, seat, before, begun)
        await self._fleet.start(seat)

    async def _stop(self, seat: Seat) -> None:
        before, begun = await self._witness.lanes(), time.monotonic()
        await asyncio.gather(self._fleet.stop(seat), self._time(STOP, seat, before, begun))
        await self._fleet.start(seat)

    async def _stand_still(self, seat: Seat) -> None:
        """It sleeps until others own all that it had, and wakes up."""
        assert seat.node is not None
        before, begun = await self._witness.lanes(), time.monotonic()
        seat.node.send(signal.SIGSTOP)
        await eventually(lambda: _is_stopped(seat), 5)
        await self._time(ZOMBIE, seat, before, begun)
        seat.node.send(signal.SIGCONT)
        await asyncio.sleep(self._random.uniform(*AWAKE_S))
        assert seat.node.status is None, f"the zombie ended\n{seat.node.log}"

    async def _terminate(self, seat: Seat) -> None:
        backends = await self._witness.backends(seat.life)
        some = self._random.sample(backends, self._random.randint(1, len(backends)))
        ended = await self._witness.terminate(some)
        assert ended > 0

        async def are_gone() -> bool:
            return not set(some) & set(await self._witness.backends(seat.life))

        await eventually(are_gone, 10)

    async def _cut(self, seat: Seat) -> None:
        """Every connection ends, and no new one comes about: for a moment, or until others have taken over."""
        before, begun = await self._witness.lanes(), time.monotonic()
        assert seat.pipe.cut() > 0
        passed = seat.pipe.passed
        await self._out_of_reach(CUT, seat, before, begun)
        assert seat.pipe.passed == passed, "bytes passed a cut"
        seat.pipe.mend()
        await eventually(lambda: seat.pipe.passed > passed, 20)

    async def _silence(self, seat: Seat) -> None:
        """Nothing passes; what was on its way arrives late, when another owns the lanes, or never."""
        before, begun = await self._witness.lanes(), time.monotonic()
        assert seat.pipe.silence() > 0
        passed = seat.pipe.passed
        was_long = await self._out_of_reach(SILENCE, seat, before, begun)
        assert seat.pipe.passed == passed, "bytes passed a silence"
        held = seat.pipe.mend(deliver=self._random.random() < 0.75)
        assert held > 0 or not was_long, "nothing was on its way"
        await eventually(lambda: seat.pipe.passed > passed, 20)

    async def _out_of_reach(self, kind: str, seat: Seat, before: dict[int, Owned], begun: float) -> bool:
        """For a moment, or until others have taken over: True."""
        if self._random.random() < 0.3:
            await asyncio.sleep(self._random.uniform(*SHORT_S))
            return False
        await self._time(kind, seat, before, begun)
        return True

    # Of the server

    async def _restart(self) -> None:
        """The server ends without a word to anybody, and begins anew from its log."""
        started, pid = await self._witness.started(), self._fleet.postgres.pid
        await asyncio.to_thread(self._fleet.postgres.restart, immediate=True)
        assert self._fleet.postgres.pid != pid
        assert await self._witness.started() != started

    async def _time(self, kind: str, seat: Seat, before: dict[int, Owned], begun: float) -> None:
        """Take the time until others have taken over. While more goes wrong, they too may fail: that is told apart."""
        self._begun += 1
        turn, alone = self._begun, len(self._hurt) == 1
        taken = await self._witness.taken_over(kind, seat.id, before, begun, TAKE_OVER_S_MAX)
        self.times.append(taken if alone and turn == self._begun else replace(taken, kind=f"{kind}{AMONG_OTHERS}"))
        self._tell(str(self.times[-1]))

    # What came of it

    def worst_s(self, *kinds: str) -> float:
        """The longest that lanes went without an owner, while nothing else was wrong."""
        return max((taken.owned_s for taken in self.times if taken.kind in kinds and taken.lanes), default=0.0)

    def longest_free_s(self, kind: str) -> float:
        """The longest that lanes which were handed over were nobody's, while nothing else was wrong."""
        return max((taken.free_s for taken in self.times if taken.kind == kind and taken.lanes), default=0.0)

    def table(self) -> str:
        """Faults by kind, and how long lanes were without an owner and without a release."""
        lines = [f"{'fault':<42}{'times':>6}{'refused':>9}"]
        lines += [f"{kind:<42}{self.done[kind]:>6}{self.refusals[kind]:>9}" for kind in sorted(self.done)]
        lines += [f"{'in all':<42}{self.done.total():>6}", f"{'take-over, s: median / worst':<42}{'times':>6}"]
        lines[-1] += f"{'owned again':>16}{'released again':>18}"
        for kind in sorted({taken.kind for taken in self.times if taken.lanes}):
            timed = [taken for taken in self.times if taken.kind == kind and taken.lanes]
            owned, working = [taken.owned_s for taken in timed], [taken.working_s for taken in timed]
            lines.append(f"{kind:<42}{len(timed):>6}{_spread(owned):>16}{_spread(working):>18}")
        return "\n".join(lines)


def _spread(spans: list[float]) -> str:
    return f"{statistics.median(spans):.2f} / {max(spans):.2f}"


def _check_alive(seat: Seat) -> None:
    assert seat.node is not None
    assert seat.node.status is None, f"{seat.life} ended by itself\n{seat.node.log}"


def _is_stopped(seat: Seat) -> bool:
    assert seat.node is not None
    return Path(f"/proc/{seat.node.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
