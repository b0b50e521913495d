"""Turns: how many lanes of a node publish at the same time.

A transaction costs much the same whatever it holds, and holds up every reader of its partitions until it ends. So when
many lanes have something, each waits for its turn and then takes all that has gathered, in fewer and shorter ones.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

from tidings import crash, ports
from tidings.bus.kafka.client import BlockingThread
from tidings.bus.kafka.follow_up import FollowUp
from tidings.bus.kafka.producers import Estranged, LaneLost, TransactionalProducer
from tidings.bus.kafka.progress_marker import Marker
from tidings.bus.kafka.topics import NoTopic
from tidings.clock import Clock
from tidings.domain.errors import NotOwner, StoreError
from tidings.domain.facts import Listener, Released
from tidings.domain.fleet import ranges
from tidings.domain.schedules.schedule import Outgoing, join

AT_ONCE_MAX = 2


class PublishLimit:
    """Given out in the order of asking."""

    def __init__(self, at_once_max: int = AT_ONCE_MAX) -> None:
        self._free = asyncio.Semaphore(at_once_max)

    def turn(self) -> "PublishTurn":
        return PublishTurn(self._free)


class PublishTurn:
    """One lane's. Who takes too long lets the next begin: what holds it up may be its own affair."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._has_it = False

    async def __aenter__(self) -> "PublishTurn":
        await self._free.acquire()
        self._has_it = True
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.pass_on()

    def pass_on(self) -> None:
        """Let another have it."""
        if self._has_it:
            self._has_it = False
            self._free.release()


BATCH_ROWS_MAX = 8_000
AHEAD_ROWS_MIN = 1_000  # a batch of so many is part of a burst: the next is read while it is published
SETTLE_S = 1.0
SLOW_S = 1.0
TOLD_S = 2.0  # lanes that are well within it are told in one line
RETRY_S_MIN = 0.05
RETRY_S_MAX = 2.0
NOT_YET = "not connected to Kafka yet"

logger = logging.getLogger("tidings.kafka")


