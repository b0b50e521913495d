"""A node on a simulated machine: commands and time, checked against the model at every step."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from tests.contract.factories import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from tests.sim.commands import TENANTS, TOPICS, Commands, brief
from tests.sim.crashes import Trap
from tests.sim.machine import Machine
from tests.sim.model import Key, Ledger
from tidings.clock import SystemClock
from tidings.domain.facts import Fact, Missed, Released
from tidings.domain.schedules.command import Command, Outcome, address
from tidings.domain.schedules.schedule import Query
from tidings.engine import Engine
from tidings.ports import IdempotencyKey
from tidings.timeline.memory import MemoryStore
from tidings.timeline.sqlite.store import SqliteStore

Kind = Literal["memory", "sqlite", "power"]  # the last one is SQLite on a disk that loses unsynced writes
KINDS: tuple[Kind, ...] = get_args(Kind)

PASSES = (MILLISECOND, 300 * MILLISECOND, SECOND, 7 * SECOND, 30 * SECOND, 20 * MINUTE, 3 * HOUR, 2 * DAY)
WALL_STEPS = (2 * SECOND, MINUTE, HOUR, 3 * DAY, -2 * SECOND, -MINUTE, -HOUR, -3 * DAY)
FOREVER = 4_000 * DAY
ROUNDS_MAX = 5_000


@dataclass
class Tally:
    """Counts over several simulations."""

    seeds: int = 0
    commands: int = 0
    released: int = 0
    missed: int = 0
    steps: int = 0
    crashes: int = 0
    zombies: int = 0
    faults: int = 0
    points: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Add the counts of another."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class SimulatedNode:
    """A machine with one store, and its present engine."""

    def __init__(self, kind: Kind, seed: int, folder: Path) -> None:
        self.kind = kind
        self.random = random.Random(f"{kind} {seed}")
        self.machine = Machine()
        self.trap = Trap()
        self.ledger = Ledger()
        self.commands = Commands(self.random, lambda: self.now)
        self.tally = Tally(seeds=1)
        self.trace: list[str] = []
        self.engine: Engine
        self.path = folder
        self._folder = folder
        self._files = 0
        self._begun: dict[Engine, int] = {}
        self._idempotency_keys = 0
        self._positions: dict[tuple[str, str, int], int] = {}
        self._counted = Counter[str]()
        self.facts_lost = False
        self.latest = 0
        self._gone: set[Key] = set()
        self._forgets = self.random.random() < 0.3
        self._retention_us = 3 * DAY if self._forgets else FOREVER
        self._log_retention_us = self.random.choice((HOUR, FOREVER))

    def note(self, text: str) -> None:
        """A line of the trace, which is shown when something goes wrong."""
        self.trace.append(f"{self.machine.elapsed:>15} {text}")

    # The node

    def new_path(self) -> Path:
        self._files += 1
        return self._folder / f"{self._files}.db"

    async def open(self, path: Path) -> None:
        """Start a node on a file, and continue with it."""
        self.path = path
        await self.go_on_with(await self.start(path))

    async def start(self, path: Path) -> Engine:
        """A node that does nothing by itself."""
        store: MemoryStore | SqliteStore
        if self.kind == "memory":
            store = MemoryStore(id_retention_us=self._retention_us, retention_us=self._log_retention_us)
        else:
            store = await SqliteStore.open(
                path, id_retention_us=self._retention_us, retention_us=self._log_retention_us
            )
        engine = Engine(store, SystemClock(), listeners=[self._on_fact])
        self._begun[engine] = self.machine.elapsed
        return engine

    async def go_on_with(self, engine: Engine) -> None:
        """Let it take the lease, once that of a dead owner has expired."""
        self.engine = engine
        await engine.owner.try_once()
        if not engine.readiness()[0]:
            self.machine.advance(engine.settings.lease_us)
            await engine.owner.try_once()
        assert engine.readiness()[0], engine.readiness()
        self.look()

    def _on_fact(self, fact: Fact) -> None:
        if isinstance(fact, Missed):
            self._counted.update(fact.counts)
        elif isinstance(fact, Released):
            assert min(fact.lateness_us) >= 0, "something left early"
            self._counted["released"] += len(fact.lateness_us)

    @property
    def now(self) -> int:
        return self.engine.clock.now()

    def look(self) -> None:
        """Check that the clock does not follow a forward step too early."""
        now = self.now
        assert now <= self.machine.believable(self._begun[self.engine]), "a forward step was believed too soon"
        self.latest = max(self.latest, now)

    # Commands

    async def submit(self) -> None:
        """Some requests at once, or one with an idempotency key, perhaps repeated."""
        groups = [self.commands.some(self.ledger) for _ in range(self.random.choice((1, 1, 1, 2, 4)))]
        await self.forget(groups)
        now = self.now
        if len(groups) == 1 and self.random.random() < 0.3:
            idempotency = self.idempotency_key()
            outcomes = await self.engine.submit(groups[0], idempotency)
            self.hold(groups[0], outcomes, now)
            assert await self.engine.submit(groups[0], idempotency) == outcomes, "a repeat was answered otherwise"
            return
        answers = await asyncio.gather(*(self.engine.submit(group) for group in groups))
        for group, outcomes in zip(groups, answers, strict=True):
            self.hold(group, outcomes, now)

    def idempotency_key(self) -> IdempotencyKey:
        """A new idempotency key."""
        self._idempotency_keys += 1
        return IdempotencyKey(TENANTS[0], str(self._idempotency_keys), b"body")

    def hold(self, commands: Sequence[Command], outcomes: Sequence[Outcome], now: int) -> None:
        """Check the outcomes against the model."""
        self.tally.commands += len(commands)
        for command, outcome in zip(commands, outcomes, strict=True):
            self.note(f"{brief(command)} -> {outcome.id} {outcome.outcome}")
        before = self.ledger.copy()
        expected = self.ledger.apply(commands, [outcome.id for outcome in outcomes], now)
        for command, outcome, word in zip(commands, outcomes, expected, strict=True):
            promise = before.current.get((address(command)[0], outcome.id))
            assert outcome.outcome == word, f"{brief(command)} was answered {outcome}, but {word} is true: {promise}"

    async def forget(self, groups: Sequence[Sequence[Command]] = ()) -> None:
        """Read from the store which expired ids are forgotten; they must never come back."""
        keys = {(address(command)[0], address(command)[1] or "") for group in groups for command in group}
        for key in keys | set(self.ledger.current):
            if self._may_be_forgotten(key) and await self.engine.find(*key) is None:
                self.ledger.forget(key)
                self._gone.add(key)

    def _may_be_forgotten(self, key: Key) -> bool:
        promise = self.ledger.current.get(key)
        finished = None if promise is None else promise.finished
        return finished is not None and finished + self._retention_us <= self.latest

    # Time

    async def wait(self) -> None:
        """Let some time pass."""
        await self.run(self.random.choice(PASSES))

    async def run(self, us: int) -> None:
        """Let time pass while the node runs: everything is released at its due time."""
        self.note(f"run {us}")
        end = self.machine.elapsed + us
        for _ in range(ROUNDS_MAX):
            self.look()
            pause = await self.engine.lanes.tick()
            self.trap.check()
            await self.read()
            if pause > 0:
                await self._settle()
                if self.machine.elapsed >= end:
                    return
                self.machine.advance(min(self._sleep(pause), end - self.machine.elapsed))
        raise AssertionError("the dispatcher does not come to rest")

    def _sleep(self, pause: int) -> int:
        """As long as the dispatcher asks; where it only polls every second, until something is due."""
        if self.now != self.machine.wall():
            return pause
        ahead = [due - self.now for due in (self.engine.lanes.next_due(), self.ledger.next_due()) if due is not None]
        return max(pause, min(ahead, default=FOREVER))

    async def step(self) -> None:
        """Step the wall clock."""
        us = self.random.choice(WALL_STEPS)
        if self._forgets:
            us = abs(us)  # a clock set back would bring forgotten ids back: correct, but the model does not follow that
        self.note(f"step {us}")
        self.tally.steps += 1
        self.machine.step(us)
        self.look()

    async def tend(self) -> None:
        """Some steps of maintenance."""
        for _ in range(self.random.choice((1, 3, 50))):
            await self.engine.owner.try_once()
            more = await self.engine.store.tend(self.now)
            self.trap.check()
            if not more:
                return

    # Looking

    async def read(self) -> None:
        """Everything that is new on the log; nothing may be missing in between."""
        store = self.engine.store
        for tenant, name in product(TENANTS, TOPICS):
            topic = await store.topic(tenant, name)
            for partition, following in enumerate(topic.next if topic else ()):
                start = self._positions.get((tenant, name, partition), 0)
                if start == following:
                    continue
                records = await store.read(tenant, name, partition, start, 10_000)
                assert [record.offset for record in records] == list(range(start, following)), "a gap in the log"
                for record in records:
                    assert record.released <= self.latest, f"{record} left in the future"
                    self.ledger.saw(tenant, record)
                self._positions[tenant, name, partition] = following

    async def _settle(self) -> None:
        """Nothing is due: what was not released was missed, or is lost."""
        now = self.now
        self.ledger.settle_extras(now)
        for key, promise in list(self.ledger.overdue(now)):
            self.ledger.settle(promise, await self.engine.store.find(*key, now), now)
        if not self.facts_lost:
            assert self._counted["released"] == self.ledger.released
            counted = self._counted.total() - self._counted["released"]
            assert counted == self.ledger.missed, f"{self._counted} but {self.ledger.missed}"

    async def compare(self) -> None:
        """Check that the store has exactly what the model has."""
        await self.read()
        await self.forget()
        for key in list(self.ledger.current):
            difference = await self.difference(self.ledger, key)
            assert difference is None, difference
        pending = sum(promise.state == "pending" for promise in self.ledger.current.values())
        assert (await self.engine.store.count(self.now)).pending == pending
        known = {key for key in self.ledger.current if not self._may_be_forgotten(key)}
        listed = {key for key in await self.listed() if not self._may_be_forgotten(key)} - (self._gone - known)
        assert listed == known, f"listed but not promised {listed - known}, promised but not listed {known - listed}"

    async def difference(self, ledger: Ledger, key: Key, at: int | None = None) -> str | None:
        """Differences between store and model; with a time, as of then, and whether it was fired then."""
        store, now = self.engine.store, self.now if at is None else at
        if at is not None:
            events = await store.history(*key, at)
            fired = sum(event.event == "fired" and event.at == at for event in events)
            if fired != ledger.fired(key, at):
                return f"{key}: fired {ledger.fired(key, at)} times at {at}, found {events}"
        return ledger.differs(key, await store.find(*key, now))

    async def listed(self) -> set[Key]:
        """Every schedule that the store lists."""
        keys: set[Key] = set()
        for tenant in TENANTS:
            page = await self.engine.page(tenant, Query(limit=1000))
            assert page.cursor is None
            keys |= {(tenant, schedule.id) for schedule in page.schedules}
        return keys
