"""Every command against a running server: output for people and for scripts, and exit codes."""

import json
import re
from calendar import monthrange
from pathlib import Path

import pytest

from tests.edges.cli.conftest import Cli
from tidings.clock import SystemClock

YEAR = 1970 + SystemClock().now() // 31_556_952_000_000 + 2  # well ahead, within the horizon


def test_schedule_prints_when_it_is_due(cli: Cli) -> None:
    done = cli("schedule", "--to", cli.topic, "--at", "+1h", "--id", f"{cli.topic}-1", "hello")
    assert done.code == 0
    assert done.out.startswith(f"scheduled {cli.topic}-1 to {cli.topic}, due 20")
    assert "(in " in done.out
    assert done.err == ""


def test_schedule_carries_everything(cli: Cli) -> None:
    argv = ["--header", "a=1", "--header", "a=2", "--header", "none", "--key", "k", "--label", "c=autumn"]
    policy = ["--priority", "high", "--expires-after", "1h", "--late", "skip", "--late-grace", "5s"]
    made = cli.json("schedule", "--to", cli.topic, "--at", "+1h", *argv, *policy, "--late-max", "2h", '{"x": 1}')
    shown = cli.json("show", made["id"])
    assert shown["value"] == '{"x": 1}'
    assert (shown["key"], shown["headers"]) == ("k", [["a", "1"], ["a", "2"], ["none", None]])
    assert (shown["labels"], shown["priority"], shown["late"]) == ({"c": "autumn"}, "high", "skip")
    assert shown["late_grace"] == "PT5S"  # the tightest bound, which is all that a one-shot keeps
    recurring = ["--every", "1h", "--count", "2", *policy, "--late-max", "2h", "x"]
    made = cli.json("schedule", "--to", cli.topic, *recurring)
    shown = cli.json("show", made["id"])
    assert (shown["late_grace"], shown["late_max"], shown["expires_after"]) == ("PT5S", "PT2H", "PT1H")


def test_values_from_files_stdin_and_with_an_at_sign(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "body").write_bytes(b"\xff\x00")
    made = cli.json("schedule", "--to", cli.topic, "--at", "1h", f"@{tmp_path / 'body'}")
    assert cli.json("show", made["id"])["value_base64"] == "/wA="
    made = cli.json("schedule", "--to", cli.topic, "--at", "1h", "@@handle")
    assert cli.json("show", made["id"])["value"] == "@handle"
    cli.stdin(b"from a pipe")
    made = cli.json("schedule", "--to", cli.topic, "--at", "1h", "-")
    assert cli.json("show", made["id"])["value"] == "from a pipe"
    assert cli("schedule", "--to", cli.topic, "@/no/such/file").code == 2


def test_the_same_again_is_unchanged_and_another_is_a_conflict(cli: Cli) -> None:
    same = ("schedule", "--to", cli.topic, "--at", "+24h", "--id", cli.topic, "a")
    assert cli.json(*same)["outcome"] == "scheduled"
    assert cli.json(*same)["outcome"] == "unchanged"
    other = cli(*same[:-1], "b", "--json")
    assert other.code == 4
    assert json.loads(other.out)["outcome"] == "rejected"
    assert "other content: replace it (`tidings replace`), cancel it, or use another id" in other.err
    assert "PUT" not in other.err


def test_the_same_again_after_its_end_is_a_conflict(cli: Cli) -> None:
    same = ("schedule", "--to", cli.topic, "--at", "+24h", "--id", cli.topic, "a")
    cli.json(*same)
    cli("cancel", cli.topic)
    again = cli(*same)
    assert again.code == 4
    assert "it is already cancelled, and nothing new will be released" in again.out
    assert json.loads(cli(*same, "--json").out)["outcome"] == "unchanged"
    assert cli("cancel", cli.topic).code == 0


def test_recurring(cli: Cli) -> None:
    made = cli.json("schedule", "--to", cli.topic, "--every", "PT10M", "tick")
    assert cli.json("show", made["id"])["every"].startswith("R/")
    assert cli("schedule", "--to", cli.topic, "--every", "PT10M", "--at", "1h", "x").code == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("shedule",), "did you mean schedule"),
        (("schedule", "x"), "--to TOPIC"),
        (("schedule", "--to", "x"), "VALUE"),
        (("schedule", "--to", "x", "--att", "+5s", "v"), "--att"),
        (("publish", "x"), "VALUE"),
        (("tail", "x", "--group", "g", "--from", "latest"), "exclude each other"),
        (("schedule", "--to", "x", "--priority", "urgent", "v"), "choose from high, normal, low"),
        (("schedule", "--to", "x", "--label", "nothing", "v"), "NAME=VALUE"),
        (("schedule", "--to", "x", "--at", "soon", "v"), "at: 'soon'"),
        (("schedule", "--to", "not a topic", "v"), "topic: "),
        (("schedule", "--from", "x.ndjson", "v"), "leave out --id and VALUE"),
        (("schedule", "--from", "/no/such.ndjson"), "cannot read /no/such.ndjson"),
        (("list", "--limit", "0"), "whole number of at least 1"),
        (("list", "--state", "gone"), "choose from pending"),
        (("list", "--from", "never"), "from: 'never'"),
        (("list", "--from", "+2h", "--to", "+1h"), "to: is before 'from'"),
        (("forecast", "--from", "+2h", "--to", "+1h"), "to: is before 'from'"),
        (("forecast", "--by", "year"), "choose from minute, hour, day"),
        (("preview",), "--at --every"),
        (("tail", "x", "--from", "nonsense"), "use --from beginning, latest or a cursor"),
        (("keys", "make", "x"), "invalid choice: 'make'"),
        (("keys", "create", "a b\n"), "name: "),
    ],
)
def test_wrong_usage_says_what_to_change(cli: Cli, argv: tuple[str, ...], said: str) -> None:
    done = cli(*argv)
    assert done.code == 2, done
    assert said in done.err
    assert done.err.startswith("tidings: ")


