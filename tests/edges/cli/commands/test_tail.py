"""`tail`: start positions, counts, and lost connections."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.edges.cli.conftest import Cli
from tidings.edges.cli.client import Client
from tidings.edges.cli.commands import topics
from tidings.edges.cli.exit_codes import Failure
from tidings.edges.cli.screen import Screen


def fill(cli: Cli, count: int, **more: str) -> None:
    client = Client(cli.url)
    for number in range(count):
        client.call("POST", f"/v1/topics/{cli.topic}/records", body={"value": str(number), **more})
    cli.tail(cli.topic, count)


def test_a_start_that_is_no_position_names_the_positions(cli: Cli) -> None:
    done = cli("tail", cli.topic, "--from", "earliest")
    assert (done.code, done.err) == (2, "tidings: --from earliest: use --from beginning, latest or a cursor\n")


def test_a_record_is_printed_with_its_lateness(cli: Cli) -> None:
    cli.json("schedule", "--to", cli.topic, "--at", "+100ms", "--key", "k", "--header", "a=b", '{"hello":"world"}')
    done = cli("tail", cli.topic, "--count", "1")
    assert done.code == 0
    [line] = done.out.splitlines()
    words = line.split()
    assert words[0].startswith("20")
    assert words[3] == "ms"
    assert float(words[2]) >= 0
    assert words[4:] == ["[k]", '{"hello":"world"}', "a=b"]


def test_a_record_is_printed_with_its_occurrence_number(cli: Cli) -> None:
    name = f"many-{cli.topic}"
    rule = ("--rrule", "FREQ=SECONDLY;COUNT=3", "--start", "2020-01-01T00:00:00Z", "--late", "fire_all")
    cli.json("schedule", "--to", cli.topic, "--id", name, *rule, "x")
    lines = cli("tail", cli.topic, "--count", "3").out.splitlines()
    assert [line.split(" ms", 1)[1].split() for line in lines] == [["x"], ["#2", "x"], ["#3", "final", "x"]]
    cli.json("schedule", "--to", cli.topic, "--id", f"{name}-on", "--every", "P1D", "y")
    cli("fire", f"{name}-on")
    line = cli("tail", cli.topic, "--from", "beginning", "--count", "4").out.splitlines()[-1]
    assert line.split(" ms", 1)[1].split() == ["fired", "1", "y"]


def test_tail_waits_for_a_topic_to_be_created(cli: Cli) -> None:
    timer = threading.Timer(
        0.3, lambda: Client(cli.url).call("POST", f"/v1/topics/{cli.topic}/records", body={"value": "x"})
    )
    timer.start()
    done = cli("tail", cli.topic, "--count", "1", "--json")
    timer.join()
    assert json.loads(done.out)["value"] == "x"


def test_tail_shows_the_last_records_by_default(cli: Cli) -> None:
    fill(cli, 25)
    last = cli("tail", cli.topic, "--count", str(topics.LAST_DEFAULT), "--json").out.splitlines()
    assert [json.loads(line)["value"] for line in last] == [str(number) for number in range(15, 25)]


@pytest.mark.parametrize("count", [1, 15, 24])
def test_count_shows_the_newest_records(cli: Cli, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "PAGE_ROWS", 4)
    fill(cli, 25)
    last = cli("tail", cli.topic, "--count", str(count), "--json").out.splitlines()
    assert [json.loads(line)["value"] for line in last] == [str(number) for number in range(25 - count, 25)]


def test_count_waits_if_there_are_fewer_records(cli: Cli) -> None:
    fill(cli, 2)
    timer = threading.Timer(
        0.3, lambda: Client(cli.url).call("POST", f"/v1/topics/{cli.topic}/records", body={"value": "new"})
    )
    timer.start()
    lines = cli("tail", cli.topic, "--count", "3", "--json").out.splitlines()
    timer.join()
    assert [json.loads(line)["value"] for line in lines] == ["0", "1", "new"]


def test_from_latest_and_from_a_cursor(cli: Cli) -> None:
    fill(cli, 2, key="same-partition")
    timer = threading.Timer(
        0.3,
        lambda: Client(cli.url).call(
            "POST", f"/v1/topics/{cli.topic}/records", body={"value": "new", "key": "same-partition"}
        ),
    )
    timer.start()
    done = cli("tail", cli.topic, "--from", "latest", "--count", "1", "--json")
    timer.join()
    assert json.loads(done.out)["value"] == "new"
    cursor = Client(cli.url).call("GET", f"/v1/topics/{cli.topic}/records", query={"limit": 2})["cursor"]
    [record] = [
        json.loads(line) for line in cli("tail", cli.topic, "--from", cursor, "--count", "1", "--json").out.splitlines()
    ]
    assert record["value"] == "new"


def test_values_that_are_not_text(cli: Cli) -> None:
    Client(cli.url).call(
        "POST",
        f"/v1/topics/{cli.topic}/records",
        body={"value_base64": "/w==", "headers": [["b", {"base64": "/g=="}], ["n", None]]},
    )
    [line] = cli("tail", cli.topic, "--count", "1").out.splitlines()
    assert line.endswith('base64:/w==  b={"base64":"/g=="}  n=null')


def test_a_group_continues_from_its_committed_position(cli: Cli) -> None:
    fill(cli, 5)
    first = cli("tail", cli.topic, "--group", "g", "--count", "3", "--json").out.splitlines()
    rest = cli("tail", cli.topic, "--group", "g", "--count", "2", "--json").out.splitlines()
    values = sorted(json.loads(line)["value"] for line in first + rest)
    assert values == ["0", "1", "2", "3", "4"]


class Flaky(BaseHTTPRequestHandler):
    """A stream that breaks after each record, once with an error and once in the middle of an event."""

    seen: list[str | None]
    connections = 0

    def do_GET(self) -> None:
        kind = type(self)
        kind.connections += 1
        cursor = self.headers["Last-Event-ID"]
        kind.seen.append(cursor)
        if kind.connections == 2:
            self.send_response(503)
            self.send_header("Content-Length", "14")
            self.end_headers()
            self.wfile.write(b'{"status":503}')
            return
        self.send_response(200)
        self.end_headers()
        number = int(cursor or 0)
        self.wfile.write(b'id: %d\ndata: {"value": "%d"}\n\nid: 99\ndata: {"cut' % (number + 1, number))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def flaky() -> Iterator[str]:
    Flaky.seen, Flaky.connections = [], 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_tail_reconnects_after_a_lost_connection(flaky: str, capsys: pytest.CaptureFixture[str]) -> None:
    records: list[Any] = []
    for record in topics.follow(Client(flaky), "t", "beginning", Screen()):
        records.append(record["value"])
        if len(records) == 3:
            break
    assert records == ["0", "1", "2"]
    assert Flaky.seen == [None, "1", "1", "2"]
    assert "trying again" in capsys.readouterr().err


def test_a_permanent_failure_ends_tail(cli: Cli) -> None:
    with pytest.raises(Failure, match="cursor"):
        next(topics.follow(Client(cli.url), "t", "nonsense", Screen()))


def test_interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Iterator[dict[str, Any]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(topics, "follow", interrupt)
    done = cli("tail", cli.topic)
    assert (done.code, done.out, done.err) == (130, "", "")
