"""What follows the release of a schedule that came from a compacted topic of requests (etf1's wire).

A copy goes to the history topic, and a tombstone for the schedule's key to the topic that the request came from, so
that compaction forgets it. Both are written after the release is durable and never delay it, in one transaction with
a marker of their own: each is there once, whatever crashes. Until they are written, the outbox keeps the record.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tidings.bus.kafka.client import BlockingThread
from tidings.bus.kafka.producers import LaneLost, RecordBuilder, Sent, TransactionalProducer
from tidings.bus.kafka.topics import NoTopic
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.schedules.schedule import ORIGIN, Origin, Outgoing

BATCH_ROWS_MAX = 500
WAITING_ROWS_MAX = 50_000
IDLE_S = 5.0
RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
REFUSED_US = 30_000_000  # a topic that refuses its records is left out for so long

logger = logging.getLogger("tidings.kafka")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is written for which releases.

    `origin_of` answers the request that a released record goes back to, None for those of which nothing follows.
    `is_pending` says whether a newer schedule waits under the same id: its request must not be deleted.
    """

    origin_of: Callable[[Outgoing], Origin | None]
    is_pending: Callable[[str, str], Awaitable[bool]]
    history: str | None
    tombstones: bool


class FollowUp:
    """Runs beside the forwarder of a lane. Its producer is opened only when there is something to write."""

    problem: str | None = None  # releases do not depend on it

    def __init__(self, plan: Plan, lane: TransactionalProducer, clock: Clock, owns: Callable[[], bool]) -> None:
        self._plan = plan
        self._lane = lane
        self._clock = clock
        self._owns = owns
        self._released = RecordBuilder()
        self._copies: dict[int, list[Sent]] = {}
        lane.make = self._copies_of
        self._waiting: deque[tuple[Outgoing, Origin]] = deque()
        self._added = 0
        self._next: dict[str, int] = {}  # by marker: the first offset that is not written
        self._refused: dict[str, int] = {}  # topics that are left out, and until when
        self._thread = BlockingThread("tidings-kafka-follow-up")
        self._one_at_a_time = asyncio.Lock()
        self._is_open = False
        self._woken = asyncio.Event()
        self._stopping = False
        self._pause_s = RETRY_S_MIN

    def add(self, records: Sequence[Outgoing]) -> None:
        """These are on Kafka, in the order of their offsets; those that were added before are passed over."""
        for record in records:
            if record.offset < self._added:
                continue
            self._added = record.offset + 1
            if (origin := self._plan.origin_of(record)) is not None:
                self._waiting.append((record, origin))
        if len(self._waiting) > WAITING_ROWS_MAX:
            lost = len(self._waiting) - WAITING_ROWS_MAX
            logger.warning("%d releases get no history copy and no tombstone: too many wait for theirs", lost)
            for _ in range(lost):
                self._waiting.popleft()
        if self._waiting:
            self._woken.set()

    @property
    def first(self) -> int | None:
        """The first offset that something has still to follow; the outbox must keep it."""
        return self._waiting[0][0].offset if self._waiting else None

    async def run(self) -> None:
        """Write until stopped; what is left is written at the next start."""
        try:
            while not self._stopping:
                self._woken.clear()
                if not self._waiting or not self._owns():
                    await self._rest(IDLE_S)
                    continue
                try:
                    await self._step()
                    self._pause_s = RETRY_S_MIN
                except (LaneLost, NoTopic, NotOwner, StoreError) as error:
                    logger.info("history copies and tombstones wait, tries again: %s", error)
                    await self._rest(self._pause_s)
                    self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
        finally:
            self._stopping = True
            async with self._one_at_a_time:
                await self._thread.run(self._lane.close)
                self._thread.close()

    def wake(self) -> None:
        """What is new is published first."""

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopping = self._lane.stopping = True
        self._woken.set()

    async def follow_held(self, topic: str, records: Sequence[Outgoing]) -> None:
        """The same for records that were kept back for their topic, before the outbox forgets them."""
        found = [(record, self._plan.origin_of(record)) for record in records]
        pairs = [(record, origin) for record, origin in found if origin is not None]
        if pairs:
            await self._write(pairs, f"{self._lane.key}/{topic}")

    async def _step(self) -> None:
        batch = [self._waiting[place] for place in range(min(len(self._waiting), BATCH_ROWS_MAX))]
        await self._write(batch, self._lane.key)
        for record, _ in batch:
            if self._waiting and self._waiting[0][0] is record:
                self._waiting.popleft()

    async def _write(self, pairs: Sequence[tuple[Outgoing, Origin]], key: str) -> None:
        """One transaction; a topic that refuses its records is left out, with a warning, and the others are written."""
        async with self._one_at_a_time:
            while True:
                if self._stopping:
                    raise LaneLost("the node stops")
                start = await self._start_of(key)
                self._copies = {
                    record.offset: await self._made(record, origin)
                    for record, origin in pairs
                    if record.offset >= start
                }
                records = [record for record, _ in pairs if self._copies.get(record.offset)]
                if not records:
                    return
                try:
                    refusals = await self._thread.run(self._lane.publish, records, key)
                except NoTopic as error:
                    if not error.topics:
                        raise
                    self._refuse(error.topics)
                    continue
                except LaneLost as error:
                    self._is_open = False
                    if not error.refusals.topics:
                        raise
                    self._refuse(error.refusals.topics)
                    continue
                self._refuse(refusals.topics)
                self._next[key] = records[-1].offset + 1
                return

    async def _start_of(self, key: str) -> int:
        """The first offset that is not written yet, as the last committed marker says."""
        if not self._is_open:
            await self._thread.run(self._lane.take_over)
            self._next.clear()
            self._is_open = True
        if key not in self._next:
            marker = await self._thread.run(self._lane.marker, key)
            self._next[key] = 0 if marker is None else marker.next
        return self._next[key]

    async def _made(self, record: Outgoing, origin: Origin) -> list[Sent]:
        """What is to be written for a record: its copy, and its tombstone unless a newer schedule has its key."""
        key, value, headers = self._released.record(record)
        made: list[Sent] = []
        if self._plan.history is not None and not self._is_refused(self._plan.history):
            made.append((self._plan.history, -1, key, value, headers))
        if not self._plan.tombstones or self._is_refused(origin.topic):
            return made
        if not await self._plan.is_pending(record.tenant, record.id):
            place = f"{origin.partition}/{origin.offset}".encode()
            made.append((origin.topic, origin.partition, origin.key, None, [*headers, (ORIGIN, place)]))
        return made

    def _copies_of(self, record: Outgoing) -> Sequence[Sent]:
        return self._copies[record.offset]

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
