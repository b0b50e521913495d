"""No server outlives the tests, however they end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.downloads import ROOT
from tests.servers.process import Process

FOREVER = ("sh", "-c", "echo hello; exec tail -f /dev/null")
STARTER = """
import sys
from pathlib import Path
from tests.servers.process import Process

folder = Path(sys.argv[1])
print(Process(sys.argv[2:], folder, folder / "log").pid, flush=True)
input()
"""
END_S_MAX = 10.0


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ends(pid: int) -> bool:
    deadline = time.monotonic() + END_S_MAX
    while is_there(pid) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    return not is_there(pid)


@pytest.mark.kill
def test_a_server_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path), *FOREVER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert is_there(pid)
        starter.kill()
    assert ends(pid)


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("end", [Process.kill, Process.stop])
def test_a_server_is_killed_and_stopped_by_its_pid(
    tmp_path: Path, end: Callable[[Process], None], is_paused: bool
) -> None:
    process = Process(FOREVER, tmp_path, tmp_path / "log")
    assert is_there(process.pid)
    if is_paused:
        process.send(signal.SIGSTOP)
    end(process)
    assert not process.is_alive
    assert not is_there(process.pid)
    end(process)


def test_the_log_of_a_server_is_kept(tmp_path: Path) -> None:
    process = Process(("sh", "-c", "echo out; echo err >&2"), tmp_path, tmp_path / "log")
    process.wait(END_S_MAX)
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot run /no/such/program"):
        Process(("/no/such/program",), tmp_path, tmp_path / "log")
