"""The forwarder: what lies in the outbox goes to Kafka, in order and once, while this process owns its lane."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidings import crash
from tidings.bus.kafka.lane import Lane, LaneLost
from tidings.bus.kafka.markers import PROGRESS
from tidings.bus.kafka.topics import NoTopic
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError, TidingsError
from tidings.domain.facts import Listener, Released
from tidings.domain.schedule import Outgoing
from tidings.ports import Outbox

BATCH_ROWS_MAX = 8_000
AHEAD_ROWS_MIN = 1_000  # a batch of so many is part of a burst: the next is read while it is published
SETTLE_S = 1.0
RETRY_S_MIN = 0.05
RETRY_S_MAX = 2.0
NOT_YET = "not connected to Kafka yet"

T = TypeVar("T")
logger = logging.getLogger("tidings.kafka")


class Estranged(TidingsError):
    """The progress on Kafka does not fit this store: going on would lose or double records."""


class Forwarder:
    """Takes the lane over, then publishes batch after batch. Everything that goes wrong ends in a new take-over."""

    def __init__(self, outbox: Outbox, lane: Lane, clock: Clock, tell: Listener, owns: Callable[[], bool]) -> None:
        self._outbox = outbox
        self._lane = lane
        self._clock = clock
        self._tell = tell
        self._owns = owns
        self._woken = asyncio.Event()
        self._stopping = False
        self._thread = ThreadPoolExecutor(1, "tidings-kafka-lane")
        self._settled = self._marked = 0
        self._suspects: dict[str, str] = {}
        self._trusted = False
        self._pause_s = RETRY_S_MIN
        self.problem: str | None = NOT_YET
        self.failures = self.waiting = 0
        self.has_begun = self.has_ended = False
        self.published: Callable[[Sequence[Outgoing]], None] | None = None

    def wake(self) -> None:
        """There is something in the outbox, or something changed."""
        self._woken.set()

    async def run(self) -> None:
        """Forward until stopped."""
        while not self._stopping:
            if not self._owns():
                await self._rest(0.1)
                continue
            try:
                offset = await self._take_over()
                self._is_well()
                await self._forward(offset)
            except (NotOwner, StoreError):
                await self._rest(0.1)
            except (LaneLost, NoTopic) as error:
                if error.topics and PROGRESS not in error.topics:
                    self._suspects |= error.topics  # nothing of the batch is visible: without these topics it can be
                    continue
                self._lost(str(error))
                with contextlib.suppress(NotOwner, StoreError):
                    await self._count()
                await self._rest(self._pause_s)
                self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
        self.has_ended = True
        await self._on_thread(self._lane.close)
        self._thread.shutdown(wait=False)

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopping = self._lane.stopping = True
        self.wake()

    def _is_well(self) -> None:
        if self.problem is not None:
            logger.info("releases to Kafka")
        self.problem, self.has_begun = None, True

    def _lost(self, reason: str) -> None:
        if self.problem in {None, NOT_YET}:
            logger.warning("does not release to Kafka now, tries again: %s", reason)
        self.problem = reason
        self.failures += 1

    async def _take_over(self) -> int:
        """Where to go on. What the marker says is the truth; the store must agree that it can be."""
        marker = await self._on_thread(self._lane.take_over)
        await self._outbox.confirm()
        first, following = await self._outbox.outbox()
        self._suspects |= dict.fromkeys(await self._outbox.held_topics(), "kept back")
        if marker is None:
            self._marked = first
            return first
        if marker.store != self._lane.store:
            raise Estranged(
                f"the progress on Kafka belongs to another store ({marker.store}): start with that one, or give this"
                " one a name of its own (kafka.name)"
            )
        if not first <= marker.next <= following:
            raise Estranged(
                f"Kafka has records up to {marker.next} of this store, which knows only {first} to {following}: it was"
                " put back to an older state. Start anew with an empty store and another kafka.name"
            )
        self._outbox.arrived(marker.next)
        self._marked = marker.next
        return marker.next

    async def _forward(self, offset: int) -> None:
        settle_at = self._clock.elapsed()
        ahead: list[Outgoing] = []
        while self._owns() and not self._stopping:
            self._woken.clear()
            found = ahead or await self._outbox.outgoing(offset, BATCH_ROWS_MAX)
            records, ahead = await self._without_suspects(found), []
            if found:
                offset = found[-1].offset + 1
            if records:
                publishing = self._start(self._lane.publish, records)
                if len(found) >= AHEAD_ROWS_MIN:
                    ahead = await self._outbox.outgoing(offset, BATCH_ROWS_MAX)
                await publishing
                self._marked, self._pause_s = records[-1].offset + 1, RETRY_S_MIN
                self._outbox.arrived(self._marked)
                self._announce(records)
            if self._clock.elapsed() >= settle_at:
                settle_at = self._clock.elapsed() + int(SETTLE_S * 1_000_000)
                await self._settle()
            if not found:
                await self._rest(SETTLE_S if self._settled < self._marked else 60.0)
        await self._settle()

    async def _without_suspects(self, records: list[Outgoing]) -> list[Outgoing]:
        """Topics that do not take their records hold up nobody else: theirs go another way, in order."""
        if self._trusted:
            self._trusted = False
            still = await self._outbox.held_topics()
            self._suspects = {topic: reason for topic, reason in self._suspects.items() if topic in still}
        if not self._suspects:
            return records
        kept = {record.topic: self._suspects[record.topic] for record in records if record.topic in self._suspects}
        for topic, reason in kept.items():
            await self._outbox.hold([record.offset for record in records if record.topic == topic], reason)
        return [record for record in records if record.topic not in kept]

    def trust(self) -> None:
        """Of some topic nothing is kept back any more. Which, is looked up between two batches: none is on its way."""
        self._trusted = True

    async def _settle(self) -> None:
        await self._count()
        if self._marked > self._settled:
            await self._outbox.settle(self._marked)
            crash.point("kafka.settled")
            self._settled = self._marked

    async def _count(self) -> None:
        """How much waits to be on Kafka."""
        first, following = await self._outbox.outbox()
        self.waiting = following - max(first, self._marked)

    def _announce(self, records: list[Outgoing]) -> None:
        now = self._clock.now()
        lateness_us = [now - record.due for record in records]
        topics = frozenset({(record.tenant, f"kafka:{record.topic}") for record in records})
        self._tell(Released(now, lateness_us, topics))
        if self.published is not None:
            self.published(records)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    def _start(self, work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await self._start(work, *arguments)


class Ways:
    """The ways of all lanes as one, for those who watch; those of lanes that were lost still count."""

    def __init__(self) -> None:
        self._forwarders: dict[int, Forwarder] = {}
        self._failures = 0

    def add(self, forwarder: Forwarder, number: int) -> None:
        """The way of a lane that was gained."""
        former = self._forwarders.get(number)
        self._failures += former.failures if former is not None else 0
        self._forwarders[number] = forwarder

    @property
    def problem(self) -> str | None:
        """What one of them waits for."""
        problems = (forwarder.problem for forwarder in self._forwarders.values() if not forwarder.has_ended)
        return next((problem for problem in problems if problem is not None), None)

    @property
    def have_begun(self) -> bool:
        """Whether Kafka's progress was seen to be that of our store, on one lane at least."""
        return any(forwarder.has_begun for forwarder in self._forwarders.values())

    @property
    def waiting(self) -> int:
        """How much waits to be on Kafka."""
        return sum(forwarder.waiting for forwarder in self._forwarders.values() if not forwarder.has_ended)

    @property
    def failures(self) -> int:
        """How many transactions failed and led to a new take-over."""
        return self._failures + sum(forwarder.failures for forwarder in self._forwarders.values())
