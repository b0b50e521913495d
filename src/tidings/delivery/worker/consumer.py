"""Reads the topics of notifications of all tenants, ahead of the deliveries in bounded windows.

Topics are looked up from time to time, and at once when a hint names one. Of each topic, the partitions that this
worker owns are read from the committed position on. High, normal and low priority have windows of their own; within
one, tenants take turns, and a topic with nothing in progress may always read one record. A position is committed once
all records before it are settled.
"""

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator

import msgspec

from tidings import crash, tasks
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.notification import GROUP, PREFIX, TOPICS, URGENCIES, Priority
from tidings.domain.notifications.notification import topic as topic_of
from tidings.domain.schedules.schedule import Record, Topic
from tidings.ports import Store

LOOK_US = 1_000_000
LOOK_SHARE = 20  # of many topics, looking takes at most this part of the time: hints name those with new records
COMMIT_US = 250_000
PAUSE_US = 500_000
TENANT_SHARE = 8  # of a priority's window: one tenant with slow receivers does not stop the others

logger = logging.getLogger("tidings.delivery")


class Windows(msgspec.Struct, frozen=True):
    """How many records may be in progress, of one priority and of one topic; how far the last may be ahead of the
    first one that is not settled; and how many are read at a time."""

    together_max: int = 1_000
    topic_max: int = 500
    ahead_max: int = 20_000
    read_max: int = 250


class JobRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a topic of notifications."""

    tenant: str
    record: Record
    channel: ChannelName
    priority: Priority


class _Partition:
    """The records of one partition that were read, and those of them that are not settled."""

    def __init__(self, start: int) -> None:
        self.next = self.committed = start
        self.open: OrderedDict[int, int] = OrderedDict()  # offset and due time
        self.unread_since: int | None = None

    @property
    def settled_until(self) -> int:
        """Everything before this offset is settled."""
        return next(iter(self.open), self.next)


class _Source:
    """One topic of a tenant."""

    def __init__(self, tenant: str, topic: Topic) -> None:
        self.tenant = tenant
        self.name = topic.name
        self.channel, self.priority = TOPICS[topic.name]
        self.ends = topic.next
        self.partitions: dict[int, _Partition] = {}
        self.in_progress = 0

    @property
    def has_unread(self) -> bool:
        return any(each.next < self.ends[number] for number, each in self.partitions.items())

    def unread(self, ahead_max: int) -> int | None:
        """The partition that has the most records to read, if any may be read."""
        waiting = [
            (self.ends[number] - each.next, number)
            for number, each in self.partitions.items()
            if each.next < self.ends[number] and each.next - each.settled_until < ahead_max
        ]
        return max(waiting)[1] if waiting else None


class Backlog(msgspec.Struct, frozen=True, gc=False):
    """The released notifications of a channel and priority that are not settled, as far as this worker reads them."""

    channel: ChannelName
    priority: Priority
    waiting: int
    in_progress: int
    oldest_due: int | None  # None without any


class Consumer:
    """Gives batches of records to `take`, which calls `done` for each that is settled."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        take: Callable[[Priority, list[JobRecord]], None],
        windows: Windows | None = None,
        *,
        channels: Iterable[ChannelName] = CHANNEL_NAMES,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._clock = clock
        self._take = take
        self._windows = windows or Windows()
        self._topics = frozenset(name for name, (channel, _) in TOPICS.items() if channel in set(channels))
        self._is_ready = is_ready
        self._sources: dict[tuple[str, str], _Source] = {}
        # Those with records to read: a round costs nothing for the topics of tenants that are idle.
        self._unread: dict[Priority, dict[tuple[str, str], _Source]] = {priority: {} for priority in URGENCIES}
        self._in_progress: Counter[Priority] = Counter()
        self._hinted: set[tuple[str, str]] = set()
        self._turns: dict[Priority, OrderedDict[str, None]] = {priority: OrderedDict() for priority in URGENCIES}
        self._wake = asyncio.Event()
        self._is_full = False
        self._look_at = self._commit_at = 0
        self._committing: asyncio.Task[None] | None = None
        self._is_stopping = False
        store.on_records(self.notify)

    def notify(self, topics: Iterable[tuple[str, str]]) -> None:
        """Records were appended to these topics, given as (tenant, topic). Call on the loop."""
        found = {key for key in topics if key[1] in self._topics}
        if found:
            self._hinted |= found
            self._wake.set()

    def stop(self) -> None:
        """Read no more."""
        self._is_stopping = True
        self._wake.set()

    def done(self, record: JobRecord) -> None:
        """A record is settled."""
        source = self._sources.get((record.tenant, record.record.topic))
        self._free(source, record.priority)
        partition = None if source is None else source.partitions.get(record.record.partition)
        if partition is not None:
            partition.open.pop(record.record.offset, None)

    def hold(self, record: JobRecord) -> None:
        """A record waits for another worker: others may be read meanwhile."""
        self._free(self._sources.get((record.tenant, record.record.topic)), record.priority)

    def resume(self, record: JobRecord) -> None:
        """A record goes on."""
        self._in_progress[record.priority] += 1
        source = self._sources.get((record.tenant, record.record.topic))
        if source is not None:
            source.in_progress += 1

    def _free(self, source: _Source | None, priority: Priority) -> None:
        self._in_progress[priority] -= 1
        if source is not None:
            source.in_progress -= 1
        if self._is_full:
            self._wake.set()

    async def run(self) -> None:
        """Read until stopped; while the store is away, or another process owns it, try again from time to time."""
        try:
            while not self._is_stopping:
                self._wake.clear()
                try:
                    more = self._is_ready() and await self._step()
                except (StoreError, NotOwner):
                    more = False
                    self._look_at = self._commit_at = self._clock.elapsed() + PAUSE_US
                if more:
                    await asyncio.sleep(0)
                else:
                    await self._wait()
        finally:
            if self._committing is not None:
                await tasks.end([self._committing])

    async def _wait(self) -> None:
        until = min(self._look_at, self._commit_at) - self._clock.elapsed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(1_000, min(until, LOOK_US)) / 1_000_000):
                await self._wake.wait()

    async def _step(self) -> bool:
        """Look up topics, read once for each priority and tenant, commit; True if there is more to read at once."""
        elapsed = self._clock.elapsed()
        if elapsed >= self._look_at:
            await self._look()
            now = self._clock.elapsed()
            self._look_at = now + max(LOOK_US, (now - elapsed) * LOOK_SHARE)
        hinted, self._hinted = self._hinted, set()
        for key in hinted:
            await self._refresh(key)
        more = self._is_full = False
        for priority in URGENCIES:
            more |= await self._round(priority)
        if self._clock.elapsed() >= self._commit_at and self._committing is None:
            self._commit_at = self._clock.elapsed() + COMMIT_US
            self._committing = asyncio.create_task(self._commit_beside(), name="tidings-deliver-positions")
        return more

    async def _commit_beside(self) -> None:
        """Commit positions while others are read: a commit may wait for large ones."""
        try:
            await self.commit()
        except (StoreError, NotOwner):
            self._commit_at = self._clock.elapsed() + PAUSE_US
        except Exception:  # a bug: what is settled is only read again after a restart
            logger.exception("the positions of released notifications cannot be committed")
            self._commit_at = self._clock.elapsed() + LOOK_US
        finally:
            self._committing = None

    async def _look(self) -> None:
        """Look up all topics, and which partitions this worker owns."""
        for tenant, topic in await self._store.topics_by_prefix(PREFIX):
            if topic.name in self._topics:
                await self._know(tenant, topic)

    async def _refresh(self, key: tuple[str, str]) -> None:
        topic = await self._store.topic(*key)
        if topic is not None:
            await self._know(key[0], topic)

    async def _know(self, tenant: str, topic: Topic) -> None:
        source = self._sources.get((tenant, topic.name))
        if source is None:
            await self._store.subscribe(tenant, topic.name)
            topic = await self._store.topic(tenant, topic.name) or topic
            source = self._sources[tenant, topic.name] = _Source(tenant, topic)
        source.ends = topic.next
        name = f"{tenant}/{topic.name}"
        ours = {number for number in range(len(topic.next)) if self._store.reads(name, number, source.channel)}
        for number in source.partitions.keys() - ours:
            del source.partitions[number]
        if new := ours - source.partitions.keys():
            committed = await self._store.committed(tenant, topic.name, GROUP)
            source.partitions |= {number: _Partition(committed.get(number, 0)) for number in new}
        for number, partition in source.partitions.items():
            if partition.unread_since is None and partition.next < source.ends[number]:
                partition.unread_since = self._clock.now()
        if source.has_unread:
            self._unread[source.priority][tenant, source.name] = source

    async def _round(self, priority: Priority) -> bool:
        """One read for each tenant that has records, beginning with the one whose turn it is."""
        waiting: dict[str, list[_Source]] = {}
        for source in list(self._unread[priority].values()):
            if not source.has_unread:
                del self._unread[priority][source.tenant, source.name]
            elif source.unread(self._windows.ahead_max) is not None:
                waiting.setdefault(source.tenant, []).append(source)
        if not waiting:
            self._turns[priority].clear()
            return False
        turns = self._turns[priority]
        order = [tenant for tenant in turns if tenant in waiting]
        records: list[JobRecord] = []
        try:
            for tenant in [*(tenant for tenant in waiting if tenant not in turns), *order]:
                source = min(waiting[tenant], key=lambda source: source.in_progress)
                found = await self._read(source)
                if found:
                    records += found
                    turns[tenant] = None
                    turns.move_to_end(tenant)
        finally:  # what was read before an error must go on: it is not read again
            if records:
                self._take(priority, records)
        for tenant in [tenant for tenant in turns if tenant not in waiting]:
            del turns[tenant]
        return bool(records)

    async def _read(self, source: _Source) -> list[JobRecord]:
        """As much as the windows allow; at least one record if nothing of the topic is in progress."""
        partition_number = source.unread(self._windows.ahead_max)
        windows = self._windows
        of_tenant = sum(each.in_progress for each in self._of_tenant(source))
        room = max(
            windows.together_max - self._in_progress[source.priority],
            windows.together_max // TENANT_SHARE - of_tenant,  # so much may always be read of a tenant
        )
        room = min(room, windows.topic_max - source.in_progress, windows.read_max)
        limit = max(room, 0 if source.in_progress else 1)
        is_small = limit < windows.read_max and source.in_progress > windows.topic_max // 2
        if partition_number is None or limit <= 0 or is_small:
            self._is_full = True  # many are in progress: the next ones are read when there is room for a whole batch
            return []
        partition = source.partitions[partition_number]
        records = await self._store.read(source.tenant, source.name, partition_number, partition.next, limit)
        gap = (records[0].offset if records else source.ends[partition_number]) - partition.next
        if gap:  # the log retains what is not settled: records were deleted by hand, or before there were workers
            logger.error(
                "%d records of %s/%d of %s were removed before a worker read them: these notifications are lost",
                gap,
                source.name,
                partition_number,
                source.tenant,
            )
        partition.next = records[-1].offset + 1 if records else source.ends[partition_number]
        has_more = partition.next < source.ends[partition_number]
        partition.unread_since = records[-1].due if records and has_more else None
        for record in records:
            partition.open[record.offset] = record.due
        self._in_progress[source.priority] += len(records)
        source.in_progress += len(records)
        return [JobRecord(source.tenant, record, source.channel, source.priority) for record in records]

    def _of_tenant(self, source: _Source) -> Iterator[_Source]:
        """The topics of a tenant with the same priority."""
        for channel in CHANNEL_NAMES:
            found = self._sources.get((source.tenant, topic_of(channel, source.priority)))
            if found is not None:
                yield found

    async def commit(self) -> None:
        """Commit the positions of the partitions that this worker owns."""
        for source in list(self._sources.values()):
            moved = {
                number: until
                for number, each in source.partitions.items()
                if (until := each.settled_until) > each.committed
            }
            if moved:
                await self._store.commit(source.tenant, source.name, GROUP, moved)
                crash.point("deliver.committed")
                for number, until in moved.items():
                    if number in source.partitions:
                        source.partitions[number].committed = until

    def backlog(self) -> list[Backlog]:
        """What waits and what is in progress, by channel and priority, in the partitions that this worker owns.

        Of what was not read yet the due time is not known: what was released before it is a bound, or the moment when
        this worker learned of it.
        """
        waiting: Counter[tuple[ChannelName, Priority]] = Counter()
        in_progress: Counter[tuple[ChannelName, Priority]] = Counter()
        dues: dict[tuple[ChannelName, Priority], list[int]] = {TOPICS[name]: [] for name in self._topics}
        for source in self._sources.values():
            key = source.channel, source.priority
            for number, each in source.partitions.items():
                unread = max(0, source.ends[number] - each.next)
                waiting[key] += unread
                in_progress[key] += len(each.open)
                dues[key] += each.open.values()
                if unread and each.unread_since is not None:
                    dues[key].append(each.unread_since)
        return [Backlog(*key, waiting[key], in_progress[key], min(dues[key], default=None)) for key in sorted(dues)]
