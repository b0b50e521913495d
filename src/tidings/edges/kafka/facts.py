"""Facts about schedules as records on Kafka, published after the commit with best effort.

They go to `tidings.facts`, and for tenants with Kaspr's protocol also to `<app-id>-schedule-actions`. They pass through
a bounded queue and delay nothing; facts that do not fit or cannot be delivered are counted and dropped.
"""

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidings.bus.kafka.topics import Cluster, Topics, TopicUnavailable
from tidings.clock import Clock
from tidings.domain.facts import Changed, Fact, Missed, Refused
from tidings.domain.schedules.command import Add, Cancel, Command, Fire, Outcome, Pause, Replace, Resume, address
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.schedule import Outgoing, split
from tidings.wires.wire import KASPR_ACTIONS, is_rejections

FACTS = "tidings.facts"
WAITING_FACTS_MAX = 100_000
FLUSH_S = 2.0
ASK_S = 2.0
LOOK_AGAIN_US = 5_000_000
LOG_US = 30_000_000

ACTIONS: dict[type[Command], str] = {
    Add: "add",
    Replace: "replace",
    Cancel: "cancel",
    Pause: "pause",
    Resume: "resume",
    Fire: "fire",
}
# The fact for each outcome of a command that schedules, and of other commands; any other outcome is `unchanged`.
SCHEDULE_FACTS = {
    **dict.fromkeys(("scheduled", "released"), "accepted"),
    "replaced": "replaced",
    **dict.fromkeys(("rejected", "cancelled", "already_released", "in_flight", "unknown"), "rejected"),
}
CHANGE_FACTS = {word: word for word in ("cancelled", "paused", "resumed", "fired", "rejected")}

FactDocument = tuple[str, str | None, dict[str, Any]]  # tenant, schedule id, document
_encode = msgspec.json.Encoder().encode
logger = logging.getLogger("tidings.kafka")


