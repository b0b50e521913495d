"""Facts for others to listen to: what happened to schedules, as records on Kafka. Best effort, after the commit.

They go to `tidings.facts`, and for tenants that speak Kaspr's protocol to `<app-id>-schedule-actions` as well. Nobody
waits for them: they pass through a bounded queue, and what does not fit or does not arrive is counted and gone.
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

from tidings.bus.kafka.client import Cluster
from tidings.bus.kafka.topics import NoTopic, Topics
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
COMPLAIN_US = 30_000_000

ACTIONS: dict[type[Command], str] = {
    Add: "add",
    Replace: "replace",
    Cancel: "cancel",
    Pause: "pause",
    Resume: "resume",
    Fire: "fire",
}
# What came of a command, as a fact; any other outcome left the schedule as it was.
TAKEN = {
    **dict.fromkeys(("scheduled", "released"), "accepted"),
    "replaced": "replaced",
    **dict.fromkeys(("rejected", "cancelled", "already_released", "in_flight", "unknown"), "rejected"),
}
CHANGED = {word: word for word in ("cancelled", "paused", "resumed", "fired", "rejected")}

Told = tuple[str, str | None, dict[str, Any]]  # tenant, id, document
_encode = msgspec.json.Encoder().encode
logger = logging.getLogger("tidings.kafka")


class KafkaFacts:
    """A listener of facts, and a companion of the engine; the producer has a thread of its own."""

    problem: str | None = None  # whether facts arrive is no reason not to be ready

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._queue: SimpleQueue[tuple[int, Fact | Sequence[Outgoing] | None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._stopping = False
        self._thread = ThreadPoolExecutor(1, "tidings-kafka-facts")
        self._outlet: _Outlet | None = None
        self._complain_at = 0
        self.dropped = 0

    def __call__(self, fact: Fact) -> None:
        match fact:
            case Changed():
                self._put(len(fact.commands), fact)
            case Missed() | Refused():
                self._put(1, fact)
            case _:
                pass  # what was released is told by the forwarder, which knows each record

    def released(self, records: Sequence[Outgoing]) -> None:
        """These are on Kafka now. May be called on any thread."""
        self._put(len(records), records)

    async def run(self) -> None:
        """Publish until stopped."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._publish)
        finally:
            self.stop()
            self._thread.shutdown(wait=False)

    def wake(self) -> None:
        """There is nothing to be woken for: the queue wakes."""

    def stop(self) -> None:
        """End after what waits, or a short time."""
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
        """Hand them to the producer; answers how many are lost."""
        told = 0
        try:
            self._outlet = outlet = self._outlet or _Outlet(self._cluster, self._clock)
            outlet.prepare()
            for tenant, schedule_id, document in documents(item):
                value = _encode(document)
                for topic in outlet.topics(tenant):
                    self._produce(outlet.producer, topic, value, schedule_id)
                told += 1
            outlet.producer.poll(0)
        except Exception as error:  # noqa: BLE001 - whatever it is, facts are no reason for a node to end
            self._complain(count - told, error)
            if _is_fatal(error):
                self._outlet = None
            return count - told
        return 0

    def _complain(self, lost: int, error: Exception) -> None:
        """Once in a while: what goes wrong is likely to go wrong for the next fact too."""
        now = self._clock.elapsed()
        if now < self._complain_at:
            return
        self._complain_at = now + COMPLAIN_US
        unexpected = not isinstance(error, NoTopic | KafkaException)
        text = "%d facts are lost, and perhaps more: %s"
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
    """Where facts go: a topic for all, and one for each tenant of Kaspr that has it."""

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
            return  # it is asked again
        self._known = {name for name in names if name.endswith(KASPR_ACTIONS)}


def _is_fatal(error: Exception) -> bool:
    """Whether the producer is of no use any more."""
    return isinstance(error, KafkaException) and bool(error.args[0].fatal())


def documents(item: Fact | Sequence[Outgoing]) -> Iterator[Told]:
    """A fact as documents, one for each schedule where it knows them."""
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


def _changed(at: int, command: Command, outcome: Outcome) -> Told:
    tenant = address(command)[0]
    document: dict[str, Any] = {"fact": "", "at": format_instant(at), "tenant": tenant}
    add = command.add if isinstance(command, Replace) else command
    if isinstance(add, Add):
        bus, topic = split(add.topic)
        document |= {"bus": bus, "topic": topic}
    words = TAKEN if isinstance(add, Add) else CHANGED
    document["fact"] = words.get(outcome.outcome, "unchanged")
    document |= {"id": outcome.id, "action": ACTIONS[type(command)], "outcome": outcome.outcome}
    if outcome.due is not None:
        document["due_at"] = format_instant(outcome.due)
    for name in ("state", "reason", "in_flight", "note"):
        if (value := getattr(outcome, name)) is not None:
            document[name] = value
    return tenant, outcome.id, document


def _refused(refused: Refused) -> dict[str, Any]:
    """What was refused and why; of a record also where it lies."""
    document: dict[str, Any] = {"fact": "rejected", "at": format_instant(refused.at), "tenant": refused.tenant}
    document["field"] = refused.field
    if refused.reasons:
        document["reasons"] = refused.reasons
    if refused.source is not None:
        names = ("source_topic", "source_partition", "source_offset")
        document |= dict(zip(names, refused.source, strict=True))
    return document


def _released(record: Outgoing) -> Told:
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
