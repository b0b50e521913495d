"""A real Kafka broker, for tests, benchmarks and developers.

`with Broker.start() as broker:` gives one that answers, with its data in a temporary folder.
"""

import base64
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.servers.java import jars, java
from tests.servers.ports import HOST
from tests.servers.process import Process
from tests.servers.properties import Ports, server_properties
from tests.servers.security import Certificate, Login, Security

START_S_MAX = 90.0
ANSWER_S = 0.5
TOPIC_S_MAX = 30.0
ATTEMPTS = 5
TAIL_LINES = 25
CHATTER = re.compile(r" INFO |^\t\S+ = ")
PORT_TAKEN = "Address already in use"

# Starts in two thirds of the time with half the work, but serves more slowly: for tests.
QUICK_JAVA = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# As Kafka is meant to run: for benchmarks.
FAST_JAVA = ("-Xmx1g",)
SHOW_TIMES = ("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS")


class StartFailed(Exception):
    """The broker does not answer; the message has the end of its log."""


class PortTaken(StartFailed):
    """Another process listens on one of its ports."""


class Broker:
    """A broker in a folder, with its ports. As a context manager it ends with the block."""

    def __init__(
        self, folder: Path, ports: Ports, security: Security, java_options: Sequence[str] = QUICK_JAVA
    ) -> None:
        self.folder = folder
        self.ports = ports
        self.security = security
        self.log = folder / "server.log"
        self._beside: Broker | None = None
        self._cluster_id = _new_id()
        self._command = [java(), *java_options, *SHOW_TIMES, "-cp", f"{jars()}/*"]
        self._process: Process | None = None
        self._starts = 0
        self._is_folder_ours = False

    @classmethod
    def start(
        cls,
        folder: Path | None = None,
        *,
        port: int | None = None,
        sasl: Login | None = None,
        tls: bool = False,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = QUICK_JAVA,
        beside: "Broker | None" = None,
    ) -> Self:
        """A new broker that answers. Without a folder it makes one and removes it at the end.

        Beside another it is a second one of its cluster, with the number 2.

        Raises `Missing` and `StartFailed`.
        """
        home = Path(tempfile.mkdtemp(prefix="kafka-")) if folder is None else folder
        home.mkdir(parents=True, exist_ok=True)
        try:
            security = Security(sasl, Certificate.make(home) if tls else None)
            broker = cls(home, Ports.choose(port), security, java_options)
            broker._is_folder_ours = folder is None
            if beside is not None:
                broker._beside, broker._cluster_id = beside, beside._cluster_id
            broker._begin(properties or {}, attempts=1 if port else ATTEMPTS)
        except BaseException:
            if folder is None:
                shutil.rmtree(home, ignore_errors=True)
            raise
        return broker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Where it is

    @property
    def bootstrap(self) -> str:
        """Its address for clients."""
        return f"{HOST}:{self.ports.direct}"

    def client(self, *, bootstrap: str | None = None, mechanism: str = "SCRAM-SHA-256", **more: Any) -> dict[str, Any]:
        """The configuration of a client of librdkafka; `group_id="a"` adds `group.id`. For a proxy: its bootstrap."""
        own = {"bootstrap.servers": bootstrap or self.bootstrap, **self.security.client(mechanism)}
        return own | {name.replace("_", "."): value for name, value in more.items()}

    def create_topic(
        self, name: str, partitions: int = 1, *, on: int | None = None, exist_ok: bool = False, **config: str
    ) -> None:
        """Make a topic; `cleanup_policy="compact"` sets `cleanup.policy`, `on` says on which broker of the cluster."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        if on is None:
            topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        else:
            topic = NewTopic(name, num_partitions=partitions, replica_assignment=[[on]] * partitions, config=settings)
        admin = AdminClient(self.client())  # needed until the answer is there
        try:
            admin.create_topics([topic])[name].result(TOPIC_S_MAX)
        except KafkaException as error:
            if not exist_ok or error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def topics(self) -> set[str]:
        """The names of its topics, without its own."""
        admin = AdminClient(self.client())
        return {name for name in admin.list_topics(timeout=TOPIC_S_MAX).topics if not name.startswith("__")}

    # Its process

    @property
    def pid(self) -> int:
        """The id of its present or last process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether its process exists, also if suspended."""
        return self._process is not None and self._process.is_alive

    def kill(self) -> None:
        """End it at once; the data stays."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """End it in good order; the data stays."""
        if self._process is not None:
            self._process.stop()

    def restart(self) -> None:
        """Start it again, with the same ports and data, and wait until it answers."""
        self.stop()
        self._starts += 1
        self.log = self.folder / f"server-{self._starts}.log"
        self._process = Process([*self._command, "kafka.Kafka", str(self._settings)], self.folder, self.log)
        try:
            self._await_answer()
        except BaseException:
            self.kill()
            raise

    def pause(self) -> None:
        """Suspend it: connections stay open and unanswered."""
        assert self._process is not None
        self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        assert self._process is not None
        self._process.send(signal.SIGCONT)

    def wait(self) -> None:
        """Until it has ended."""
        assert self._process is not None
        self._process.wait()

    def close(self) -> None:
        """End it, and remove its folder if it has made it itself."""
        self.kill()
        if self._is_folder_ours:
            shutil.rmtree(self.folder, ignore_errors=True)

    def tail(self) -> str:
        """The end of its log since the last start, without what only informs."""
        return _tail(self.log.read_text("utf-8", errors="replace"))

    # How it starts

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    def _begin(self, properties: Mapping[str, str], attempts: int) -> None:
        """Start it for the first time, on other ports if the chosen one is taken meanwhile."""
        for attempt in range(1, attempts + 1):
            self._format(properties)
            try:
                self.restart()
                return
            except PortTaken:
                if attempt == attempts:
                    raise
                self.ports = Ports.choose()

    def _format(self, more: Mapping[str, str]) -> None:
        """Write the properties and make the empty data folder ready."""
        data = self.folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        beside = None if self._beside is None else self._beside.ports
        properties = server_properties(data, self.ports, self.security, more, beside)
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), "utf-8")
        tool = ["kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(self._settings)]
        tool += ["--standalone"] if beside is None else []
        login = self.security.login
        if login is not None:
            tool += ["--add-scram", login.scram()]
        done = subprocess.run([*self._command, *tool], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StartFailed(f"the broker's folder cannot be made:\n{_tail(done.stdout + done.stderr)}")

    def _await_answer(self) -> None:
        """Wait until it is a member of the cluster."""
        deadline = time.monotonic() + START_S_MAX
        quick = {"log_level": 0, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
        admin = AdminClient(self.client() | quick)
        while not self._answers(admin):
            if not self.is_alive:
                failed = PortTaken if PORT_TAKEN in self.log.read_text("utf-8", errors="replace") else StartFailed
                raise failed(f"the broker ended before it answered:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"the broker did not answer within {START_S_MAX:.0f} s:\n{self.tail()}")

    def _answers(self, admin: AdminClient) -> bool:
        """Whether it answers, and not another server on its port."""
        try:
            cluster = admin.list_topics(timeout=ANSWER_S)
        except KafkaException:
            return False
        return str(cluster.cluster_id) == self._cluster_id and bool(cluster.brokers)


def _new_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "0")


def _tail(text: str) -> str:
    lines = [line for line in text.splitlines() if not CHATTER.search(line)]
    return "\n".join(lines[-TAIL_LINES:])
