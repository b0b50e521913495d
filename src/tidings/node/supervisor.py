"""`serve --processes N`: one supervisor that keeps N node processes on one listening socket, one database and one log.

The supervisor opens the socket and does nothing else of a node. Each process is an ordinary node of the fleet: lanes,
request topics and deliveries are divided among all by their leases. A process that ends is started again. SIGHUP
replaces the processes one by one, with the settings and the version that are there now. SIGTERM and SIGINT stop all.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from tidings.clock import Clock, SystemClock
from tidings.observe.metrics import merged, up_lines

PAUSE_S_MIN = 0.2
PAUSE_S_MAX = 10.0
READY_S_MAX = 60.0
STOP_S_MAX = 6.0  # somewhat longer than a node takes
METRICS_S_MAX = 2.0
READY = b"r"
STEADY_S = 30.0  # a process that ends after it served for so long is started again after the shortest pause
NOT_UP = "".join(f"{line}\n" for line in up_lines(0))

logger = logging.getLogger("tidings")

Render = Callable[[], Awaitable[bytes]]


class Member(msgspec.Struct, frozen=True):
    """One of `count` processes under a supervisor: its number, the inherited sockets, and the folder of all members.

    `link` leads to the supervisor: ready is said there, and its end means that the supervisor is gone.
    """

    number: int
    count: int
    listener: int
    link: int
    folder: str

    def __str__(self) -> str:
        return f"{self.number}:{self.count}:{self.listener}:{self.link}:{self.folder}"

    def inherited(self) -> socket.socket:
        """The listening socket."""
        listener = socket.socket(fileno=self.listener)
        listener.setblocking(False)
        return listener

    def watch(self, gone: Callable[[], None]) -> None:
        """Call this once when the supervisor is gone: the link has ended."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(self.link)
            gone()

        loop.add_reader(self.link, ended)

    def report_ready(self) -> None:
        """Report that this process serves."""
        with contextlib.suppress(OSError):  # the supervisor is gone, and so are we soon
            os.write(self.link, READY)

    @contextlib.asynccontextmanager
    async def shared_metrics(self, render: Render) -> AsyncIterator[Render]:
        """Offer our metrics to the other members; yields a function that renders those of all."""

        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                writer.write(await render())
                await writer.drain()
            finally:
                writer.close()

        path = _metrics_path(self.folder, self.number)
        path.unlink(missing_ok=True)  # of the process that had this number before
        server = await asyncio.start_unix_server(serve, path)

        async def render_all() -> bytes:
            numbers = range(1, self.count + 1)
            texts = await asyncio.gather(*(_metrics_of(_metrics_path(self.folder, number)) for number in numbers))
            return merged({str(number): text for number, text in zip(numbers, texts, strict=True)}).encode()

        async with server:
            yield render_all


def parse_member(text: str) -> Member:
    """The inverse of `str(member)`."""
    number, count, listener, link, folder = text.split(":", 4)
    return Member(int(number), int(count), int(listener), int(link), folder)


def _metrics_path(folder: str, number: int) -> Path:
    return Path(folder, f"{number}.metrics")


