"""A Redis of our own on a free port, every write synced: as durable as the others."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.processes import HOST, end, free_port

READY_S_MAX = 10.0


def program() -> str | None:
    """The server's program, if this machine has one."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """The port on which it listens."""
    path = program()
    assert path is not None
    port = free_port()
    command = [path, "--port", str(port), "--bind", HOST, "--dir", str(folder)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_until_ready(port)
        yield port
    finally:
        end(process)


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while True:
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
