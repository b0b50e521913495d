"""Random sequences of commands, the same on every store: each answer, history and listing is compared byte for byte.

Each sequence has ids of its own. Some of them run side by side, so that one transaction serves all of them: they share
the clock, the releases between their commands, and what else happens to a store. At the end their schedules are
cancelled; the next ones begin on the same stores when these are forgotten. All is made from numbers, so that a failure
can be repeated.
"""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from tests.contract.compared_stores import RAM
from tests.contract.factories import DAY, HOUR, MILLISECOND, MINUTE, NOW, SECOND, digest, drain, lane_of, listed, tend
from tests.contract.stores import NAMES, has_lanes, opened
from tidings.clock import Clock
from tidings.domain.errors import KeyReused
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_local, read_rule
from tidings.domain.recurrence.rule import Gap, Overlap
from tidings.domain.schedules.command import (
    Add,
    Cancel,
    Command,
    Fire,
    Outcome,
    Pause,
    Priority,
    Replace,
    Resume,
    address,
)
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import MADE_ID, Message, Outgoing, Query, pack
from tidings.domain.schedules.when import Every, Once, Period, When, occurrence
from tidings.intake.rule_changes import RuleChanges
from tidings.ports import IdempotencyKey, Store
from tidings.testing import SimulatedClock

ID_RETENTION_US = 3 * DAY + 777  # no step ends at the very moment at which one of these does
IDEMPOTENCY_RETENTION_US = DAY + 777
STEPS_MAX = 9
TOGETHER = 10
COMMANDS_MAX = 6
TENANTS = ("acme", "globex")
IDS = ("a", "b", "ünï 世界")
BAD_NAMES = ("nul\0inside", "half \ud800 pair", "x" * 1_000, "ü" * 500, "")
KINDS = ("add", "add", "add", "replace", "replace", "cancel", "pause", "pause", "resume", "fire", "again")
TOPICS = ("greetings", "kafka:orders")
CALENDAR = "holidays"
STEPS = (MILLISECOND, SECOND, 7 * SECOND, 20 * MINUTE, HOUR, HOUR, DAY, 2 * DAY, 4 * DAY)
AHEAD = (0, MILLISECOND, SECOND, 5 * SECOND, -SECOND, -HOUR, -2 * DAY, 20 * MINUTE, 2 * DAY, 40 * DAY)
POLICIES = (
    Lateness(),
    Lateness("fire_all"),
    Lateness("skip"),
    Lateness("skip", grace_us=2 * SECOND),
    Lateness("fire_all", max_us=3 * SECOND),
    Lateness(expires_after_us=500 * MILLISECOND),
    Lateness("skip", grace_us=SECOND, max_us=10 * SECOND, expires_after_us=5 * SECOND),
)

GAPS: tuple[tuple[Gap, Overlap], ...] = (("forward", "first"), ("skip", "second"), ("forward", "both"))

Answer = TypeVar("Answer")
_encode = msgspec.json.Encoder().encode


class Differs(AssertionError):
    """Two stores do not answer alike."""


@dataclass
class Tally:
    """The commands that were run, by kind."""

    sequences: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    released: int = 0
    in_flight: int = 0
    compared: int = 0

    def __str__(self) -> str:
        commands = ", ".join(f"{count:,} {word}" for word, count in self.commands.most_common())
        outcomes = ", ".join(f"{count:,} {word}" for word, count in self.outcomes.most_common())
        return (
            f"{self.sequences:,} sequences of {sum(self.commands.values()):,} commands ({commands});"
            f" answers: {outcomes}; {self.in_flight:,} of them with an occurrence in flight;"
            f" {self.released:,} records released; {self.compared:,} comparisons, no difference"
        )


