"""Nodes as processes: started, watched and killed."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

from tests.faults.thresholds import LEASE_US, quickened

START_S = 60.0  # the first start imports everything, on a machine that may be busy
TAIL_LINES = 40
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


class NodeProcess:
    """One process of a node."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.lines: list[str] = []
        self.status: int | None = None
        self._news = asyncio.Condition()

    async def add_line(self, line: str) -> None:
        """Add a line of its log."""
        async with self._news:
            self.lines.append(line)
            self._news.notify_all()

    async def end(self, status: int | None) -> None:
        async with self._news:
            self.status = -1 if status is None else status
            self._news.notify_all()

    async def logged(self, pattern: str | re.Pattern[str], timeout_s: float = START_S) -> re.Match[str]:
        """Wait for the first match in its log; fails if the process ends before."""
        found: re.Match[str] | None = None

        def is_there() -> bool:
            nonlocal found
            found = re.search(pattern, self.log)
            return found is not None or self.status is not None

        async with self._news, asyncio.timeout(timeout_s):
            await self._news.wait_for(is_there)
        assert found is not None, f"ended with {self.status}:\n{self.tail}"
        return found

    async def url(self) -> str:
        """Where it listens."""
        return (await self.logged(LISTENING))[1]

    async def ended(self, timeout_s: float) -> bool:
        """Whether it ends in time."""
        with contextlib.suppress(TimeoutError):
            async with self._news, asyncio.timeout(timeout_s):
                await self._news.wait_for(lambda: self.status is not None)
        return self.status is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def tail(self) -> str:
        """The end of its log, from the first traceback on if there is one."""
        first = next((k for k, line in enumerate(self.lines) if "Traceback" in line), len(self.lines) - TAIL_LINES)
        return "".join(self.lines[max(0, first) :][:TAIL_LINES])


def check_log(node: NodeProcess) -> None:
    """A node logs no traceback."""
    assert "Traceback" not in node.log, f"a node logged a traceback:\n{node.tail}"


@contextlib.contextmanager
def reason_first_and_last(logs: Callable[[], str]) -> Iterator[None]:
    """Let a failure state its reason before and after the logs: the output of a run may be cut at either end."""
    try:
        yield
    except Exception as error:
        reason = "; ".join(_reasons(error))
        raise AssertionError(f"{reason}\n{logs()}\n{reason}") from error


def _reasons(error: BaseException) -> list[str]:
    """What went wrong, of a group each by itself."""
    if isinstance(error, BaseExceptionGroup):
        return [reason for each in error.exceptions for reason in _reasons(each)]
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f"{Path(each.filename).name}:{each.lineno}" for each in reversed(frames) if _is_ours(each)), "")
    return [f"{type(error).__name__} at {where}: {error}"]


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).is_relative_to(ROOT / "tests")


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without settings of Tidings, and with what is given."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
    return {**inherited, "OPENBLAS_NUM_THREADS": "1", **more}


async def start_plain(folder: Path, *argv: str, **environment: str) -> NodeProcess:
    """`python -m tidings serve`, as a user starts it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidings", "serve", "--port", "0", *argv),
        cwd=folder,
        env=clean_environment(**environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    node = NodeProcess(process.pid)
    _keep(asyncio.create_task(_watch(process, node)))
    return node


async def _watch(process: asyncio.subprocess.Process, node: NodeProcess) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        await node.add_line(line.decode())
    await node.end(await process.wait())


_tasks: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


class NodeFactory:
    """A client of a fork server; one node at a time."""

    def __init__(self, process: asyncio.subprocess.Process, pace: Pace, lease_us: int) -> None:
        self._process = process
        self._pace = pace
        self._lease_us = lease_us
        self._node: NodeProcess | None = None
        self._started = asyncio.Event()
        self._answers: asyncio.Queue[dict[str, int]] = asyncio.Queue()
        _keep(asyncio.create_task(self._read_log()))
        _keep(asyncio.create_task(self._read_answers()))

    async def start(
        self, *argv: str, crash: str | None = None, environment: Mapping[str, str] | None = None
    ) -> NodeProcess:
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
        self._started.clear()
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        answer = await asyncio.wait_for(self._answers.get(), START_S)
        self._node = NodeProcess(answer["pid"])
        self._started.set()
        return self._node

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            await self._started.wait()
            assert self._node is not None
            await self._node.add_line(line.decode())

    async def _read_answers(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            if "status" in answer and self._node is not None:
                await self._node.end(answer["status"])
            elif "pid" in answer:
                self._answers.put_nowait(answer)


@contextlib.asynccontextmanager
async def node_factory(
    folder: Path, pace: Pace, lease_us: int = LEASE_US, module: str = "tests.faults.fork_server", **variables: str
) -> AsyncIterator[NodeFactory]:
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
    made = NodeFactory(process, pace, lease_us)
    try:
        yield made
    finally:
        if made._node is not None:
            made._node.send(signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
