"""A broker with authentication: with wrong credentials the node reports it and loses nothing."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from confluent_kafka import Message, Producer

from tests.faults.node_process import NodeProcess, clean_environment, start_plain
from tests.kafka.site import READ_S_MAX, headers_of, read_all
from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out
from tests.servers.kafka import Broker
from tests.servers.security import Login
from tidings.testing import eventually

pytestmark = pytest.mark.slow

USER = "tidings"
PASSWORD = "a secret of the tests"
STOP_S = 10.0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that requires a password."""
    try:
        started = Broker.start(tmp_path_factory.mktemp("guarded"), sasl=Login(USER, PASSWORD))
    except Missing as missing:
        leave_out(missing)
    with started:
        yield started


class Served:
    """A node as a process, and its client."""

    def __init__(self, node: NodeProcess, url: str, session: aiohttp.ClientSession) -> None:
        self.node = node
        self._url = url
        self._session = session

    async def call(self, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        async with self._session.request(method, self._url + path, json=document) as response:
            return response.status, await response.json(content_type=None)

    async def ready(self) -> Any:
        """The response of /readyz once it is ready."""

        async def said() -> Any:
            status, document = await self.call("GET", "/readyz")
            return document if status == 200 else None

        return await eventually(said, READ_S_MAX, poll_s=0.05)

    async def away(self, *words: str) -> str:
        """Wait until the reason for the problem with Kafka contains this text."""

        async def said() -> str:
            status, document = await self.call("GET", "/readyz")
            detail = str(document.get("detail", ""))
            return detail if status == 503 and any(word in detail for word in words) else ""

        return await eventually(said, READ_S_MAX, poll_s=0.05)


@asynccontextmanager
async def serving(folder: Path, broker: Broker, name: str, **settings: str) -> AsyncIterator[Served]:
    """`tidings serve` in a folder; settings are by their names in the section `kafka`."""
    environment = {f"TIDINGS_KAFKA_{key.upper()}": value for key, value in ({"name": name} | settings).items()}
    node = await start_plain(folder, "--kafka", broker.bootstrap, "--log-format", "json", **environment)
    try:
        async with aiohttp.ClientSession() as session:
            yield Served(node, await node.url(), session)
    finally:
        node.send(signal.SIGTERM)
        if not await node.ended(STOP_S):
            node.send(signal.SIGKILL)
            await node.ended(STOP_S)


RIGHT = {
    "security": "sasl_plaintext",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_username": USER,
    "sasl_password": PASSWORD,
}


def send(broker: Broker, topic: str, value: bytes, at: str) -> None:
    producer = Producer(broker.client(linger_ms=0))
    producer.produce(topic, value, headers=[("intervals-schedule", at)])
    assert producer.flush(READ_S_MAX) == 0


async def read(broker: Broker, topic: str, count: int) -> list[Message]:
    def found() -> list[Message]:
        records = read_all(broker, topic)
        return records if len(records) >= count else []

    return await eventually(found, READ_S_MAX, poll_s=0.1)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_everything_works_with_the_password(guarded: Broker, tmp_path: Path, mechanism: str) -> None:
    name = f"welcome-{mechanism.lower()}"
    guarded.create_topic(f"assignments.{name}")
    async with serving(tmp_path, guarded, name, **RIGHT | {"sasl_mechanism": mechanism}) as served:
        await served.ready()
        send(guarded, f"assignments.{name}", b"over kafka", "PT0.5S")
        (record,) = await read(guarded, f"executions.{name}", 1)
        assert record.value() == b"over kafka"
        schedule = {"topic": f"{name}-out", "at": "+0.5s", "value": "over http"}
        assert (await served.call("POST", "/v1/schedules", schedule))[0] == 201
        (record,) = await read(guarded, f"{name}-out", 1)
        assert record.value() == b"over http"
        assert PASSWORD not in served.node.log


WRONG = {
    "no security": {},
    "a wrong password": RIGHT | {"sasl_password": "a guess"},
    "a wrong name": RIGHT | {"sasl_username": "somebody"},
}


@pytest.mark.parametrize("case", WRONG)
async def test_wrong_credentials_are_reported_and_nothing_is_lost(guarded: Broker, tmp_path: Path, case: str) -> None:
    name = f"stranger-{case.replace(' ', '-')}"
    guarded.create_topic(f"assignments.{name}")
    schedule = {"topic": f"{name}-out", "at": "+0.2s", "value": "over http", "id": "one"}
    async with serving(tmp_path, guarded, name, **WRONG[case]) as served:
        detail = await served.away("Kafka is unavailable")
        assert len(detail) > len("changes are accepted, but Kafka is unavailable: ")
        assert (await served.call("POST", "/v1/schedules", schedule))[0] == 201
        send(guarded, f"assignments.{name}", b"over kafka", "PT0.2S")
        if case != "no security":
            await served.away("uthentication")
        assert (await served.call("GET", "/healthz"))[0] == 200
        assert (await served.call("GET", "/v1/schedules/one"))[1]["state"] == "pending"
        assert "a guess" not in served.node.log
        assert served.node.status is None
    async with serving(tmp_path, guarded, name, **RIGHT) as served:
        await served.ready()
        (record,) = await read(guarded, f"{name}-out", 1)
        assert record.value() == b"over http"
        assert dict(headers_of(record))["tidings-occurrence"] == b"one/1/1"
        (record,) = await read(guarded, f"executions.{name}", 1)
        assert record.value() == b"over kafka"
        status, shown = await served.call("GET", "/v1/schedules/one")
        assert (status, shown["state"]) == (200, "released")


@pytest.mark.kill
async def test_the_return_of_a_broker_is_noticed_without_traffic(guarded: Broker, tmp_path: Path) -> None:
    async with serving(tmp_path, guarded, "patient", **RIGHT) as served:
        await served.ready()
        guarded.kill()
        await served.away("Kafka is unavailable")
        guarded.restart()
        await served.ready()


def run_serve(folder: Path, *argv: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tidings", "serve", *argv]
    clean = clean_environment(**environment)
    return subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, timeout=READ_S_MAX, check=False
    )


@pytest.mark.parametrize("absent", ["sasl_username", "sasl_password"])
def test_a_refused_start_leaves_nothing_behind(tmp_path: Path, absent: str) -> None:
    environment = {f"TIDINGS_KAFKA_{key.upper()}": value for key, value in RIGHT.items() if key != absent}
    run_serve(tmp_path, "--port", "0", "--kafka", "127.0.0.1:1", **environment)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("absent", ["sasl_username", "sasl_password"])
def test_incomplete_credentials_are_refused_at_the_start(tmp_path: Path, absent: str) -> None:
    environment = {f"TIDINGS_KAFKA_{key.upper()}": value for key, value in RIGHT.items() if key != absent}
    done = run_serve(tmp_path, "--port", "0", "--kafka", "127.0.0.1:1", **environment)
    assert done.returncode != 0
    assert "kafka.sasl_username" in done.stderr
    assert "kafka.sasl_password" in done.stderr
    assert "Traceback" not in done.stderr
    assert PASSWORD not in done.stderr + done.stdout


def test_the_password_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "tidings.toml"
    file.write_text(f'[kafka]\nsasl_password = "{PASSWORD}"\n')
    by_variable = {"TIDINGS_KAFKA_SASL_PASSWORD": PASSWORD}
    ways = [
        run_serve(tmp_path, "--print-config"),
        run_serve(tmp_path, "--print-config", "--set", f"kafka.sasl_password={PASSWORD}"),
        run_serve(tmp_path, "--print-config", **by_variable),
    ]
    for done in ways:
        assert done.returncode == 0, done.stderr
        assert 'sasl_password = "***"' in done.stdout
        assert PASSWORD not in done.stdout + done.stderr
    assert 'sasl_password = "none"' in run_serve(tmp_path.parent, "--print-config").stdout
