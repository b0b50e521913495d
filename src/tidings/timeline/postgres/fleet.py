"""What the nodes of a fleet share: consumer groups, partition assignments, topic subscriptions and notifications."""

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

SUBSCRIBED_US = 10_000_000  # how long a subscription lasts unless it is renewed
RENEW_US = 2_000_000
LINGER_US = 10_000_000  # a polling reader returns soon: its next wait then needs no write
UNSURE_US = 500_000
LOOK_S = 0.03

Key = tuple[str, str]  # tenant and topic

POLL_S = 0.25
POLL_OFTEN_S = 0.02
HEARTBEAT_US = 1_000_000
HEARTBEAT_MISSING_US = 2_500_000
RETRY_S = 0.5
SWEEP_POLLS = 4  # every so many polls a whole lane is read, not only above its low-water mark
DUTY = 10  # the pause after a poll is at least so many times its duration


class PostgresMembership:
    """The members of consumer groups. Changes of a group take turns on this node, and compare-and-set between nodes."""

    def __init__(self, context: StoreContext, is_listening: Callable[[], bool]) -> None:
        self._context = context
        self._is_listening = is_listening
        self._turns: dict[Group, tuple[asyncio.Lock, list[None]]] = {}
        self._moved: Callable[[Group], None] = _no_listener

    @property
    def poll_us(self) -> int:
        """Shorter if notifications do not arrive."""
        return LOOK_US if self._is_listening() else LOOK_OFTEN_US

    def on_moved(self, listener: Callable[[Group], None]) -> None:
        """Call the listener when another node has reassigned partitions."""
        self._moved = listener

    def on_notification(self, text: str) -> None:
        """Another node has reassigned partitions of a group."""
        self._moved(msgspec.json.decode(text, type=Group))

    async def change(self, group: Group, decide: Callable[[GroupState], GroupUpdate | None]) -> None:
        """Change a group; `decide` is called again if another node has changed it meanwhile."""
        if any("\0" in name for name in group):
            raise Invalid("group", "the names of a topic and of a group cannot contain the character NUL")
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
        """Store a change; False if another node has changed the group meanwhile."""
        parts = offsets = None
        if step.offsets:
            if topic == NO_TOPIC:
                await self._context.names.make(group[0], group[1])
                topic = self._context.names.topic(group[0], group[1])
            parts, offsets = database.int2s(list(step.offsets)), database.int8s(list(step.offsets.values()))
        notification = "moved " + msgspec.json.encode(group).decode() if step.moved else None
        values = (*group, version, step.until, step.roster, notification, topic, parts, offsets)
        ((kept,),) = await self._context.pools.reads.call(self._context.sql["keep_roster"], values)
        return bool(kept)

    @contextlib.asynccontextmanager
    async def _turn(self, group: Group) -> AsyncIterator[None]:
        """Serialize the changes of a group on this node: they would only conflict with each other."""
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
    """The listener until `on_moved` is called."""


class PartitionAssignment:
    """Which partitions of a source this node reads. Thread-safe."""

    def __init__(self, node: UUID, elapsed: Callable[[], int]) -> None:
        self._node = node
        self._elapsed = elapsed
        self._until = 0
        self._readers: tuple[UUID, ...] = ()
        self._orders: dict[str, tuple[UUID, ...]] = {}

    def update(self, readers: Sequence[UUID], until: int) -> None:
        """Set the nodes that are alive, and until when this node may consider itself one of them."""
        if tuple(readers) != self._readers:
            self._readers, self._orders = tuple(readers), {}
        self._until = until

    def reads(self, source: str, partition: int) -> bool:
        """Whether this node reads a partition. They are assigned round robin, in another order for each source."""
        readers, orders = self._readers, self._orders
        if self._node not in readers or self._elapsed() >= self._until:
            return False
        order = orders.get(source)
        if order is None:
            order = orders[source] = tuple(sorted(readers, key=lambda node: _score(source, node)))
        return order[partition % len(order)] == self._node


