"""The main function: unreachable servers, closed pipes, start-up, and the name of the program in hints."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edges.cli.conftest import Cli
from tidings.edges.cli.exit_codes import program
from tidings.edges.cli.main import COMMANDS

SLOW_MODULES = {
    "apsw",
    "msgspec",
    "numpy",
    "starlette",
    "uvicorn",
    "uvloop",
    "tidings.node",
    "tidings.library",
}


def test_an_unreachable_server_is_reported_with_what_to_do(cli: Cli) -> None:
    for argv in (
        ["show", "x"],
        ["tail", "x"],
        ["schedule", "--to", "x", "v"],
        ["schedule", "--from", os.devnull],
    ):
        done = cli(*argv, server=False)
        assert done.code == 5
        assert "cannot reach Tidings at http://127.0.0.1:1: Connection refused" in done.err
        assert "tidings serve" in done.err


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://", "http://x:99999"])
def test_an_invalid_url_is_wrong_usage(cli: Cli, url: str) -> None:
    done = cli("show", "x", "--url", url)
    assert done.code == 2
    assert url in done.err


def test_an_unknown_host_is_unreachable(cli: Cli) -> None:
    assert cli("show", "x", "--url", "http://no-such-host.invalid:1").code == 5


def test_problems_are_printed_as_json_for_scripts(cli: Cli) -> None:
    done = cli("show", "no-such-id", "--json")
    assert done.code == 3
    assert json.loads(done.out)["outcome"] == "unknown"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Cli.parse([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: tidings {command}")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("serve",), "Start a Tidings server."),
        (("keys",), "Create, list and revoke API keys."),
        (("rejections",), "Show requests on Kafka that were rejected, and why."),
        (("calendars", "put"), "Store a calendar, and recompute the schedules that use it."),
    ],
)
def test_help_keeps_the_capitals_of_names(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Cli.parse([*argv, "--help"])
    assert said in capsys.readouterr().out


def test_help_names_the_time_zone_of_local_times(capsys: pytest.CaptureFixture[str]) -> None:
    help_of = {}
    for command in ("notify", "schedule"):
        with pytest.raises(SystemExit):
            Cli.parse([command, "--help"])
        help_of[command] = " ".join(capsys.readouterr().out.split())
    assert "or a local time such as 2026-11-20T09:00:00, tomorrow 09:00" in help_of["notify"]
    assert "default: that of the user" in help_of["notify"]
    assert "or a local time together with --zone" in help_of["schedule"]


def test_commands_load_only_what_they_need(cli: Cli) -> None:
    code = (
        "import sys\nfrom tidings.edges.cli.main import main\nfrom tidings.__main__ import NodeHooks\n"
        "main(['show', 'x'], NodeHooks())\nprint(*sys.modules)"
    )
    environment = {**os.environ, "TIDINGS_URL": cli.url}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert SLOW_MODULES & set(loaded.stdout.split()) == set()


@pytest.mark.slow
def test_a_closed_pipe_prints_nothing(cli: Cli) -> None:
    for number in range(3):
        cli.json("publish", cli.topic, str(number))
    command = f"{sys.executable} -m tidings tail {cli.topic} --from beginning --json --url {cli.url}"
    shell = ["bash", "-c", f"{command} | head -n 1; echo ${{PIPESTATUS[0]}}"]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        cli.json("publish", cli.topic, "later")
        assert process.stdout is not None
        first = process.stdout.readline()
        cli.json("publish", cli.topic, "last")
        out, err = process.communicate(timeout=20)
    assert json.loads(first)["topic"] == cli.topic
    assert (out, err) == ("0\n", "")


@pytest.mark.slow
def test_ctrl_c_prints_nothing(cli: Cli) -> None:
    cli.json("publish", cli.topic, "1")
    command = [sys.executable, "-m", "tidings", "tail", cli.topic, "--from", "beginning", "--url", cli.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert " ms  1" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 130


def test_bench_outside_of_a_checkout(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tidings.edges.cli.commands.serve.__file__", str(tmp_path / "bench.py"))
    done = cli("bench", "intake")
    assert done.code == 1
    assert "clone the repository" in done.err


def test_bench_passes_its_arguments_on(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    (tmp_path / "bench" / "__main__.py").write_text("import sys; sys.exit(len(sys.argv))")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert cli("bench", "intake", "--json").code == 3


@pytest.mark.parametrize(
    ("called", "shown"),
    [
        ("/usr/local/bin/pytest", "tidings"),
        (".venv/bin/tidings", ".venv/bin/tidings"),
        ("/a folder/tidings", "'/a folder/tidings'"),
        ("/src/tidings/__main__.py", "python3 -m tidings"),
    ],
)
def test_the_program_is_named_as_it_was_called(called: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [called, "show", "x"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "tidings", "show", "x"])
    monkeypatch.setenv("PATH", "")
    assert program() == shown


def test_a_program_on_the_path_is_named_tidings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "tidings"
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "tidings"


def test_options_of_the_server_may_precede_the_command(cli: Cli) -> None:
    done = cli("--url", cli.url, "--json", "--tenant=acme", "publish", "--key", "k", cli.topic, "v", server=False)
    assert done.code == 0, done
    published = json.loads(done.out)
    assert cli("--tenant", "acme", "show", published["id"]).code == 0
    assert cli("--url", cli.url, "users", "list", server=False).code == 0
    dashed = cli("--url", cli.url, "publish", cli.topic, "--", "--text", server=False)
    assert dashed.code == 0, dashed
    assert cli("--url", "http://127.0.0.1:1", "list").code == 5


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("--url",), "--url needs a value"),
        (("--key", "secret", "list"), "an API key is --api-key KEY"),
        (("--json",), "COMMAND"),
        (("--json", "lits"), "did you mean list?"),
        (("--limit", "5", "list"), "--limit goes behind the command"),
    ],
)
def test_what_is_wrong_before_the_command_is_said(cli: Cli, argv: tuple[str, ...], text: str) -> None:
    done = cli(*argv)
    assert done.code == 2
    assert text in done.err
