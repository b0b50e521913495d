"""A real PostgreSQL, for tests, benchmarks and developers.

`with Postgres.start() as postgres:` gives one that answers, with its data in a temporary folder.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psycopg

from tests.servers.downloads import Missing, program
from tests.servers.ports import HOST, free_ports
from tests.servers.process import Process

START_S_MAX = 60.0
STOP_S_MAX = 30.0
LOOK_S = 0.02
ATTEMPTS = 5
TAIL_LINES = 25
USER = "tidings"
DATABASE = "postgres"
INSTALLED = Path("/usr/lib/postgresql")
ADVICE = "install PostgreSQL 15 (Debian, Ubuntu: apt-get install postgresql-15)"
PORT_TAKEN = "Address already in use"

# Commits need not survive the end of the machine, only that of the server: for tests.
QUICK = {"fsync": "off", "shared_buffers": "64MB"}
# As PostgreSQL is meant to run: for benchmarks.
DURABLE = {"fsync": "on", "shared_buffers": "512MB", "max_wal_size": "4GB"}


class StartFailed(Exception):
    """The server does not answer; the message has the end of its log."""


class PortTaken(StartFailed):
    """Another process listens on its port."""


class Postgres:
    """A server in a folder, with its port. As a context manager it ends with the block."""

    def __init__(self, folder: Path, settings: Mapping[str, str], port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_ports(1)[0]
        self._may_move = port is None
        self.log = folder / "server.log"
        self._settings = settings
        self._process: Process | None = None
        self._starts = 0

    @classmethod
    def start(cls, settings: Mapping[str, str] = QUICK, port: int | None = None) -> Self:
        """A new server that answers, on a free port unless one is named. Raises `Missing` and `StartFailed`."""
        binary("postgres")
        folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        try:
            server = cls(folder, settings, port)
            server._make()
            server._begin()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dsn(self) -> str:
        """Its address for clients."""
        return self.dsn_at(self.port)

    def dsn_at(self, port: int) -> str:
        """The same by another port, such as that of a proxy."""
        return f"postgresql://{USER}@{HOST}:{port}/{DATABASE}"

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """A connection of its own for a test, which commits each statement."""
        return psycopg.connect(self.dsn, autocommit=True)

    # Its process

    @property
    def pid(self) -> int:
        """The id of its present or last process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive

    def wait(self) -> None:
        """Until it ends by itself."""
        assert self._process is not None
        self._process.wait(None)

    def stop(self, *, immediate: bool = False) -> None:
        """End it in good order, or at once as a crash would; the data stays."""
        if self._process is not None and self._process.is_alive:
            self._process.send(signal.SIGQUIT if immediate else signal.SIGINT)
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def restart(self, *, immediate: bool = False) -> None:
        """Start it again, with the same port and data, and wait until it answers."""
        self.stop(immediate=immediate)
        self._starts += 1
        self.log = self.folder / f"server-{self._starts}.log"
        options = {"listen_addresses": HOST, "port": str(self.port), "unix_socket_directories": ""}
        options |= {"max_connections": "200", **self._settings}
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command = [*_unprivileged(), str(binary("postgres")), "-D", str(self._data), *flags]
        self._process = Process(command, self.folder, self.log)
        try:
            self._await_answer()
        except BaseException:
            self._process.kill()
            raise

    def pause(self) -> None:
        """Suspend it: connections stay open and unanswered."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, and remove its folder."""
        self.stop(immediate=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def tail(self) -> str:
        """The end of its log since the last start."""
        return "\n".join(self.log.read_text("utf-8", errors="replace").splitlines()[-TAIL_LINES:])

    # How it starts

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _make(self) -> None:
        """Create an empty cluster that belongs to the user who runs it."""
        self._data.mkdir(mode=0o700)
        if os.getuid() == 0:
            owner = pwd.getpwnam(_user())
            for folder in (self.folder, self._data):
                os.chown(folder, owner.pw_uid, owner.pw_gid)
        tool = [str(binary("initdb")), "-D", str(self._data), "-U", USER, "--auth=trust", "--no-sync"]
        tool += ["--encoding=UTF8", "--locale=C"]
        command = [*_unprivileged(), *tool]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        if done.returncode != 0:
            raise StartFailed(f"the server's folder cannot be made:\n{done.stdout}{done.stderr}")

    def _begin(self) -> None:
        """Start it for the first time, on another port if the chosen one is taken meanwhile."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.restart()
                return
            except PortTaken:
                if attempt == ATTEMPTS or not self._may_move:
                    raise
                self.port = free_ports(1)[0]

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if not self.is_alive:
                failed = PortTaken if PORT_TAKEN in self.tail() else StartFailed
                raise failed(f"the server ended before it answered:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"the server did not answer within {START_S_MAX:.0f} s:\n{self.tail()}")
            threading.Event().wait(LOOK_S)

    def _answers(self) -> bool:
        """Whether it answers, and not another server on its port."""
        try:
            with psycopg.connect(self.dsn, connect_timeout=2) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row == (str(self._data),)

    def _pids(self) -> list[int]:
        """The process of the server and its children, the server first."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]


def binary(name: str) -> Path:
    """A program of PostgreSQL; distributions keep the server's out of the path."""
    found = sorted(INSTALLED.glob(f"*/bin/{name}"), key=lambda path: int(path.parent.parent.name))
    if found:
        return found[-1]
    try:
        return Path(program(name, ADVICE))
    except Missing:
        raise Missing(f"PostgreSQL is not there: {ADVICE}") from None


def _user() -> str:
    """The user that runs PostgreSQL when the tests run as root, which it refuses."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _unprivileged() -> list[str]:
    """The prefix of a command that must not run as root."""
    if os.getuid() != 0:
        return []
    user = pwd.getpwnam(_user())
    ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return [program("setpriv", "install util-linux"), *ids, "--"]
