"""Reading the topics of notifications: all tenants', ahead in bounded windows, nobody behind another's bulk.

Which topics there are is looked up from time to time, and at once when news tells of one. Of each the partitions that
are ours are read on from where the group stands. High, normal and low have windows of their own; inside one, tenants
take turns, and who has nothing under way may always read one. A place is committed once all before it is settled.
"""

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from tidings import crash
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import GROUP, PREFIX, TOPICS, URGENCIES, Priority
from tidings.domain.schedules.schedule import Record, Topic
from tidings.ports import Store

LOOK_US = 1_000_000
COMMIT_US = 250_000
PAUSE_US = 500_000

logger = logging.getLogger("tidings.delivery")


class Windows(msgspec.Struct, frozen=True):
    """How many records may be under way: of one priority, and of one topic; and how far one may lag behind the rest."""

    together_max: int = 512
    topic_max: int = 256
    ahead_max: int = 10_000
    read_max: int = 64


class Read(msgspec.Struct, frozen=True):
    """A record, and where it came from."""

    tenant: str
    record: Record
    channel: ChannelName
    urgency: Priority


class _Place:
    """One partition: what was read of it, and what of that is not settled."""

    def __init__(self, start: int) -> None:
        self.next = self.committed = start
        self.open: OrderedDict[int, None] = OrderedDict()

    @property
    def floor(self) -> int:
        """Everything before this is settled."""
        return next(iter(self.open), self.next)


class _Source:
    """One topic of a tenant."""

    def __init__(self, tenant: str, topic: Topic) -> None:
        self.tenant = tenant
        self.name = topic.name
        self.channel, self.urgency = TOPICS[topic.name]
        self.ends = topic.next
        self.places: dict[int, _Place] = {}
        self.under_way = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.name

    def unread(self, ahead_max: int) -> int | None:
        """A partition that has more to read, the one that is furthest behind."""
        waiting = [
            (self.ends[number] - place.next, number)
            for number, place in self.places.items()
            if place.next < self.ends[number] and place.next - place.floor < ahead_max
        ]
        return max(waiting)[1] if waiting else None


