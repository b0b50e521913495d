"""A whole node with HTTP and Kafka in a thread, and the command line called in this process."""

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.kafka.site import READ_S_MAX, Header
from tests.servers.kafka import Broker
from tidings.__main__ import NodeHooks
from tidings.config import Config
from tidings.config.settings import Kafka, Logs, Server, Store
from tidings.edges.cli.client import Client
from tidings.edges.cli.main import main
from tidings.node import serve_node

PATIENCE_S = 30.0


class Served:
    """A node in memory on a free port, connected to the broker, that publishes facts."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.name = f"served-{uuid.uuid4().hex[:8]}"
        self.url = ""
        self._made: set[str] = set()
        self._producer = Producer(broker.client(linger_ms=0))
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def send(self, topic: str, value: bytes | None, key: bytes | None = None, *headers: Header) -> None:
        """Send a record as a foreign client does; acknowledged when this returns."""
        if topic not in self._made:
            self._made.add(topic)
            self.broker.create_topic(topic, exist_ok=True)
        self.produce(topic, value, key, *headers)

    def produce(self, topic: str, value: bytes | None, key: bytes | None = None, *headers: Header) -> None:
        """Send a record to an existing topic."""
        self._producer.produce(topic, value, key, headers=list(headers))
        assert self._producer.flush(READ_S_MAX) == 0

    def get(self, path: str, key: str | None = None) -> Any:
        """Call the node; raises `Failure` with the problem."""
        return Client(self.url, key).call("GET", path, timeout_s=PATIENCE_S)

    def command(self, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
        """Run a command against this node; its exit code and output."""
        capsys.readouterr()
        code = main([*argv, "--url", self.url], NodeHooks())
        return code, *capsys.readouterr()

    def lines(self, capsys: pytest.CaptureFixture[str], *argv: str) -> list[Any]:
        """The documents that a successful command prints."""
        code, out, err = self.command(capsys, *argv, "--json")
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    def _run(self) -> None:
        kafka = Kafka(servers=self.broker.bootstrap, name=self.name, facts="on", stats="on")
        config = Config(server=Server(port=0), store=Store(":memory:"), logs=Logs(level="error"), kafka=kafka)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(serve_node(config, self._stop, self._listening))

    def _listening(self, url: str) -> None:
        self.url = url
        self._ready.set()


@pytest.fixture(scope="module")
def served(broker: Broker) -> Iterator[Served]:
    """One node for all tests of a file; use different topics and tenants."""
    node = Served(broker)
    node.start()
    yield node
    node.stop()


@pytest.fixture
def tenant() -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:8]}"
