"""Kafka clients: their shared settings, detection of lost connections, and a thread for blocking calls."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from confluent_kafka import KafkaError

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
