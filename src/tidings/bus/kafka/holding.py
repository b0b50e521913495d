"""What Kafka does not take: kept back by topic, tried again with growing pauses, on a lane of its own."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidings.bus.kafka.forwarder import Forwarder
from tidings.bus.kafka.lane import Lane, LaneLost
from tidings.bus.kafka.topics import NoTopic
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
BATCH_ROWS_MAX = 500
TOO_LARGE = "too_large"

T = TypeVar("T")
logger = logging.getLogger("tidings.kafka")


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
        self._next: dict[str, tuple[int, float]] = {}  # by topic: when to try again, and the pause after that
        self._alone: set[str] = set()  # topics with a record that may be too large: one by one

    async def run(self) -> None:
        """Try until stopped."""
        while not self._stopped.is_set():
            with contextlib.suppress(NotOwner, StoreError):
                if self._owns():
                    await self._look()
                else:
                    self._taken = False
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

    async def _look(self) -> None:
        topics = {record.topic for record in await self._outbox.held()}
        for topic in self._next.keys() - topics:
            del self._next[topic]
            self._alone.discard(topic)
            self._forwarder.trust(topic)
        now = self._clock.elapsed()
        for topic in sorted(topics):
            at, pause_s = self._next.get(topic, (now, PAUSE_S_MIN))
            if now >= at:
                await self._try(topic, pause_s)

    async def _try(self, topic: str, pause_s: float) -> None:
        try:
            if not self._taken:
                await self._on_thread(self._lane.take_over)
                await self._outbox.confirm()
                self._taken = True
            await self._publish(topic)
            self._next[topic] = (self._clock.elapsed(), PAUSE_S_MIN)
        except (LaneLost, NoTopic) as error:
            self._taken = isinstance(error, NoTopic)
            reason = error.topics.get(topic, str(error))
            logger.warning("%s does not take what is for it, tries again in %.0f s: %s", topic, pause_s, reason)
            if topic in error.topics and "arge" in reason:
                await self._too_large(topic, reason)
            self._next[topic] = (self._clock.elapsed() + int(pause_s * 1_000_000), min(pause_s * 2, PAUSE_S_MAX))

    async def _publish(self, topic: str) -> None:
        """The next records of a topic; those that a marker shows to be there already are only freed."""
        key = f"{self._lane.key}/{topic}"
        marker = await self._on_thread(self._lane.marker, key)
        records = await self._outbox.held(topic, 1 if topic in self._alone else BATCH_ROWS_MAX)
        there = [record for record in records if marker is not None and record.offset < marker.next]
        rest = records[len(there) :]
        if rest:
            await self._on_thread(self._lane.publish, rest, key)
            now = self._clock.now()
            late = [now - record.due for record in rest]
            self._tell(Released(now, late, frozenset({(rest[0].tenant, join("kafka", topic))})))
            if self._forwarder.published is not None:
                self._forwarder.published(rest)
        await self._outbox.free([record.offset for record in records])

    async def _too_large(self, topic: str, reason: str) -> None:
        """Find the record by going one by one; it is missed, and its tenant is told without its value."""
        if topic not in self._alone:
            self._alone.add(topic)
            self._next[topic] = (0, PAUSE_S_MIN)
            return
        (record,) = await self._outbox.held(topic, 1)
        now = self._clock.now()
        await self._outbox.drop(record.offset, TOO_LARGE, [_rejection(record, reason, now)], now)
        self._tell(Missed(now, {TOO_LARGE: 1}))

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