async def _metrics_of(path: Path) -> str:
    """The metrics of a member; that it is not up if it does not answer."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(METRICS_S_MAX):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                text = (await reader.read()).decode()
            finally:
                writer.close()
            if text.endswith("\n"):  # else it ended while it wrote
                return text
    return NOT_UP


class Process:
    """A node process, and the link to it."""

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self._process = process
        self._link = link

    async def is_ready(self) -> bool:
        """Wait until it serves; False if it ended before."""
        return await asyncio.get_running_loop().sock_recv(self._link, 1) == READY

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        code = await self._process.wait()
        self._link.close()
        return code

    def send(self, sent: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(sent)


class Supervisor:
    """Keeps the processes. `command` starts one, given the member that it is to be."""

    def __init__(self, command: Sequence[str], listener: socket.socket, count: int, clock: Clock) -> None:
        self._clock = clock
        self._command = command
        self._listener = listener
        self._numbers = range(1, count + 1)
        self._processes: dict[int, Process] = {}
        self._serving = {number: asyncio.Event() for number in self._numbers}
        self._replaced: set[int] = set()
        self._stopping = asyncio.Event()
        self._restart: asyncio.Task[None] | None = None

    async def run(self, announce: Callable[[], None]) -> int:
        """Run until stopped; returns the exit code. The first process starts alone: it may migrate, or be refused."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._stop_or_kill)
        loop.add_signal_handler(signal.SIGHUP, self._replace_all)
        with tempfile.TemporaryDirectory(prefix="tidings-") as folder:
            first = await self._start(1, folder)
            if not await first.is_ready():
                code = await first.wait()
                return 0 if self._stopping.is_set() else code if code >= 0 else 128 - code
            announce()
            keeping = [self._keep(number, folder, first if number == 1 else None) for number in self._numbers]
            await asyncio.gather(*keeping)
        return 0

    async def _start(self, number: int, folder: str) -> Process:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        inherited = self._listener.fileno(), theirs.fileno()
        member = Member(number, len(self._numbers), *inherited, folder)
        try:
            # In a session of its own: Ctrl-C in a terminal reaches the supervisor alone.
            process = await asyncio.create_subprocess_exec(
                *self._command, str(member), pass_fds=inherited, start_new_session=True
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._processes[number] = started = Process(process, ours)
        if self._stopping.is_set():
            started.send(signal.SIGTERM)
        return started

    async def _keep(self, number: int, folder: str, process: Process | None) -> None:
        """Run one process after the other until we are stopped; `process` is ready already."""
        pause_s = PAUSE_S_MIN
        while not self._stopping.is_set():
            started = self._clock.elapsed()
            ended = await self._run_one(number, folder, process)
            process = None
            if self._stopping.is_set():
                return
            if number in self._replaced:
                self._replaced.discard(number)
                continue
            if self._clock.elapsed() - started > STEADY_S * 1_000_000:
                pause_s = PAUSE_S_MIN
            logger.warning("process %d %s and is started again in %.1f s", number, ended, pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _run_one(self, number: int, folder: str, process: Process | None) -> str:
        """Run a process until it ends; returns how it ended."""
        try:
            if process is None:
                process = await self._start(number, folder)
                if not await process.is_ready():
                    return f"ended with {await process.wait()}"
        except OSError as error:  # no memory, no file descriptors, no interpreter in its place
            return f"could not be started ({error})"
        self._serving[number].set()
        try:
            return f"ended with {await process.wait()}"
        finally:
            self._serving[number].clear()

    def _replace_all(self) -> None:
        if self._stopping.is_set() or (self._restart is not None and not self._restart.done()):
            return
        if not all(each.is_set() for each in self._serving.values()):
            logger.warning("nothing is replaced: not all processes serve; send SIGHUP again when they do")
            return
        self._restart = asyncio.create_task(self._replace_one_by_one())

    async def _replace_one_by_one(self) -> None:
        logger.info("replacing %d processes one by one", len(self._numbers))
        for number in self._numbers:
            if self._stopping.is_set():
                return
            self._replaced.add(number)
            self._serving[number].clear()
            self._processes[number].send(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._serving[number].wait(), READY_S_MAX)
            except TimeoutError:
                text = "process %d does not serve again after %.0f s: the others are not replaced"
                logger.error(text, number, READY_S_MAX)
                return
        logger.info("replaced all processes")

    def _stop_or_kill(self) -> None:
        """Stop all on the first signal; kill them on the second, or if they do not stop in time."""
        if self._stopping.is_set():
            self._send(signal.SIGKILL)
            return
        self._stopping.set()
        self._send(signal.SIGTERM)
        asyncio.get_running_loop().call_later(STOP_S_MAX, self._send, signal.SIGKILL)

    def _send(self, sent: signal.Signals) -> None:
        for process in self._processes.values():
            process.send(sent)


def supervise(arguments: Sequence[str], listener: socket.socket, count: int, announce: Callable[[], None]) -> int:
    """Run this many processes of `tidings serve` with these arguments; returns the exit code."""
    command = [sys.executable, "-P", "-m", "tidings", *arguments, "--member"]
    supervisor = Supervisor(command, listener, count, SystemClock())
    with asyncio.Runner() as runner:
        return runner.run(supervisor.run(announce))
