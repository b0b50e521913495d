"""A server as a process of ours, with its log in a file. It ends with us at the latest (watcher.py)."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

WATCHER = Path(__file__).with_name("watcher.py")
KILL_S_MAX = 30.0
STOP_S_MAX = 20.0


class Process:
    """The process of a server, ended by its process id."""

    def __init__(self, command: Sequence[str], folder: Path, log: Path) -> None:
        with log.open("wb") as said:
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", str(WATCHER), *command],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for us; we end the server
            )
        assert self._watcher.stdout is not None
        line = self._watcher.stdout.readline()
        if not line:
            self.wait(KILL_S_MAX)
            raise RuntimeError(f"cannot run {command[0]}:\n{log.read_text(errors='replace')}")
        self.pid = int(line)

    @property
    def is_alive(self) -> bool:
        return self._watcher.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it has ended; raises `subprocess.TimeoutExpired`."""
        self._watcher.wait(timeout_s)
        for pipe in (self._watcher.stdin, self._watcher.stdout):
            if pipe is not None:
                pipe.close()

    def kill(self) -> None:
        """End it at once, also when it is paused."""
        self.send(signal.SIGKILL)
        self.wait(KILL_S_MAX)

    def stop(self, timeout_s: float = STOP_S_MAX) -> None:
        """Terminate it, and kill it if it does not end."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        try:
            self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
