"""Serving the application: a socket of its own, and an end within seconds whatever is open."""

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
import uvloop

from tidings.domain.errors import Invalid, StoreError
from tidings.edges.http.app import App
from tidings.edges.http.connections import protocol_for

STOP_S = 2
TICK_S = 1.0
KEEP_ALIVE_S = 30
BACKLOG = 2048


class PortTaken(StoreError):
    """The address cannot be listened on; the text says what to do."""


class _Server(uvicorn.Server):
    """Leaves signals to us, and ends streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app
        self.listening = asyncio.Event()
        self._ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Uvicorn looks ten times a second whether to stop; this wakes once, for the Date header."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), TICK_S)

    def end(self) -> None:
        """Stop in good order."""
        self.should_exit = True
        self._ending.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.stop()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; raises `PortTaken` or `Invalid` if it cannot. Port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Invalid("host", f"{host!r} is not an address ({reason}): choose one, such as 127.0.0.1") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise Invalid("host", f"{host!r} is not an address of this machine: choose one with --host") from None
        raise PortTaken(_cannot_listen(host, port, error)) from None
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{host}:{port} is in use by another program: stop it, or choose another port with --port"
    if error.errno == errno.EACCES:
        return f"port {port} may not be used by this user: choose one above 1023 with --port"
    return f"cannot listen on {host}:{port}: {error.strerror}"


async def serve(
    app: App,
    host: str = "127.0.0.1",
    port: int = 8460,
    *,
    stop: asyncio.Event | None = None,
    started: Callable[[str, int], None] | None = None,
) -> None:
    """Serve until `stop` is set, or without one until SIGINT or SIGTERM; then end within 3 s.

    `started` is told the address once it listens.
    """
    async with running(app, host, port) as address:
        if started is not None:
            started(*address)
        await (_signalled() if stop is None else stop.wait())


@contextlib.asynccontextmanager
async def running(app: App, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[tuple[str, int]]:
    """A server at work, and its address; at the end of the block it stops in good order."""
    async with running_on(listen(host, port), app) as address:
        yield address


@contextlib.asynccontextmanager
async def running_on(listener: socket.socket, app: App) -> AsyncIterator[tuple[str, int]]:
    """The same on a socket that listens already."""
    server = _Server(_config(app), app)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="tidings-http")
    try:
        await server.listening.wait()
        yield listener.getsockname()[:2]
    finally:
        server.end()
        await serving


def _config(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol_for(app.edge.server),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the peer's own address decides whether it is this machine
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )


async def _signalled() -> None:
    """Until the process is asked to end."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, asked.set)
    try:
        await asked.wait()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def loop_factory() -> asyncio.AbstractEventLoop:
    """The event loop to run the server on: `asyncio.Runner(loop_factory=loop_factory)`."""
    return uvloop.new_event_loop()
