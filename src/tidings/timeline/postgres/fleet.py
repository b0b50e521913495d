"""Who is in each consumer group, in a row of its own: any node may be called, and who was faster is decided there."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import blake2b
from uuid import UUID

import msgspec
import psycopg

from tidings import tasks
from tidings.clock import Clock
from tidings.domain.errors import Invalid, StoreError
from tidings.ports import Group, GroupState, GroupUpdate
from tidings.timeline.postgres import database
from tidings.timeline.postgres.context import StoreContext
from tidings.timeline.postgres.database import Contended

TRIES_MAX = 50
LOOK_US = 2_000_000
LOOK_OFTEN_US = 50_000
NO_TOPIC = -1


class PostgresMembership:
    """Steps of one group take turns on this node; with those of other nodes they are compared by version."""

    def __init__(self, context: StoreContext, hears: Callable[[], bool]) -> None:
        self._context = context
        self._hears = hears
        self._turns: dict[Group, tuple[asyncio.Lock, list[None]]] = {}
        self._moved: Callable[[Group], None] = _no_listener

    @property
    def poll_us(self) -> int:
        """Often, where hints do not arrive."""
        return LOOK_US if self._hears() else LOOK_OFTEN_US

    def on_moved(self, listener: Callable[[Group], None]) -> None:
        """Have this called when another node says that partitions moved."""
        self._moved = listener

    def hear(self, told: str) -> None:
        """Partitions of a group moved."""
        self._moved(msgspec.json.decode(told, type=Group))

    async def change(self, group: Group, decide: Callable[[GroupState], GroupUpdate | None]) -> None:
        """One step; made again on what is there then, if another node was faster."""
        if any("\0" in name for name in group):
            raise Invalid("group", "the names of a topic and of a group cannot hold the character NUL")
        async with self._turn(group):
            for _ in range(TRIES_MAX):
                version, topic, kept = await self._load(group)
                step = decide(kept)
                if step is None or await self._keep(group, topic, version, step):
                    return
        raise Contended(f"too many members of {group[2]} called at the same time, and nothing was changed: try again")

    async def _load(self, group: Group) -> tuple[int, int, GroupState]:
        tenant, name, _ = group
        names = self._context.names
        if names.missing(tenant, name):
            await names.load()
        topic = NO_TOPIC if names.missing(tenant, name) else names.topic(tenant, name)
        values = (tenant, *group, topic, group[2])
        ((version, roster, now, others, parts, offsets),) = await self._context.pools.reads.read(
            self._context.sql["roster"], values
        )
        committed = dict(zip(parts or (), offsets or (), strict=True))
        return version or 0, topic, GroupState(roster, committed, now, others)

    async def _keep(self, group: Group, topic: int, version: int, step: GroupUpdate) -> bool:
        """Whether nobody was faster."""
        parts = offsets = None
        if step.offsets:
            if topic == NO_TOPIC:
                await self._context.names.make(group[0], group[1])
                topic = self._context.names.topic(group[0], group[1])
            parts, offsets = database.int2s(list(step.offsets)), database.int8s(list(step.offsets.values()))
        told = "moved " + msgspec.json.encode(group).decode() if step.moved else None
        values = (*group, version, step.until, step.roster, told, topic, parts, offsets)
        ((kept,),) = await self._context.pools.reads.call(self._context.sql["keep_roster"], values)
        return bool(kept)

    @contextlib.asynccontextmanager
    async def _turn(self, group: Group) -> AsyncIterator[None]:
        """Alone in a group on this node: its members would only stand in each other's route."""
        lock, users = self._turns.setdefault(group, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._turns[group]


def _no_listener(_: Group) -> None:
    """Nobody waits."""


class PartitionAssignment:
    """ReleaseRequest on any thread."""

    def __init__(self, node: UUID, elapsed: Callable[[], int]) -> None:
        self._node = node
        self._elapsed = elapsed
        self._until = 0
        self._readers: tuple[UUID, ...] = ()
        self._orders: dict[str, tuple[UUID, ...]] = {}

    def learn(self, readers: Sequence[UUID], until: int) -> None:
        """These live, and until when we may believe that we are one of them."""
        if tuple(readers) != self._readers:
            self._readers, self._orders = tuple(readers), {}
        self._until = until

    def reads(self, source: str, partition: int) -> bool:
        """Whether a partition is ours. The nodes take turns, beginning with another one for each source."""
        readers, orders = self._readers, self._orders
        if self._node not in readers or self._elapsed() >= self._until:
            return False
        order = orders.get(source)
        if order is None:
            order = orders[source] = tuple(sorted(readers, key=lambda node: _score(source, node)))
        return order[partition % len(order)] == self._node


def _score(source: str, node: UUID) -> bytes:
    return blake2b(source.encode() + node.bytes, digest_size=8).digest()


FOLLOWED_US = 10_000_000  # how long others believe us, if we do not say it again
RENEW_US = 2_000_000
LINGER_US = 10_000_000  # who polls comes back soon: the next wait then costs no write
UNSURE_US = 500_000
LOOK_S = 0.03

Key = tuple[str, str]  # tenant and topic


class TopicSubscriptions:
    """What is waited for here. `listeners` are told the topics on which something was put."""

    def __init__(self, context: StoreContext, clock: Clock, node: UUID, hears: Callable[[], bool]) -> None:
        self._context = context
        self._clock = clock
        self._node = node
        self._hears = hears
        self._waits: Counter[Key] = Counter()
        self._lingers: dict[Key, int] = {}  # nobody waits any more: until when it is followed still
        self._told: frozenset[int] = frozenset()
        self._telling = asyncio.Lock()
        self._stirred = asyncio.Event()
        self._unsure_until = self._renew_at = 0
        self._ends: dict[int, int] = {}
        self.listeners: list[Callable[[frozenset[Key]], None]] = []

    async def subscribe(self, key: Key) -> None:
        """Somebody begins to wait."""
        self._waits[key] += 1
        self._lingers.pop(key, None)
        await self._meet()

    def unsubscribe(self, key: Key) -> None:
        """Somebody waits no longer."""
        self._waits[key] -= 1
        if not self._waits[key]:
            del self._waits[key]
            self._lingers[key] = self._clock.elapsed() + LINGER_US

    def hear(self, numbers: list[int]) -> None:
        """Something was put onto these topics; none stands for more than could be told."""
        self._ring(set(numbers) & self._told if numbers else self._told)

    def stir(self) -> None:
        """A topic was made that somebody may wait for already, or hints may have been lost."""
        self._unsure_until = self._clock.elapsed() + UNSURE_US
        self._stirred.set()

    async def run(self) -> None:
        """Keep known what is waited for, and look where it must be."""
        while True:
            with contextlib.suppress(TimeoutError):
                pause_s = LOOK_S if self._waits and self._is_unsure() else RENEW_US / 1_000_000
                async with asyncio.timeout(pause_s):  # wait_for would swallow a cancel that comes as it is stirred
                    await self._stirred.wait()
            self._stirred.clear()
            with contextlib.suppress(StoreError):
                await self._step()

    async def close(self) -> None:
        """Nobody waits here any more."""
        if self._told:
            with contextlib.suppress(StoreError):  # then it is believed for a while
                await self._context.pool.call(self._context.sql["unfollow"], (self._node,))

    async def _step(self) -> None:
        if self._clock.elapsed() >= self._renew_at:
            await self._renew()
        if self._waits and self._is_unsure():
            await self._meet()
            await self._look()

    def _is_unsure(self) -> bool:
        return not self._hears() or self._clock.elapsed() < self._unsure_until

    async def _meet(self) -> None:
        """Follow what is waited for as soon as there are such topics."""
        names = self._context.names
        if any(names.missing(*key) for key in self._waits):
            await names.load()
        async with self._telling:
            if not self._numbers() <= self._told:
                await self._tell()
                self.stir()

    async def _renew(self) -> None:
        """Say again what is followed, and leave out what nobody came back to."""
        now = self._clock.elapsed()
        self._lingers = {key: until for key, until in self._lingers.items() if until > now}
        async with self._telling:
            if self._told or self._waits:
                await self._tell()
        self._renew_at = now + RENEW_US

    async def _tell(self) -> None:
        told = self._numbers()
        if told:
            values = (self._node, database.int4s(sorted(told)), FOLLOWED_US)
            await self._context.pool.call(self._context.sql["follow"], values)
        elif self._told:
            await self._context.pool.call(self._context.sql["unfollow"], (self._node,))
        self._told = told
        self._ends = {number: end for number, end in self._ends.items() if number in told}

    def _numbers(self) -> frozenset[int]:
        names = self._context.names
        keys = self._waits.keys() | self._lingers.keys()
        return frozenset(names.topic(*key) for key in keys if not names.missing(*key))

    async def _look(self) -> None:
        """What has come further than it was when we last looked."""
        told = self._told
        if not told:
            return
        values = (database.int4s(sorted(told)),)
        found: dict[int, int] = dict(await self._context.pool.read(self._context.sql["ends"], values))
        moved = {number for number, end in found.items() if self._ends.get(number) != end}
        self._ends |= found
        self._ring(moved)

    def _ring(self, numbers: set[int] | frozenset[int]) -> None:
        if numbers:
            news = frozenset(self._context.names.destination(number) for number in numbers)
            for listener in self.listeners:
                listener(news)


POLL_S = 0.25
POLL_OFTEN_S = 0.02
BEAT_US = 1_000_000
BEAT_MISSING_US = 2_500_000
RETRY_S = 0.5
SWEEP_POLLS = 4  # every so many polls the whole of a lane is looked at, not only what lies above its low-water mark
DUTY = 10  # a poll that took long is not followed by another at once


class Watch:
    """Runs from the opening of a store to its close."""

    def __init__(self, context: StoreContext, clock: Clock, node: UUID, free: Callable[[], None]) -> None:
        self._context = context
        self._clock = clock
        self._beat = f"beat {node.hex}"
        self.subscriptions = TopicSubscriptions(context, clock, node, lambda: self.hears)
        self.group_membership = PostgresMembership(context, lambda: self.hears)
        self._free = free
        self._heard = self._sent = clock.elapsed()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def hears(self) -> bool:
        """Whether what is told reaches us."""
        return self._clock.elapsed() - self._heard < BEAT_MISSING_US

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._listen(), name="tidings-listen"),
            asyncio.create_task(self._poll(), name="tidings-poll"),
            asyncio.create_task(self.subscriptions.run(), name="tidings-followed"),
        ]

    async def stop(self) -> None:
        await tasks.end(self._tasks)

    def check(self) -> None:
        """Raise what ended one of its tasks: a node that no longer watches must not go on as if it did."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _listen(self) -> None:
        """One connection of its own, opened again whenever it is lost."""
        while True:
            with contextlib.suppress(StoreError, psycopg.Error, OSError):
                connection = await self._context.pool.open()
                try:
                    if not self._context.pool.is_direct:
                        return  # LISTEN would stay with a connection that others are given: we poll instead
                    await connection.execute(f'LISTEN "{self._context.options.schema}"'.encode())
                    self.subscriptions.stir()
                    async for told in connection.notifies():
                        with contextlib.suppress(ValueError, msgspec.MsgspecError):  # anybody may say anything here
                            self._hear(told.payload)
                finally:
                    await connection.close()
            await asyncio.sleep(RETRY_S)

    def _hear(self, told: str) -> None:
        kind, _, rest = told.partition(" ")
        if told == self._beat:
            self._heard = self._clock.elapsed()
        elif kind == "due":
            for each in rest.split():
                route, _, due = each.partition(":")
                self._context.told(route, int(due))
        elif kind == "new":
            self.subscriptions.hear([int(number) for number in rest.split()])
        elif kind == "made":
            self.subscriptions.stir()
        elif kind == "moved":
            self.group_membership.hear(rest)
        elif kind == "free":
            self._free()

    async def _poll(self) -> None:
        polls = 0
        while True:
            begun = self._clock.elapsed()
            with contextlib.suppress(StoreError):
                await self._send_beat()
                polls += 1
                await self._context.look(self._context.next_due.routes, whole=polls % SWEEP_POLLS == 0)
            took_s = (self._clock.elapsed() - begun) / 1_000_000
            await asyncio.sleep(max(POLL_S if self.hears else POLL_OFTEN_S, took_s * DUTY))

    async def _send_beat(self) -> None:
        now = self._clock.elapsed()
        if now - self._sent >= BEAT_US:
            self._sent = now
            await self._context.pools.first.call("SELECT pg_notify(%s, %s)", (self._context.options.schema, self._beat))
