"""Intake of requests from Kafka, exactly once: commands and read positions are committed in one transaction.

A batch of records becomes commands, notifications and rejections. Notifications are accepted before the transaction,
because accepting one again changes nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from confluent_kafka import KafkaException

from tidings import crash
from tidings.bus.kafka.producers import ProducerFailed
from tidings.bus.kafka.topics import BlockingThread, Cluster, TopicUnavailable
from tidings.delivery.accept.acceptance import Acceptance
from tidings.domain.errors import Invalid, Moved, NotOwner, StoreError
from tidings.domain.facts import Refused
from tidings.domain.names import DEFAULT_TENANT
from tidings.domain.schedules.command import (
    FINISHED,
    Add,
    Cancel,
    Command,
    CommandBatch,
    Fire,
    Outcome,
    Pause,
    Replace,
    Resume,
    due_now,
)
from tidings.domain.schedules.schedule import Message, join, pack
from tidings.edges.kafka.notifications import NotificationIntake
from tidings.edges.kafka.notifications import decode as decode_notification
from tidings.edges.kafka.request_reader import Reader, Reading
from tidings.edges.kafka.request_topics import Positions, ReadFailed, Requests, TopicCreation
from tidings.engine import Engine
from tidings.ports import SourcePosition
from tidings.wires.kaspr import Kaspr
from tidings.wires.record import Ask, Nothing, NotifyAsk, Record, Refusal, Rejection, since_of
from tidings.wires.wire import Wire, refusal_headers

# Outcomes by which a request to schedule is rejected, with the reason.
REJECTED_OUTCOMES = {
    "rejected": "{reason}",
    "cancelled": "the schedule with this id was cancelled: use another id",
    "already_released": "the schedule with this id is already released: use another id",
    "in_flight": "the schedule with this id is already in flight: use another id",
    "unknown": "there is no schedule with this id, and ids of this form are made by Tidings: use another id",
}

UNREADABLE = "cannot be read because of an error in Tidings: see its log"

logger = logging.getLogger("tidings.kafka")


class Batch:
    """Records turned into commands. Rejections of refused records are written in the same transaction.

    Notifications are not among the commands: `accept` is called before. An error in one record refuses that record
    only. A batch is built on the reader's thread while the one before is committed, so facts wait in `refused`.
    """

    def __init__(self, engine: Engine, wire_of: Callable[[str], Wire | None], reading: Reading) -> None:
        records, self.starts = reading
        self._engine = engine
        self._now = engine.clock.now()
        self.ends = {(record.topic, record.partition): record.offset + 1 for record in records}
        self.refused: list[Refused] = []
        self.rejections: list[Command] = []  # complete once the batch is committed
        self._early_rejections: list[Command] = []  # of records that gave no command
        self._notifications = NotificationIntake(self._refuse)
        self._sources: list[tuple[Wire, Record]] = []  # of each command
        self.commands = CommandBatch()
        for record in records:
            wire = wire_of(record.topic)
            if wire is not None and self._add(wire, record):
                self._sources.append((wire, record))

    async def accept(self, notifying: Acceptance) -> None:
        """Accept the notifications of the batch; another call after a failure of the store continues."""
        await self._notifications.accept(notifying)

    def on_outcomes(self, outcomes: Sequence[Outcome]) -> list[Command]:
        """The rejections, as commands: of records that could not be read or accepted, and of rejected commands."""
        self.rejections = list(self._early_rejections)
        for index, outcome in enumerate(outcomes):
            if outcome.outcome in REJECTED_OUTCOMES and _is_refused(self.commands[index], outcome):
                wire, record = self._sources[index]
                refusal = _refusal(wire, wire.tenant_of(record.topic) or "", outcome)
                self.rejections.append(self._rejection(wire, record, refusal))
        return self.rejections

    def _add(self, wire: Wire, record: Record) -> bool:
        """Add the command of a record; False if it has none."""
        try:
            if self._add_plain(wire, record):
                return True
            command = self._decode(wire, record)
        except Exception:
            logger.exception("%s/%d/%d cannot be read", record.topic, record.partition, record.offset)
            tenant = wire.tenant_of(record.topic) or DEFAULT_TENANT
            self._refuse(wire, record, Refusal(tenant, (UNREADABLE,)), "record")
            return False
        if command is not None:
            self.commands.append(command)
        return command is not None

    def _add_plain(self, wire: Wire, record: Record) -> bool:
        """Add the command of a plain request to the columns; False if `_decode` must look at the record."""
        tenant = wire.cached_tenant_of(record.topic)
        if tenant is None or record.unreadable:
            return False
        plain = wire.plain(tenant, record)
        return plain is not None and self._engine.admission.admit_plain(self.commands, tenant, plain, self._now)

    def _decode(self, wire: Wire, record: Record) -> Command | None:
        """The command of a record; None if it has none, because it is refused or asks for a notification."""
        answer = wire.read(record)
        if isinstance(answer, Nothing):
            return None
        if isinstance(answer, Refusal):
            self._refuse(wire, record, answer, "record")
            return None
        try:
            if isinstance(answer, NotifyAsk):
                self._notifications.add(decode_notification(wire, record, answer))
                return None
            return self._to_command(self._sent(answer, record))
        except Invalid as invalid:
            self._refuse(wire, record, wire.refuse(answer.tenant, invalid), invalid.field)
            return None

    def _sent(self, ask: Ask, record: Record) -> Ask:
        """With `past: refuse`, compare the time with the record's timestamp: it may be read late."""
        request = ask.request
        if request is None or request.since is not None or not isinstance(request.at, int):
            return ask
        if (request.past or self._engine.settings.past) != "refuse":
            return ask
        return msgspec.structs.replace(ask, request=msgspec.structs.replace(request, since=since_of(record)))

    def _refuse(self, wire: Wire, record: Record, refusal: Refusal, field: str) -> None:
        source = record.topic, record.partition, record.offset
        self.refused.append(Refused(self._now, refusal.tenant, field, refusal.reasons, source))
        self._early_rejections.append(self._rejection(wire, record, refusal))

    def _to_command(self, ask: Ask) -> Command:
        match ask.verb:
            case "add":
                assert ask.request is not None, "an add has a request"
                return self._engine.command(ask.tenant, ask.request, self._now, reuse=ask.reuse)
            case "replace":
                assert ask.request is not None, "a replace has a request"
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
        """A rejection is a schedule that is due now. If the record's headers cannot be sent, it has only our own."""
        try:
            return self._due(refusal.tenant, wire.rejection(record, refusal))
        except Exception:
            logger.exception(
                "the rejection of %s/%d/%d leaves out its headers", record.topic, record.partition, record.offset
            )
            plain = Rejection(
                wire.rejections(refusal.tenant), record.key, record.value, refusal_headers(record, refusal)
            )
            return self._due(refusal.tenant, plain)

    def _due(self, tenant: str, rejection: Rejection) -> Add:
        topic, key, value, headers = rejection
        return due_now(tenant, join("kafka", topic), pack(Message(key, value, headers)), self._now)


