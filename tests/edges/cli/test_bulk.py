"""Many lines in one go: outcomes in order, bad lines by number, a summary for people."""

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
    assert "line 3: rejected" in done.err
    assert "topic: " in done.err
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


def test_far_more_than_any_buffer_holds(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.ndjson"
    rows = (json.dumps({"topic": cli.topic, "at": "1h", "value": "v" * 400}) for _ in range(20_000))
    path.write_text("\n".join(rows))
    done = cli("schedule", "--from", str(path))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("20,000 scheduled in ")


def test_conflicts_and_an_empty_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.ndjson"
    path.write_bytes(b"")
    assert cli("schedule", "--from", str(path)).out.startswith("no lines in ")


def test_many_bad_lines_are_counted(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.ndjson"
    path.write_text("nonsense\n" * 30)
    done = cli("schedule", "--from", str(path))
    assert done.code == 1
    assert done.err.count("line ") == 20
    assert "... and 10 more; --json shows each" in done.err


@pytest.mark.parametrize("argv", [("--id", "x"), ("a value",)])
def test_what_belongs_into_the_lines(cli: Cli, argv: tuple[str, ...]) -> None:
    assert cli("schedule", "--from", "x.ndjson", *argv).code == 2
