"""What Kafka does not take: kept back by topic, tried again with growing pauses, on a lane of its own."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

import msgspec

from tidings.bus.kafka.client import BlockingThread
from tidings.bus.kafka.forwarder import Forwarder
from tidings.bus.kafka.producers import ID, REFUSED, LaneLost, Refusals, TransactionalProducer
from tidings.bus.kafka.topics import OF_THE_RECORD, NoTopic
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Listener, Missed
from tidings.domain.schedules.command import Add, due_now
from tidings.domain.schedules.schedule import Message, Outgoing, join, pack, unpack
from tidings.ports import Outbox

LOOK_S = 0.5
IDLE_S = 5.0  # while nothing is kept back, as far as we know; whoever keeps something back wakes us
PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
BATCH_ROWS_MAX = 1_000

logger = logging.getLogger("tidings.kafka")


class _Topic(msgspec.Struct):
    """A topic that does not take its records: when to try again, and the pause after that."""

    at: int
    pause_s: float = PAUSE_S_MIN
    next: int | None = None  # the first offset that is not there, once it is known


class ParkedTopics:
    """Each topic by itself, in order: nothing new of it goes the usual way before the old is there."""

    problem: str | None = None

    def __init__(
        self,
        outbox: Outbox,
        lane: TransactionalProducer,
        forwarder: Forwarder,
        clock: Clock,
        tell: Listener,
        owns: Callable[[], bool],
    ) -> None:
        self._outbox = outbox
        self._lane = lane
        self._forwarder = forwarder
        self._clock = clock
        self._tell = tell
        self._owns = owns
        self._stopping = False
        self._woken = asyncio.Event()
        forwarder.kept = self._woken.set
        self._thread = BlockingThread("tidings-kafka-holding")
        self._taken = False
        self._topics: dict[str, _Topic] = {}

    async def run(self) -> None:
        """Try until stopped."""
        try:
            while not self._stopping:
                goes_on = False
                self._woken.clear()
                with contextlib.suppress(NotOwner, StoreError):
                    if self._owns():
                        goes_on = await self._look()
                    else:
                        self._let_go()
                if not goes_on:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), LOOK_S if self._topics else IDLE_S)
        finally:
            await self._thread.run(self._lane.close)
            self._thread.close()

    def wake(self) -> None:
        """What is new goes the usual way first."""

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopping = self._lane.stopping = True
        self._woken.set()

    async def _look(self) -> bool:
        """Try what may be tried; True if something left, and more of it may follow at once."""
        topics = await self._outbox.held_topics()
        for topic in self._topics.keys() - topics:
            del self._topics[topic]
            self._forwarder.trust()
        now = self._clock.elapsed()
        goes_on = False
        for topic in sorted(topics):
            kept = self._topics.setdefault(topic, _Topic(now))
            if now >= kept.at:
                goes_on |= await self._try(topic, kept)
        return goes_on

    async def _try(self, topic: str, kept: _Topic) -> bool:
        """True if it came further with a topic."""
        try:
            await self._take_over()
            refusals = await self._publish(topic, kept)
        except NoTopic as error:
            self._put_off(topic, kept, error.topics.get(topic, str(error)))
            return False
        except LaneLost as error:
            self._let_go()
            refusals = error.refusals
            if not refusals.records:
                self._put_off(topic, kept, refusals.topics.get(topic, str(error)))
                return False
        kept.pause_s = PAUSE_S_MIN
        await self._miss(topic, refusals.records)
        if topic in refusals.topics:
            self._put_off(topic, kept, refusals.topics[topic])
        return topic not in refusals.topics

    def _put_off(self, topic: str, kept: _Topic, reason: str) -> None:
        logger.warning("%s does not take what is for it, tries again in %.0f s: %s", topic, kept.pause_s, reason)
        kept.at = self._clock.elapsed() + int(kept.pause_s * 1_000_000)
        kept.pause_s = min(kept.pause_s * 2, PAUSE_S_MAX)

    async def _take_over(self) -> None:
        if not self._taken:
            await self._thread.run(self._lane.take_over)
            await self._outbox.confirm()
            self._taken = True

    def _let_go(self) -> None:
        """Whether what was sent last is there, is for the markers to say."""
        self._taken = False
        for kept in self._topics.values():
            kept.next = None

    async def _publish(self, topic: str, kept: _Topic) -> Refusals:
        """The next records of a topic; those that a marker shows to be there already are only freed."""
        key = f"{self._lane.key}/{topic}"
        if kept.next is None:
            marker = await self._thread.run(self._lane.marker, key)
            kept.next = 0 if marker is None else marker.next
        records = await self._outbox.held(topic, BATCH_ROWS_MAX)
        rest = [record for record in records if record.offset >= kept.next]
        refusals = Refusals()
        if rest:
            refusals = await self._thread.run(self._lane.publish, rest, key)
        if topic in refusals.topics:
            return refusals
        gone = [record for record in records if record.offset not in refusals.records]
        kept.next = max([kept.next, *(record.offset + 1 for record in gone)])
        if told := [record for record in rest if record.offset not in refusals.records]:
            self._forwarder.announce(told)
        if self._forwarder.follow_up is not None:
            await self._forwarder.follow_up.follow_held(topic, gone)
        await self._outbox.free([record.offset for record in gone])
        return refusals

    async def _miss(self, topic: str, reasons: Mapping[int, str]) -> None:
        """These are missed: their topic takes others, but not them. Their tenants are told, without the values."""
        if not reasons:
            return
        now = self._clock.now()
        for record in await self._outbox.held(topic, BATCH_ROWS_MAX):
            if (reason := reasons.get(record.offset)) is not None:
                word = OF_THE_RECORD[reason]
                logger.warning("%s is missed: %s does not take it: %s", record.id, topic, reason)
                await self._outbox.drop(record.offset, word, [_rejection(record, reason, now)], now)
                self._tell(Missed(now, {word: 1}))


def parked_name(lane: int) -> str:
    """The name of the way by which what a lane keeps back goes; of lane 0 it has been `held` from the beginning."""
    return "held" if lane == 0 else f"{lane}-held"


def _rejection(record: Outgoing, reason: str, now: int) -> Add:
    message = unpack(record.message)
    size = len(message.value or b"")
    headers = (
        *(header for header in message.headers if header[0] != ID),  # it is no request: what it says it is counts not
        ("tidings-source-id", record.id.encode()),
        ("tidings-to", record.topic.encode()),
        ("tidings-reject-reason", f"{reason} (the value has {size} bytes and is left out here)".encode()),
    )
    topic = join("kafka", REFUSED + record.tenant)
    return due_now(record.tenant, topic, pack(Message(message.key, None, headers)), now)
