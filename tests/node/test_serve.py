"""Nodes as processes: start, refuse to start, be standby, and stop in time."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidings.clock import SystemClock
from tidings.edges.cli.client import Client
from tidings.edges.cli.exit_codes import Failure
from tidings.node import url_from_here, url_of

pytestmark = pytest.mark.slow

START_S = 15.0
STOP_S = 5.0
POLL_S = 0.02


class NodeProcess:
    """`python -m tidings serve` with its log read continuously."""

    def __init__(self, folder: Path, *argv: str, **environment: str) -> None:
        command = [sys.executable, "-m", "tidings", "serve", "--port", "0", *argv]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**clean, **environment},
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def logged(self, pattern: str) -> re.Match[str]:
        """The first match in the log, once there is one."""
        with self._news:
            assert self._news.wait_for(lambda: re.search(pattern, self.log), START_S), self.log
        found = re.search(pattern, self.log)
        assert found is not None
        return found

    def client(self, key: str | None = None) -> Client:
        return Client(self.logged(r'"url":"(http://[^"]+)"')[1], key)

    def ready(self, key: str | None = None) -> Client:
        """A client of the node, once it accepts changes."""
        client = self.client(key)
        assert eventually(lambda: is_ready(client)), self.log
        return client

    def end(self) -> tuple[int, str, str]:
        """The exit code, output and log of a process that ends by itself."""
        code = self.process.wait(START_S)
        self._reader.join(START_S)
        assert self.process.stdout is not None
        return code, self.process.stdout.read(), self.log

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(START_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def eventually(condition: Callable[[], bool], patience_s: float = START_S) -> bool:
    """Whether a condition becomes true in time."""
    clock = SystemClock()
    deadline = clock.elapsed() + int(patience_s * 1e6)
    pause = threading.Event()
    while not condition():
        if clock.elapsed() > deadline:
            return False
        pause.wait(POLL_S)
    return True


def is_ready(client: Client) -> bool:
    try:
        return bool(client.call("GET", "/readyz")["status"] == "ready")
    except Failure:
        return False


Start = Callable[..., NodeProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[NodeProcess] = []

    def started(*argv: str, **environment: str) -> NodeProcess:
        nodes.append(NodeProcess(tmp_path, *argv, **environment))
        return nodes[-1]

    yield started
    for node in nodes:
        node.close()


def tidings(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidings", *argv]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=2 * START_S)


def seconds_to_end(node: NodeProcess, number: signal.Signals) -> float:
    clock = SystemClock()
    started = clock.elapsed()
    node.process.send_signal(number)
    node.process.wait(2 * STOP_S)
    return (clock.elapsed() - started) / 1e6


def test_schedule_stop_start_receive(start: Start) -> None:
    first = start()
    client = first.ready()
    client.call("POST", "/v1/schedules", body={"topic": "x", "id": "a", "value": "v", "at": "+1s"})
    assert seconds_to_end(first, signal.SIGTERM) < STOP_S
    assert first.end()[0] == 0
    again = start().ready()
    page = again.call("GET", "/v1/topics/x/records", query={"wait": "10s"})
    assert [record["id"] for record in page["records"]] == ["a"]
    assert "tidings_released_total 1" in again.call("GET", "/metrics")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_stops_in_time_with_open_streams(start: Start, number: signal.Signals) -> None:
    node = start()
    client = node.ready()
    with client.request("GET", "/v1/topics/x/stream", headers={"Accept": "text/event-stream"}) as response:
        assert response.readline().startswith(b"retry")
        assert seconds_to_end(node, number) < STOP_S
        response.read()
    code, _, log = node.end()
    assert code == 0, log
    assert "stopping" in log
    assert "Traceback" not in log


def test_a_second_signal_stops_at_once(start: Start) -> None:
    node = start()
    client = node.ready()
    with client.connect(STOP_S) as connection:
        connection.putrequest("POST", "/v1/schedules")
        connection.putheader("Content-Type", "application/x-ndjson")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders(b"1\r\n{\r\n")  # a body without an end, which the first signal waits for
        node.process.send_signal(signal.SIGTERM)
        node.logged("stopping")
        assert seconds_to_end(node, signal.SIGTERM) < 1.0
    assert node.end()[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_addresses_other_than_localhost_need_keys(start: Start, tmp_path: Path, host: str) -> None:
    refused = start("--host", host)
    code, _, log = refused.end()
    assert code == 1
    assert f"refusing to listen on {host} without API keys" in log
    command = re.search(r"tidings (keys create .*)", log)
    assert command is not None
    made = tidings(tmp_path, *command[1].split())
    assert made.returncode == 0
    open_to_all = start("--host", host)
    client = open_to_all.ready(made.stdout.strip())
    assert f"listening on {url_of(host, 0)[:-1]}" in open_to_all.log
    assert client.call("GET", "/v1/topics") == {"topics": [], "bus": "log"}
    other_client = Client(client.url)
    with pytest.raises(Failure, match="API key") as turned_away:
        other_client.call("GET", "/v1/topics")
    assert turned_away.value.code == 1


def test_a_new_key_counts_at_once(start: Start, tmp_path: Path) -> None:
    node = start()
    client = node.ready()
    client.call("POST", "/v1/schedules", body={"topic": "x", "id": "theirs", "at": "1h"})
    made = tidings(tmp_path, "keys", "create", "mine", "--tenant", "acme", "--store", "tidings.db")
    mine = node.client(made.stdout.strip())

    def sees_only_its_own() -> bool:
        return bool(mine.call("GET", "/v1/schedules")["schedules"] == [])

    assert eventually(sees_only_its_own)
    assert eventually(lambda: is_turned_away(client))
    assert is_turned_away(node.client("tdk_wrong"))


def is_turned_away(client: Client) -> bool:
    try:
        client.call("GET", "/v1/topics")
    except Failure as failure:
        return "TIDINGS_KEY" in str(failure)
    return False


def test_a_second_node_on_a_file_is_standby_and_takes_over(start: Start) -> None:
    first = start()
    client = first.ready()
    second = start()
    standby = second.client()
    second.logged("standing by: another process owns this store")
    with pytest.raises(Failure, match="another process owns") as away:
        standby.call("GET", "/readyz")
    assert away.value.document["status"] == 503
    client.call("POST", "/v1/schedules", body={"topic": "x", "id": "a", "value": "v", "at": "1h"})
    first.process.kill()
    assert eventually(lambda: is_ready(standby), 5.0), second.log
    second.logged("owns the timeline")
    assert standby.call("POST", "/v1/schedules/a/fire")["outcome"] == "fired"


def test_a_port_in_use(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = tidings(tmp_path, "serve", "--port", port)
    assert done.returncode == 1
    assert f"tidings: 127.0.0.1:{port} is in use" in done.stderr
    assert "--port" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--host", "no-such-host.invalid"], 2, "host: 'no-such-host.invalid' is not an address"),
        (["--host", "192.0.2.1"], 2, "host: '192.0.2.1' is not an address of this machine"),
        (["--store", "."], 2, "store: . is a folder: give a file in it, such as tidings.db"),
        (["--host", "0.0.0.0"], 1, "refusing to listen on 0.0.0.0"),
        (
            ["--kafka", "127.0.0.1:1", "--set", "kafka.schedules=tidings.progress=acme"],
            2,
            "kafka.schedules: tidings.progress is reserved for Tidings: choose another topic",
        ),
        (["--set", "limits.id_size_max=2000B"], 2, "limits.id_size_max: '2000B' is out of bounds"),
    ],
)
def test_a_refused_start_leaves_no_files_behind(tmp_path: Path, argv: list[str], code: int, said: str) -> None:
    done = tidings(tmp_path, "serve", "--port", "0", *argv)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_kafka_without_its_client(tmp_path: Path) -> None:
    without = "import sys; sys.modules['confluent_kafka'] = None; from tidings.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", without, "serve", "--port", "0", "--kafka", "127.0.0.1:1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=START_S)
    assert done.returncode == 1
    assert "run `make setup`, or `pip install '.[kafka]'`, in the clone" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["ssl_ca", "ssl_certificate", "ssl_key"])
def test_a_missing_tls_file_is_refused(tmp_path: Path, key: str) -> None:
    settings = ["--set", "kafka.security=ssl", "--set", f"kafka.{key}=missing.pem"]
    done = tidings(tmp_path, "serve", "--port", "0", "--kafka", "127.0.0.1:1", *settings)
    assert done.returncode == 2
    assert f"kafka.{key}: missing.pem cannot be read (No such file or directory): give a PEM file" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_as_tls_key_is_refused(tmp_path: Path) -> None:
    settings = ["--set", "kafka.security=ssl", "--set", "kafka.ssl_ca=.", "--set", "kafka.ssl_key=."]
    done = tidings(tmp_path, "serve", "--port", "0", "--kafka", "127.0.0.1:1", *settings)
    assert done.returncode == 2
    assert "kafka.ssl_key: . cannot be read (Is a directory)" in done.stderr


def test_invalid_settings_are_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "tidings.toml").write_text("[server]\nprot = 1\n")
    done = tidings(tmp_path, "serve", "--port", "many")
    assert done.returncode == 2
    assert "tidings.toml: [server] prot is not a key: did you mean port" in done.stderr
    assert "--port: 'many' is not a whole number" in done.stderr


def test_print_config(tmp_path: Path) -> None:
    (tmp_path / "tidings.toml").write_text('[log]\nretention = "1d"\n')
    done = tidings(tmp_path, "serve", "--print-config", "--port", "9", "--set", "limits.value_size_max=2 MiB")
    assert done.returncode == 0
    assert re.search(r'retention = "1d" +# tidings.toml', done.stdout)
    assert re.search(r"port = 9 +# --port", done.stdout)
    assert re.search(r'value_size_max = "2 MiB" +# --set limits.value_size_max', done.stdout)


def test_settings_reach_the_engine(start: Start) -> None:
    client = start("--set", "limits.value_size_max=10 B", TIDINGS_LIMITS_HEADERS_MAX="0").ready()
    for body, said in (({"value": "x" * 11}, "value: "), ({"headers": [["a", "b"]]}, "headers: ")):
        with pytest.raises(Failure, match=said):
            client.call("POST", "/v1/schedules", body={"topic": "x", **body})


def test_a_store_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    done = tidings(tmp_path, "serve", "--port", "0", "--store", "/no/such/folder/tidings.db")
    assert done.returncode == 1
    assert "/no/such/folder/tidings.db cannot be opened" in done.stderr
    assert "Traceback" not in done.stderr


def test_logs_as_text_and_as_json(start: Start) -> None:
    machine = start()
    machine.ready()
    line: dict[str, Any] = json.loads(machine.lines[0])
    assert line["level"] == "info"
    human = start("--log-format", "human", "--store", ":memory:")
    human.logged(r"\d\d:\d\d:\d\d\.\d{3} +listening on http://127\.0\.0\.1:\d+")


def test_a_terminal_shows_the_greeting(tmp_path: Path) -> None:
    import pty

    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "tidings", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=terminal, stderr=subprocess.DEVNULL) as process:
        os.close(terminal)
        shown = ""
        while "Ctrl-C" not in shown:
            shown += os.read(controller, 4096).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_S) == 0
    os.close(controller)
    url = re.search(r"listens on (http://127.0.0.1:\d+)", shown)
    assert url is not None
    assert str(tmp_path / "tidings.db") in shown
    assert f"{url[1]}/docs" in shown
    assert f"tidings tail greetings --url {url[1]}" in shown


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:1"), ("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1")],
)
def test_urls(host: str, url: str) -> None:
    assert url_from_here(url_of(host, 1)) == url


def test_health_and_docs(start: Start) -> None:
    client = start().ready()
    assert client.call("GET", "/healthz")["status"] == "ok"
    with client.connect(5.0) as connection:
        connection.request("GET", "/docs")
        answer: http.client.HTTPResponse = connection.getresponse()
        assert answer.status == 200
