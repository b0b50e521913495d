"""The forwarder: publishes the outbox of a lane to Kafka, in order and once, while this process owns the lane.

A limit says how many lanes of a node publish at the same time. A transaction costs about the same whatever its size,
and delays every reader of its partitions until it ends. So when many lanes have records, each waits for its turn and
then publishes all that has accumulated, in fewer and shorter transactions.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType

from tidings import crash, ports
from tidings.bus.kafka.follow_up import FollowUp
from tidings.bus.kafka.producers import Marker, ProducerFailed, ProgressMismatch, TransactionalProducer
from tidings.bus.kafka.topics import BlockingThread, TopicUnavailable
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Listener, Missed, Released
from tidings.domain.fleet import ranges
from tidings.domain.schedules.schedule import Outgoing, join

AT_ONCE_MAX = 2
BATCH_ROWS_MAX = 8_000
AHEAD_ROWS_MIN = 1_000  # a batch of this size is part of a burst: the next one is read while it is published
SETTLE_S = 1.0
WAITED_US = 1_000_000  # a record that waited longer in the outbox is stored with the moment at which it left
SLOW_S = 1.0
LOG_S = 2.0  # lanes that connect within this time are logged in one line
RETRY_S_MIN = 0.05
RETRY_S_MAX = 2.0
NOT_YET = "not connected to Kafka yet"

logger = logging.getLogger("tidings.kafka")


class PublishLimit:
    """Limits how many lanes publish at the same time; they wait in the order of their calls."""

    def __init__(self, at_once_max: int = AT_ONCE_MAX) -> None:
        self._free = asyncio.Semaphore(at_once_max)

    def turn(self) -> "PublishTurn":
        """A turn of one lane, to be used as an asynchronous context manager."""
        return PublishTurn(self._free)


class PublishTurn:
    """One lane's turn to publish. A lane that takes too long gives it up: the cause may concern that lane alone."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_held = False

    async def __aenter__(self) -> "PublishTurn":
        await self._free.acquire()
        self._is_held = True
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Let the next lane begin."""
        if self._is_held:
            self._is_held = False
            self._free.release()


class Forwarder:
    """A background service of a lane: takes the producer over, then publishes batch after batch.

    Every failure leads to a new take-over. `on_connected` is called when the lane releases again, `on_published` with
    the records that are on Kafka.
    """

    def __init__(
        self,
        *,
        outbox: ports.Lane,
        producer: TransactionalProducer,
        clock: Clock,
        on_fact: Listener,
        owns: Callable[[], bool],
        limit: PublishLimit,
        follow_up: FollowUp | None = None,
        on_published: Callable[[Sequence[Outgoing]], None] | None = None,
        on_connected: Callable[[], None] | None = None,
    ) -> None:
        self._outbox = outbox
        self._limit = limit
        self._producer = producer
        self._follow_up = follow_up
        self._on_published = on_published
        self._on_connected = on_connected
        self._clock = clock
        self._on_fact = on_fact
        self._owns = owns
        self._woken = asyncio.Event()
        self._stopping = False
        self._thread = BlockingThread("tidings-kafka-forwarder")
        self._published = 0  # the offset after the last one that is known to be on Kafka
        self._passed = 0  # everything before it is on Kafka, or parked
        self._settled = 0
        self._unsent = 0  # nothing from this offset on was ever sent, as the marker proves
        self._parked_topics: dict[str, str] = {}  # with the reason
        self._recheck_parked = False
        self.parked = asyncio.Event()  # set when records are parked
        self._pause_s = RETRY_S_MIN
        self.problem: str | None = NOT_YET
        self.failures = self.waiting = 0
        self.has_begun = self.has_ended = False
        outbox.shut(True)

    def wake(self) -> None:
        """Look into the outbox now."""
        self._woken.set()

    async def run(self) -> None:
        """Forward until stopped."""
        try:
            while not self._stopping:
                await self._session()
        finally:
            self.has_ended = True
            await self._thread.run(self._producer.close)
            self._thread.close()

    async def _session(self) -> None:
        """Publish from a take-over until the next failure."""
        if not self._owns():
            await self._rest(0.1)
            return
        try:
            offset = await self._take_over()
            self._connected()
            await self._forward(offset)
        except (NotOwner, StoreError):
            await self._rest(0.1)
        except ProducerFailed as error:
            if error.refusals.topics:  # nothing of the batch was committed: try again without these topics
                self._parked_topics |= error.refusals.topics
            elif error.refusals.are_known:  # otherwise the next attempt tells which records are refused
                await self._failed(str(error))
        except TopicUnavailable as error:
            await self._failed(str(error))

    def stop(self) -> None:
        """Stop once the current batch is finished."""
        self._stopping = True
        self._producer.stop()
        self.wake()

    def _connected(self) -> None:
        if self.problem is not None and self._on_connected is not None:
            self._on_connected()
        self.problem, self.has_begun = None, True
        self._outbox.shut(False)

    async def _failed(self, reason: str) -> None:
        if self.problem in {None, NOT_YET}:
            logger.warning("lane %d cannot release to Kafka, trying again: %s", self._outbox.number, reason)
        self.problem = reason
        self.failures += 1
        self._outbox.shut(True)
        with contextlib.suppress(NotOwner, StoreError):
            await self._count()
        await self._rest(self._pause_s)
        self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)

    async def _take_over(self) -> int:
        """The offset to continue from. The marker on Kafka decides; the store must be consistent with it."""
        if not self.has_begun:
            await self._thread.run(self._producer.peek)
        marker = await self._thread.run(self._producer.take_over)
        await self._outbox.confirm()
        first, following = await self._outbox.outbox()
        self._parked_topics = dict.fromkeys(await self._outbox.held_topics(), "parked") | self._parked_topics
        start = max(first, self._published)
        self._unsent = following
        if marker is not None:
            await self._check_marker(marker, first, following)
            if self.has_begun:
                await self._catch_up(start, marker.next)
            self._unsent = start = max(start, marker.next)
        elif first and self._producer.has_markers:
            text = "there is no progress of lane %d on Kafka: releases of the last second may be sent again"
            logger.warning(text, self._outbox.number)
        self._pass(start)
        return start

    async def _check_marker(self, marker: Marker, first: int, following: int) -> None:
        """Check that the record published last is the one that the outbox has, or had, at that offset."""
        if marker.next <= first:
            return
        found = [] if marker.next > following else await self._outbox.outgoing(marker.next - 1, 1)
        if not found or (marker.last and (found[0].offset, found[0].occurrence) != (marker.next - 1, marker.last)):
            await self._outbox.confirm()  # a new owner of the lane may have removed the record meanwhile
            raise ProgressMismatch(
                f"Kafka has records up to {marker.next} of this store, which has others in their place: it was put back"
                " to an older state. Start with an empty store and another kafka.name"
            )

    async def _catch_up(self, start: int, end: int) -> None:
        """Announce records that were committed although the producer reported a failure."""
        while start < end and (found := await self._outbox.outgoing(start, BATCH_ROWS_MAX)):
            await self.announce([record for record in found if record.offset < end])
            start = found[-1].offset + 1

    async def _forward(self, offset: int) -> None:
        settle_at = self._clock.elapsed()
        found: list[Outgoing] = []
        while self._owns() and not self._stopping:
            async with self._limit.turn() as turn:
                self._woken.clear()
                found = found or await self._next(offset)
                is_idle = not found
                if found:
                    try:
                        records = await self._without_expired(await self._without_parked(found))
                        ahead = await self._publish(records, found, turn)
                    except TopicUnavailable as error:
                        if not error.topics:
                            raise
                        self._parked_topics |= error.topics  # nothing was sent: try again without these topics
                        continue
                    offset, found = found[-1].offset + 1, ahead
                    self._pass(offset)
            if self._clock.elapsed() >= settle_at:
                settle_at = self._clock.elapsed() + int(SETTLE_S * 1_000_000)
                if not is_idle:
                    await self._count()
                await self._settle()
            if is_idle and not await self._rest(SETTLE_S):
                await self._thread.run(self._producer.check)
        await self._settle()

    async def _next(self, offset: int) -> list[Outgoing]:
        """The next batch; if there is none, everything in the outbox is on Kafka or parked."""
        if found := await self._outbox.outgoing(offset, BATCH_ROWS_MAX):
            return found
        following = await self._count()
        if following > self._passed and not (found := await self._outbox.outgoing(offset, BATCH_ROWS_MAX)):
            self._pass(following)
        return found

    async def _publish(self, records: list[Outgoing], found: list[Outgoing], turn: PublishTurn) -> list[Outgoing]:
        """Publish a batch; returns the next one if it was read meanwhile."""
        ahead: list[Outgoing] = []
        if not records:
            return ahead
        publishing = self._thread.start(self._producer.publish, records)
        if len(found) >= AHEAD_ROWS_MIN:
            ahead = await self._outbox.outgoing(found[-1].offset + 1, BATCH_ROWS_MAX)
        if not (await asyncio.wait({publishing}, timeout=SLOW_S))[0]:
            self._outbox.shut(True)  # further due records stay on the timeline, where they can be cancelled
            turn.give_up()
        refusals = await publishing
        self._outbox.shut(False)
        self._parked_topics |= refusals.topics
        records = await self._without_parked(records)
        self._pause_s = RETRY_S_MIN
        if records:
            self._published = records[-1].offset + 1
            await self.announce(records)
            if self._follow_up is not None:
                self._follow_up.add(records)
        return ahead

    async def _without_parked(self, records: list[Outgoing]) -> list[Outgoing]:
        """Park the records of topics that refuse them, so that they do not block others; returns the rest."""
        if self._recheck_parked:
            self._recheck_parked = False
            still = await self._outbox.held_topics()
            self._parked_topics = {topic: why for topic, why in self._parked_topics.items() if topic in still}
        parked: dict[str, list[int]] = {}
        for record in records if self._parked_topics else ():
            if record.topic in self._parked_topics:
                parked.setdefault(self._parked_topics[record.topic], []).append(record.offset)
        for reason, offsets in parked.items():
            await self._outbox.hold(offsets, reason)
            self.parked.set()
        return [record for record in records if record.topic not in self._parked_topics] if parked else records

    async def _without_expired(self, records: list[Outgoing]) -> list[Outgoing]:
        """Count records as missed that expired while they waited for Kafka; returns the rest.

        The store forgets them before the transaction that passes them, and only if none of them can be on Kafka: under
        our ownership of the lane, which the store checks, nobody else has published them either.
        """
        now = self._clock.now()
        expired = {record.offset for record in records if record.expires is not None and record.expires < now}
        expired = {offset for offset in expired if offset >= self._unsent}
        if not expired:
            return records
        await self._outbox.expire(sorted(expired), now)
        crash.point("kafka.expired")
        self._on_fact(Missed(now, {"expired": len(expired)}))
        return [record for record in records if record.offset not in expired]

    def unpark(self) -> None:
        """A topic has no parked records left. Which one is looked up between two batches."""
        self._recheck_parked = True

    def _pass(self, offset: int) -> None:
        """Note that everything before an offset is on Kafka, or parked."""
        self._passed = max(self._passed, offset)
        self._outbox.arrived(self._passed)
        if self._follow_up is not None:
            self._follow_up.published(self._passed)

    async def _settle(self) -> None:
        waiting = None if self._follow_up is None else self._follow_up.first
        passed = self._passed if waiting is None else min(self._passed, waiting)
        if passed > self._settled:
            await self._outbox.settle(passed)
            crash.point("kafka.settled")
            self._settled = passed

    async def _count(self) -> int:
        """Count the records that wait for Kafka; returns the next offset of the outbox."""
        first, following = await self._outbox.outbox()
        self.waiting = following - max(first, self._passed)
        return following

    async def announce(self, records: Sequence[Outgoing]) -> None:
        """Publish the fact that these records are on Kafka, and store when those left that had waited for it."""
        now = self._clock.now()
        lateness_us = [now - record.due for record in records]
        counts = Counter([(record.tenant, record.topic) for record in records])
        topics = frozenset((tenant, join("kafka", topic)) for tenant, topic in counts)
        tenants: Counter[str] = Counter()
        for (tenant, _), count in counts.items():
            tenants[tenant] += count
        self._on_fact(Released(now, lateness_us, topics, tenants))
        if self._on_published is not None:
            self._on_published(records)
        if records and now - records[0].released > WAITED_US:
            waited = [record.offset for record in records if now - record.released > WAITED_US]
            with contextlib.suppress(NotOwner, StoreError):  # then the moment of the release is shown
                await self._outbox.left(waited, now)

    async def _rest(self, seconds: float) -> bool:
        """Sleep; True if woken."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._woken.wait(), seconds)
        return False


