"""A batch of records on its way to be one transaction of the store."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from confluent_kafka import KafkaException

from tidings import crash
from tidings.bus.kafka.client import BlockingThread, Cluster
from tidings.bus.kafka.producers import LaneLost
from tidings.bus.kafka.topics import NoTopic
from tidings.delivery.notifying import Notifying
from tidings.domain.errors import Invalid, Moved, NotOwner, StoreError
from tidings.domain.facts import Refused
from tidings.domain.names import DEFAULT_TENANT
from tidings.domain.schedules.command import Add, Cancel, Command, Fire, Outcome, Pause, Replace, Resume, due_now
from tidings.domain.schedules.schedule import Message, join, pack
from tidings.edges.kafka.notifications import NotificationIntake, wanted
from tidings.edges.kafka.request_reader import Reader, Reading
from tidings.edges.kafka.request_topics import Positions, ReadFailed, TopicCreation
from tidings.engine import Engine
from tidings.ports import SourcePosition
from tidings.wires.kaspr import Kaspr
from tidings.wires.record import Ask, Nothing, Record, Refusal, Rejection, Tell
from tidings.wires.requests import Requests
from tidings.wires.wire import Wire, told

# Of a record that was to schedule something: what came of it instead.
NOT_TAKEN = {
    "rejected": "{reason}",
    "cancelled": "the schedule of this id was cancelled: use another id",
    "already_released": "the schedule of this id was released already: use another id",
    "in_flight": "the schedule of this id is on its way already: use another id",
    "unknown": "there is no schedule of this id, and its form is that of ids which Tidings makes: use another id",
}

CANNOT_BE_READ = "cannot be read: this is a fault of Tidings, whose log tells more"

logger = logging.getLogger("tidings.kafka")


class Batch:
    """Records as commands. What is refused is told on its rejection topic, in the same transaction.

    Notifications are not among the commands: they are to be accepted before.

    Whatever goes wrong with a record is its own affair: it is refused, and the partition goes on.

    Made on the reader's thread, while the batch before is stored: what it has to tell waits in `refused`.
    """

    def __init__(self, engine: Engine, wire_of: Callable[[str], Wire | None], reading: Reading) -> None:
        records, self.starts = reading
        self._engine = engine
        self._now = engine.clock.now()
        self.ends = {(record.topic, record.partition): record.offset + 1 for record in records}
        self.refused: list[Refused] = []
        self.rejections: list[Command] = []  # all of them, once it is stored
        self._unread: list[Command] = []
        self._accepting = NotificationIntake(self._refuse)
        self._asked: list[tuple[Wire, Record]] = []
        self.commands: list[Command] = []
        for record in records:
            wire = wire_of(record.topic)
            command = None if wire is None else self._command(wire, record)
            if wire is not None and command is not None:
                self._asked.append((wire, record))
                self.commands.append(command)

    async def accept(self, notifying: Notifying) -> None:
        """Accept its notifications; called again after the store failed, those that are left."""
        await self._accepting.accept(notifying)

    def follow(self, outcomes: Sequence[Outcome]) -> list[Command]:
        """The rejections: of what could not be read or accepted, and of what could not be taken."""
        self.rejections = list(self._unread)
        for (wire, record), command, outcome in zip(self._asked, self.commands, outcomes, strict=True):
            if outcome.outcome in NOT_TAKEN and isinstance(command, Add | Replace):
                refusal = _refusal(wire, wire.tenant_of(record.topic) or "", outcome)
                self.rejections.append(self._rejection(wire, record, refusal))
        return self.rejections

    def _command(self, wire: Wire, record: Record) -> Command | None:
        try:
            return self._asked_for(wire, record)
        except Exception:
            logger.exception("%s/%d/%d cannot be read", record.topic, record.partition, record.offset)
            tenant = wire.tenant_of(record.topic) or DEFAULT_TENANT
            self._refuse(wire, record, Refusal(tenant, (CANNOT_BE_READ,)), "record")
            return None

    def _asked_for(self, wire: Wire, record: Record) -> Command | None:
        answer = wire.read(record)
        if isinstance(answer, Nothing):
            return None
        if isinstance(answer, Refusal):
            self._refuse(wire, record, answer, "record")
            return None
        try:
            if isinstance(answer, Tell):
                self._accepting.add(wanted(wire, record, answer))
                return None
            return self._of(answer)
        except Invalid as invalid:
            self._refuse(wire, record, wire.refuse(answer.tenant, invalid), invalid.field)
            return None

    def _refuse(self, wire: Wire, record: Record, refusal: Refusal, field: str) -> None:
        source = record.topic, record.partition, record.offset
        self.refused.append(Refused(self._now, refusal.tenant, field, refusal.reasons, source))
        self._unread.append(self._rejection(wire, record, refusal))

    def _of(self, ask: Ask) -> Command:
        match ask.verb:
            case "add":
                assert ask.request is not None, "a wire gives what is to be scheduled"
                return self._engine.command(ask.tenant, ask.request, self._now, reuse=ask.reuse)
            case "replace":
                assert ask.request is not None, "a wire gives what is to be scheduled"
                add = self._engine.command(ask.tenant, ask.request, self._now, new=False)
                return Replace(add, ask.reuse, ask.keep_count)
            case "cancel":
                return Cancel(ask.tenant, ask.id)
            case "pause":
                return Pause(ask.tenant, ask.id)
            case "resume":
                return Resume(ask.tenant, ask.id, ask.missed)
            case "fire":
                return Fire(ask.tenant, ask.id)

    def _rejection(self, wire: Wire, record: Record, refusal: Refusal) -> Add:
        """A rejection is a schedule like any other, due now. If all else fails it has no headers but our own."""
        try:
            return self._due(refusal.tenant, wire.rejection(record, refusal))
        except Exception:
            logger.exception("%s/%d/%d cannot be told as it came", record.topic, record.partition, record.offset)
            plain = Rejection(wire.rejections(refusal.tenant), record.key, record.value, told(record, refusal))
            return self._due(refusal.tenant, plain)

    def _due(self, tenant: str, rejection: Rejection) -> Add:
        topic, key, value, headers = rejection
        return due_now(tenant, join("kafka", topic), pack(Message(key, value, headers)), self._now)


def _refusal(wire: Wire, tenant: str, outcome: Outcome) -> Refusal:
    """Why something was not taken, in the words of its wire where it was wrong in itself."""
    if (invalid := outcome.invalid()) is not None:
        return wire.refuse(tenant, invalid)
    return Refusal(tenant, (NOT_TAKEN[outcome.outcome].format(reason=outcome.reason or "rejected"),))


BATCH_RECORDS_MAX = 1_000
RETRY_S = 0.5
WAIT_S = 0.1
COMMIT_US = 5_000_000


class KafkaIntake:
    """Reads what is ours to read; whatever goes wrong, it goes on from where the store stands."""

    def __init__(
        self,
        engine: Engine,
        cluster: Cluster,
        requests: Requests,
        notifying: Notifying,
        may_begin: Callable[[], Awaitable[bool]],
    ) -> None:
        self._engine = engine
        self._may_begin = may_begin
        self._cluster = cluster
        self._wires = requests.wires
        self._notifying = notifying
        self._known: dict[str, Wire] = {}
        self._prepared: set[str] = set()
        self._preparation = TopicCreation(cluster, engine.clock)
        self._first_topics = requests.known_topics if cluster.create_topics else frozenset()
        self._thread = BlockingThread("tidings-kafka-intake")
        self._stopped = asyncio.Event()
        self._committed_at = 0
        self.problem: str | None = None
        self.lag = 0
        self.rejected = 0
        self.apps: frozenset[str] = frozenset()  # tenants that have a request topic of Kaspr's wire
        self._all_topics: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Read until stopped."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._keep_reading()
        finally:
            self._preparation.close()
            self._thread.close()

    async def _keep_reading(self) -> None:
        while not self._stopped.is_set():
            try:
                if not self._engine.readiness()[0] or not await self._may_begin():
                    await self._rest(WAIT_S)
                    continue
                reader = await self._thread.run(self._open)
                self._preparation.want(self._first_topics)
                self._first_topics = frozenset()
            except (LaneLost, NoTopic, KafkaException) as error:
                self._lost(error)
                await self._rest(RETRY_S)
                continue
            try:
                await self._take(reader)
            except (NotOwner, ReadFailed, StoreError, KafkaException) as error:
                self._lost(error)
                await self._rest(RETRY_S)
            finally:
                await self._thread.run(reader.close)

    def _lost(self, error: Exception) -> None:
        """Said once: while Kafka is away it is tried again and again."""
        if self.problem is None:
            logger.warning("does not read requests from Kafka now, tries again: %s", error)
        self.problem = str(error)

    def _hear(self, reader: Reader) -> None:
        """Kafka answers, whether there was anything to read or not; but perhaps only that nothing may be read."""
        if reader.problem is None:
            self._is_well()
        else:
            self._lost(ReadFailed(reader.problem))

    def _is_well(self) -> None:
        if self.problem is not None:
            logger.info("reads requests from Kafka again")
        self.problem = None

    def wake(self) -> None:
        """There is nothing to be woken for: records come when they come."""

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopped.set()

    def _open(self) -> Reader:
        def positions() -> Positions:
            return asyncio.run_coroutine_threadsafe(self._engine.store.positions(), self._loop).result()

        return Reader(self._cluster, positions, self._engine.store.reads, self._engine.clock)

    async def _take(self, reader: Reader) -> None:
        reading = self._thread.start(self._read, reader)
        try:
            while not self._stopped.is_set():
                batch = await reading
                self._hear(reader)
                self._prepare(reader)
                reading = self._thread.start(self._read, reader)
                try:
                    await self._commit(batch, reader)
                except Moved as moved:
                    logger.info("others took what was read here: %s", moved)
                    stale = batch.starts.keys() | (await reading).starts.keys()
                    await self._thread.run(reader.give_up, stale)
                    reading = self._thread.start(self._read, reader)
                await self._tell_kafka(reader)
        finally:
            await asyncio.wait({reading})
            reading.exception()  # whatever it was, a new reader begins where the store stands

    def _read(self, reader: Reader) -> Batch:
        return Batch(self._engine, self._wire_of, reader.read(BATCH_RECORDS_MAX))

    async def _commit(self, batch: Batch, reader: Reader) -> None:
        """Notifications, then one transaction; while the store is full it is tried again, and nothing more is read."""
        if not batch.ends:
            return
        taken = [
            SourcePosition(reader.source_of(topic), partition, batch.starts[topic, partition], end)
            for (topic, partition), end in batch.ends.items()
        ]
        while True:
            try:
                await batch.accept(self._notifying)
                crash.point("accept.done")
                await self._engine.take(batch.commands, taken, batch.follow)
                break
            except StoreError as error:
                self._lost(error)
                await self._rest(RETRY_S)
                if self._stopped.is_set():
                    return
        reader.store(batch.ends)
        self._is_well()
        self._tell(batch)

    def _tell(self, batch: Batch) -> None:
        """What was refused."""
        self.rejected += len(batch.rejections)
        for fact in batch.refused:
            self._engine.tell(fact)
        if batch.refused:
            first = batch.refused[0]
            text = "refused %d records, told on their rejection topics; the first, of %s: %s"
            logger.warning(text, len(batch.refused), first.source and first.source[0], "; ".join(first.reasons))

    def _prepare(self, reader: Reader) -> None:
        """What tenants that have appeared need: the topics they will be answered on."""
        names: set[str] = set()
        for topic in reader.topics - self._prepared:
            wire = self._wire_of(topic)
            tenant = wire.tenant_of(topic) if wire else None
            if wire is not None and tenant is not None:
                names.update(wire.topics(tenant))
            self._prepared.add(topic)
        self._preparation.want(names)
        if reader.all_topics != self._all_topics:
            self._all_topics = reader.all_topics
            tenants = {self._tenant_of(topic, Kaspr) for topic in self._all_topics}
            self.apps = frozenset(tenant for tenant in tenants if tenant is not None)

    def _tenant_of(self, topic: str, kind: type[Wire]) -> str | None:
        """The tenant whose requests of this wire the topic takes."""
        wire = self._wire_of(topic)
        return wire.tenant_of(topic) if isinstance(wire, kind) else None

    async def _tell_kafka(self, reader: Reader) -> None:
        now = self._engine.clock.elapsed()
        if now - self._committed_at < COMMIT_US:
            return
        self._committed_at = now
        reader.commit()
        self.lag = reader.lag()

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
