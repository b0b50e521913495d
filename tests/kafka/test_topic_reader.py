"""Kafka topics over HTTP and with `tidings tail`: committed records from a position on, with authorization."""

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.kafka.served import PATIENCE_S, Served
from tests.kafka.site import read_all
from tidings.bus.kafka import topic_reader
from tidings.bus.log_reader import encode
from tidings.edges.cli.client import Client
from tidings.edges.cli.commands import topics
from tidings.edges.cli.exit_codes import Failure

pytestmark = pytest.mark.slow

Command = Callable[..., list[Any]]


@pytest.fixture
def lines(served: Served, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *argv: served.lines(capsys, *argv)


def fill(served: Served, tenant: str, count: int) -> str:
    """Write this many records to a topic, in one or several transactions."""
    out = f"{tenant}-out"
    for number in range(count):
        served.send(f"tidings.requests.{tenant}", b"%d" % number, b"k", ("tidings-to", out))
    return out


def problem(served: Served, path: str, key: str | None = None) -> Any:
    with pytest.raises(Failure) as failure:
        served.get(path, key)
    return failure.value.document


def events(served: Served, path: str, count: int, last: str | None = None) -> Iterator[tuple[str, Any]]:
    """Read this many events of a stream, each with its id."""
    headers = {} if last is None else {"Last-Event-ID": last}
    request = urllib.request.Request(served.url + path, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        position = ""
        for raw in response:
            name, _, content = raw.decode().rstrip().partition(": ")
            if name == "id":
                position = content
            elif name == "data":
                yield position, json.loads(content)
                count -= 1
                if not count:
                    return


def test_tail_reads_both_buses(served: Served, tenant: str, lines: Command) -> None:
    out = fill(served, tenant, 3)
    records = lines("tail", out, "--bus", "kafka", "--count", "3", "--from", "beginning")
    assert [record["value"] for record in records] == ["0", "1", "2"]
    assert records[0]["bus"] == "kafka"
    assert records[0]["occurrence"] == records[0]["id"] + "/1/1"
    assert {"topic", "partition", "offset", "key", "headers", "due_at", "released_at"} <= records[0].keys()
    assert lines("tail", out, "--count", "3") == records  # where this server releases to
    lines("schedule", "--to", tenant, "on kafka")
    assert lines("tail", tenant, "--count", "1")[0]["value"] == "on kafka"
    body = {"topic": tenant, "value": "on the log", "bus": "log"}
    Client(served.url).call("POST", "/v1/schedules", body=body)
    [record] = lines("tail", tenant, "--bus", "log", "--count", "1")
    assert record["value"] == "on the log"
    assert "bus" not in record


def test_tail_on_a_terminal_shows_the_lateness(served: Served, tenant: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = fill(served, tenant, 1)
    code, text, _ = served.command(capsys, "tail", out, "--count", "1")
    assert code == 0
    words = text.split()
    assert words[3] == "ms"
    assert float(words[2].replace(",", "")) >= 0
    assert words[4:6] == ["[k]", "0"]


def test_tail_shows_the_newest_records_despite_transaction_markers(served: Served, tenant: str, lines: Command) -> None:
    out = fill(served, tenant, 25)
    lines("tail", out, "--count", "25", "--from", "beginning")
    last = lines("tail", out, "--count", "10")
    assert [record["value"] for record in last] == [str(number) for number in range(15, 25)]


@pytest.mark.parametrize("start", [(), ("--from", "beginning")], ids=["last", "beginning"])
def test_a_topic_may_be_created_after_the_reader(
    served: Served, tenant: str, start: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    timer = threading.Timer(1.5, fill, (served, tenant, 1))
    timer.start()
    code, out, err = served.command(capsys, "tail", f"{tenant}-out", "--count", "1", "--json", *start)
    timer.join()
    assert code == 0
    assert json.loads(out)["value"] == "0"
    assert err.splitlines() == [f"the topic {tenant}-out does not exist on Kafka yet: waiting for it"]


def test_a_topic_without_a_leader_is_waited_for(
    served: Served, tenant: str, lines: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = fill(served, tenant, 1)
    lines("tail", out, "--count", "1")
    moves = [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART]
    ask = topic_reader._TopicConsumer._span

    def ask_while_it_moves(reading: topic_reader._TopicConsumer, partition: int) -> tuple[int, int]:
        if moves:
            raise KafkaException(KafkaError(moves.pop()))
        return ask(reading, partition)

    monkeypatch.setattr(topic_reader._TopicConsumer, "_span", ask_while_it_moves)
    assert [record["value"] for record in lines("tail", out, "--count", "1", "--from", "beginning")] == ["0"]
    assert moves == []
    moves += [KafkaError.NOT_LEADER_FOR_PARTITION] * 2
    monkeypatch.setattr(topic_reader, "SILENCE_US_MAX", 0)
    assert "Not leader for partition" in problem(served, f"/v1/topics/{out}/records?bus=kafka")["detail"]


def test_an_empty_cursor_is_valid() -> None:
    assert topics.NO_PARTITIONS.decode() == f"id: {topic_reader.PREFIX}{encode(())}"


def test_pages_and_long_polling(served: Served, tenant: str) -> None:
    out = fill(served, tenant, 5)
    list(events(served, f"/v1/topics/{out}/stream", 5))
    path = f"/v1/topics/{out}/records?bus=kafka"
    seen, cursor = [], None
    while page := served.get(f"{path}&limit=2" + (f"&cursor={cursor}" if cursor else "")):
        assert len(page["records"]) <= 2
        assert page["bus"] == "kafka"
        cursor = page["cursor"]
        if not page["records"]:
            break
        seen += [record["value"] for record in page["records"]]
    assert seen == ["0", "1", "2", "3", "4"]
    assert served.get(f"{path}&cursor=latest")["records"] == []
    timer = threading.Timer(0.5, served.produce, (out, b"new"))
    timer.start()
    page = served.get(f"{path}&cursor={cursor}&wait=20s")
    timer.join()
    assert [record["value"] for record in page["records"]] == ["new"]
    assert "id" not in page["records"][0]  # it was not ours


def test_a_stream_resumes_without_gaps_or_duplicates(served: Served, tenant: str) -> None:
    out = fill(served, tenant, 6)
    path = f"/v1/topics/{out}/stream?bus=kafka"
    first = list(events(served, path, 2))
    rest = list(events(served, path, 4, first[-1][0]))
    assert [record["value"] for _, record in first + rest] == ["0", "1", "2", "3", "4", "5"]


def test_only_committed_records_are_read(served: Served, tenant: str) -> None:
    served.broker.create_topic(tenant)
    producer = Producer(served.broker.client(transactional_id=tenant))
    producer.init_transactions(PATIENCE_S)
    for value in (b"aborted", b"committed"):
        producer.begin_transaction()
        producer.produce(tenant, value)
        producer.flush(PATIENCE_S)
        if value == b"aborted":
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    page = served.get(f"/v1/topics/{tenant}/records?bus=kafka")
    assert [record["value"] for record in page["records"]] == ["committed"]


def test_added_partitions_are_streamed(served: Served, tenant: str) -> None:
    served.broker.create_topic(tenant, partitions=3)
    producer = Producer(served.broker.client())
    for number in range(3):
        producer.produce(tenant, b"%d" % number, partition=number)
    producer.flush(PATIENCE_S)
    found = list(events(served, f"/v1/topics/{tenant}/stream", 3))
    assert sorted(record["partition"] for _, record in found) == [0, 1, 2]
    page = served.get(f"/v1/topics/{tenant}/records?cursor={found[-1][0]}")
    assert page["records"] == []


def test_invalid_cursors_are_refused(served: Served, tenant: str) -> None:
    out = fill(served, tenant, 1)
    list(events(served, f"/v1/topics/{out}/stream", 1))
    path = f"/v1/topics/{out}/records?bus=kafka&cursor="
    assert "not a cursor of a Kafka topic" in problem(served, path + "lAAAAQA")["detail"]
    assert "cannot be read" in problem(served, path + "kafka.nonsense")["detail"]
    assert "beyond the end" in problem(served, path + topic_reader.PREFIX + encode((10_000,)))["detail"]
    assert "partitions" in problem(served, path + topic_reader.PREFIX + encode((0, 0)))["detail"]
    assert problem(served, f"/v1/topics/{out}/records?bus=pigeon")["status"] == 400
    assert problem(served, "/v1/topics/a:b/records?bus=kafka")["status"] == 400


def test_too_many_readers_are_refused(served: Served, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "READERS_MAX", 0)
    refusal = problem(served, f"/v1/topics/{tenant}/records?bus=kafka")
    assert refusal["status"] == 503
    assert "try again" in refusal["detail"]


def test_consumer_groups_are_only_for_the_log(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = served.command(capsys, "tail", "orders", "--bus", "kafka", "--group", "g")
    assert code == 2
    assert "log" in err


def test_rejections_are_listed(served: Served, tenant: str, lines: Command, capsys: pytest.CaptureFixture[str]) -> None:
    served.send(f"assignments.{tenant}", b"a", b"k1", ("intervals-schedule", b"next tuesday"))
    served.send(f"{tenant}-schedule-requests", b"b", b"k2", ("x-scheduler-action", b"CANCEL"))
    served.send(f"tidings.requests.{tenant}", b"c", b"\xff", ("tidings-to", b"tidings.progress"))
    for topic in (f"rejections.{tenant}", f"{tenant}-schedule-rejections", f"tidings.rejections.{tenant}"):
        lines("tail", topic, "--count", "1")
    found = {refusal["source_topic"]: refusal for refusal in lines("rejections", tenant)}
    assert found.keys() == {f"assignments.{tenant}", f"{tenant}-schedule-requests", f"tidings.requests.{tenant}"}
    first = found[f"assignments.{tenant}"]
    assert (first["source_partition"], first["source_offset"], first["key"], first["value"]) == (0, 0, "k1", "a")
    assert "next tuesday" in first["reasons"][0]
    [reason] = found[f"{tenant}-schedule-requests"]["reasons"]
    assert reason == "Missing required header `x-scheduler-request-id` for CANCEL action"
    assert found[f"tidings.requests.{tenant}"]["key_base64"] == "/w=="
    assert {refusal["source_topic"] for refusal in lines("rejections", "--count", "1000")} >= found.keys()
    code, text, _ = served.command(capsys, "rejections", tenant)
    assert code == 0
    assert f"assignments.{tenant}/0/0  [k1]  " in text
    code, text, _ = served.command(capsys, "rejections", "--tenant", tenant)
    assert f"assignments.{tenant}/0/0  [k1]  " in text
    assert text.count("\n") == len(found)
    code, text, err = served.command(capsys, "rejections", f"{tenant}-nobody")
    assert (code, text) == (3, "")
    assert f"{tenant}-nobody has no rejection topic" in err
    code, _, err = served.command(capsys, "rejections", "no body")
    assert code == 2
    assert "'no body' is not a valid tenant name" in err


def test_a_tenant_without_rejections_has_an_empty_list(
    served: Served, tenant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    served.send(f"assignments.{tenant}", b"a", None, ("intervals-schedule", b"PT0.1S"))
    deadline = time.monotonic() + PATIENCE_S
    while not read_all(served.broker, f"executions.{tenant}"):
        assert time.monotonic() < deadline
    code, text, err = served.command(capsys, "rejections", tenant)
    assert (code, text, err) == (0, "", "nothing was rejected\n")


def test_rejections_can_be_followed(
    served: Served, tenant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def show(record: dict[str, Any], *_: object) -> None:
        seen.append(record["value"])
        raise KeyboardInterrupt

    monkeypatch.setattr(topics, "show", show)
    request = (f"assignments.{tenant}", b"late", None, ("intervals-schedule", b"never"))
    timer = threading.Timer(1.0, served.send, request)
    timer.start()
    assert served.command(capsys, "rejections", tenant, "--follow")[0] == 130
    timer.join()
    assert seen == ["late"]


def test_with_keys_a_tenant_reads_only_its_own_topics(
    served: Served, tenant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last test of this file: from here on the node requires keys."""
    served.send(f"assignments.{tenant}", b"mine", None, ("intervals-schedule", b"PT0.2S"))
    make = {"name": f"admin-{tenant}", "admin": True}
    admin = Client(served.url).call("POST", "/v1/keys", body=make)["key"]
    make = {"name": f"key-{tenant}", "tenant": tenant}
    key = Client(served.url, admin).call("POST", "/v1/keys", body=make)["key"]
    page = served.get(f"/v1/topics/executions.{tenant}/records?bus=kafka&wait=20s", key)
    assert [record["value"] for record in page["records"]] == ["mine"]
    for topic in (f"rejections.{tenant}", f"tidings.rejections.{tenant}", f"{tenant}-schedule-rejections"):
        assert served.get(f"/v1/topics/{topic}/records?bus=kafka", key)["records"] == []
    for topic in ("executions.other", f"assignments.{tenant}", "tidings.progress", "tidings.facts", tenant):
        refusal = problem(served, f"/v1/topics/{topic}/records", key)
        assert refusal["status"] == 403
        assert topic in refusal["detail"]
        assert problem(served, f"/v1/topics/{topic}/stream", key)["status"] == 403
        assert served.get(f"/v1/topics/{topic}/records?bus=kafka", admin)["bus"] == "kafka"
    assert served.get(f"/v1/topics/{tenant}/records?bus=log", key)["records"] == []
    names = {topic["name"] for topic in served.get("/v1/topics?bus=kafka", key)["topics"]}
    assert names == {f"executions.{tenant}", f"rejections.{tenant}"}
    assert problem(served, f"/v1/topics/executions.{tenant}/records?bus=kafka")["status"] == 401
    assert served.command(capsys, "rejections", tenant, "--api-key", key)[0] == 0
    for other in ("default", "other"):
        code, text, err = served.command(capsys, "rejections", other, "--api-key", key)
        assert (code, text) == (1, "")
        assert f"rejections.{other} on Kafka may contain records of other tenants" in err