def test_help_is_printed_without_a_command(cli: Cli) -> None:
    done = cli()
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("usage: tidings")
    assert "schedule a message" in done.out


def test_help_and_version() -> None:
    for argv in (["--help"], ["--version"]):
        with pytest.raises(SystemExit) as ended:
            Cli.parse(argv)
        assert ended.value.code == 0


def test_show_and_explain(cli: Cli) -> None:
    cli.json("schedule", "--to", cli.topic, "--at", "+1h", "--id", cli.topic, "v", "--label", "a=b")
    shown = cli("show", cli.topic).out
    assert f"id           {cli.topic}" in shown
    assert "state        pending" in shown
    assert "labels       a=b" in shown
    cli("fire", cli.topic)
    cli.wait_released(cli.topic)
    explained = cli("explain", cli.topic).out
    assert explained.splitlines()[0] == f"{cli.topic} released"
    assert "scheduled" in explained or "accepted" in explained
    assert " ms" in explained.splitlines()[-1]
    for command in ("show", "explain"):
        missing = cli(command, "no-such-id")
        assert missing.code == 3
        assert "no such schedule" in missing.err


def test_list_in_pages(cli: Cli) -> None:
    for number in range(5):
        cli.json("schedule", "--to", cli.topic, "--at", f"{number + 1}h", "--id", f"{cli.topic}-{number}", "v")
    first = cli("list", "--topic", cli.topic, "--limit", "2")
    assert [line.split()[0] for line in first.out.splitlines()] == ["id", f"{cli.topic}-0", f"{cli.topic}-1"]
    cursor = first.err.rsplit("--cursor ", 1)[1].strip()
    rest = cli("list", "--topic", cli.topic, "--limit", "2", "--cursor", cursor, "--json")
    assert [json.loads(line)["id"] for line in rest.out.splitlines()] == [f"{cli.topic}-2", f"{cli.topic}-3"]
    every = cli("list", "--prefix", f"{cli.topic}-", "--all", "--json").out.splitlines()
    assert len(every) == 5
    some = cli("list", "--prefix", f"{cli.topic}-", "--from", "+90m", "--to", "+3h30m", "--json")
    assert len(some.out.splitlines()) == 2
    for flags in (["--from", "-1h"], ["--from=-1h"], ["--from", "-PT1H", "--to", "+90m"]):
        found = cli("list", "--prefix", f"{cli.topic}-", *flags, "--json").out.splitlines()
        assert len(found) == (1 if "--to" in flags else 5)
    assert cli("list", "--prefix", f"{cli.topic}-", "--to", "-1h", "--json").out == ""
    none = cli("list", "--topic", "nothing-here")
    assert (none.code, none.out, none.err) == (0, "", "nothing matches\n")


def test_list_by_label_and_state(cli: Cli) -> None:
    cli.json("schedule", "--to", cli.topic, "--at", "1h", "--id", cli.topic, "--label", f"run={cli.topic}", "v")
    cli("pause", cli.topic)
    found = cli("list", "--label", f"run={cli.topic}", "--state", "paused", "--json").out
    assert json.loads(found)["id"] == cli.topic


def test_changes_one_and_many(cli: Cli) -> None:
    ids = [f"{cli.topic}-{number}" for number in range(3)]
    for schedule_id in ids:
        cli.json("schedule", "--to", cli.topic, "--at", "1h", "--id", schedule_id, "v")
    for verb, outcome in (("pause", "paused"), ("resume", "resumed"), ("cancel", "cancelled")):
        done = cli(verb, ids[0])
        assert done.code == 0
        assert done.out.startswith(f"{outcome} {ids[0]}")
    mixed = cli("cancel", ids[1], "no-such-id", ids[2], "--json")
    assert mixed.code == 3
    outcomes = [json.loads(line)["outcome"] for line in mixed.out.splitlines()]
    assert outcomes == ["cancelled", "unknown", "cancelled"]
    assert "no-such-id" in mixed.err


def test_fire_then_cancel_is_a_conflict(cli: Cli) -> None:
    cli.json("schedule", "--to", cli.topic, "--at", "1h", "--id", cli.topic, "v")
    assert cli.json("fire", cli.topic)["outcome"] == "fired"
    cli.wait_released(cli.topic)
    late = cli("cancel", cli.topic)
    assert late.code == 4
    assert "released already: run `tidings replace --reuse`" in late.err


