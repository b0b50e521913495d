"""`serve --processes N`: one command, one port, N nodes that share the work."""

import itertools
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.node.conftest import Start
from tests.node.test_roles import nodes
from tests.node.test_serve import NodeProcess, eventually, tidings
from tests.servers.postgres import Postgres
from tidings.edges.cli.client import Client

pytestmark = [pytest.mark.slow]

STOP_S = 8.0
REPLACED_S = 60.0
TURNS = 40

_numbers = itertools.count(1)


@pytest.fixture
def shared(postgres: Postgres) -> list[str]:
    """The flags for a store that no other test uses, with two processes."""
    schema = f"processes_{next(_numbers)}"
    flags = ["--store", postgres.dsn, "--set", f"store.schema={schema}", "--set", "store.lanes=4"]
    return [*flags, "--set", "node.name=here", "--processes", "2"]


def members(node: NodeProcess) -> list[int]:
    """The process ids under a supervisor."""
    pid = node.process.pid
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ready(node: NodeProcess) -> Client:
    """A client, once both processes take part."""
    client = node.ready()
    assert eventually(lambda: sorted(nodes(client)) == ["here-1", "here-2"]), node.log
    assert eventually(lambda: all(each["owns"] for each in nodes(client).values())), node.log
    return client


def scraped(client: Client) -> str:
    with client.connect(10.0) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_two_processes_share_lanes_port_and_metrics(start: Start, shared: list[str]) -> None:
    node = start(*shared)
    client = ready(node)
    for number in range(TURNS):
        client.call("POST", "/v1/schedules", body={"topic": "greetings", "id": f"s{number}", "value": "v"})

    def released() -> int:
        found = re.findall(r'^tidings_released_total\{process="\d"\} (\d+)$', scraped(client), re.MULTILINE)
        return sum(map(int, found))

    assert eventually(lambda: released() == TURNS), scraped(client)
    metrics = scraped(client)
    assert metrics.count("# TYPE tidings_released_total counter") == 1
    assert re.findall(r'^tidings_up\{process="(\d)"\} 1$', metrics, re.MULTILINE) == ["1", "2"]
    assert set(re.findall(r'process="(\d+)"', metrics)) == {"1", "2"}
    own = members(node)
    assert len(own) == 2
    for pid in (*own, node.process.pid):  # as a service manager does
        os.kill(pid, signal.SIGTERM)
    node.process.send_signal(signal.SIGHUP)
    assert node.process.wait(STOP_S) == 0
    assert "Traceback" not in node.log, node.log
    assert node.log.count('"message":"stopped"') == 3, node.log
    assert not any(map(is_alive, own))


def test_a_killed_process_is_started_again_and_a_hangup_replaces_all_one_by_one(
    start: Start, shared: list[str]
) -> None:
    node = start(*shared)
    node.logged("process 1 serves")
    node.process.send_signal(signal.SIGHUP)  # too early: nothing is replaced, and nothing breaks
    client = ready(node)
    killed = members(node)[1]
    os.kill(killed, signal.SIGKILL)
    node.logged(r"process 2 ended with -9 and is started again")
    assert eventually(lambda: len(members(node)) == 2 and killed not in members(node)), node.log
    node.logged(r"(?s)process 2 serves.*process 2 serves")
    before = members(node)

    def is_replacing() -> bool:
        if "replacing 2 processes" not in node.log:
            node.process.send_signal(signal.SIGHUP)  # without effect until the supervisor knows that both serve
        return "replacing 2 processes" in node.log

    assert eventually(is_replacing), node.log
    give_up_at = time.monotonic() + REPLACED_S
    while not re.search("replaced all processes", node.log):
        client.call("GET", "/healthz")  # the port is never unattended
        assert node.process.poll() is None, node.log
        assert time.monotonic() < give_up_at, node.log
    assert not set(before) & set(members(node))
    ready(node)
    assert "Traceback" not in node.log, node.log


def test_the_processes_stop_when_their_supervisor_is_killed(start: Start, shared: list[str]) -> None:
    node = start(*shared)
    ready(node)
    own = members(node)
    node.process.kill()
    assert eventually(lambda: not any(map(is_alive, own))), own


def test_a_refused_start_is_reported_once(start: Start, shared: list[str]) -> None:
    node = start(*shared[:-1], "200")
    code, _, log = node.end()
    assert code == 1
    assert len(re.findall("connections to PostgreSQL, which allows", log)) == 1, log
    assert "start fewer processes, or raise max_connections" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("store", ["tidings.db", ":memory:"])
def test_a_store_for_one_process_is_refused(tmp_path: Path, store: str) -> None:
    done = tidings(tmp_path, "serve", "--port", "0", "--store", store, "--processes", "2")
    assert done.returncode == 2
    assert "node.processes: a file or memory store is used by one process" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_supervisor_without_its_database_says_so_once(start: Start) -> None:
    node = start("--store", "postgres://nobody@127.0.0.1:1/none", "--processes", "3")
    code, _, log = node.end()
    assert code == 1
    assert len(re.findall("(?i)cannot reach|unreachable|refused", log)) == 1, log


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    for number in ("0", "-1", "257", "two"):
        done = tidings(tmp_path, "serve", "--processes", number)
        assert done.returncode == 2, number
        assert "--processes: " in done.stderr, done.stderr
