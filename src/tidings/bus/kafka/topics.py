"""Kafka clients and topics: shared settings, lost connections, and the creation of missing topics."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.cimpl import NewTopic

from tidings.domain.errors import TidingsError

LOG_INFO = 6  # librdkafka logs a lost connection at this level
NOT_CONNECTED = "in state CONNECT"  # in the log line of a broker that was never connected


def _any_topic(_: str) -> bool:
    return True


class Cluster(msgspec.Struct, frozen=True):
    """A Kafka cluster, our name on it (`kafka.name`), and further client settings (SASL, TLS).

    `takes` says whether this node reads a topic as a request topic. Topics in `compacted` are created as compacted.
    """

    servers: str
    name: str = "tidings"
    settings: Mapping[str, str] = {}
    create_topics: bool = True
    partitions: int = 1
    replication: int = 1
    takes: Callable[[str], bool] = _any_topic
    compacted: Set[str] = frozenset()

    def options(self, **more: Any) -> dict[str, Any]:
        """Settings for librdkafka; an underscore in a name stands for a dot."""
        named = {name.replace("_", "."): value for name, value in more.items()}
        return {
            "bootstrap.servers": self.servers,
            "client.id": self.name,
            "log_level": LOG_INFO,
            "topic.metadata.propagation.max.ms": 3_000,
            **self.settings,
            **named,
        }


class Watch(logging.Handler):
    """Detects lost connections from the log of librdkafka, which reconnects silently.

    A request that was delayed in the network may still arrive after the reconnect, between requests that were sent
    later. So a transactional producer must be replaced by a new one. A connection that was never established carried
    no request, and does not count: one of several brokers may be down.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lost = ""
        self.logger = logging.Logger("tidings.kafka", logging.INFO)  # noqa: LOG001 - each producer has its own
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if any(word in text for word in ("FAIL", "ERROR", "isconnect", "REQTMOUT", "timed out")):
            self._note(text)

    def error(self, error: KafkaError) -> None:
        """The error callback of the client."""
        self._note(str(error))

    def _note(self, text: str) -> None:
        if not self.lost and NOT_CONNECTED not in text:
            self.lost = text


def quiet_logger() -> logging.Logger:
    """A logger for clients whose failures are returned as errors: they repeat them while a broker is down."""
    logger = logging.getLogger("tidings.kafka.client")
    logger.setLevel(logging.CRITICAL)
    return logger


T = TypeVar("T")


class BlockingThread:
    """A single thread that runs blocking calls one after the other."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    def start(self, work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Queue a call; the future is done when the call is."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run a call and wait for its result."""
        return await self.start(work, *arguments)

    def close(self) -> None:
        """End the thread after the calls that are queued."""
        self._pool.shutdown(wait=False)


ASK_S = 3.0
COMPACTED = {"cleanup.policy": "compact", "retention.ms": "-1"}

# Errors that concern a topic, and not the cluster or the connection.
ABOUT_THE_TOPIC = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
}

# Errors that concern one record only: the text of the client, and our word for it.
OF_THE_RECORD = {
    KafkaError(KafkaError.MSG_SIZE_TOO_LARGE).str(): "too_large",
    KafkaError(KafkaError.INVALID_RECORD).str(): "invalid_record",
}


class TopicUnavailable(TidingsError):
    """Topics that are missing and could not be created, or have no leader, each with the reason.

    Without topics: Kafka does not answer. `is_transient`: they have no leader at the moment.
    """

    def __init__(self, text: str, topics: dict[str, str] | None = None, *, is_transient: bool = False) -> None:
        super().__init__(text)
        self.topics = topics or {}
        self.is_transient = is_transient


class Topics:
    """The topics of a cluster, cached. It blocks."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin: AdminClient | None = None
        self._first_error = ""
        self._known: dict[str, int] = {}  # partitions by topic
        self._leaderless: set[str] = set()

    def forget(self) -> None:
        """Drop the cache."""
        self._known.clear()

    def prepare(self, name: str, partitions: int) -> int:
        """Create one of our own compacted topics if it is missing; returns its number of partitions."""
        if name not in self._refresh():
            if not self._cluster.create_topics:
                how = f"create it with {partitions} partitions and cleanup.policy=compact"
                raise TopicUnavailable(f"there is no topic {name} on Kafka, and kafka.topics is expect: {how}")
            config = {"cleanup.policy": "compact", "segment.ms": "3600000"}
            self._create([NewTopic(name, partitions, self._cluster.replication, config=config)])
            self._refresh()
        return self._known.get(name, partitions)

    def ensure(self, names: Set[str]) -> None:
        """Create missing topics, if the settings allow it."""
        missing = names - self._known.keys()
        if not missing:
            return
        missing -= self._refresh()
        if leaderless := names & self._leaderless:
            # Kafka could not end a transaction that includes such a topic.
            reason = "one of its partitions has no leader now"
            text = f"{', '.join(sorted(leaderless))}: {reason}"
            raise TopicUnavailable(text, dict.fromkeys(leaderless, reason), is_transient=True)
        if not missing:
            return
        if not self._cluster.create_topics:
            reason = "there is no such topic on Kafka, and kafka.topics is expect: create it"
            raise TopicUnavailable(f"{', '.join(sorted(missing))}: {reason}", dict.fromkeys(missing, reason))
        self._create([self._new(name) for name in sorted(missing)])

    def _new(self, name: str) -> NewTopic:
        config = COMPACTED if name in self._cluster.compacted else {}
        return NewTopic(name, self._cluster.partitions, self._cluster.replication, config=config)

    def _refresh(self) -> Set[str]:
        try:
            topics = self._client().list_topics(timeout=ASK_S).topics
        except KafkaException as error:
            self._client().poll(0)  # calls `_on_error`, which has the cause
            raise TopicUnavailable(f"Kafka does not answer: {self._first_error or error.args[0]}") from None
        self._first_error = ""
        self._leaderless = {name for name, topic in topics.items() if _is_leaderless(topic)}
        self._known = {name: len(topic.partitions) for name, topic in topics.items() if name not in self._leaderless}
        return topics.keys()

    def _create(self, topics: list[NewTopic]) -> None:
        failed: dict[str, str] = {}
        partitions = {topic.topic: topic.num_partitions for topic in topics}
        for name, made in self._client().create_topics(topics, operation_timeout=ASK_S).items():
            try:
                made.result()
                self._known[name] = partitions[name]
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    self._known[name] = partitions[name]
                elif code in ABOUT_THE_TOPIC:
                    failed[name] = f"the topic cannot be created: {error.args[0].str()}"
                else:
                    raise TopicUnavailable(f"cannot create the topic {name}: {error.args[0]}") from None
        if failed:
            raise TopicUnavailable("; ".join(f"{name}: {reason}" for name, reason in failed.items()), failed)

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._cluster.options() | {"error_cb": self._on_error}, logger=quiet_logger())
        return self._admin

    def _on_error(self, error: KafkaError) -> None:
        """Keep the client's first error: later ones only say that all brokers are down."""
        self._first_error = self._first_error or str(error)


def _is_leaderless(topic: TopicMetadata) -> bool:
    return any(partition.leader < 0 for partition in topic.partitions.values())
