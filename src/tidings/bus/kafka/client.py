"""Clients of Kafka, with the settings that every one of them shares."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from confluent_kafka import KafkaError

LOG_INFO = 6  # librdkafka tells of a lost connection at this level
NOT_CONNECTED = "in state CONNECT"  # of a broker that could not be reached to begin with


def _every(_: str) -> bool:
    return True


class Cluster(msgspec.Struct, frozen=True):
    """Which Kafka, under which name we are known there, and what else its clients need (SASL, TLS).

    `takes` narrows the request topics to those that are ours to read. Those that are `compacted` are made so.
    """

    servers: str
    name: str = "tidings"
    settings: Mapping[str, str] = {}
    create_topics: bool = True
    partitions: int = 1
    replication: int = 1
    takes: Callable[[str], bool] = _every
    compacted: Set[str] = frozenset()

    def options(self, **more: Any) -> dict[str, Any]:
        """Settings for librdkafka; underscores stand for dots."""
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
    """Notices that a connection was lost, which librdkafka mends in silence.

    A request that was held up in the network may then still arrive, in the middle of what was sent since: whoever
    relies on transactions must begin anew with another producer. A connection that could not be made carried nothing:
    one broker of several may be away.
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
        """What the client reports by itself."""
        self._note(str(error))

    def _note(self, text: str) -> None:
        if not self.lost and NOT_CONNECTED not in text:
            self.lost = text


def quiet() -> logging.Logger:
    """For clients whose complaints come back as errors anyway; while a broker is away they repeat them for ever."""
    logger = logging.getLogger("tidings.kafka.client")
    logger.setLevel(logging.CRITICAL)
    return logger


T = TypeVar("T")


class BlockingThread:
    """Runs one piece of work after the other."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    def start(self, work: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Begin, once what was started before has ended."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """The same, to its end."""
        return await self.start(work, *arguments)

    def close(self) -> None:
        """End after the work in hand."""
        self._pool.shutdown(wait=False)