class KafkaFacts:
    """A listener of facts and a background service; the producer has a thread of its own."""

    problem: str | None = None  # undelivered facts do not make the node unready

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._queue: SimpleQueue[tuple[int, Fact | Sequence[Outgoing] | None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._stopping = False
        self._thread = ThreadPoolExecutor(1, "tidings-kafka-facts")
        self._outlet: _Outlet | None = None
        self._log_after = 0
        self.dropped = 0

    def __call__(self, fact: Fact) -> None:
        match fact:
            case Changed():
                self._put(len(fact.commands), fact)
            case Missed() | Refused():
                self._put(1, fact)
            case _:
                pass  # the forwarder calls `released`, because it knows each record

    def released(self, records: Sequence[Outgoing]) -> None:
        """Publish facts of records that are on Kafka. May be called on any thread."""
        self._put(len(records), records)

    async def run(self) -> None:
        """Publish until stopped."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._publish)
        finally:
            self.stop()
            self._thread.shutdown(wait=False)

    def wake(self) -> None:
        """Nothing to do: the queue wakes the thread."""

    def stop(self) -> None:
        """End after the queue is empty, or a short time."""
        self._stopping = True
        self._queue.put((0, None))

    def _put(self, count: int, item: Fact | Sequence[Outgoing]) -> None:
        with self._lock:
            if self._waiting + count > WAITING_FACTS_MAX:
                self.dropped += count
                return
            self._waiting += count
        self._queue.put((count, item))

    def _publish(self) -> None:
        while True:
            count, item = self._queue.get()
            if item is None:
                break
            lost = self._send(item, count)
            with self._lock:
                self._waiting -= count
                self.dropped += lost
        if self._outlet is not None:
            self.dropped += self._outlet.producer.flush(FLUSH_S)

    def _send(self, item: Fact | Sequence[Outgoing], count: int) -> int:
        """Hand facts to the producer; returns how many are lost."""
        sent = 0
        try:
            self._outlet = outlet = self._outlet or _Outlet(self._cluster, self._clock)
            outlet.prepare()
            for tenant, schedule_id, document in documents(item):
                value = _encode(document)
                for topic in outlet.topics(tenant):
                    self._produce(outlet.producer, topic, value, schedule_id)
                sent += 1
            outlet.producer.poll(0)
        except Exception as error:  # noqa: BLE001 - no error here may end the node
            self._log_loss(count - sent, error)
            if _is_fatal(error):
                self._outlet = None
            return count - sent
        return 0

    def _log_loss(self, lost: int, error: Exception) -> None:
        """Log an error, but not more often than every 30 s: the next fact is likely to fail as well."""
        now = self._clock.elapsed()
        if now < self._log_after:
            return
        self._log_after = now + LOG_US
        unexpected = not isinstance(error, TopicUnavailable | KafkaException)
        text = "dropped %d facts, perhaps more will follow: %s"
        logger.warning(text, lost, error, exc_info=error if unexpected else None)

    def _produce(self, producer: Producer, topic: str, value: bytes, key: str | None) -> None:
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=self._delivered)
                return
            except BufferError:
                if self._stopping:
                    self.dropped += 1
                    return
                producer.poll(0.1)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.dropped += 1


class _Outlet:
    """The producer of facts, and the topics: one for all, and one for each Kaspr tenant that has it."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        options = cluster.options(enable_idempotence=True, linger_ms=20, message_timeout_ms=30_000)
        self.producer = Producer(options, logger=logger)
        self._topics = Topics(cluster)
        self._clock = clock
        self._is_ready = False
        self._known: set[str] = set()
        self._looked_at: int | None = None

    def prepare(self) -> None:
        if not self._is_ready:
            self._topics.ensure({FACTS})
            self._is_ready = True

    def topics(self, tenant: str) -> list[str]:
        actions = tenant + KASPR_ACTIONS
        if actions not in self._known:
            self._look_again()
        return [FACTS, actions] if actions in self._known else [FACTS]

    def _look_again(self) -> None:
        now = self._clock.elapsed()
        if self._looked_at is not None and now - self._looked_at < LOOK_AGAIN_US:
            return
        self._looked_at = now
        try:
            names = self.producer.list_topics(timeout=ASK_S).topics
        except KafkaException:
            return  # asked again later
        self._known = {name for name in names if name.endswith(KASPR_ACTIONS)}


def _is_fatal(error: Exception) -> bool:
    """Whether the producer must be replaced."""
    return isinstance(error, KafkaException) and bool(error.args[0].fatal())


def documents(item: Fact | Sequence[Outgoing]) -> Iterator[FactDocument]:
    """A fact as documents: one for each schedule, where the fact names them."""
    match item:
        case Changed():
            for command, outcome in zip(item.commands, item.outcomes, strict=True):
                yield _changed(item.at, command, outcome)
        case Missed():
            yield "", None, {"fact": "missed", "at": format_instant(item.at), "reasons": item.counts}
        case Refused():
            yield item.tenant, None, _refused(item)
        case Sequence():
            yield from (_released(record) for record in item if not is_rejections(record.topic))
        case _:
            pass


def _changed(at: int, command: Command, outcome: Outcome) -> FactDocument:
    tenant = address(command)[0]
    document: dict[str, Any] = {"fact": "", "at": format_instant(at), "tenant": tenant}
    add = command.add if isinstance(command, Replace) else command
    if isinstance(add, Add):
        bus, topic = split(add.topic)
        document |= {"bus": bus, "topic": topic}
    words = SCHEDULE_FACTS if isinstance(add, Add) else CHANGE_FACTS
    document["fact"] = words.get(outcome.outcome, "unchanged")
    document |= {"id": outcome.id, "action": ACTIONS[type(command)], "outcome": outcome.outcome}
    if outcome.due is not None:
        document["due_at"] = format_instant(outcome.due)
    for name in ("state", "reason", "in_flight", "note"):
        if (value := getattr(outcome, name)) is not None:
            document[name] = value
    return tenant, outcome.id, document


def _refused(refused: Refused) -> dict[str, Any]:
    """A refused request with its reasons; for a record of Kafka also its position."""
    document: dict[str, Any] = {"fact": "rejected", "at": format_instant(refused.at), "tenant": refused.tenant}
    document["field"] = refused.field
    if refused.reasons:
        document["reasons"] = refused.reasons
    if refused.source is not None:
        names = ("source_topic", "source_partition", "source_offset")
        document |= dict(zip(names, refused.source, strict=True))
    return document


def _released(record: Outgoing) -> FactDocument:
    document = {
        "fact": "released",
        "at": format_instant(record.released),
        "tenant": record.tenant,
        "bus": "kafka",
        "topic": record.topic,
        "id": record.id,
        "occurrence": record.occurrence,
        "due_at": format_instant(record.due),
    }
    return record.tenant, record.id, document
