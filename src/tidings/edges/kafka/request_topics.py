"""The request topics of a cluster: which are read, their identity, and their creation.

A topic that was deleted and created again under its name is another source and is read from its beginning. Its records
have offsets that were used before; `life` tells them apart. Missing topics are created in the background.
"""

import logging
import re
from collections.abc import Collection, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from tidings.bus.kafka.topics import Cluster, Topics, TopicUnavailable, quiet_logger
from tidings.clock import Clock
from tidings.domain.errors import Invalid, TidingsError
from tidings.wires.etf1 import Etf1
from tidings.wires.intervals import Intervals
from tidings.wires.kaspr import Kaspr
from tidings.wires.native import Native, Notify
from tidings.wires.wire import Destinations, Wire, is_topic

ASK_S = 3.0
ASK_ALL_US = 10_000_000
LIFE_CHARS = 8
_SAFE = str.maketrans("+/", "-_")
_GLOB = re.compile(r"[*?[]")

PartitionId = tuple[str, int]  # topic and number
Positions = Mapping[PartitionId, int]


class Requests:
    """The enabled wires, and the tenants (globs) whose request topics are read.

    `schedules` maps etf1's topics to their tenants; `destinations` has globs of the topics that a tenant may write to.
    """

    def __init__(
        self,
        wires: Collection[str],
        tenants: Sequence[str],
        schedules: Mapping[str, str],
        destinations: Mapping[str, Sequence[str]],
    ) -> None:
        _check(schedules)
        self.destinations = Destinations(destinations, schedules.keys())
        self._tenants = tenants
        self._with_destinations = frozenset(destinations)
        etf1 = Etf1(schedules, self.destinations)
        self.etf1 = etf1 if etf1.name in wires else None
        known: list[Wire] = [
            etf1,
            Intervals(self.destinations),
            Kaspr(self.destinations),
            Native(self.destinations),
            Notify(self.destinations),
        ]
        self.wires = [wire for wire in known if wire.name in wires]

    @property
    def known_topics(self) -> frozenset[str]:
        """The request topics of the tenants that the settings name, and of each wire's own tenants."""
        named = {pattern for pattern in self._tenants if not _GLOB.search(pattern)} | self._with_destinations
        topics = (
            topic for wire in self.wires for tenant in named | wire.own_tenants for topic in wire.requests(tenant)
        )
        return frozenset(topic for topic in topics if is_topic(topic) and self.takes(topic))

    def takes(self, topic: str) -> bool:
        """Whether a topic is read. Topics that are not read keep their position, for another node or a later time."""
        for wire in self.wires:
            tenant = wire.tenant_of(topic)
            if tenant is not None:
                return any(fnmatchcase(tenant, pattern) for pattern in self._tenants)
        return False


def _check(schedules: Mapping[str, str]) -> None:
    """Check that etf1's topics, which may have any name, are not topics of other wires or of Tidings."""
    for topic in schedules:
        if reason := Destinations(schedules=frozenset()).forbidden("", topic):
            raise Invalid("kafka.schedules", reason)


class ReadFailed(TidingsError):
    """The request topics cannot be read; open a new reader."""