def _is_refused(command: Command, outcome: Outcome) -> bool:
    """Whether a rejection is written for the sender: nothing was scheduled, or the change is not allowed."""
    if isinstance(command, Add | Replace):
        return outcome.outcome in REJECTED_OUTCOMES
    return outcome.outcome == "rejected" and outcome.state not in FINISHED


def _refusal(wire: Wire, tenant: str, outcome: Outcome) -> Refusal:
    """Why a command was rejected; where the request was invalid, in the terms of its wire."""
    if outcome.field is not None:
        return wire.refuse(tenant, outcome.invalid())
    return Refusal(tenant, (REJECTED_OUTCOMES[outcome.outcome].format(reason=outcome.reason or "rejected"),))


BATCH_RECORDS_MAX = 1_000
RETRY_S = 0.5
WAIT_S = 0.1
COMMIT_US = 5_000_000


class KafkaIntake:
    """Reads the request topics of this node. After any failure it continues from the positions in the store."""

    def __init__(
        self,
        engine: Engine,
        cluster: Cluster,
        requests: Requests,
        notifying: Acceptance,
        may_begin: Callable[[], Awaitable[bool]],
    ) -> None:
        self._engine = engine
        self._may_begin = may_begin
        self._cluster = cluster
        self._wires = requests.wires
        self._notifying = notifying
        self._known: dict[str, Wire] = {}
        self._prepared: set[str] = set()
        self._creation = TopicCreation(cluster, engine.clock)
        self._first_topics = requests.known_topics if cluster.create_topics else frozenset()
        self._thread = BlockingThread("tidings-kafka-intake")
        self._stopped = asyncio.Event()
        self._committed_at = 0
        self.problem: str | None = None
        self.lag = 0
        self.rejected = 0
        self.apps: frozenset[str] = frozenset()  # tenants with a request topic of Kaspr's wire
        self._all_topics: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Read until stopped."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._keep_reading()
        finally:
            self._creation.close()
            self._thread.close()

    async def _keep_reading(self) -> None:
        while not self._stopped.is_set():
            try:
                if not self._engine.readiness()[0] or not await self._may_begin():
                    await self._rest(WAIT_S)
                    continue
                reader = await self._thread.run(self._open)
                self._creation.request(self._first_topics)
                self._first_topics = frozenset()
            except (ProducerFailed, TopicUnavailable, KafkaException) as error:
                self._failed(error)
                await self._rest(RETRY_S)
                continue
            try:
                await self._take(reader)
            except (NotOwner, ReadFailed, StoreError, KafkaException) as error:
                self._failed(error)
                await self._rest(RETRY_S)
            finally:
                await self._thread.run(reader.close)

    def report_problem(self, reason: str) -> None:
        """Set the problem that is shown while no requests are read."""
        self.problem = reason

    def _failed(self, error: Exception) -> None:
        """Log a failure once, not at every retry."""
        if self.problem is None:
            logger.warning("cannot read requests from Kafka, trying again: %s", error)
        self.problem = str(error)

    def _check_problem(self, reader: Reader) -> None:
        """Clear the problem after a read, with or without records, unless no topic can be read."""
        if reader.problem is None:
            self._recovered()
        else:
            self._failed(ReadFailed(reader.problem))

    def _recovered(self) -> None:
        if self.problem is not None:
            logger.info("reads requests from Kafka again")
        self.problem = None

    def wake(self) -> None:
        """Nothing to do: the reader polls Kafka."""

    def stop(self) -> None:
        """Stop once the current batch is finished."""
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
                self._check_problem(reader)
                self._create_topics(reader)
                reading = self._thread.start(self._read, reader)
                try:
                    await self._commit(batch, reader)
                except Moved as moved:
                    logger.info("another node has taken these partitions: %s", moved)
                    stale = batch.starts.keys() | (await reading).starts.keys()
                    await self._thread.run(reader.give_up, stale)
                    reading = self._thread.start(self._read, reader)
                self._commit_to_kafka(reader)
        finally:
            await asyncio.wait({reading})
            reading.exception()  # ignored: a new reader starts at the positions in the store

    def _read(self, reader: Reader) -> Batch:
        return Batch(self._engine, self._wire_of, reader.read(BATCH_RECORDS_MAX))

    async def _commit(self, batch: Batch, reader: Reader) -> None:
        """Accept the notifications, then commit the rest. Retries while the store fails; no more is read meanwhile."""
        if not batch.ends:
            return
        positions = [
            SourcePosition(reader.source_of(topic), partition, batch.starts[topic, partition], end)
            for (topic, partition), end in batch.ends.items()
        ]
        while True:
            try:
                await batch.accept(self._notifying)
                crash.point("accept.done")
                await self._engine.take(batch.commands, positions, batch.on_outcomes)
                break
            except StoreError as error:
                self._failed(error)
                await self._rest(RETRY_S)
                if self._stopped.is_set():
                    return
        reader.store(batch.ends)
        self._recovered()
        self._publish_refusals(batch)

    def _publish_refusals(self, batch: Batch) -> None:
        self.rejected += len(batch.rejections)
        for fact in batch.refused:
            self._engine.publish(fact)
        if batch.refused:
            first = batch.refused[0]
            text = "refused %d records, see their rejection topics; the first, of %s: %s"
            logger.warning(text, len(batch.refused), first.source and first.source[0], "; ".join(first.reasons))

    def _create_topics(self, reader: Reader) -> None:
        """Create the response topics of tenants whose request topics were found."""
        names: set[str] = set()
        for topic in reader.topics - self._prepared:
            wire = self._wire_of(topic)
            tenant = wire.tenant_of(topic) if wire else None
            if wire is not None and tenant is not None:
                names.update(wire.topics(tenant))
            self._prepared.add(topic)
        self._creation.request(names)
        if reader.all_topics != self._all_topics:
            self._all_topics = reader.all_topics
            tenants = {self._tenant_of(topic, Kaspr) for topic in self._all_topics}
            self.apps = frozenset(tenant for tenant in tenants if tenant is not None)

    def _tenant_of(self, topic: str, kind: type[Wire]) -> str | None:
        """The tenant of a request topic, if it is one of this kind of wire."""
        wire = self._wire_of(topic)
        return wire.tenant_of(topic) if isinstance(wire, kind) else None

    def _commit_to_kafka(self, reader: Reader) -> None:
        """From time to time, commit the positions to Kafka for tools that show the lag, and update our own lag."""
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
