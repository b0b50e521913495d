"""Reading the request topics. Where to begin is for the store to say, not for Kafka's consumer groups.

The store says which partitions are ours too: a single process reads all of them, a fleet shares them. Nobody has to be
waited for when a node dies, as in a group: another goes on from the stored position, and who reads too long takes
nothing, for its positions are no longer the stored ones.

A topic of which something is wrong is set aside, the others are read on: one that may not be read for a while, one
that is gone until it is there again, one whose position is not there until it is known whether it was made anew.
"""

import logging
from collections.abc import Callable, Set
from operator import methodcaller
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidings.bus.kafka.client import Cluster, quiet
from tidings.clock import Clock
from tidings.edges.kafka.request_topics import Place, Positions, ReadFailed, Sources
from tidings.wires.record import Record

WAIT_S = 0.2
ASK_S = 3.0
LOOK_US = 2_000_000
SHARE_US = 100_000
LEFT_OUT_US = 30_000_000
SILENCE_US = 100_000  # the client needs longer to find a topic that was made anew

NO_NAME = "has a header whose name is not UTF-8: send names as text"

logger = logging.getLogger("tidings.kafka")

# Called like this Python notices at once that the client has failed, which it does not say as it should.
_headers_of: Callable[[Message], list[tuple[str, bytes | None]] | None] = methodcaller("headers")


class Reading(NamedTuple):
    """Some records, and by partition the position that they begin at."""

    records: list[Record]
    starts: dict[Place, int]