class Sources:
    """The ids of request topics, cached. It blocks."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._takes = cluster.takes
        self._clock = clock
        self._ask_all_at = clock.elapsed() + ASK_ALL_US
        self._ids: dict[str, str] = {}  # by topic
        self._admin = AdminClient(cluster.options(), logger=quiet_logger())

    def __getitem__(self, topic: str) -> str:
        """The name under which the store keeps the positions of a topic: the topic and its id."""
        return f"{topic}@{self._ids[topic]}"

    def lives(self, topics: Set[str], positions: Positions) -> dict[str, str]:
        """A suffix for each topic that tells it from a former one of its name; empty if there was none."""
        own = {self[topic] for topic in topics}
        before = {source.rpartition("@")[0] for source, _ in positions if source not in own}
        return {topic: _short(self._ids[topic]) if topic in before else "" for topic in topics}

    def identify(self, topics: Mapping[str, Any], doubtful: Set[str]) -> set[str]:
        """The request topics among these whose id is known. Asks for new and doubtful ones, and regularly for all."""
        present = {name for name in topics if self._takes(name)}
        healthy = {name for name in present if topics[name].error is None}
        asked = healthy & doubtful | healthy - self._ids.keys()
        if self._clock.elapsed() >= self._ask_all_at:
            self._ask_all_at = self._clock.elapsed() + ASK_ALL_US
            asked = healthy
        unconfirmed = (asked - self.confirm(asked)) & doubtful
        return (present & self._ids.keys()) - unconfirmed - (doubtful - healthy)

    def confirm(self, topics: Set[str]) -> set[str]:
        """Ask for the ids of topics; returns those that exist. Raises `ReadFailed` if one was created again."""
        answered = set[str]()
        if not topics:
            return answered
        collection = TopicCollection(sorted(topics))
        for topic, asked in self._admin.describe_topics(collection, request_timeout=ASK_S).items():
            try:
                topic_id = str(asked.result().topic_id)
            except KafkaException:
                continue  # deleted, or not visible to us: asked again later
            if self._ids.setdefault(topic, topic_id) != topic_id:
                raise ReadFailed(f"{topic} was deleted and created again")
            answered.add(topic)
        return answered


def _short(topic_id: str) -> str:
    """The beginning of a topic id, with characters that are safe in a URL: base64 may contain `/` and `+`."""
    return topic_id[:LIFE_CHARS].translate(_SAFE)


AT_ONCE_MAX = 100  # topics in one request, so that it does not time out
AGAIN_US = 30_000_000

Failed = dict[str, str]  # reason by topic
logger = logging.getLogger("tidings.kafka")


class TopicCreation:
    """Creates all requested topics together, on a thread of its own; failures are retried later."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._topics = Topics(cluster)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "tidings-kafka-topics")
        self._work: Future[Failed] | None = None
        self._waiting: set[str] = set()
        self._requested: set[str] = set()
        self._failed: set[str] = set()
        self._again_at = 0
        self._logged: set[str] = set()

    def request(self, names: Set[str]) -> None:
        """Create topics if they are missing. Call it regularly, also without names: failures are retried then."""
        self._waiting |= names
        if self._work is not None:
            if not self._work.done():
                return
            self._finish(self._work.result())
        if self._failed and self._clock.elapsed() >= self._again_at:
            self._waiting |= self._failed
            self._failed = set()
        if self._waiting:
            self._requested, self._waiting = self._waiting, set()
            self._work = self._thread.submit(self._create, sorted(self._requested))

    def close(self) -> None:
        """Start no further requests."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _finish(self, failed: Failed) -> None:
        """Log the failure of a topic once, not at every retry."""
        self._work = None
        self._logged -= self._requested - failed.keys()
        if new := {name: reason for name, reason in failed.items() if name not in self._logged}:
            reasons = sorted(set(new.values()))
            logger.warning("cannot create the topics %s: %s", ", ".join(sorted(new)), "; ".join(reasons))
        self._logged |= failed.keys()
        self._failed |= failed.keys()
        self._again_at = self._clock.elapsed() + AGAIN_US

    def _create(self, names: list[str]) -> Failed:
        failed: Failed = {}
        for first in range(0, len(names), AT_ONCE_MAX):
            failed |= self._ensure(set(names[first : first + AT_ONCE_MAX]))
        return failed

    def _ensure(self, names: set[str]) -> Failed:
        """Create topics; one that fails does not affect the others."""
        failed: Failed = {}
        while names:
            try:
                self._topics.ensure(names)
                break
            except TopicUnavailable as error:
                failed |= error.topics or dict.fromkeys(names, str(error))
            except Exception as error:  # noqa: BLE001 - no error here may stop the intake
                failed |= dict.fromkeys(names, str(error))
            names -= failed.keys()
        return failed
