"""Processes beside this one: a node, and the parts of a benchmark that must not share its interpreter."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
READY_S_MAX = 60.0
END_S_MAX = 10.0
POLL_S = 0.002


class Server(msgspec.Struct, frozen=True):
    """A server that listens. `start_s` is the time from its beginning until it was ready."""

    process: int
    port: int
    start_s: float


@contextlib.contextmanager
def node(store: Path | str, *flags: str) -> Iterator[Server]:
    """`tidings serve` on a file, or on the URL of a PostgreSQL."""
    port = free_port()
    command = ["-m", "tidings", "serve", "--port", str(port), "--store", str(store), "--log-level", "warning", *flags]
    with _serving(command, port, store.parent if isinstance(store, Path) else ROOT) as server:
        yield server


@contextlib.contextmanager
def answering(folder: Path) -> Iterator[Server]:
    """The same server with nothing behind it."""
    port = free_port()
    with _serving(["-m", "bench.http_node", str(port)], port, folder) as server:
        yield server


@contextlib.contextmanager
def _serving(command: list[str], port: int, folder: Path) -> Iterator[Server]:
    started = time.perf_counter()
    with child(*command, folder=folder) as process:
        _wait_until_ready(process, port)
        yield Server(process.pid, port, time.perf_counter() - started)


@contextlib.contextmanager
def child(*command: str, folder: Path = ROOT) -> Iterator["subprocess.Popen[bytes]"]:
    """A Python process of ours, ended with the block if it has not ended by itself."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to end, and make it end."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def environment() -> dict[str, str]:
    """Ours, with the benchmarks importable and without settings of Tidings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
    paths = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths)}


def answer_of(process: "subprocess.Popen[bytes]") -> Any:
    """The next JSON line that a process prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()} and no answer")
    return msgspec.json.decode(line)


def say(answer: object) -> None:
    """The other end of `answer_of`."""
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def memory_mb(process: int) -> tuple[float, float]:
    """The resident memory of a process, now and at its peak; known on Linux only."""
    status = Path(f"/proc/{process}/status")
    if not status.exists():
        return float("nan"), float("nan")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    now, most = (int(fields[name].split()[0]) * 1_024 / 1_000_000 for name in ("VmRSS", "VmHWM"))
    return now, most


def cpu_s(process: int) -> float:
    """The CPU time of a process so far; known on Linux only."""
    status = Path(f"/proc/{process}/stat")
    if not status.exists():
        return float("nan")
    fields = status.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_by_thread_s(process: int) -> dict[str, float]:
    """The CPU time of each thread of a process so far, by its name; known on Linux only.

    The main thread is that of the event loop. Threads with one name are added up: a pool counts as one.
    """
    found: dict[str, float] = {}
    for thread in Path(f"/proc/{process}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name = "loop" if thread.name == str(process) else (thread / "comm").read_text().strip()
            spent_ns = int((thread / "schedstat").read_text().split()[0])
            found[name] = found.get(name, 0.0) + spent_ns / 1_000_000_000
    return found


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.perf_counter() + READY_S_MAX
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode} before it was ready")
        if _is_ready(port):
            return
        time.sleep(POLL_S)
    raise TimeoutError(f"{process.args!r} was not ready within {READY_S_MAX} s")


def _is_ready(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