class Forwarder:
    """Takes the lane over, then publishes batch after batch. Everything that goes wrong ends in a new take-over."""

    def __init__(
        self,
        outbox: ports.Lane,
        lane: TransactionalProducer,
        clock: Clock,
        tell: Listener,
        owns: Callable[[], bool],
        turns: PublishLimit,
    ) -> None:
        self._outbox = outbox
        self._turns = turns
        self._lane = lane
        self._clock = clock
        self._tell = tell
        self._owns = owns
        self._woken = asyncio.Event()
        self._stopping = False
        self._thread = BlockingThread("tidings-kafka-lane")
        self._published = 0  # the offset after the last that is known to be on Kafka
        self._passed = 0  # everything before it is on Kafka, or kept back
        self._settled = 0
        self._suspects: dict[str, str] = {}
        self._trusted = False
        self._pause_s = RETRY_S_MIN
        self.problem: str | None = NOT_YET
        self.failures = self.waiting = 0
        self.has_begun = self.has_ended = False
        self.published: Callable[[Sequence[Outgoing]], None] | None = None
        self.follow_up: FollowUp | None = None
        self.kept: Callable[[], None] = _nobody
        self.well: Callable[[], None] = _nobody
        outbox.shut(True)

    def wake(self) -> None:
        """There is something in the outbox, or something changed."""
        self._woken.set()

    async def run(self) -> None:
        """Forward until stopped."""
        try:
            while not self._stopping:
                await self._live()
        finally:
            self.has_ended = True
            await self._thread.run(self._lane.close)
            self._thread.close()

    async def _live(self) -> None:
        """From a take-over to the next thing that goes wrong."""
        if not self._owns():
            await self._rest(0.1)
            return
        try:
            offset = await self._take_over()
            self._is_well()
            await self._forward(offset)
        except (NotOwner, StoreError):
            await self._rest(0.1)
        except LaneLost as error:
            if error.refusals.topics:  # nothing of the batch is visible: without these topics it can be
                self._suspects |= error.refusals.topics
            else:
                await self._lost(str(error))
        except NoTopic as error:
            await self._lost(str(error))

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopping = self._lane.stopping = True
        self.wake()

    def _is_well(self) -> None:
        if self.problem is not None:
            self.well()
        self.problem, self.has_begun = None, True
        self._outbox.shut(False)

    async def _lost(self, reason: str) -> None:
        if self.problem in {None, NOT_YET}:
            logger.warning("lane %d does not release to Kafka now, tries again: %s", self._outbox.number, reason)
        self.problem = reason
        self.failures += 1
        self._outbox.shut(True)
        with contextlib.suppress(NotOwner, StoreError):
            await self._count()
        await self._rest(self._pause_s)
        self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)

    async def _take_over(self) -> int:
        """Where to go on. What the marker says is the truth; the store must agree that it can be."""
        if not self.has_begun:
            await self._thread.run(self._lane.peek)
        marker = await self._thread.run(self._lane.take_over)
        await self._outbox.confirm()
        first, following = await self._outbox.outbox()
        self._suspects = dict.fromkeys(await self._outbox.held_topics(), "kept back") | self._suspects
        start = max(first, self._published)
        if marker is not None:
            await self._agree(marker, first, following)
            if self.has_begun:
                await self._catch_up(start, marker.next)
            elif self.follow_up is not None:
                await self._catch_up_follow_up(self.follow_up, first, marker.next)
            start = max(start, marker.next)
        elif first and self._lane.is_marked:
            lost = "there is no progress of lane %d on Kafka: what left in the last second may leave again"
            logger.warning(lost, self._outbox.number)
        self._pass(start)
        return start

    async def _agree(self, marker: Marker, first: int, following: int) -> None:
        """What was published last must be what the outbox has there, or had before it was settled."""
        if marker.next <= first:
            return
        found = [] if marker.next > following else await self._outbox.outgoing(marker.next - 1, 1)
        if not found or (marker.last and (found[0].offset, found[0].occurrence) != (marker.next - 1, marker.last)):
            await self._outbox.confirm()  # whoever has taken the lane meanwhile settles what we look for
            raise Estranged(
                f"Kafka has records up to {marker.next} of this store, which has others in their place: it was put back"
                " to an older state. Start anew with an empty store and another kafka.name"
            )

    async def _catch_up(self, start: int, end: int) -> None:
        """Tell of what was committed although we were told otherwise."""
        while start < end and (found := await self._outbox.outgoing(start, BATCH_ROWS_MAX)):
            arrived = [record for record in found if record.offset < end]
            self.announce(arrived)
            if self.follow_up is not None:
                self.follow_up.add(arrived)
            start = found[-1].offset + 1

    async def _catch_up_follow_up(self, follow_up: FollowUp, start: int, end: int) -> None:
        """What a former owner published and did not settle: something may still have to follow it."""
        while start < end and (found := await self._outbox.outgoing(start, BATCH_ROWS_MAX)):
            follow_up.add([record for record in found if record.offset < end])
            start = found[-1].offset + 1

    async def _forward(self, offset: int) -> None:
        settle_at = self._clock.elapsed()
        found: list[Outgoing] = []
        while self._owns() and not self._stopping:
            async with self._turns.turn() as turn:
                self._woken.clear()
                found = found or await self._next(offset)
                is_idle = not found
                if found:
                    try:
                        ahead = await self._publish(await self._without_suspects(found), found, turn)
                    except NoTopic as error:
                        if not error.topics:
                            raise
                        self._suspects |= error.topics  # nothing was begun: the same without these topics
                        continue
                    offset, found = found[-1].offset + 1, ahead
                    self._pass(offset)
            if self._clock.elapsed() >= settle_at:
                settle_at = self._clock.elapsed() + int(SETTLE_S * 1_000_000)
                if not is_idle:
                    await self._count()
                await self._settle()
            if is_idle and not await self._rest(SETTLE_S):
                await self._thread.run(self._lane.check)
        await self._settle()

    async def _next(self, offset: int) -> list[Outgoing]:
        """The next batch; if there is none, all that was handed over is on Kafka or kept back."""
        if found := await self._outbox.outgoing(offset, BATCH_ROWS_MAX):
            return found
        following = await self._count()
        if following > self._passed and not (found := await self._outbox.outgoing(offset, BATCH_ROWS_MAX)):
            self._pass(following)
        return found

    async def _publish(self, records: list[Outgoing], found: list[Outgoing], turn: PublishTurn) -> list[Outgoing]:
        """Publish a batch; answers the next one, if it was worth the while to read it meanwhile."""
        ahead: list[Outgoing] = []
        if not records:
            return ahead
        publishing = self._thread.start(self._lane.publish, records)
        if len(found) >= AHEAD_ROWS_MIN:
            ahead = await self._outbox.outgoing(found[-1].offset + 1, BATCH_ROWS_MAX)
        if not (await asyncio.wait({publishing}, timeout=SLOW_S))[0]:
            self._outbox.shut(True)  # what is due may be wanted no more by the time that Kafka answers
            turn.pass_on()
        refusals = await publishing
        self._outbox.shut(False)
        self._suspects |= refusals.topics
        records = await self._without_suspects(records)
        self._pause_s = RETRY_S_MIN
        if records:
            self._published = records[-1].offset + 1
            self.announce(records)
            if self.follow_up is not None:
                self.follow_up.add(records)
        return ahead

    async def _without_suspects(self, records: list[Outgoing]) -> list[Outgoing]:
        """Topics that do not take their records hold up nobody else: theirs go another way, in order."""
        if self._trusted:
            self._trusted = False
            still = await self._outbox.held_topics()
            self._suspects = {topic: reason for topic, reason in self._suspects.items() if topic in still}
        kept: dict[str, list[int]] = {}
        for record in records if self._suspects else ():
            if record.topic in self._suspects:
                kept.setdefault(self._suspects[record.topic], []).append(record.offset)
        for reason, offsets in kept.items():
            await self._outbox.hold(offsets, reason)
            self.kept()
        return [record for record in records if record.topic not in self._suspects] if kept else records

    def trust(self) -> None:
        """Of some topic nothing is kept back any more. Which, is looked up between two batches: none is on its way."""
        self._trusted = True

    def _pass(self, offset: int) -> None:
        """Everything before it is on Kafka, or kept back."""
        self._passed = max(self._passed, offset)
        self._outbox.arrived(self._passed)

    async def _settle(self) -> None:
        waiting = None if self.follow_up is None else self.follow_up.first
        passed = self._passed if waiting is None else min(self._passed, waiting)
        if passed > self._settled:
            await self._outbox.settle(passed)
            crash.point("kafka.settled")
            self._settled = passed

    async def _count(self) -> int:
        """How much waits to be on Kafka; answers the next offset that will be given."""
        first, following = await self._outbox.outbox()
        self.waiting = following - max(first, self._passed)
        return following

    def announce(self, records: Sequence[Outgoing]) -> None:
        """These are on Kafka."""
        now = self._clock.now()
        lateness_us = [now - record.due for record in records]
        topics = frozenset({(record.tenant, join("kafka", record.topic)) for record in records})
        self._tell(Released(now, lateness_us, topics, Counter([record.tenant for record in records])))
        if self.published is not None:
            self.published(records)

    async def _rest(self, seconds: float) -> bool:
        """True if it was woken."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._woken.wait(), seconds)
        return False


def _nobody() -> None:
    """Nobody waits for it."""


class Ways:
    """The ways of all lanes as one, for those who watch; those of lanes that were lost still count."""

    def __init__(self) -> None:
        self._forwarders: dict[int, Forwarder] = {}
        self._failures = 0
        self._well: set[int] = set()

    def add(self, forwarder: Forwarder, number: int) -> None:
        """The way of a lane that was gained."""
        former = self._forwarders.get(number)
        self._failures += former.failures if former is not None else 0
        self._forwarders[number] = forwarder
        forwarder.well = partial(self._is_well, number)

    def _is_well(self, number: int) -> None:
        """Many lanes are well at almost the same time: they are told together."""
        if not self._well:
            asyncio.get_running_loop().call_later(TOLD_S, self._tell_well)
        self._well.add(number)

    def _tell_well(self) -> None:
        logger.info("releases to Kafka, lanes %s", ranges(sorted(self._well)))
        self._well.clear()

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
