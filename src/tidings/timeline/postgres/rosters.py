"""Who is in each consumer group, in a row of its own: any node may be called, and who was faster is decided there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec

from tidings.domain.errors import Invalid
from tidings.ports import Group, Kept, Step
from tidings.timeline.postgres import arrays
from tidings.timeline.postgres.errors import Contended
from tidings.timeline.postgres.shared import Shared

TRIES_MAX = 50
LOOK_US = 2_000_000
LOOK_OFTEN_US = 50_000
NO_TOPIC = -1


class PostgresRosters:
    """Steps of one group take turns on this node; with those of other nodes they are compared by version."""

    def __init__(self, shared: Shared, hears: Callable[[], bool]) -> None:
        self._shared = shared
        self._hears = hears
        self._turns: dict[Group, tuple[asyncio.Lock, list[None]]] = {}
        self._moved: Callable[[Group], None] = _nobody

    @property
    def look_us(self) -> int:
        """Often, where hints do not arrive."""
        return LOOK_US if self._hears() else LOOK_OFTEN_US

    def on_moved(self, call: Callable[[Group], None]) -> None:
        """Have this called when another node says that partitions moved."""
        self._moved = call

    def hear(self, told: str) -> None:
        """Partitions of a group moved."""
        self._moved(msgspec.json.decode(told, type=Group))

    async def change(self, group: Group, decide: Callable[[Kept], Step | None]) -> None:
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

    async def _load(self, group: Group) -> tuple[int, int, Kept]:
        tenant, name, _ = group
        names = self._shared.names
        if names.missing(tenant, name):
            await names.load()
        topic = NO_TOPIC if names.missing(tenant, name) else names.topic(tenant, name)
        values = (tenant, *group, topic, group[2])
        ((version, roster, now, others, parts, offsets),) = await self._shared.pools.reads.read(
            self._shared.sql["roster"], values
        )
        committed = dict(zip(parts or (), offsets or (), strict=True))
        return version or 0, topic, Kept(roster, committed, now, others)

    async def _keep(self, group: Group, topic: int, version: int, step: Step) -> bool:
        """Whether nobody was faster."""
        parts = offsets = None
        if step.offsets:
            if topic == NO_TOPIC:
                await self._shared.names.make(group[0], group[1])
                topic = self._shared.names.topic(group[0], group[1])
            parts, offsets = arrays.int2s(list(step.offsets)), arrays.int8s(list(step.offsets.values()))
        told = "moved " + msgspec.json.encode(group).decode() if step.moved else None
        values = (*group, version, step.until, step.roster, told, topic, parts, offsets)
        ((kept,),) = await self._shared.pools.reads.call(self._shared.sql["keep_roster"], values)
        return bool(kept)

    @contextlib.asynccontextmanager
    async def _turn(self, group: Group) -> AsyncIterator[None]:
        """Alone in a group on this node: its members would only stand in each other's way."""
        lock, users = self._turns.setdefault(group, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._turns[group]


def _nobody(_: Group) -> None:
    """Nobody waits."""