class Stores:
    """The stores. Generated ids differ: those of the first store stand for all."""

    def __init__(self) -> None:
        self.names = [name for name in NAMES if not has_lanes(name)]
        self.all: list[Store] = []
        self._stack = contextlib.AsyncExitStack()
        self._aliases: list[dict[str, str]] = []
        self._named: list[dict[str, str]] = []
        self.compared = 0

    async def __aenter__(self) -> "Stores":
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(dir=RAM if RAM.is_dir() else None))
        for name in self.names:
            store = opened(
                name,
                Path(folder),
                id_retention_us=ID_RETENTION_US,
                idempotency_retention_us=IDEMPOTENCY_RETENTION_US,
                retention_us=10**17,
            )
            self.all.append(await self._stack.enter_async_context(store))
        self.begin()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    def begin(self) -> None:
        """Forget the ids of the sequence before."""
        self._aliases = [{} for _ in self.all]
        self._named = [{} for _ in self.all]

    async def each(self, ask: Callable[[int, Store], Awaitable[Answer]]) -> Answer:
        """Ask every store; all must answer alike, to the byte."""
        answers = await asyncio.gather(*(ask(index, store) for index, store in enumerate(self.all)))
        encoded = [_encode(answer) for answer in answers]
        self.compared += 1
        for name, answer in zip(self.names, encoded, strict=True):
            if answer != encoded[0]:
                raise Differs(f"{name}\n{answer.decode()}\n{self.names[0]}\n{encoded[0].decode()}")
        return answers[0]

    # Ids

    def learn(self, index: int, first: Sequence[str], own: Sequence[str]) -> None:
        """Map generated ids to those of the first store."""
        for theirs, name in zip(first, own, strict=True):
            if MADE_ID.match(name):
                self._aliases[index].setdefault(theirs, name)
                self._named[index].setdefault(name, theirs)

    def own(self, index: int, schedule_id: str) -> str:
        """How a store calls an id."""
        return self._aliases[index].get(schedule_id, schedule_id)

    def common(self, index: int, own: str) -> str:
        """How the first store calls an id of this one."""
        return self._named[index].get(own, own)

    def translated(self, index: int, command: Command) -> Command:
        """The command with the id that this store knows."""
        _, schedule_id = address(command)
        if schedule_id is None or (name := self.own(index, schedule_id)) == schedule_id:
            return command
        if isinstance(command, Replace):
            return msgspec.structs.replace(command, add=msgspec.structs.replace(command.add, id=name))
        return msgspec.structs.replace(command, id=name)


