"""Many lines in one request: outcomes in order, bad lines by number, a summary for people."""

import json
from pathlib import Path

import pytest

from tests.edges.cli.conftest import Cli


def lines(topic: str | None, count: int) -> bytes:
    rows = ({"id": f"bulk-{number}", "value": "v" * 100, "at": "1h"} for number in range(count))
    return b"".join(json.dumps({"topic": topic, **row} if topic else row).encode() + b"\n" for row in rows)


def test_a_file_with_bad_lines(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.ndjson"
    good = [{"topic": cli.topic, "id": f"{cli.topic}-{number}", "at": "1h", "value": "v"} for number in range(4)]
    bad = ['{"topic": "no good!", "value": "v"}', "not json"]
    path.write_text("\n".join([*map(json.dumps, good[:2]), *bad, *map(json.dumps, good[2:])]))
    done = cli("schedule", "--from", str(path))
    assert done.code == 1
    assert done.out.startswith("4 scheduled, 2 rejected in ")
    assert "line 3: rejected: topic: " in done.err
    assert "line 4: rejected" in done.err


def test_each_outcome_as_json(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.ndjson"
    path.write_bytes(lines(cli.topic, 3))
    done = cli("schedule", "--from", str(path), "--json")
    assert done.code == 0
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == ["bulk-0", "bulk-1", "bulk-2"]
    assert done.err.startswith("3 scheduled in ")
    again = cli("schedule", "--from", str(path))
    assert again.out.startswith("3 unchanged in ")


def test_standard_input_with_a_topic_for_all(cli: Cli) -> None:
    cli.stdin(b'{"value": "a"}\n{"value": "b", "topic": "' + cli.topic.encode() + b'"}')
    done = cli("schedule", "--from", "-", "--to", cli.topic)
    assert done.code == 0, done
    assert {record["value"] for record in cli.tail(cli.topic, 2)} == {"a", "b"}


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_byte_order_mark_is_removed(cli: Cli, end: bytes) -> None:
    cli.stdin(b'\xef\xbb\xbf{"value": "a"}' + end)
    done = cli("schedule", "--from", "-", "--to", cli.topic)
    assert done.code == 0, done


@pytest.mark.slow
def test_far_more_than_any_buffer_holds(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.ndjson"
    rows = (json.dumps({"topic": cli.topic, "at": "1h", "value": "v" * 400}) for _ in range(20_000))
    path.write_text("\n".join(rows))
    done = cli("schedule", "--from", str(path))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("20,000 scheduled in ")


def test_an_empty_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.ndjson"
    path.write_bytes(b"")
    assert cli("schedule", "--from", str(path)).out.startswith("no lines in ")


@pytest.mark.parametrize("topic_for_all", [True, False])
def test_empty_lines_count(cli: Cli, tmp_path: Path, topic_for_all: bool) -> None:
    path = tmp_path / "many.ndjson"
    good = json.dumps({"topic": cli.topic, "at": "1h"}).encode()
    path.write_bytes(b"\n\r\n" + good + b"\r\n \t\nnonsense\n\n" + good + b"\n{\r}\n5")
    done = cli("schedule", "--from", str(path), *(("--to", "no good!") if topic_for_all else ()))
    assert done.code == 1
    assert [line.split(":")[0] for line in done.err.splitlines()] == ["line 5", "line 8", "line 9"]
    assert done.out.startswith("3 rejected, 2 scheduled in ")


def test_cancelled_and_released_schedules_are_reported(cli: Cli) -> None:
    for schedule_id in ("cancelled", "gone"):
        cli.json("schedule", "--to", cli.topic, "--at", "1h", "--id", f"{cli.topic}-{schedule_id}", "v")
    cli("cancel", f"{cli.topic}-cancelled")
    cli("fire", f"{cli.topic}-gone")
    cli.wait_released(f"{cli.topic}-gone")
    same = {"id": f"{cli.topic}-cancelled", "topic": cli.topic, "at": "1h", "value": "v"}
    cli.stdin(json.dumps(same).encode())
    again = cli("schedule", "--from", "-")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("1 unchanged (cancelled already) in ")
    others = [same | {"value": "other"}, same | {"id": f"{cli.topic}-gone", "value": "other"}]
    cli.stdin("\n".join(map(json.dumps, others)).encode())
    done = cli("schedule", "--from", "-")
    assert done.code == 4
    assert done.out.startswith("1 cancelled, 1 already_released in ")
    assert f"line 1: cancelled {cli.topic}-cancelled: it was cancelled: run `tidings replace --reuse`" in done.err
    assert f"line 2: already_released {cli.topic}-gone: it has been released already: " in done.err


def test_many_bad_lines_are_counted(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.ndjson"
    path.write_text("nonsense\n" * 30)
    done = cli("schedule", "--from", str(path))
    assert done.code == 1
    assert done.err.count("line ") == 20
    assert "... and 10 more; --json shows each" in done.err


@pytest.mark.parametrize("argv", [("--id", "x"), ("a value",)])
def test_options_of_a_single_schedule_are_refused_with_a_file(cli: Cli, argv: tuple[str, ...]) -> None:
    assert cli("schedule", "--from", "x.ndjson", *argv).code == 2