def test_replace(cli: Cli) -> None:
    argv = ("replace", cli.topic, "--to", cli.topic, "--at", "+24h")
    missing = cli(*argv, "1")
    assert (missing.code, missing.out) == (3, "")
    text = f"tidings: there is no schedule '{cli.topic}' to replace: `tidings schedule --id {cli.topic}` creates it"
    assert missing.err.startswith(text)
    assert cli("show", cli.topic).code == 3
    assert cli.json(*argv, "--create", "1")["outcome"] == "scheduled"
    assert cli.json(*argv, "2")["outcome"] == "replaced"
    assert cli.json(*argv, "2")["outcome"] == "unchanged"
    cli("fire", cli.topic)
    cli.wait_released(cli.topic)
    assert cli(*argv, "3").code == 4
    assert cli.json(*argv, "--reuse", "3")["outcome"] == "scheduled"


def test_publish_and_topics(cli: Cli) -> None:
    done = cli("publish", cli.topic, "now", "--key", "k", "--header", "a=b")
    assert done.code == 0
    assert re.fullmatch(rf"published tid_\d{{33}} to {cli.topic}\n", done.out)
    [record] = cli.tail(cli.topic, 1)
    assert (record["value"], record["key"], record["headers"]) == ("now", "k", [["a", "b"]])
    assert any(line.split()[:2] == [cli.topic, "1"] for line in cli("topics").out.splitlines())
    [topic] = [t for t in cli.json("topics")["topics"] if t["name"] == cli.topic]
    assert topic["records"] == 1


def test_forecast_as_bars(cli: Cli) -> None:
    for at in (f"{YEAR}-01-01T00:00:10Z", f"{YEAR}-01-01T00:00:20Z", f"{YEAR}-01-01T00:02:00Z"):
        cli.json("schedule", "--to", cli.topic, "--at", at, "v")
    window = ("--from", f"{YEAR}-01-01T00:00:00Z", "--to", f"{YEAR}-01-01T00:10:00Z")
    lines = cli("forecast", *window).out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        [f"{YEAR}-01-01", "00:00Z", "2"],
        [f"{YEAR}-01-01", "00:02Z", "1"],
    ]
    assert lines[0].count("█") == 2 * lines[1].count("█")
    assert cli.json("forecast", *window)["by"] == "minute"
    [hour] = cli("forecast", "--by", "hour", *window).out.splitlines()
    assert hour.split()[2] == "3"
    empty = cli("forecast", "--from", f"{YEAR + 1}-01-01T00:00:00Z", "--to", f"{YEAR + 1}-01-01T00:10:00Z")
    said = f"nothing is pending from {YEAR + 1}-01-01 00:00:00Z to {YEAR + 1}-01-01 00:10:00Z\n"
    assert (empty.code, empty.out, empty.err) == (0, "", said)


def test_preview(cli: Cli) -> None:
    shown = cli("preview", "--every", f"R3/{YEAR}-01-31T00:00:00Z/P1M").out.splitlines()
    assert [line.split()[:2] for line in shown] == [
        ["occurrence", "due"],
        ["1", f"{YEAR}-01-31"],
        ["2", f"{YEAR}-02-{monthrange(YEAR, 2)[1]}"],
        ["3", f"{YEAR}-03-31"],
    ]
    assert cli.json("preview", "--at", f"{YEAR}-01-01T00:00:00Z")["moments"]
    past = cli("preview", "--every", "R1/2020-01-01T00:00:00Z/P1D")
    assert past.out == ""
    assert past.err.startswith(
        "no occurrences follow\nnote: 1 occurrence has passed already; scheduled now, fire_latest"
    )


def test_version(cli: Cli) -> None:
    assert cli("version", server=False).out.startswith("tidings 0.1.0 (Python 3.")
    assert json.loads(cli("version", "--json", server=False).out)["version"] == "0.1.0"


def test_change_single_fields(cli: Cli) -> None:
    name = f"{cli.topic}-1"
    assert cli("schedule", "--to", cli.topic, "--id", name, "--at", "+1h", "--late", "skip", "old").code == 0
    before = cli.json("show", name)
    changed = cli.json("change", name, "new", "--priority", "high", "--unset", "late")
    assert (changed["outcome"], changed["due_at"]) == ("replaced", before["due_at"])
    after = cli.json("show", name)
    assert (after["value"], after["priority"], after["late"]) == ("new", "high", "fire_latest")
    assert cli.json("change", name, "new")["outcome"] == "unchanged"
    assert cli.json("change", name, "--at", "2030-01-01T00:00:00Z")["due_at"] == "2030-01-01T00:00:00.000000Z"
    assert [cli.json("change", name, "--at", "+1h")["outcome"] for _ in range(2)] == ["replaced", "replaced"]
    assert cli("change", name).code == 2
    assert cli("change", f"{name}-none", "--priority", "low").code == 3