def _score(source: str, node: UUID) -> bytes:
    return blake2b(source.encode() + node.bytes, digest_size=8).digest()


class TopicSubscriptions:
    """The topics that readers of this node wait for. `listeners` are called with the topics that have new records."""

    def __init__(self, context: StoreContext, clock: Clock, node: UUID, is_listening: Callable[[], bool]) -> None:
        self._context = context
        self._clock = clock
        self._node = node
        self._is_listening = is_listening
        self._waits: Counter[Key] = Counter()
        self._lingering: dict[Key, int] = {}  # no reader waits any more: until when it stays subscribed
        self._subscribed: frozenset[int] = frozenset()
        self._subscribing = asyncio.Lock()
        self._recheck_requested = asyncio.Event()
        self._unsure_until = self._renew_at = 0
        self._ends: dict[int, int] = {}
        self.listeners: list[Callable[[frozenset[Key]], None]] = []

    async def subscribe(self, key: Key) -> None:
        """A reader starts to wait for a topic."""
        self._waits[key] += 1
        self._lingering.pop(key, None)
        await self._subscribe_new()

    def unsubscribe(self, key: Key) -> None:
        """A reader waits no longer."""
        self._waits[key] -= 1
        if not self._waits[key]:
            del self._waits[key]
            self._lingering[key] = self._clock.elapsed() + LINGER_US

    def on_notification(self, numbers: list[int]) -> None:
        """Records were appended to these topics; an empty list means too many to list."""
        self._notify(set(numbers) & self._subscribed if numbers else self._subscribed)

    def recheck(self) -> None:
        """Check the subscribed topics soon: a topic was created, or notifications may have been lost."""
        self._unsure_until = self._clock.elapsed() + UNSURE_US
        self._recheck_requested.set()

    async def run(self) -> None:
        """Renew subscriptions, and poll topics while notifications may be lost."""
        while True:
            with contextlib.suppress(TimeoutError):
                pause_s = LOOK_S if self._waits and self._is_unsure() else RENEW_US / 1_000_000
                async with asyncio.timeout(
                    pause_s
                ):  # wait_for would swallow a cancellation that coincides with the event
                    await self._recheck_requested.wait()
            self._recheck_requested.clear()
            with contextlib.suppress(StoreError):
                await self._step()

    async def close(self) -> None:
        """End all subscriptions of this node."""
        if self._subscribed:
            with contextlib.suppress(StoreError):  # then they expire
                await self._context.pool.call(self._context.sql["unfollow"], (self._node,))

    async def _step(self) -> None:
        if self._clock.elapsed() >= self._renew_at:
            await self._renew()
        if self._waits and self._is_unsure():
            await self._subscribe_new()
            await self._poll()

    def _is_unsure(self) -> bool:
        return not self._is_listening() or self._clock.elapsed() < self._unsure_until

    async def _subscribe_new(self) -> None:
        """Subscribe to topics that readers wait for, once they exist."""
        names = self._context.names
        if any(names.missing(*key) for key in self._waits):
            await names.load()
        async with self._subscribing:
            if not self._numbers() <= self._subscribed:
                await self._write_subscriptions()
                self.recheck()

    async def _renew(self) -> None:
        """Renew the subscriptions, and drop those to which no reader has returned."""
        now = self._clock.elapsed()
        self._lingering = {key: until for key, until in self._lingering.items() if until > now}
        async with self._subscribing:
            if self._subscribed or self._waits:
                await self._write_subscriptions()
        self._renew_at = now + RENEW_US

    async def _write_subscriptions(self) -> None:
        topics = self._numbers()
        if topics:
            values = (self._node, database.int4s(sorted(topics)), SUBSCRIBED_US)
            await self._context.pool.call(self._context.sql["follow"], values)
        elif self._subscribed:
            await self._context.pool.call(self._context.sql["unfollow"], (self._node,))
        self._subscribed = topics
        self._ends = {number: end for number, end in self._ends.items() if number in topics}

    def _numbers(self) -> frozenset[int]:
        names = self._context.names
        keys = self._waits.keys() | self._lingering.keys()
        return frozenset(names.topic(*key) for key in keys if not names.missing(*key))

    async def _poll(self) -> None:
        """Notify listeners of topics that have grown since the last poll."""
        if not self._subscribed:
            return
        values = (database.int4s(sorted(self._subscribed)),)
        found: dict[int, int] = dict(await self._context.pool.read(self._context.sql["ends"], values))
        moved = {number for number, end in found.items() if self._ends.get(number) != end}
        self._ends |= found
        self._notify(moved)

    def _notify(self, numbers: set[int] | frozenset[int]) -> None:
        if numbers:
            topics = frozenset(self._context.names.destination(number) for number in numbers)
            for listener in self.listeners:
                listener(topics)