class Forwarders:
    """The forwarders of all lanes as one, for metrics. Failures of lanes that were lost still count."""

    def __init__(self) -> None:
        self._forwarders: dict[int, Forwarder] = {}
        self._failures = 0
        self._connected: set[int] = set()

    def add(self, forwarder: Forwarder, number: int) -> None:
        """Add the forwarder of a lane that was gained."""
        former = self._forwarders.get(number)
        self._failures += former.failures if former is not None else 0
        self._forwarders[number] = forwarder

    def on_connected(self, number: int) -> None:
        """A lane releases to Kafka. Many lanes connect at almost the same time: they are logged together."""
        if not self._connected:
            asyncio.get_running_loop().call_later(LOG_S, self._log_connected)
        self._connected.add(number)

    def _log_connected(self) -> None:
        logger.info("releases to Kafka, lanes %s", ranges(sorted(self._connected)))
        self._connected.clear()

    @property
    def problem(self) -> str | None:
        """Why a lane does not release to Kafka; None if all do."""
        problems = (forwarder.problem for forwarder in self._forwarders.values() if not forwarder.has_ended)
        return next((problem for problem in problems if problem is not None), None)

    @property
    def have_begun(self) -> bool:
        """Whether the progress on Kafka was found to be that of our store, on at least one lane."""
        return any(forwarder.has_begun for forwarder in self._forwarders.values())

    @property
    def waiting(self) -> int:
        """How many records wait for Kafka."""
        return sum(forwarder.waiting for forwarder in self._forwarders.values() if not forwarder.has_ended)

    @property
    def failures(self) -> int:
        """How many transactions failed and led to a new take-over."""
        return self._failures + sum(forwarder.failures for forwarder in self._forwarders.values())