class Reader:
    """One consumer. Blocking: it belongs on a thread of its own; `standing`, `commit` and `lag` go on any."""

    def __init__(
        self, cluster: Cluster, positions: Callable[[], Positions], reads: Callable[[str, int], bool], clock: Clock
    ) -> None:
        self._positions = positions
        self._reads = reads
        self._clock = clock
        self._look_at = self._share_at = 0
        self._sources = Sources(cluster, clock)
        self.topics: frozenset[str] = frozenset()  # the request topics that were found and are ours
        self.all_topics: frozenset[str] = frozenset()  # those that others of a fleet read, too
        self._there: frozenset[Place] = frozenset()  # all partitions that can be read, by whomever
        self._lives: dict[str, str] = {}
        self._assigned: frozenset[Place] = frozenset()
        self._stored: dict[Place, int] = {}  # where the store stands, of those that are ours
        self._next: dict[Place, int] = {}  # where it will stand when all that was given is stored
        self._given: dict[Place, int] = {}  # behind the last record that was given
        self._reached: dict[Place, int] = {}  # the end, when there was nothing more to read
        self._heard_at: dict[str, int] = {}  # when a topic last gave records
        self._aside: dict[str, int] = {}  # topics that are not read now, and when they are looked at again
        self._left_out: dict[str, str] = {}  # why, of those that could not be read when it was last tried
        self._rewound: set[Place] = set()
        self._committed: dict[Place, int] = {}
        self._told = ""
        self._consumer = Consumer(
            {"error_cb": self._hear}
            | cluster.options(
                group_id=f"{cluster.name}-intake",
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                enable_partition_eof=True,
                auto_offset_reset="error",  # it is for us to say whether the topic was made anew
                isolation_level="read_committed",
                queued_max_messages_kbytes=65_536,
                fetch_wait_max_ms=20,
                fetch_queue_backoff_ms=10,
            ),
            logger=quiet(),
        )

    def read(self, records_max: int) -> Reading:
        """What has come, after a short wait if nothing has."""
        if self._clock.elapsed() >= self._look_at:
            self._look()
        if self._clock.elapsed() >= self._share_at:
            self._share()
        records: list[Record] = []
        starts: dict[Place, int] = {}
        first = self._consumer.poll(WAIT_S)
        for message in [] if first is None else [first, *self._consumer.consume(records_max - 1, 0)]:
            error = message.error()
            topic = message.topic() or ""
            if error is not None:
                self._heed(error, topic, message)
            elif (place := (topic, message.partition() or 0)) in self._assigned:
                record = _record(message, self._lives[topic])
                starts.setdefault(place, self._next[place])
                self._given[place] = self._next[place] = record.offset + 1
                records.append(record)
        if records:
            self._make_sure({record.topic for record in records})
        return Reading(records, starts)

    def _make_sure(self, topics: set[str]) -> None:
        """After a silence a topic may be another of its name, which the client does not tell.

        Its records must not be taken for those of the former: they would be read, and scheduled, a second time.
        """
        now = self._clock.elapsed()
        if silent := {topic for topic in topics if now - self._heard_at.get(topic, -SILENCE_US) >= SILENCE_US}:
            self._sources.confirm(silent)
            now = self._clock.elapsed()
        self._heard_at |= dict.fromkeys(topics, now)
        for topic in self._left_out.keys() & topics:
            self._is_read_again(topic)

    @property
    def problem(self) -> str | None:
        """Why nothing at all can be read, if that is so."""
        if not self._left_out or not self._left_out.keys() >= {topic for topic, _ in self._assigned}:
            return None
        return "no request topic can be read: " + next(iter(self._left_out.values()))

    def source_of(self, topic: str) -> str:
        """The name under which the store keeps the positions of a topic."""
        return self._sources[topic]

    def store(self, ends: Positions) -> None:
        """So far everything is stored."""
        self._stored |= {place: end for place, end in ends.items() if place in self._assigned}

    def standing(self) -> dict[Place, int]:
        """How far each of our partitions is done with.

        That is behind the last record or, where nothing has come since, behind what is there without being a record:
        the ends of transactions, and what was deleted before it was read.
        """
        found = {}
        for place in self._assigned:
            reached = self._reached.get(place, 0)  # before `given`, which is written before it
            at = self._stored.get(place)
            if at is not None:  # else it was just given up
                found[place] = max(at, reached) if at >= self._given.get(place, 0) else at
        return found

    def commit(self) -> None:
        """Tell Kafka how far we are, for those who look at the group's lag; we do not rely on it."""
        moved = {place: at for place, at in self.standing().items() if at and self._committed.get(place) != at}
        if moved:
            self._consumer.commit(
                offsets=[TopicPartition(*place, at) for place, at in moved.items()], asynchronous=True
            )
            self._committed |= moved

    def lag(self) -> int:
        """How many records of our partitions wait to be read, as far as is known."""
        total = 0
        for place, at in self.standing().items():
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            total += max(0, high - max(at, low))
        return total

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()

    # Which partitions are read

    def _look(self) -> None:
        """Which partitions there are by now."""
        now = self._clock.elapsed()
        topics = self._all()
        for topic in {topic for topic, _ in self._assigned} - topics.keys():
            self._set_aside(topic, now)
        back = {topic for topic, at in self._aside.items() if at <= now}
        known = self._sources.identify(topics, back)
        for topic in back & known:
            del self._aside[topic]
        self._there = frozenset((name, number) for name in known for number in topics[name].partitions)
        self.all_topics = frozenset(known)
        self._look_at = self._clock.elapsed() + LOOK_US
        self._share_at = 0

    def _share(self) -> None:
        """Give up what is no longer ours, and read what has become so."""
        known = self._there | self._next.keys()
        ours = {(topic, number) for topic, number in known if self._reads(self._sources[topic], number)}
        if lost := self._next.keys() - ours:
            self.give_up(lost)
        found = {place for place in ours & self._there if place[0] not in self._aside} - self._assigned
        if found:
            self._begin(found)
        self._share_at = self._clock.elapsed() + SHARE_US

    def _begin(self, places: Set[Place]) -> None:
        """Where the store stands, or where we were; from its beginning if that is not there."""
        if new := places - self._next.keys():
            stored = self._positions()
            self._lives |= self._sources.lives({topic for topic, _ in new}, stored)
            starts = {(topic, number): stored.get((self._sources[topic], number), 0) for topic, number in new}
            self._next |= starts
            self._stored |= starts
            self.topics |= {topic for topic, _ in new}
        offsets = []
        for place in places:
            at = max(self._given.get(place, 0), self._reached.get(place, 0)) or self._next[place]
            beginning = place in self._rewound or not at
            offsets.append(TopicPartition(*place, OFFSET_BEGINNING if beginning else at))
        self._consumer.incremental_assign(offsets)
        self._assigned |= places

    def give_up(self, places: Set[Place]) -> None:
        """Others read these. Nothing that we know of them is true when they come back to us."""
        self._unassign(self._assigned & places)
        for place in places:
            self._rewound.discard(place)
            for known in (self._given, self._reached, self._committed, self._stored, self._next):
                known.pop(place, None)
        self._share_at = 0

    def _unassign(self, places: Set[Place]) -> None:
        if places:
            self._consumer.incremental_unassign([TopicPartition(*place) for place in places])
            self._assigned -= places

    def _set_aside(self, topic: str, again_at: int) -> None:
        """Read no more of it until it is looked at again."""
        self._unassign({place for place in self._assigned if place[0] == topic})
        self._aside[topic] = again_at

    def _leave_out(self, topic: str, reason: str) -> None:
        """Said once: it is tried again and again."""
        if topic not in self._left_out:
            logger.warning("does not read %s, tries again every %d s: %s", topic, LEFT_OUT_US // 1_000_000, reason)
        self._left_out[topic] = f"{topic}: {reason}"
        self._set_aside(topic, self._clock.elapsed() + LEFT_OUT_US)

    # What Kafka says

    def _heed(self, error: KafkaError, topic: str, message: Message) -> None:
        """What is not a record."""
        place = topic, message.partition() or 0
        match error.code():
            case KafkaError._PARTITION_EOF:
                self._end(place, message.offset() or 0)
            case KafkaError.TOPIC_AUTHORIZATION_FAILED if topic:
                self._leave_out(topic, error.str())
            case KafkaError._AUTO_OFFSET_RESET if topic:
                self._rewind(place, error.str())
            case KafkaError.UNKNOWN_TOPIC_OR_PART:
                pass  # gone, or not known everywhere yet
            case _:
                raise ReadFailed(str(error))

    def _end(self, place: Place, offset: int) -> None:
        if place not in self._assigned:
            return
        self._reached[place] = offset
        self._rewound.discard(place)
        if place[0] in self._left_out:
            self._is_read_again(place[0])

    def _is_read_again(self, topic: str) -> None:
        logger.info("reads %s again", topic)
        del self._left_out[topic]

    def _rewind(self, place: Place, reason: str) -> None:
        """There is nothing at this position: the topic was made anew, or what was there is deleted."""
        if place not in self._next:
            return  # it is no longer ours
        if place in self._rewound:
            self._leave_out(place[0], reason)
            return
        if place[0] not in self._aside:
            logger.warning("%s/%d has nothing where it was read last, is read from its beginning", *place)
        self._rewound.add(place)
        self._given.pop(place, None)
        self._reached.pop(place, None)
        self._set_aside(place[0], self._clock.elapsed())
        self._look_at = 0

    def _all(self) -> dict[str, Any]:
        """Every topic of the cluster. That nobody answers says little; what the client was told before says why."""
        try:
            topics: dict[str, Any] = self._consumer.list_topics(timeout=ASK_S).topics
        except KafkaException as error:
            self._consumer.poll(0)  # it tells now; a record that it may give is read again by the next reader
            raise ReadFailed(self._told or str(error.args[0])) from None
        self._told = ""
        return topics

    def _hear(self, error: KafkaError) -> None:
        """What the client reports by itself; the first of it, for then it says only that all brokers are down."""
        self._told = self._told or str(error)


def _record(message: Message, life: str) -> Record:
    kind, stamp_ms = message.timestamp()
    unreadable = ""
    try:
        headers = _headers_of(message)
    except (SystemError, UnicodeDecodeError):
        headers, unreadable = None, NO_NAME
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        stamp_ms * 1_000 if kind else -1,
        message.key(),
        message.value(),
        tuple(headers) if headers else (),
        life,
        unreadable,
    )