class Run:
    """Some sequences side by side: what happens in them is chosen step by step."""

    def __init__(self, stores: Stores, numbers: Sequence[int], now: int, tally: Tally) -> None:
        self._stores = stores
        self._random = Random(numbers[0])
        self._numbers = numbers
        self.now = now
        self._tally = tally
        self._made: dict[int, list[str]] = {number: [] for number in numbers}
        self._seen: dict[tuple[str, str], None] = {}
        self._sent: dict[int, list[Add]] = {number: [] for number in numbers}
        self._idempotency_keys: list[tuple[IdempotencyKey, list[Command]]] = []
        self._limit = self._random.choice((2, 3, 100))
        self.log: list[str] = []

    async def run(self) -> None:
        """All its steps, a comparison, and the end."""
        self._stores.begin()
        if self._random.random() < 0.5:
            await self._put_calendar()
        await self._send([self._add(TENANTS[0], self._name(one), one) for one in self._numbers for _ in range(3)])
        for _ in range(self._random.randint(3, STEPS_MAX)):
            await self._random.choice(self._steps())()
        await self._compare()
        await self._end()

    def _steps(self) -> list[Callable[[], Awaitable[None]]]:
        often = [self._apply] * 9 + [self._release] * 2 + [self._pass_time] * 6
        return [*often, self._tend, self._put_calendar, self._drop_calendar, self._arrive, self._hold, self._replay]

    # Steps

    async def _apply(self) -> None:
        each = [(one, self._random.randint(0, COMMANDS_MAX)) for one in self._numbers]
        commands = [self._command(one) for one, count in each for _ in range(count)]
        if self._random.random() < 0.5:
            self._random.shuffle(commands)
        idempotency = None
        if self._random.random() < 0.1:
            idempotency = IdempotencyKey(TENANTS[0], f"key-{self._numbers[0]}-{len(self._idempotency_keys)}", b"body")
            self._idempotency_keys.append((idempotency, commands))
        await self._send(commands, idempotency)

    async def _replay(self) -> None:
        """An idempotency key again, with the same body or another."""
        if self._idempotency_keys:
            idempotency, commands = self._random.choice(self._idempotency_keys)
            body = self._random.choice((b"body", b"another"))
            await self._send(commands, msgspec.structs.replace(idempotency, body=body))

    async def _send(self, commands: list[Command], idempotency: IdempotencyKey | None = None) -> None:
        self.log.append(f"apply at {self.now}, {idempotency}: {commands}")
        firsts: list[str] = []

        async def ask(index: int, store: Store) -> list[Outcome] | str:
            try:
                return await store.apply(
                    [self._stores.translated(index, one) for one in commands], self.now, idempotency
                )
            except KeyReused:
                return "reused"

        answers = [await ask(index, store) for index, store in enumerate(self._stores.all)]
        firsts = [outcome.id for outcome in answers[0]] if isinstance(answers[0], list) else []
        for index, answer in enumerate(answers):
            if isinstance(answer, list):
                self._stores.learn(index, firsts, [outcome.id for outcome in answer])
                common = self._stores.common
                answers[index] = [msgspec.structs.replace(one, id=common(index, one.id)) for one in answer]

        async def shown(index: int, _store: Store) -> list[Outcome] | str:
            return answers[index]

        outcomes = await self._stores.each(shown)
        if isinstance(outcomes, list):
            self._remember(commands, outcomes)

    def _remember(self, commands: list[Command], outcomes: list[Outcome]) -> None:
        for command, outcome in zip(commands, outcomes, strict=True):
            self._tally.commands[type(command).__name__.lower()] += 1
            self._tally.outcomes[outcome.outcome] += 1
            self._tally.in_flight += outcome.in_flight is not None
            if isinstance(command, Add) and command.id is None and outcome.outcome == "scheduled":
                self._made[self._random.choice(self._numbers)].append(outcome.id)
            if outcome.outcome not in {"rejected", "unknown"}:
                self._seen[address(command)[0], outcome.id] = None

    async def _release(self) -> None:
        self.log.append(f"release at {self.now}")

        async def ask(_index: int, store: Store) -> tuple[list[int], dict[str, int], list[tuple[str, str]], int]:
            drained = await drain(store, self.now)
            assert min(drained.lateness_us, default=0) >= 0, "something left early"
            return (
                sorted(drained.lateness_us),
                dict(sorted(drained.missed.items())),
                sorted(drained.topics),
                drained.handed,
            )

        lateness_us, _, _, handed = await self._stores.each(ask)
        self._tally.released += len(lateness_us) + handed

    async def _pass_time(self) -> None:
        self.now += self._random.choice(STEPS)
        self.log.append(f"time passes until {self.now}")
        if self._random.random() < 0.7:
            await self._release()

    async def _tend(self) -> None:
        self.log.append(f"housekeeping at {self.now}")
        for store in self._stores.all:
            await tend(store, self.now)

    # Calendars

    async def _put_calendar(self) -> None:
        today = self.now // DAY
        days = tuple(sorted(self._random.sample(range(today - 1, today + 5), self._random.randint(0, 3))))
        self.log.append(f"calendar at {self.now}: {days}")
        await self._revised(lambda revision: revision.put_calendar(TENANTS[0], CALENDAR, days))

    async def _drop_calendar(self) -> None:
        self.log.append(f"no calendar at {self.now}")
        await self._revised(lambda revision: revision.drop_calendar(TENANTS[0], CALENDAR))

    async def _revised(self, change: Callable[[RuleChanges], Awaitable[object]]) -> None:
        clock: Clock = SimulatedClock(self.now)

        async def ask(_index: int, store: Store) -> object:
            return await change(RuleChanges(store, clock, lambda _fact: None, lambda: None))

        await self._stores.each(ask)

    # The outbox

    async def _arrive(self) -> None:
        """Kafka has everything; sometimes the store learns it too."""
        settles = self._random.random() < 0.5
        self.log.append(f"arrived, settled: {settles}")
        for store in self._stores.all:
            lane = lane_of(store)
            _, following = await lane.outbox()
            lane.arrived(following)
            if settles:
                await lane.settle(following)

    async def _hold(self) -> None:
        """One record is kept back."""
        chosen = self._random.random()
        self.log.append(f"one is kept back: {chosen}")
        for index, store in enumerate(self._stores.all):
            lane = lane_of(store)
            offset, _ = await lane.outbox()
            waiting: list[Outgoing] = []
            while found := await lane.outgoing(offset, 1_000):  # a store may return fewer than there are
                waiting += found
                offset = found[-1].offset + 1
            waiting.sort(key=lambda each: (self._stores.common(index, each.id), each.generation, each.number))
            if waiting:
                await lane.hold([waiting[int(chosen * len(waiting))].offset], "unknown_topic")

    # Comparisons

    async def _compare(self) -> None:
        await self._stores.each(self._views)
        await self._stores.each(self._lists)
        await self._stores.each(self._count)

    async def _views(self, index: int, store: Store) -> list[object]:
        """Each schedule and its history."""
        views: list[object] = []
        for tenant, schedule_id in self._seen:
            name = self._stores.own(index, schedule_id)
            views.append(await store.history(tenant, name, self.now))
            if len(views) % 3 == 0:  # lists show nearly the same
                views.append(self._plain(index, await store.find(tenant, name, self.now)))
        return views

    async def _lists(self, index: int, store: Store) -> list[object]:
        query = Query(limit=self._limit)
        found = [each for tenant in TENANTS for each in await listed(store, query, self.now, tenant)]
        return [self._plain(index, one) for one in found]

    async def _count(self, _index: int, store: Store) -> int:
        return (await store.count(self.now)).pending

    def _plain(self, index: int, schedule: Any) -> Any:
        """A schedule under its common id; offsets follow the order of a batch, which is free."""
        if schedule is None:
            return None
        return msgspec.structs.replace(schedule, id=self._stores.common(index, schedule.id), offset=None)

    # The end

    async def _end(self) -> None:
        """Remove everything before the next sequence."""
        await self._send([Cancel(tenant, schedule_id) for tenant, schedule_id in self._seen])
        for store in self._stores.all:
            lane = lane_of(store)
            _, following = await lane.outbox()
            await lane.settle(following)
            for topic in await lane.held_topics():
                await lane.free([each.offset for each in await lane.held(topic)])

    # Commands

    def _command(self, number: int) -> Command:
        random = self._random
        tenant = TENANTS[random.random() < 0.1]
        kind = random.choice(KINDS)
        if kind == "again" and self._sent[number]:
            return random.choice(self._sent[number])
        name = self._name(number)
        match kind:
            case "replace":
                keep_count = random.random() < 0.3
                return Replace(self._add(tenant, name, number), reuse=random.random() < 0.4, keep_count=keep_count)
            case "cancel":
                return Cancel(tenant, name)
            case "pause":
                return Pause(tenant, name)
            case "resume":
                return Resume(tenant, name, random.choice((None, None, "fire_all", "fire_latest", "skip")))
            case "fire":
                return Fire(tenant, name)
            case _:
                made = random.random() < 0.15
                return self._add(tenant, None if made else name if not MADE_ID.match(name) else f"a {number}", number)

    def _name(self, number: int) -> str:
        chance = self._random.random()
        if chance < 0.02:
            return self._random.choice(BAD_NAMES[:-1])
        if chance < 0.15 and self._made[number]:
            return self._random.choice(self._made[number])
        return f"{self._random.choice(IDS[:2] * 3 + IDS)} {number}"

    def _add(self, tenant: str, schedule_id: str | None, number: int) -> Add:
        random = self._random
        when = self._when()
        key = random.choice((None, b"x", b"y")) if schedule_id is not None else b"made"
        topic = random.choice(TOPICS) if random.random() > 0.01 else random.choice(BAD_NAMES[:2])
        jitter_us = random.choice((0, 0, 3 * SECOND + 1))
        lateness, value = random.choice(POLICIES), random.choice((b"v", b"", None))
        first = occurrence(when, 1)
        add = Add(
            tenant,
            schedule_id,
            topic,
            when,
            pack(Message(key, value)),
            digest(f"{random.randint(0, 2)}") if random.random() < 0.3 else digest(f"{when} {value!r} {topic!a}"),
            (when.at if isinstance(when, Once) else self.now if first is None else first) + jitter_us,
            random.choice(list(Priority)),
            lateness,
            random.choice((None, '{"campaign":"autumn"}')),
            jitter_us,
            None if key is None else crc32(key),
            random.random() < 0.3,
            self.now + 30 * DAY if random.random() < 0.1 else None,
        )
        if schedule_id is None or not MADE_ID.match(schedule_id):  # only a replacement may name such an id
            self._sent[number].append(add)
        return add

    def _when(self) -> When:
        random = self._random
        start = self.now + random.choice(AHEAD)
        match random.choice(("once", "once", "once", "every", "every", "rule", "cron", "local")):
            case "every":
                period = Period(0, random.choice((SECOND, 7 * SECOND, HOUR)))
                return Every(start, period, None, random.choice((1, 2, 5, 40)))
            case "rule":
                terms = Terms(None, random.choice((None, "Europe/Berlin")), calendar=random.choice((None, CALENDAR)))
                text = random.choice(
                    ("FREQ=HOURLY;COUNT=4", "FREQ=DAILY", "FREQ=DAILY;COUNT=3", "FREQ=MINUTELY;INTERVAL=20")
                )
                return read_rule(text, self.now, terms)
            case "cron":
                terms = Terms(None, random.choice((None, "Europe/Berlin")), calendar=random.choice((None, CALENDAR)))
                return read_cron(random.choice(("0 9 * * *", "*/30 * * * *")), self.now, terms)
            case "local":
                day = datetime.fromtimestamp(start // SECOND, UTC)
                text = random.choice((day.strftime("%Y-%m-%dT%H:%M:%S"), "2027-03-28T02:30:00", "2027-10-31T02:30:00"))
                gap, overlap = random.choice(GAPS)
                return read_local(text, "Europe/Berlin", gap, overlap)
            case _:
                return Once(start)


async def run(first: int, count: int) -> Tally:
    """This many sequences from a number on, on new stores."""
    tally, now = Tally(), NOW
    async with Stores() as stores:
        for start in range(first, first + count, TOGETHER):
            together = Run(stores, range(start, start + TOGETHER), now, tally)
            try:
                await together.run()
            except Exception as error:
                steps = "\n".join(together.log)
                raise Differs(f"sequences from {start}: {error}\n{steps}") from error
            tally.sequences += TOGETHER
            now = together.now + ID_RETENTION_US + DAY
        tally.compared = stores.compared
    return tally
