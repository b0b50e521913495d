"""Topics of Kafka: which there are, and those that are made because something has to go there."""

from collections.abc import Set

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.cimpl import NewTopic

from tidings.bus.kafka.client import Cluster, quiet
from tidings.domain.errors import TidingsError

ASK_S = 3.0
COMPACTED = {"cleanup.policy": "compact", "retention.ms": "-1"}

# What says something of a topic, and not of the cluster or the connection.
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


# What says something of one record only: its topic takes others. The reason as the client words it, and as we do.
OF_THE_RECORD = {
    KafkaError(KafkaError.MSG_SIZE_TOO_LARGE).str(): "too_large",
    KafkaError(KafkaError.INVALID_RECORD).str(): "invalid_record",
}


class NoTopic(TidingsError):
    """Topics that are not there and could not be made, each with the reason; none: Kafka does not answer."""

    def __init__(self, text: str, topics: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.topics = topics or {}


class Topics:
    """Remembers what it has seen."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin: AdminClient | None = None
        self._told = ""
        self._known: dict[str, int] = {}  # how many partitions each has
        self._leaderless: set[str] = set()

    def forget(self) -> None:
        """Look again next time."""
        self._known.clear()

    def prepare(self, name: str, partitions: int) -> int:
        """Our own compacted topic, made if it is not there; answers how many partitions it has."""
        if name not in self._seen():
            if not self._cluster.create_topics:
                how = f"make it, with {partitions} partitions and cleanup.policy=compact"
                raise NoTopic(f"there is no topic {name} on Kafka, and kafka.topics is expect: {how}")
            config = {"cleanup.policy": "compact", "segment.ms": "3600000"}
            self._make([NewTopic(name, partitions, self._cluster.replication, config=config)])
            self._seen()
        return self._known.get(name, partitions)

    def ensure(self, names: Set[str]) -> None:
        """Make those that are missing, if that is allowed."""
        missing = names - self._known.keys()
        if not missing:
            return
        missing -= self._seen()
        if away := names & self._leaderless:
            # Kafka could end no transaction that such a topic is part of.
            reason = "a partition of it has no leader now"
            raise NoTopic(f"{', '.join(sorted(away))}: {reason}", dict.fromkeys(away, reason))
        if not missing:
            return
        if not self._cluster.create_topics:
            reason = "there is no such topic on Kafka, and kafka.topics is expect: make it"
            raise NoTopic(f"{', '.join(sorted(missing))}: {reason}", dict.fromkeys(missing, reason))
        self._make([self._new(name) for name in sorted(missing)])

    def _new(self, name: str) -> NewTopic:
        config = COMPACTED if name in self._cluster.compacted else {}
        return NewTopic(name, self._cluster.partitions, self._cluster.replication, config=config)

    def _seen(self) -> Set[str]:
        try:
            topics = self._client().list_topics(timeout=ASK_S).topics
        except KafkaException as error:
            self._client().poll(0)  # it tells now why nobody answers
            raise NoTopic(f"Kafka does not answer: {self._told or error.args[0]}") from None
        self._told = ""
        self._leaderless = {name for name, topic in topics.items() if _is_leaderless(topic)}
        self._known = {name: len(topic.partitions) for name, topic in topics.items() if name not in self._leaderless}
        return topics.keys()

    def _make(self, topics: list[NewTopic]) -> None:
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
                    failed[name] = f"the topic cannot be made: {error.args[0].str()}"
                else:
                    raise NoTopic(f"Kafka does not make {name}: {error.args[0]}") from None
        if failed:
            raise NoTopic("; ".join(f"{name}: {reason}" for name, reason in failed.items()), failed)

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._cluster.options() | {"error_cb": self._hear}, logger=quiet())
        return self._admin

    def _hear(self, error: KafkaError) -> None:
        """What the client reports by itself; the first of it, for then it says only that all brokers are down."""
        self._told = self._told or str(error)


def _is_leaderless(topic: TopicMetadata) -> bool:
    return any(partition.leader < 0 for partition in topic.partitions.values())