class Watch:
    """Listens to notifications of other nodes, and polls as a fallback, while the store is open."""

    def __init__(self, context: StoreContext, clock: Clock, node: UUID, free: Callable[[], None]) -> None:
        self._context = context
        self._clock = clock
        self._heartbeat = f"beat {node.hex}"
        self.subscriptions = TopicSubscriptions(context, clock, node, lambda: self.is_listening)
        self.group_membership = PostgresMembership(context, lambda: self.is_listening)
        self._free = free
        self._heartbeat_received = self._heartbeat_sent = clock.elapsed()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_listening(self) -> bool:
        """Whether notifications arrive: our own heartbeat did so recently."""
        return self._clock.elapsed() - self._heartbeat_received < HEARTBEAT_MISSING_US

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._listen(), name="tidings-listen"),
            asyncio.create_task(self._poll(), name="tidings-poll"),
            asyncio.create_task(self.subscriptions.run(), name="tidings-subscriptions"),
        ]

    async def stop(self) -> None:
        await tasks.end(self._tasks)

    def check(self) -> None:
        """Raise the error that ended one of the tasks: a node that does not watch any more must not continue."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _listen(self) -> None:
        """Listen on a dedicated connection, opened again whenever it is lost."""
        while True:
            with contextlib.suppress(StoreError, psycopg.Error, OSError):
                connection = await self._context.pool.open()
                try:
                    if not self._context.pool.is_direct:
                        return  # behind a pooler LISTEN does not work: poll instead
                    await connection.execute(f'LISTEN "{self._context.options.schema}"'.encode())
                    self.subscriptions.recheck()
                    async for notification in connection.notifies():
                        with contextlib.suppress(
                            ValueError, msgspec.MsgspecError
                        ):  # any client may send anything on this channel
                            self._handle(notification.payload)
                finally:
                    await connection.close()
            await asyncio.sleep(RETRY_S)

    def _handle(self, text: str) -> None:
        kind, _, rest = text.partition(" ")
        if text == self._heartbeat:
            self._heartbeat_received = self._clock.elapsed()
        elif kind == "due":
            for each in rest.split():
                route, _, due = each.partition(":")
                self._context.on_due(route, int(due))
        elif kind == "new":
            self.subscriptions.on_notification([int(number) for number in rest.split()])
        elif kind == "made":
            self.subscriptions.recheck()
        elif kind == "moved":
            self.group_membership.on_notification(rest)
        elif kind == "free":
            self._free()

    async def _poll(self) -> None:
        polls = 0
        while True:
            started = self._clock.elapsed()
            with contextlib.suppress(StoreError):
                await self._send_heartbeat()
                polls += 1
                await self._context.look(self._context.next_due.routes, whole=polls % SWEEP_POLLS == 0)
            took_s = (self._clock.elapsed() - started) / 1_000_000
            await asyncio.sleep(max(POLL_S if self.is_listening else POLL_OFTEN_S, took_s * DUTY))

    async def _send_heartbeat(self) -> None:
        now = self._clock.elapsed()
        if now - self._heartbeat_sent >= HEARTBEAT_US:
            self._heartbeat_sent = now
            await self._context.pools.first.call(
                "SELECT pg_notify(%s, %s)", (self._context.options.schema, self._heartbeat)
            )