class Reader:
    """Gives every record to `take`, which says `done` when it is settled."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        take: Callable[[Read], None],
        windows: Windows | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._clock = clock
        self._take = take
        self._windows = windows or Windows()
        self._is_ready = is_ready
        self._sources: dict[tuple[str, str], _Source] = {}
        self._under_way: Counter[Priority] = Counter()
        self._fresh: set[tuple[str, str]] = set()
        self._turns: dict[Priority, OrderedDict[str, None]] = {urgency: OrderedDict() for urgency in URGENCIES}
        self._rung = asyncio.Event()
        self._look_at = self._commit_at = 0
        self._is_stopping = False
        store.on_records(self.notify)

    def notify(self, topics: Iterable[tuple[str, str]]) -> None:
        """Something was put onto these topics, given as (tenant, topic). Call on the loop."""
        found = {key for key in topics if key[1] in TOPICS}
        if found:
            self._fresh |= found
            self._rung.set()

    def stop(self) -> None:
        """Read no more."""
        self._is_stopping = True
        self._rung.set()

    def done(self, read: Read) -> None:
        """A record is settled."""
        source = self._sources.get((read.tenant, read.record.topic))
        self._free(source, read.urgency)
        place = None if source is None else source.places.get(read.record.partition)
        if place is not None:
            place.open.pop(read.record.offset, None)

    def hold(self, read: Read) -> None:
        """A record waits for somebody else: others may be read meanwhile."""
        self._free(self._sources.get((read.tenant, read.record.topic)), read.urgency)

    def resume(self, read: Read) -> None:
        """It goes on."""
        self._under_way[read.urgency] += 1
        source = self._sources.get((read.tenant, read.record.topic))
        if source is not None:
            source.under_way += 1

    def _free(self, source: _Source | None, urgency: Priority) -> None:
        self._under_way[urgency] -= 1
        if source is not None:
            source.under_way -= 1
        self._rung.set()

    async def run(self) -> None:
        """Read until stopped; while the store is away, or another process owns it, look again from time to time."""
        while not self._is_stopping:
            self._rung.clear()
            try:
                more = self._is_ready() and await self._step()
            except (StoreError, NotOwner):
                more = False
                self._look_at = self._clock.elapsed() + PAUSE_US
            if more:
                await asyncio.sleep(0)
            else:
                await self._wait()

    async def _wait(self) -> None:
        until = min(self._look_at, self._commit_at) - self._clock.elapsed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(1_000, min(until, LOOK_US)) / 1_000_000):
                await self._rung.wait()

    async def _step(self) -> bool:
        """Look, read one round of each priority, commit; True if there is more to read at once."""
        elapsed = self._clock.elapsed()
        if elapsed >= self._look_at:
            await self._look()
            self._look_at = elapsed + LOOK_US
        fresh, self._fresh = self._fresh, set()
        for key in fresh:
            await self._refresh(key)
        more = False
        for urgency in URGENCIES:
            more |= await self._round(urgency)
        if self._clock.elapsed() >= self._commit_at:
            await self.commit()
            self._commit_at = self._clock.elapsed() + COMMIT_US
        return more

    async def _look(self) -> None:
        """All topics there are, and which partitions are ours now."""
        for tenant, topic in await self._store.topics_by_prefix(PREFIX):
            if topic.name in TOPICS:
                await self._know(tenant, topic)

    async def _refresh(self, key: tuple[str, str]) -> None:
        topic = await self._store.topic(*key)
        if topic is not None:
            await self._know(key[0], topic)

    async def _know(self, tenant: str, topic: Topic) -> None:
        source = self._sources.get((tenant, topic.name))
        if source is None:
            source = self._sources[tenant, topic.name] = _Source(tenant, topic)
            await self._store.subscribe(tenant, topic.name)
            topic = await self._store.topic(tenant, topic.name) or topic
        source.ends = topic.next
        name = f"{tenant}/{topic.name}"
        ours = {number for number in range(len(topic.next)) if self._store.reads(name, number, "deliver")}
        for number in source.places.keys() - ours:
            del source.places[number]
        if new := ours - source.places.keys():
            committed = await self._store.committed(tenant, topic.name, GROUP)
            source.places |= {number: _Place(committed.get(number, 0)) for number in new}

    async def _round(self, urgency: Priority) -> bool:
        """One read for each tenant that has something, beginning with the one whose turn it is."""
        waiting: dict[str, list[_Source]] = {}
        for source in self._sources.values():
            if source.urgency == urgency and source.unread(self._windows.ahead_max) is not None:
                waiting.setdefault(source.tenant, []).append(source)
        turns = self._turns[urgency]
        order = [tenant for tenant in turns if tenant in waiting]
        has_read = False
        for tenant in [*(tenant for tenant in waiting if tenant not in turns), *order]:
            source = min(waiting[tenant], key=lambda source: source.under_way)
            if await self._read(source):
                has_read = True
                turns[tenant] = None
                turns.move_to_end(tenant)
        for tenant in [tenant for tenant in turns if tenant not in waiting]:
            del turns[tenant]
        return has_read

    async def _read(self, source: _Source) -> bool:
        """As much as there is room for; one at least if nothing of it is under way, a whole read if much of it is."""
        partition = source.unread(self._windows.ahead_max)
        windows = self._windows
        room = min(
            windows.together_max - self._under_way[source.urgency],
            windows.topic_max - source.under_way,
            windows.read_max,
        )
        limit = max(room, 0 if source.under_way else 1)
        if partition is None or limit <= 0 or (limit < windows.read_max and source.under_way > windows.topic_max // 2):
            return False  # with that much under way nobody waits for a few more: they are read, and looked up, together
        place = source.places[partition]
        records = await self._store.read(source.tenant, source.name, partition, place.next, limit)
        gap = (records[0].offset if records else source.ends[partition]) - place.next
        if gap:  # the log keeps what is not settled: this was done by hand, or before there were workers
            told = "%d records of %s/%d of %s were removed before a worker read them: these notifications are lost"
            logger.error(told, gap, source.name, partition, source.tenant)
        place.next = records[-1].offset + 1 if records else source.ends[partition]
        for record in records:
            place.open[record.offset] = None
        self._under_way[source.urgency] += len(records)
        source.under_way += len(records)
        for record in records:
            self._take(Read(source.tenant, record, source.channel, source.urgency))
        return True

    async def commit(self) -> None:
        """Keep how far everything is settled, of what is ours."""
        for source in list(self._sources.values()):
            moved = {number: place.floor for number, place in source.places.items() if place.floor > place.committed}
            if moved:
                await self._store.commit(source.tenant, source.name, GROUP, moved)
                crash.point("deliver.committed")
                for number, floor in moved.items():
                    if number in source.places:
                        source.places[number].committed = floor
