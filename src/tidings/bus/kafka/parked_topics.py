"""Parked topics: records that Kafka refuses are parked by topic, and retried with backoff by another producer."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidings.bus.kafka.follow_up import FollowUp
from tidings.bus.kafka.forwarder import Forwarder
from tidings.bus.kafka.producers import ID, REFUSED, ProducerFailed, Refusals, TransactionalProducer
from tidings.bus.kafka.topics import OF_THE_RECORD, BlockingThread, TopicUnavailable
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Listener, Missed
from tidings.domain.schedules.command import Add, due_now
from tidings.domain.schedules.schedule import Message, Outgoing, join, pack, unpack
from tidings.ports import Outbox

LOOK_S = 0.5
IDLE_S = 5.0  # while nothing is parked; the forwarder wakes us when it parks something
PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
BATCH_ROWS_MAX = 1_000

logger = logging.getLogger("tidings.kafka")


class _Topic(msgspec.Struct):
    """A parked topic: when to try again, and the pause after that."""

    retry_at: int
    pause_s: float = PAUSE_S_MIN
    next: int | None = None  # the first offset that is not on Kafka, once it is known


class ParkedTopics:
    """A background service of a lane: publishes parked topics. New records of a topic wait until the old are done."""

    problem: str | None = None

    def __init__(
        self,
        *,
        outbox: Outbox,
        producer: TransactionalProducer,
        forwarder: Forwarder,
        follow_up: FollowUp | None,
        clock: Clock,
        on_fact: Listener,
        owns: Callable[[], bool],
    ) -> None:
        self._outbox = outbox
        self._producer = producer
        self._forwarder = forwarder
        self._follow_up = follow_up
        self._clock = clock
        self._on_fact = on_fact
        self._owns = owns
        self._stopping = False
        self._woken = forwarder.parked
        self._thread = BlockingThread("tidings-kafka-parked")
        self._is_open = False
        self._topics: dict[str, _Topic] = {}

    async def run(self) -> None:
        """Retry until stopped."""
        try:
            while not self._stopping:
                has_more = False
                self._woken.clear()
                with contextlib.suppress(NotOwner, StoreError):
                    if self._owns():
                        has_more = await self._tick()
                    else:
                        self._reset()
                if not has_more:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), LOOK_S if self._topics else IDLE_S)
        finally:
            await self._thread.run(self._producer.close)
            self._thread.close()

    def wake(self) -> None:
        """Nothing to do: the forwarder publishes new records."""

    def stop(self) -> None:
        """Stop once the current batch is finished."""
        self._stopping = True
        self._producer.stop()
        self._woken.set()

    async def _tick(self) -> bool:
        """Retry the topics whose pause is over; True if one made progress and may have more."""
        topics = await self._outbox.held_topics()
        for topic in self._topics.keys() - topics:
            del self._topics[topic]
            self._forwarder.unpark()
        now = self._clock.elapsed()
        has_more = False
        for topic in sorted(topics):
            state = self._topics.setdefault(topic, _Topic(now))
            if now >= state.retry_at:
                has_more |= await self._try(topic, state)
        return has_more

    async def _try(self, topic: str, state: _Topic) -> bool:
        """Publish some records of a topic; True if it made progress."""
        try:
            await self._take_over()
            refusals = await self._publish(topic, state)
        except TopicUnavailable as error:
            self._postpone(topic, state, error.topics.get(topic, str(error)))
            return False
        except ProducerFailed as error:
            self._reset()
            refusals = error.refusals
            if not refusals.records:
                self._postpone(topic, state, refusals.topics.get(topic, str(error)))
                return False
        state.pause_s = PAUSE_S_MIN
        await self._miss(topic, refusals.records)
        if topic in refusals.topics:
            self._postpone(topic, state, refusals.topics[topic])
        return topic not in refusals.topics

    def _postpone(self, topic: str, state: _Topic, reason: str) -> None:
        logger.warning("cannot write to the topic %s, trying again in %.0f s: %s", topic, state.pause_s, reason)
        state.retry_at = self._clock.elapsed() + int(state.pause_s * 1_000_000)
        state.pause_s = min(state.pause_s * 2, PAUSE_S_MAX)

    async def _take_over(self) -> None:
        if not self._is_open:
            await self._thread.run(self._producer.take_over)
            await self._outbox.confirm()
            self._is_open = True

    def _reset(self) -> None:
        """Forget the positions: the markers on Kafka tell whether the last batch was committed."""
        self._is_open = False
        for state in self._topics.values():
            state.next = None

    async def _publish(self, topic: str, state: _Topic) -> Refusals:
        """Publish the next records of a topic. Those before its marker are on Kafka already, and only freed."""
        key = f"{self._producer.key}/{topic}"
        if state.next is None:
            marker = await self._thread.run(self._producer.marker, key)
            state.next = 0 if marker is None else marker.next
        records = await self._outbox.held(topic, BATCH_ROWS_MAX)
        unpublished = [record for record in records if record.offset >= state.next]
        if self._producer.has_markers:  # they prove that none of these is on Kafka
            unpublished, records = await self._without_expired(unpublished, records)
        refusals = Refusals()
        if unpublished:
            refusals = await self._thread.run(self._producer.publish, unpublished, key)
        if topic in refusals.topics:
            return refusals
        done = [record for record in records if record.offset not in refusals.records]
        state.next = max([state.next, *(record.offset + 1 for record in done)])
        if published := [record for record in unpublished if record.offset not in refusals.records]:
            await self._forwarder.announce(published)
        if await self._followed_up(topic, done):
            await self._outbox.free([record.offset for record in done])
        return refusals

    async def _without_expired(
        self, unpublished: list[Outgoing], records: list[Outgoing]
    ) -> tuple[list[Outgoing], list[Outgoing]]:
        """Count unpublished records as missed that have expired; returns both lists without them."""
        now = self._clock.now()
        expired = {record.offset for record in unpublished if record.expires is not None and record.expires < now}
        for offset in sorted(expired):
            await self._outbox.drop(offset, "expired", (), now)
            self._on_fact(Missed(now, {"expired": 1}))
        left = [[record for record in each if record.offset not in expired] for each in (unpublished, records)]
        return left[0], left[1]

    async def _followed_up(self, topic: str, records: Sequence[Outgoing]) -> bool:
        """Write history copies and tombstones; False if the node is stopping: the next one writes them.

        The records are on Kafka, so they are freed even if this fails: the topic must not wait for another one.
        """
        if self._follow_up is None:
            return True
        try:
            await self._follow_up.write_parked(topic, records)
        except (ProducerFailed, TopicUnavailable) as error:
            if self._stopping:
                return False
            text = "up to %d releases to %s get no history copy and no tombstone: %s"
            logger.warning(text, len(records), topic, error)
        return True

    async def _miss(self, topic: str, reasons: Mapping[int, str]) -> None:
        """Drop records that a topic refuses while it takes others. Their tenants get a rejection without the value."""
        if not reasons:
            return
        now = self._clock.now()
        for record in await self._outbox.held(topic, BATCH_ROWS_MAX):
            if (reason := reasons.get(record.offset)) is not None:
                word = OF_THE_RECORD[reason]
                logger.warning("%s is missed: the topic %s refuses it: %s", record.id, topic, reason)
                await self._outbox.drop(record.offset, word, [_rejection(record, reason, now)], now)
                self._on_fact(Missed(now, {word: 1}))


def parked_name(lane: int) -> str:
    """The name of the producer for parked topics of a lane. That of lane 0 is `held` for compatibility."""
    return "held" if lane == 0 else f"{lane}-held"


def _rejection(record: Outgoing, reason: str, now: int) -> Add:
    message = unpack(record.message)
    size = len(message.value or b"")
    headers = (
        *(
            header for header in message.headers if header[0] != ID
        ),  # it is not a request: its own header of that name does not count
        ("tidings-source-id", record.id.encode()),
        ("tidings-to", record.topic.encode()),
        ("tidings-reject-reason", f"{reason} (the value has {size} bytes and is left out here)".encode()),
    )
    topic = join("kafka", REFUSED + record.tenant)
    return due_now(record.tenant, topic, pack(Message(message.key, None, headers)), now)
