"""What Kafka does not take: kept back by topic, tried again with growing pauses, on a lane of its own."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from tidings.bus.kafka.forwarder import Forwarder
from tidings.bus.kafka.lane import Lane, LaneLost
from tidings.bus.kafka.topics import OF_THE_RECORD, NoTopic
from tidings.clock import Clock
from tidings.domain.command import Add, due_now
from tidings.domain.destination import join
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Listener, Missed, Released
from tidings.domain.message import Message, pack, unpack
from tidings.domain.schedule import Outgoing
from tidings.ports import Outbox

LOOK_S = 0.5
PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
BATCH_ROWS_MAX = 1_000

T = TypeVar("T")
logger = logging.getLogger("tidings.kafka")


class _Topic(msgspec.Struct):
    """A topic that does not take its records: when to try again, the pause after that, and how many at once."""

    at: int
    pause_s: float = PAUSE_S_MIN
    rows: int = BATCH_ROWS_MAX
    next: int | None = None  # the first offset that is not there, once it is known


class Holding:
    """Each topic by itself, in order: nothing new of it goes the usual way before the old is there."""

    problem: str | None = None

    def __init__(
        self, outbox: Outbox, lane: Lane, forwarder: Forwarder, clock: Clock, tell: Listener, owns: Callable[[], bool]
    ) -> None:
        self._outbox = outbox
        self._lane = lane
        self._forwarder = forwarder
        self._clock = clock
        self._tell = tell
        self._owns = owns
        self._stopped = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "tidings-kafka-holding")
        self._taken = False
        self._topics: dict[str, _Topic] = {}

    async def run(self) -> None:
        """Try until stopped."""
        while not self._stopped.is_set():
            goes_on = False
            with contextlib.suppress(NotOwner, StoreError):
                if self._owns():
                    goes_on = await self._look()
                else:
                    self._let_go()
            if not goes_on:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), LOOK_S)
        await self._on_thread(self._lane.close)
        self._thread.shutdown(wait=False)

    def wake(self) -> None:
        """What is new goes the usual way first."""

    def stop(self) -> None:
        """End after the batch in hand."""
        self._lane.stopping = True
        self._stopped.set()

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
        try:
            await self._take_over()
            await self._publish(topic, kept)
        except (LaneLost, NoTopic) as error:
            if isinstance(error, LaneLost):
                self._let_go()
            reason = error.topics.get(topic, str(error))
            if reason in OF_THE_RECORD:
                await self._narrow(topic, kept, reason)
                return True
            logger.warning("%s does not take what is for it, tries again in %.0f s: %s", topic, kept.pause_s, reason)
            kept.at = self._clock.elapsed() + int(kept.pause_s * 1_000_000)
            kept.pause_s = min(kept.pause_s * 2, PAUSE_S_MAX)
            return False
        kept.pause_s, kept.rows = PAUSE_S_MIN, min(kept.rows * 2, BATCH_ROWS_MAX)
        return True

    async def _take_over(self) -> None:
        if not self._taken:
            await self._on_thread(self._lane.take_over)
            await self._outbox.confirm()
            self._taken = True

    def _let_go(self) -> None:
        """Whether what was sent last is there, is for the markers to say."""
        self._taken = False
        for kept in self._topics.values():
            kept.next = None

    async def _publish(self, topic: str, kept: _Topic) -> None:
        """The next records of a topic; those that a marker shows to be there already are only freed."""
        key = f"{self._lane.key}/{topic}"
        if kept.next is None:
            marker = await self._on_thread(self._lane.marker, key)
            kept.next = 0 if marker is None else marker.next
        records = await self._outbox.held(topic, kept.rows)
        rest = [record for record in records if record.offset >= kept.next]
        if rest:
            await self._on_thread(self._lane.publish, rest, key)
            kept.next = rest[-1].offset + 1
            now = self._clock.now()
            late = [now - record.due for record in rest]
            self._tell(Released(now, late, frozenset({(record.tenant, join("kafka", topic)) for record in rest})))
            if self._forwarder.published is not None:
                self._forwarder.published(rest)
        await self._outbox.free([record.offset for record in records])

    async def _narrow(self, topic: str, kept: _Topic, reason: str) -> None:
        """Find the record at fault by trying fewer; alone it is missed, and its tenant is told without its value."""
        if kept.rows > 1:
            kept.rows = max(1, kept.rows // 8)
            return
        (record,) = await self._outbox.held(topic, 1)
        now = self._clock.now()
        word = OF_THE_RECORD[reason]
        logger.warning("%s is missed: %s does not take it: %s", record.id, topic, reason)
        await self._outbox.drop(record.offset, word, [_rejection(record, reason, now)], now)
        self._tell(Missed(now, {word: 1}))

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def held_name(lane: int) -> str:
    """The name of the way by which what a lane keeps back goes; of lane 0 it has been `held` from the beginning."""
    return "held" if lane == 0 else f"{lane}-held"


def _rejection(record: Outgoing, reason: str, now: int) -> Add:
    message = unpack(record.message)
    size = len(message.value or b"")
    headers = (
        *message.headers,
        ("tidings-source-id", record.id.encode()),
        ("tidings-to", record.topic.encode()),
        ("tidings-reject-reason", f"{reason} (the value has {size} bytes and is left out here)".encode()),
    )
    topic = join("kafka", f"tidings.rejections.{record.tenant}")
    return due_now(record.tenant, topic, pack(Message(message.key, None, headers)), now)
