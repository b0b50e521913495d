"""History copies and tombstones after the release of schedules from a compacted request topic (etf1's wire).

A copy goes to the history topic. A tombstone for the schedule's key goes to the request topic, so that compaction
removes the request. Both are written after the release is durable and never delay it, in one transaction with a marker
of their own, so each is written once, whatever crashes. The outbox keeps the record until they are written, so only
offsets are kept in memory, and no burst is too large.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tidings.bus.kafka.producers import (
    ProducerFailed,
    ProducerRecord,
    ProgressMismatch,
    RecordBuilder,
    Refusals,
    TransactionalProducer,
)
from tidings.bus.kafka.topics import OF_THE_RECORD, BlockingThread, TopicUnavailable
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.schedules.schedule import ORIGIN, Origin, Outgoing
from tidings.ports import Outbox

BATCH_ROWS_MAX = 500
IDLE_S = 5.0
RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
REFUSED_US = 30_000_000  # a topic that refuses its records is skipped for this long

logger = logging.getLogger("tidings.kafka")

Pair = tuple[Outgoing, Origin]


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
    """A background service of a lane. Its producer is opened only when there is something to write.

    `problem` is set if the progress on Kafka does not match: then nothing more is written. Releases go on.
    """

    def __init__(
        self, plan: Plan, *, outbox: Outbox, producer: TransactionalProducer, clock: Clock, owns: Callable[[], bool]
    ) -> None:
        self._plan = plan
        self._outbox = outbox
        self._producer = producer
        self._clock = clock
        self._owns = owns
        self._builder = RecordBuilder()
        self._first = 0  # the first offset that is not followed up
        self._end = 0  # everything before it is on Kafka, or parked
        self._next: dict[str, int] = {}  # by marker key: the first offset that is not written
        self._refused: dict[str, int] = {}  # topics that are skipped, and until when
        self._skipped: Counter[str] = Counter()  # copies and tombstones that these topics did not get
        self._thread = BlockingThread("tidings-kafka-follow-up")
        self._lock = asyncio.Lock()
        self._is_open = False
        self._woken = asyncio.Event()
        self._stopping = False
        self._pause_s = RETRY_S_MIN
        self.problem: str | None = None

    def add(self, records: Sequence[Outgoing]) -> None:
        """Note that these records are on Kafka. The outbox is read only if one of them needs a copy or a tombstone."""
        end = records[-1].offset + 1
        if self._first == self._end < end and all(self._plan.origin_of(record) is None for record in records):
            self._first = self._end = end
        self.published(end)

    def published(self, end: int) -> None:
        """Note that everything before an offset is on Kafka, or parked."""
        if end > self._end:
            self._end = end
            self._woken.set()

    @property
    def first(self) -> int | None:
        """The first offset that is still to be followed up: the outbox must keep it. None if there is none."""
        return self._first if self._first < self._end and self.problem is None else None

    async def run(self) -> None:
        """Write until stopped; what is left is written after the next start."""
        try:
            while not self._stopping and self.problem is None:
                self._woken.clear()
                if self._first == self._end or not self._owns():
                    await self._rest(IDLE_S)
                    continue
                try:
                    await self._tick()
                    self._pause_s = RETRY_S_MIN
                except ProgressMismatch as error:
                    self._give_up(error)
                except (ProducerFailed, TopicUnavailable, NotOwner, StoreError) as error:
                    logger.info("cannot write history copies and tombstones, trying again: %s", error)
                    await self._rest(self._pause_s)
                    self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
        finally:
            self._stopping = True
            for topic in list(self._skipped):
                self._log_skipped(topic)
            async with self._lock:
                await self._thread.run(self._producer.close)
                self._thread.close()

    def wake(self) -> None:
        """Nothing to do: new records are followed up after they are published."""

    def stop(self) -> None:
        """Stop once the current batch is finished."""
        self._stopping = True
        self._producer.stop()
        self._woken.set()

    async def write_parked(self, topic: str, records: Sequence[Outgoing]) -> None:
        """Write at once for records that were parked for their topic, before the outbox removes them."""
        if self.problem is None and (pairs := self._pairs(records)):
            try:
                await self._write(pairs, f"{self._producer.key}/{topic}")
            except ProgressMismatch as error:
                self._give_up(error)

    def _give_up(self, error: ProgressMismatch) -> None:
        logger.error("no more history copies and tombstones are written until the next start: %s", error)
        self.problem = str(error)
        self._woken.set()

    def _pairs(self, records: Sequence[Outgoing]) -> list[Pair]:
        found = [(record, self._plan.origin_of(record)) for record in records]
        return [(record, origin) for record, origin in found if origin is not None]

    async def _tick(self) -> None:
        """Follow up the next records of the outbox."""
        end = self._end
        found = await self._outbox.outgoing(self._first, BATCH_ROWS_MAX)
        published = [record for record in found if record.offset < end]
        if pairs := self._pairs(published):
            await self._write(pairs, self._producer.key)
        is_last = len(published) < len(found) or not found
        self._first = end if is_last else published[-1].offset + 1

    async def _write(self, pairs: Sequence[Pair], key: str) -> None:
        async with self._lock:
            batches = [pairs]
            while batches:
                batch = batches.pop()
                if not await self._write_batch(batch, key):
                    middle = len(batch) // 2
                    batches += [batch[middle:], batch[:middle]]

    async def _write_batch(self, pairs: Sequence[Pair], key: str) -> bool:
        """Write in one transaction; False if one of the records is refused, and the batch must be divided to find it.

        Topics that refuse all records are skipped, with a warning.
        """
        left_out: set[str] = set()  # topics that refuse the only record of the batch
        while True:
            if self._stopping:
                raise ProducerFailed("the node is stopping")
            start = await self._start_of(key)
            skipped: Counter[str] = Counter()
            written = {
                record.offset: await self._built(record, origin, left_out, skipped)
                for record, origin in pairs
                if record.offset >= start
            }
            records = [record for record, _ in pairs if written.get(record.offset)]
            try:
                if records:
                    await self._thread.run(self._producer.publish, records, key, written)
                    self._next[key] = records[-1].offset + 1
                self._skipped += skipped
                return True
            except TopicUnavailable as error:
                if error.is_transient or not error.topics:
                    raise
                self._refuse(error.topics)
            except ProducerFailed as error:
                self._is_open = False
                permanent = _permanent(error.refusals)
                if not permanent:
                    raise
                of_the_record = {topic for topic, reason in permanent.items() if reason in OF_THE_RECORD}
                if of_the_record and len(records) > 1:
                    return False
                for topic in of_the_record:
                    text = "%s gets no history copy or tombstone of %s: %s"
                    logger.warning(text, topic, records[0].id, permanent[topic])
                left_out |= of_the_record
                self._refuse({topic: reason for topic, reason in permanent.items() if topic not in of_the_record})

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

    async def _built(
        self, record: Outgoing, origin: Origin, left_out: set[str], skipped: Counter[str]
    ) -> list[ProducerRecord]:
        """The history copy and the tombstone of a record; no tombstone if a newer schedule has its key."""
        key, value, headers = self._builder.record(record)
        built: list[ProducerRecord] = []
        if self._plan.history is not None:
            built.append((self._plan.history, -1, key, value, headers))
        if self._plan.tombstones and not await self._plan.is_pending(record.tenant, record.id):
            text = f"{origin.partition}/{origin.offset}".encode()
            built.append((origin.topic, origin.partition, origin.key, None, [*headers, (ORIGIN, text)]))
        refused = [topic for topic, *_ in built if self._is_refused(topic)]
        skipped.update(refused)
        return [each for each in built if each[0] not in refused and each[0] not in left_out]

    def _refuse(self, topics: dict[str, str]) -> None:
        for topic, reason in topics.items():
            seconds = REFUSED_US // 1_000_000
            logger.warning("%s gets no history copies or tombstones for %d s: %s", topic, seconds, reason)
            self._refused[topic] = self._clock.elapsed() + REFUSED_US

    def _is_refused(self, topic: str) -> bool:
        if topic not in self._refused:
            return False
        if self._refused[topic] > self._clock.elapsed():
            return True
        del self._refused[topic]
        self._log_skipped(topic)
        return False

    def _log_skipped(self, topic: str) -> None:
        logger.warning("%s did not get %d history copies or tombstones", topic, self._skipped.pop(topic, 0))

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)


def _permanent(refusals: Refusals) -> dict[str, str]:
    """The topics that will refuse the same records again."""
    return {topic: reason for topic, reason in refusals.topics.items() if topic not in refusals.transient}
