"""Intake from Kafka, exactly once: the schedules and how far was read are one transaction of the store."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
from confluent_kafka import KafkaException

from tidings.bus.kafka.client import Cluster
from tidings.bus.kafka.topics import NoTopic, Topics
from tidings.domain.command import Add, Cancel, Command, Fire, Outcome, Pause, Replace, Resume, due_now
from tidings.domain.destination import join
from tidings.domain.errors import Invalid, Moved, NotOwner, StoreError
from tidings.domain.message import Message, pack
from tidings.edges.kafka.reader import Place, Positions, Reader, ReadFailed
from tidings.engine import Engine
from tidings.ports import Part
from tidings.wires.record import Ask, Record, Refusal
from tidings.wires.wire import Wire

BATCH_RECORDS_MAX = 1_000
RETRY_S = 0.5
COMMIT_US = 5_000_000
PATTERNS = [r"^assignments\..+", r"^.+-schedule-requests$", r"^tidings\.requests\..+"]

T = TypeVar("T")
logger = logging.getLogger("tidings.kafka")


class KafkaIntake:
    """Reads while this process owns the store; whatever goes wrong, it goes on from where the store stands."""

    def __init__(self, engine: Engine, cluster: Cluster, wires: Sequence[Wire], topics: Sequence[str] = ()) -> None:
        self._engine = engine
        self._cluster = cluster
        self._wires = wires
        self._patterns = [*PATTERNS, *topics]
        self._known: dict[str, Wire] = {}
        self._prepared: set[str] = set()
        self._topics = Topics(cluster)
        self._thread = ThreadPoolExecutor(1, "tidings-kafka-intake")
        self._stopped = asyncio.Event()
        self._committed_at = 0
        self.problem: str | None = None
        self.lag = 0

    async def run(self) -> None:
        """Read until stopped."""
        self._loop = asyncio.get_running_loop()
        while not self._stopped.is_set():
            if not self._engine.readiness()[0]:
                await self._rest(RETRY_S)
                continue
            try:
                reader = await self._on_thread(self._open)
            except KafkaException as error:
                self.problem = str(error.args[0])
                await self._rest(RETRY_S)
                continue
            try:
                await self._take(reader)
            except (Moved, NotOwner, ReadFailed, StoreError, KafkaException) as error:
                self.problem = str(error)
                logger.warning("reads the request topics anew: %s", error)
                await self._rest(RETRY_S)
            finally:
                await self._on_thread(reader.close)
        self._thread.shutdown(wait=False)

    def wake(self) -> None:
        """There is nothing to be woken for: records come when they come."""

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopped.set()

    def _open(self) -> Reader:
        def positions() -> Positions:
            return asyncio.run_coroutine_threadsafe(self._engine.store.positions(), self._loop).result()

        return Reader(self._cluster, self._patterns, positions, self._engine.clock)

    async def _take(self, reader: Reader) -> None:
        positions: dict[Place, int] = {}
        reading = self._start(reader.read, BATCH_RECORDS_MAX)
        try:
            while not self._stopped.is_set():
                records = await reading
                self.problem = None  # Kafka answers, whether there was anything to read or not
                await self._prepare(reader)
                reading = self._start(reader.read, BATCH_RECORDS_MAX)
                if records:
                    await self._commit(records, reader, positions)
                    self.problem = None
                await self._tell_kafka(reader, positions)
        finally:
            await asyncio.wait({reading})
            reading.exception()  # whatever it was, a new reader begins where the store stands

    async def _commit(self, records: list[Record], reader: Reader, positions: dict[Place, int]) -> None:
        """One transaction; while the store is full it is tried again, and nothing more is read."""
        ends = {(record.topic, record.partition): record.offset + 1 for record in records}
        taken = []
        for place, end in ends.items():
            taken.append(Part(*place, positions.get(place, reader.start_of(place)), end))
        batch = _Batch(self._engine, self._wire_of, records)
        while True:
            try:
                await self._engine.take(batch.commands, taken, batch.rejected)
                break
            except StoreError as error:
                self.problem = str(error)
                await self._rest(RETRY_S)
                if self._stopped.is_set():
                    return
        positions |= ends

    async def _prepare(self, reader: Reader) -> None:
        """What a tenant that has appeared needs: the topics it will be answered on."""
        for topic in reader.topics - self._prepared:
            wire = self._wire_of(topic)
            tenant = wire.tenant_of(topic) if wire else None
            if wire is not None and tenant is not None:
                try:
                    await self._on_thread(self._topics.ensure, set(wire.topics(tenant)))
                except NoTopic as error:
                    logger.warning("%s", error)
            self._prepared.add(topic)

    async def _tell_kafka(self, reader: Reader, positions: dict[Place, int]) -> None:
        now = self._engine.clock.elapsed()
        if now - self._committed_at < COMMIT_US:
            return
        self._committed_at = now
        reader.commit(positions)
        self.lag = reader.lag(positions)

    def _wire_of(self, topic: str) -> Wire | None:
        wire = self._known.get(topic)
        if wire is None:
            for candidate in self._wires:
                if candidate.tenant_of(topic) is not None:
                    self._known[topic] = wire = candidate
                    break
        return wire

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)

    def _start(self, work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await self._start(work, *arguments)


class _Batch:
    """Records on their way to be commands; what is refused becomes a record on its rejection topic."""

    def __init__(self, engine: Engine, wire_of: Callable[[str], Wire | None], records: list[Record]) -> None:
        self._engine = engine
        self._now = engine.clock.now()
        self._asked: list[tuple[Wire, Record]] = []
        self.commands: list[Command] = []
        for record in records:
            wire = wire_of(record.topic)
            if wire is not None:
                self._asked.append((wire, record))
                self.commands.append(self._command(wire, record))

    def rejected(self, outcomes: Sequence[Outcome]) -> list[Command]:
        """The rejections that follow from what came of the commands."""
        more: list[Command] = []
        for (wire, record), outcome in zip(self._asked, outcomes, strict=True):
            if outcome.outcome == "rejected":
                tenant = wire.tenant_of(record.topic) or ""
                more.append(self._rejection(wire, record, Refusal(tenant, (outcome.reason or "rejected",))))
        return more

    def _command(self, wire: Wire, record: Record) -> Command:
        answer = wire.read(record)
        if isinstance(answer, Refusal):
            return self._rejection(wire, record, answer)
        try:
            return self._of(answer)
        except Invalid as invalid:
            return self._rejection(wire, record, wire.refuse(answer.tenant, invalid))

    def _of(self, ask: Ask) -> Command:
        match ask.verb:
            case "add" | "replace":
                assert ask.request is not None, "a wire gives what is to be scheduled"
                add = self._engine.admit(ask.tenant, ask.request, new=ask.verb == "add", now=self._now)
                if ask.verb == "replace":
                    return Replace(add, ask.reuse)
                return msgspec.structs.replace(add, reuse=True) if ask.reuse else add
            case "cancel":
                return Cancel(ask.tenant, ask.id)
            case "pause":
                return Pause(ask.tenant, ask.id)
            case "resume":
                return Resume(ask.tenant, ask.id)
            case "fire":
                return Fire(ask.tenant, ask.id)

    def _rejection(self, wire: Wire, record: Record, refusal: Refusal) -> Add:
        """A rejection is a schedule like any other, due now."""
        topic, key, value, headers = wire.rejection(record, refusal)
        return due_now(refusal.tenant, join("kafka", topic), pack(Message(key, value, headers)), self._now)
