"""History copies and tombstones after the release of schedules from a compacted request topic (etf1's wire).

A copy goes to the history topic. A tombstone for the schedule's key goes to the request topic, so that compaction
removes the request. Both are written after the release is durable and never delay it, in one transaction with a marker
of their own, so each is written once, whatever crashes. The outbox keeps the record until they are written.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tidings.bus.kafka.client import BlockingThread
from tidings.bus.kafka.producers import ProducerFailed, ProducerRecord, RecordBuilder, TransactionalProducer
from tidings.bus.kafka.topics import TopicUnavailable
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.schedules.schedule import ORIGIN, Origin, Outgoing

BATCH_ROWS_MAX = 500
WAITING_ROWS_MAX = 50_000
IDLE_S = 5.0
RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
REFUSED_US = 30_000_000  # a topic that refuses its records is skipped for this long

logger = logging.getLogger("tidings.kafka")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which releases get a history copy or a tombstone.

    `origin_of` returns the request of a released record, None if nothing is to be written for it.
    `is_pending` says whether a newer schedule with the same id is pending: its request must not be deleted.
    """

    origin_of: Callable[[Outgoing], Origin | None]
    is_pending: Callable[[str, str], Awaitable[bool]]
    history: str | None
    tombstones: bool


class FollowUp:
    """A background service of a lane. Its producer is opened only when there is something to write."""

    problem: str | None = None  # releases do not depend on it

    def __init__(self, plan: Plan, producer: TransactionalProducer, clock: Clock, owns: Callable[[], bool]) -> None:
        self._plan = plan
        self._producer = producer
        self._clock = clock
        self._owns = owns
        self._builder = RecordBuilder()
        self._waiting: deque[tuple[Outgoing, Origin]] = deque()
        self._added = 0
        self._next: dict[str, int] = {}  # by marker key: the first offset that is not written
        self._refused: dict[str, int] = {}  # topics that are skipped, and until when
        self._thread = BlockingThread("tidings-kafka-follow-up")
        self._lock = asyncio.Lock()
        self._is_open = False
        self._woken = asyncio.Event()
        self._stopping = False
        self._pause_s = RETRY_S_MIN

    def add(self, records: Sequence[Outgoing]) -> None:
        """Queue published records, in the order of their offsets. Those that were added before are skipped."""
        for record in records:
            if record.offset < self._added:
                continue
            self._added = record.offset + 1
            if (origin := self._plan.origin_of(record)) is not None:
                self._waiting.append((record, origin))
        if len(self._waiting) > WAITING_ROWS_MAX:
            lost = len(self._waiting) - WAITING_ROWS_MAX
            logger.warning("%d releases get no history copy and no tombstone: too many are waiting", lost)
            for _ in range(lost):
                self._waiting.popleft()
        if self._waiting:
            self._woken.set()

    @property
    def first(self) -> int | None:
        """The first offset that is still to be written; the outbox must keep it."""
        return self._waiting[0][0].offset if self._waiting else None

    async def run(self) -> None:
        """Write until stopped; what is left is written after the next start."""
        try:
            while not self._stopping:
                self._woken.clear()
                if not self._waiting or not self._owns():
                    await self._rest(IDLE_S)
                    continue
                try:
                    await self._tick()
                    self._pause_s = RETRY_S_MIN
                except (ProducerFailed, TopicUnavailable, NotOwner, StoreError) as error:
                    logger.info("cannot write history copies and tombstones, trying again: %s", error)
                    await self._rest(self._pause_s)
                    self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
        finally:
            self._stopping = True
            async with self._lock:
                await self._thread.run(self._producer.close)
                self._thread.close()

    def wake(self) -> None:
        """Nothing to do: new records are queued after they are published."""

    def stop(self) -> None:
        """End after the present batch."""
        self._stopping = True
        self._producer.stop()
        self._woken.set()

    async def write_parked(self, topic: str, records: Sequence[Outgoing]) -> None:
        """Write at once for records that were parked for their topic, before the outbox removes them."""
        found = [(record, self._plan.origin_of(record)) for record in records]
        pairs = [(record, origin) for record, origin in found if origin is not None]
        if pairs:
            await self._write(pairs, f"{self._producer.key}/{topic}")

    async def _tick(self) -> None:
        batch = [self._waiting[index] for index in range(min(len(self._waiting), BATCH_ROWS_MAX))]
        await self._write(batch, self._producer.key)
        for record, _ in batch:
            if self._waiting and self._waiting[0][0] is record:
                self._waiting.popleft()

    async def _write(self, pairs: Sequence[tuple[Outgoing, Origin]], key: str) -> None:
        """Write in one transaction. Topics that refuse their records are skipped, with a warning."""
        async with self._lock:
            while True:
                if self._stopping:
                    raise ProducerFailed("the node is stopping")
                start = await self._start_of(key)
                written = {
                    record.offset: await self._built(record, origin)
                    for record, origin in pairs
                    if record.offset >= start
                }
                records = [record for record, _ in pairs if written.get(record.offset)]
                if not records:
                    return
                try:
                    refusals = await self._thread.run(self._producer.publish, records, key, written)
                except TopicUnavailable as error:
                    if not error.topics:
                        raise
                    self._refuse(error.topics)
                    continue
                except ProducerFailed as error:
                    self._is_open = False
                    if not error.refusals.topics:
                        raise
                    self._refuse(error.refusals.topics)
                    continue
                self._refuse(refusals.topics)
                self._next[key] = records[-1].offset + 1
                return

    async def _start_of(self, key: str) -> int:
        """The first offset that is not written yet, by the last committed marker."""
        if not self._is_open:
            await self._thread.run(self._producer.take_over)
            self._next.clear()
            self._is_open = True
        if key not in self._next:
            marker = await self._thread.run(self._producer.marker, key)
            self._next[key] = 0 if marker is None else marker.next
        return self._next[key]

    async def _built(self, record: Outgoing, origin: Origin) -> list[ProducerRecord]:
        """The history copy and the tombstone of a record; no tombstone if a newer schedule has its key."""
        key, value, headers = self._builder.record(record)
        built: list[ProducerRecord] = []
        if self._plan.history is not None and not self._is_refused(self._plan.history):
            built.append((self._plan.history, -1, key, value, headers))
        if not self._plan.tombstones or self._is_refused(origin.topic):
            return built
        if not await self._plan.is_pending(record.tenant, record.id):
            place = f"{origin.partition}/{origin.offset}".encode()
            built.append((origin.topic, origin.partition, origin.key, None, [*headers, (ORIGIN, place)]))
        return built

    def _refuse(self, topics: dict[str, str]) -> None:
        for topic, reason in topics.items():
            seconds = REFUSED_US // 1_000_000
            logger.warning("%s gets no history copies or tombstones for %d s: %s", topic, seconds, reason)
            self._refused[topic] = self._clock.elapsed() + REFUSED_US

    def _is_refused(self, topic: str) -> bool:
        return self._refused.get(topic, 0) > self._clock.elapsed()

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
