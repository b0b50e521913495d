"""Nodes as processes: started, watched and killed."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tests.faults.thresholds import LEASE_US, quickened

START_S = 20.0
ROOT = Path(__file__).resolve().parent.parent.parent
LISTENING = re.compile(r'"url":"(http://[^"]+)"')


def wall_us() -> int:
    """The wall clock."""
    return time.time_ns() // 1000


class Pace:
    """The speed and time of the nodes' clock."""

    def __init__(self, speed: int = 1) -> None:
        self.speed = speed
        self.base_us = wall_us()

    def now(self) -> int:
        """The time as the nodes see it."""
        return quickened(wall_us(), self.base_us, self.speed)


class Node:
    """One process of a node."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.lines: list[str] = []
        self.status: int | None = None
        self._news = asyncio.Condition()

    async def hear(self, line: str) -> None:
        """Take a line of its log."""
        async with self._news:
            self.lines.append(line)
            self._news.notify_all()

    async def end(self, status: int | None) -> None:
        async with self._news:
            self.status = -1 if status is None else status
            self._news.notify_all()

    async def said(self, pattern: str | re.Pattern[str], timeout_s: float = START_S) -> re.Match[str]:
        """The first match in its log, as soon as it is there; fails if it ends before."""
        found: re.Match[str] | None = None

        def is_there() -> bool:
            nonlocal found
            found = re.search(pattern, self.log)
            return found is not None or self.status is not None

        async with self._news, asyncio.timeout(timeout_s):
            await self._news.wait_for(is_there)
        assert found is not None, f"ended with {self.status}:\n{self.log}"
        return found

    async def url(self) -> str:
        """Where it listens."""
        return (await self.said(LISTENING))[1]

    async def ended(self, timeout_s: float) -> bool:
        """Whether it ends in time."""
        with contextlib.suppress(TimeoutError):
            async with self._news, asyncio.timeout(timeout_s):
                await self._news.wait_for(lambda: self.status is not None)
        return self.status is not None

    def send(self, number: signal.Signals) -> None:
        """A signal, if it still lives."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def log(self) -> str:
        return "".join(self.lines)


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without settings of Tidings, and with what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", **more}


async def start_plain(folder: Path, *argv: str, **environment: str) -> Node:
    """`python -m tidings serve`, just as a person starts it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidings", "serve", "--port", "0", *argv),
        cwd=folder,
        env=clean_environment(**environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    node = Node(process.pid)
    _keep(asyncio.create_task(_watch(process, node)))
    return node


async def _watch(process: asyncio.subprocess.Process, node: Node) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        await node.hear(line.decode())
    await node.end(await process.wait())


_tasks: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


class Nursery:
    """A client of the fork server (nursery.py); one node at a time."""

    def __init__(self, process: asyncio.subprocess.Process, pace: Pace, lease_us: int) -> None:
        self._process = process
        self._pace = pace
        self._lease_us = lease_us
        self._node: Node | None = None
        self._born = asyncio.Event()
        self._answers: asyncio.Queue[dict[str, int]] = asyncio.Queue()
        _keep(asyncio.create_task(self._read_log()))
        _keep(asyncio.create_task(self._read_answers()))

    async def start(self, *argv: str, crash: str | None = None, environment: Mapping[str, str] | None = None) -> Node:
        """A new node; the one before it must have ended."""
        assert self._node is None or self._node.status is not None
        order = {
            "argv": ["serve", "--port", "0", *argv],
            "environment": dict(environment or {}),
            "crash": crash,
            "lease_us": self._lease_us,
            "base_us": self._pace.base_us,
            "speed": self._pace.speed,
        }
        assert self._process.stdin is not None
        self._born.clear()
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        answer = await asyncio.wait_for(self._answers.get(), START_S)
        self._node = Node(answer["pid"])
        self._born.set()
        return self._node

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            await self._born.wait()
            assert self._node is not None
            await self._node.hear(line.decode())

    async def _read_answers(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            if "status" in answer and self._node is not None:
                await self._node.end(answer["status"])
            elif "pid" in answer:
                self._answers.put_nowait(answer)


@contextlib.asynccontextmanager
async def nursery(
    folder: Path, pace: Pace, lease_us: int = LEASE_US, module: str = "tests.faults.fork_server", **variables: str
) -> AsyncIterator[Nursery]:
    """A fork server whose nodes run in a folder; `module` is the server's module."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        cwd=folder,
        env=clean_environment(PYTHONPATH=path, **variables),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    made = Nursery(process, pace, lease_us)
    try:
        yield made
    finally:
        if made._node is not None:
            made._node.send(signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
