"""One seed, one simulation: crashes, power loss, failing disks, and two processes on one file."""

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import apsw

from tests.contract.factories import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from tests.faults.disks import Disk, Fault, inserted, no_fault
from tests.sim.commands import TENANTS, TOPICS, brief
from tests.sim.crashes import DISK, POINTS, Crashed, InlineWorker, copy_store, remove_store
from tests.sim.simulated_node import PASSES, Kind, SimulatedNode, Tally
from tests.sim.thresholds import lowered
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.schedules.command import Add, Command, OutcomeWord, address
from tidings.engine import Engine
from tidings.ports import IdempotencyKey, Lane

RAM = Path("/dev/shm")
STEPS = 30
DOWNTIMES = (0, MILLISECOND, 2 * SECOND, MINUTE, HOUR, 3 * DAY, 50 * DAY)
IDEMPOTENCY_RETENTION_US = DAY  # the stores' own

Step = Callable[[], Awaitable[None]]


class Simulation(SimulatedNode):
    """A simulation in which any fault may happen at any step."""

    def __init__(self, kind: Kind, seed: int, folder: Path, disk: Disk | None) -> None:
        super().__init__(kind, seed, folder)
        self._disk = disk
        self._chance = random.Random(seed)

    async def simulate(self) -> None:
        """Run from the first step to the last check."""
        await self.open(self.new_path())
        steps, weights = zip(*self._plan(), strict=True)
        try:
            for _ in range(STEPS):
                await self.random.choices(steps, weights)[0]()
            await self.run(self.random.choice(PASSES))
            await self.compare()
        finally:
            self.trap.clear()
            await self.engine.stop()
        self.tally.released, self.tally.missed = self.ledger.released, self.ledger.missed
        self.tally.points.update(self.trap.hits)

    def _plan(self) -> list[tuple[Step, int]]:
        """The possible steps and their weights."""
        plan: list[tuple[Step, int]] = [
            (self.submit, 10),
            (self.wait, 8),
            (self.step, 2),
            (self.tend, 5),
            (self.compare, 1),
        ]
        if self.kind != "memory":
            plan += [(self._crash_inside, 5), (self._crash_now, 1), (self._restart_cleanly, 1), (self._stall, 1)]
        if self._disk is not None:
            plan += [(self._break_disk, 4)]
        return plan

    # Crashes

    async def _crash_now(self) -> None:
        """Crash between steps: everything acknowledged must be there."""
        self.note("crash")
        copy = self.new_path()
        self._copy(copy)
        await self._restart(copy)
        await self.compare()

    def _copy(self, copy: Path) -> None:
        """Copy the files as after a crash or a power loss."""
        if self._disk is None:
            copy_store(self.path, copy)
        else:
            self._disk.lose_power(self.path, copy, self._chance)

    async def _crash_inside(self) -> None:
        """Crash somewhere inside the next step; if the point is not reached, the step runs as usual."""
        copy = self.new_path()
        at_disk = self._disk is not None and self.random.random() < 0.5
        point = DISK if at_disk else self.random.choice(POINTS)
        visits = self.random.randint(1, 60) if at_disk else self.random.choice((1, 1, 1, 2, 3))
        stage = self.random.choice(("intake", "release", "tend")) if at_disk else point.partition(".")[0]
        self.trap.set(point, visits, lambda: self._copy(copy))
        try:
            if stage in {"intake", "change"}:
                await self._submit_into_crash(copy)
            elif stage == "release":
                await self.run(self.random.choice(PASSES))
            else:
                await self.tend()
            if self.trap.clear():
                raise Crashed
        except Crashed:
            self.note(f"crash at {point}")
            self.facts_lost = True
            await self._restart(copy)
            await self.forget()

    async def _submit_into_crash(self, copy: Path) -> None:
        """An unacknowledged transaction has happened completely or not at all."""
        commands = self.commands.some(self.ledger)
        await self.forget([commands])
        idempotency = self.idempotency_key() if self.random.random() < 0.5 else None
        now = self.now
        try:
            outcomes = await self.engine.submit(commands, idempotency)
            self.trap.check()
            self.hold(commands, outcomes, now)
        except Crashed:
            self.note(f"crash in {'; '.join(map(brief, commands))}")
            await self._restart(copy)
            words = await self._resolve(commands, now)
            await self.forget()
            if idempotency is not None:
                await self._repeat(commands, idempotency, words if self.now - now < IDEMPOTENCY_RETENTION_US else None)

    async def _resolve(self, commands: Sequence[Command], now: int) -> list[OutcomeWord] | None:
        """Find out whether it happened, and its answer. None: it did not, or made no difference."""
        await self.read()
        made = {name for _, name in await self.listed() - set(self.ledger.current) if name.startswith("tid_")}
        wanted = [command for command in commands if isinstance(command, Add) and command.id is None]
        assert len(made) in {0, len(wanted)}, f"{made} of {wanted}: a transaction in parts"
        happened = self.ledger.copy()
        following = iter(sorted(made) or [f"not there {index}" for index in range(len(wanted))])
        names = [address(command)[1] or next(following) for command in commands]
        words = happened.apply(commands, names, now)
        keys = [(address(command)[0], name) for command, name in zip(commands, names, strict=True)]
        before = [await self.difference(self.ledger, key, now) for key in keys]
        after = [await self.difference(happened, key, now) for key in keys]
        assert not any(before) or not any(after), f"{before}\n{after}"
        if not any(before):
            return None
        self.ledger = happened
        return words

    async def _repeat(
        self, commands: Sequence[Command], idempotency: IdempotencyKey, words: list[OutcomeWord] | None
    ) -> None:
        """A repeat is safe: it happens once, and a second repeat has the same answer."""
        now = self.now
        outcomes = await self.engine.submit(commands, idempotency)
        if words is None:
            self.hold(commands, outcomes, now)
        else:
            assert [outcome.outcome for outcome in outcomes] == words, "it was answered otherwise than it happened"
        await self.compare()
        assert await self.engine.submit(commands, idempotency) == outcomes, "a repeat was answered otherwise"
        await self.compare()

    async def _restart(self, copy: Path) -> None:
        """Continue with a copy of the files, after a while."""
        self.tally.crashes += 1
        self.trap.clear()
        crashed_at = self.now
        await self.engine.stop()
        remove_store(self.path)
        self.machine.advance(self.random.choice(DOWNTIMES))
        await self.open(copy)
        await self.read()
        for key, promise in list(self.ledger.overdue(crashed_at)):
            self.ledger.catch_up(promise, await self.engine.store.find(*key, crashed_at), crashed_at)

    async def _restart_cleanly(self) -> None:
        """A stop, and a start at once or later."""
        self.note("stop")
        await self.engine.stop()
        self.machine.advance(self.random.choice(DOWNTIMES))
        await self.open(self.path)

    # A disk that fails

    async def _break_disk(self) -> None:
        """The disk fails for a while: calls fail, nothing changes, and then everything continues."""
        assert self._disk is not None
        fault = Fault(self.random)
        self.note(f"broken disk: {fault}")
        commands, now = self.commands.some(self.ledger), self.now
        await self.forget([commands])
        self._disk.broken = fault
        try:
            match self.random.choice(("submit", "tick", "tend", "own")):
                case "submit":
                    self.hold(commands, await self.engine.submit(commands), now)
                case "tick":
                    await self.engine.lanes.tick()
                case "tend":
                    for _ in range(self.random.choice((1, 20))):
                        await self.engine.store.tend(now)
                case _:
                    await self.engine.owner.try_once()
        except StoreError as error:
            self.note(f"failed: {error}")
        finally:
            self._disk.broken = no_fault
        self.tally.faults += fault.count
        self.facts_lost = True
        await self.go_on_with(self.engine)
        await self.run(0)
        await self.compare()

    # Two on one file

    async def _stall(self) -> None:
        """The owner hangs, another process takes over, and the first one resumes: it may change nothing."""
        self.note("stall")
        self.tally.zombies += 1
        zombie = self.engine
        await zombie.owner.try_once()
        (lane,) = zombie.store.lanes()
        other = await self.start(self.path)
        await other.owner.try_once()
        assert not other.readiness()[0], "two own the timeline"
        await self._agree(other)
        self.machine.advance(zombie.settings.lease_us)
        await self.go_on_with(other)
        await self.submit()
        await self._wake(zombie, lane)
        await self.wait()
        await other.owner.try_once()
        await self._wake(zombie, lane)
        await self._agree(zombie)
        keep, end = (zombie, other) if self.random.random() < 0.5 else (other, zombie)
        await end.stop()
        await self.go_on_with(keep)

    async def _wake(self, zombie: Engine, lane: Lane) -> None:
        """Every write of a former owner is refused, and the file does not change."""
        acts: list[Callable[[], Awaitable[object]]] = [
            lambda: zombie.submit(self.commands.some(self.ledger)),
            lambda: lane.release(self.latest + DAY, 100),
            lambda: zombie.store.commit(TENANTS[0], TOPICS[0], "group", {0: 1}),
        ]
        with contextlib.closing(apsw.Connection(str(self.path))) as watcher:
            before = watcher.pragma("data_version")
            for act in self.random.sample(acts, len(acts)):
                with contextlib.suppress(NotOwner):
                    await act()
                    raise AssertionError("a former owner was not refused")
            with contextlib.suppress(NotOwner):
                await zombie.store.tend(self.latest + DAY)
            await zombie.owner.try_once()
            assert not zombie.readiness()[0]
            assert watcher.pragma("data_version") == before, "a former owner changed something"

    async def _agree(self, standby: Engine) -> None:
        """A standby shows the same as the owner."""
        for key in self.ledger.current:
            assert await standby.store.find(*key, self.now) == await self.engine.store.find(*key, self.now)


def simulate(kind: Kind, seed: int) -> Tally:
    """Run one seed; a failure shows how to reproduce it."""
    folder = Path(tempfile.mkdtemp(dir=RAM if RAM.is_dir() else None))
    trace: list[str] = []
    try:
        with contextlib.ExitStack() as stack:
            runner = stack.enter_context(asyncio.Runner())
            stack.enter_context(lowered(checkpoints=kind == "power"))
            if kind == "sqlite":
                stack.enter_context(patch("tidings.timeline.sqlite.store.DatabaseThread", InlineWorker))
            disk = stack.enter_context(inserted()) if kind == "power" else None
            simulation = Simulation(kind, seed, folder, disk)
            trace = simulation.trace
            if disk is not None:
                disk.watch = simulation.trap.watch
            stack.enter_context(simulation.machine.installed())
            stack.enter_context(simulation.trap.laid())
            runner.run(simulation.simulate())
        return simulation.tally
    except BaseException as error:
        error.add_note(f"python -m tests.sim --store {kind} --first {seed} --seeds 1\n" + "\n".join(trace[-40:]))
        raise
    finally:
        shutil.rmtree(folder)
