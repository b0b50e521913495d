"""The request topics of a cluster, and which topic of its name each is.

A topic that was deleted and made anew is another source, although it has the same name: it is read from its beginning.
Its records stand at places that were there before; `life` tells them apart.
"""

import logging
from collections.abc import Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from tidings.bus.kafka.client import Cluster, quiet
from tidings.bus.kafka.topics import NoTopic, Topics
from tidings.clock import Clock
from tidings.domain.errors import TidingsError

ASK_S = 3.0
ASK_ALL_US = 10_000_000
LIFE_CHARS = 8
_SAFE = str.maketrans("+/", "-_")

Place = tuple[str, int]
Positions = Mapping[Place, int]


class ReadFailed(TidingsError):
    """The request topics cannot be read now; a new reader may."""


class Sources:
    """Knows of each topic its id, once it was asked for. Blocking."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._takes = cluster.takes
        self._clock = clock
        self._ask_all_at = clock.elapsed() + ASK_ALL_US
        self._ids: dict[str, str] = {}  # by topic
        self._admin = AdminClient(cluster.options(), logger=quiet())

    def __getitem__(self, topic: str) -> str:
        """The name under which the store keeps the positions of a topic: its own, and which of that name it is."""
        return f"{topic}@{self._ids[topic]}"

    def lives(self, topics: Set[str], positions: Positions) -> dict[str, str]:
        """What tells each topic from one of its name that was read before; nothing if there was none."""
        own = {self[topic] for topic in topics}
        before = {source.rpartition("@")[0] for source, _ in positions if source not in own}
        return {topic: _short(self._ids[topic]) if topic in before else "" for topic in topics}

    def identify(self, topics: Mapping[str, Any], doubtful: Set[str]) -> set[str]:
        """Which of these are known request topics. Asks about new ones and those in doubt, at times about all."""
        there = {name for name in topics if self._takes(name)}
        well = {name for name in there if topics[name].error is None}
        asked = well & doubtful | well - self._ids.keys()
        if self._clock.elapsed() >= self._ask_all_at:
            self._ask_all_at = self._clock.elapsed() + ASK_ALL_US
            asked = well
        unsure = (asked - self.confirm(asked)) & doubtful
        return (there & self._ids.keys()) - unsure - (doubtful - well)

    def confirm(self, topics: Set[str]) -> set[str]:
        """Ask about these; answers which of them are there. One that is no longer the same is a `ReadFailed`."""
        answered = set[str]()
        if not topics:
            return answered
        collection = TopicCollection(sorted(topics))
        for topic, asked in self._admin.describe_topics(collection, request_timeout=ASK_S).items():
            try:
                topic_id = str(asked.result().topic_id)
            except KafkaException:
                continue  # gone meanwhile, or not for us to see: it is asked again
            if self._ids.setdefault(topic, topic_id) != topic_id:
                raise ReadFailed(f"{topic} was made anew")
            answered.add(topic)
        return answered


def _short(topic_id: str) -> str:
    """The beginning of an id, in letters that need no escape in an address; in base64 it may hold `/` and `+`."""
    return topic_id[:LIFE_CHARS].translate(_SAFE)


AT_ONCE_MAX = 100  # topics in one request, so that it ends in time
AGAIN_US = 30_000_000

Failed = dict[str, str]  # by topic, the reason
logger = logging.getLogger("tidings.kafka")


class TopicCreation:
    """Makes all that waits in one go, on a thread of its own; what fails is tried again later."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._topics = Topics(cluster)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "tidings-kafka-topics")
        self._work: Future[Failed] | None = None
        self._waiting: set[str] = set()
        self._asked: set[str] = set()
        self._failed: set[str] = set()
        self._again_at = 0
        self._told: set[str] = set()

    def want(self, names: Set[str]) -> None:
        """These have to be there; also to be called without any, from time to time."""
        self._waiting |= names
        if self._work is not None:
            if not self._work.done():
                return
            self._settle(self._work.result())
        if self._failed and self._clock.elapsed() >= self._again_at:
            self._waiting |= self._failed
            self._failed = set()
        if self._waiting:
            self._asked, self._waiting = self._waiting, set()
            self._work = self._thread.submit(self._make, sorted(self._asked))

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _settle(self, failed: Failed) -> None:
        """Said once of each topic: it is tried again and again."""
        self._work = None
        self._told -= self._asked - failed.keys()
        if new := {name: reason for name, reason in failed.items() if name not in self._told}:
            reasons = sorted(set(new.values()))
            logger.warning("topics that could not be created: %s: %s", ", ".join(sorted(new)), "; ".join(reasons))
        self._told |= failed.keys()
        self._failed |= failed.keys()
        self._again_at = self._clock.elapsed() + AGAIN_US

    def _make(self, names: list[str]) -> Failed:
        failed: Failed = {}
        for first in range(0, len(names), AT_ONCE_MAX):
            failed |= self._ensure(set(names[first : first + AT_ONCE_MAX]))
        return failed

    def _ensure(self, names: set[str]) -> Failed:
        """One topic that cannot be made does not keep the others from being made."""
        failed: Failed = {}
        while names:
            try:
                self._topics.ensure(names)
                break
            except NoTopic as error:
                failed |= error.topics or dict.fromkeys(names, str(error))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason not to read
                failed |= dict.fromkeys(names, str(error))
            names -= failed.keys()
        return failed
