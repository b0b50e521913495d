"""The HTTP server: uvicorn on a socket of our own, bounded connections, and a shutdown within seconds.

What is sent waits in the transport's write buffer until the client reads it. Above `BUFFER_BYTES_MAX` senders wait;
a connection whose buffer has not shrunk for `server.slow_reader_timeout` is closed.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tidings.config.settings import Server
from tidings.domain.errors import Invalid, StoreError
from tidings.edges.http.auth import Caller
from tidings.edges.http.problems import RETRY_AFTER_S, Refusal
from tidings.edges.http.routes import App, problem_answer

STOP_S = 2
TICK_S = 1.0
KEEP_ALIVE_S = 30
BACKLOG = 2048
BUFFER_BYTES_MAX = 64 * 1024  # of one connection; above it, senders wait
CHECKS = 4  # of a client's progress within one `slow_reader_timeout`
GRACE_S = 2.0  # for a client to read why it is disconnected
ALWAYS_SERVED = frozenset({"/healthz", "/readyz", "/metrics"})

_SECOND_US = 1_000_000

logger = logging.getLogger("tidings.http")


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP protocol with a bounded write buffer, which disconnects clients that do not read their answer."""

    limits = Server()

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.last_words: bytes | None = None
        self._check_s = self.limits.slow_reader_timeout_us / _SECOND_US / CHECKS
        self._running: RequestResponseCycle | None = None
        self._waiting: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_checks = 0
        self._size = 0
        self._received = False

    # Used by handlers

    @property
    def is_full(self) -> bool:
        """Whether the client has to read before more is written."""
        return self.flow.write_paused

    async def drained(self) -> None:
        """Wait until the client has read most of what was written, or is gone."""
        await self.flow.drain()

    def abort(self) -> None:
        """Close at once; what was not read is lost."""
        self._ended()
        self.transport.abort()

    # Called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)
        if len(self.connections) > self.limits.connections_max:
            self.app = self._refuse

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start a request; a pipelined one waits until the client has read the previous answer."""
        if self.is_full:
            self._waiting = cycle, app
            return
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        self._received = True
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch()
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._start_asgi_task(*waiting)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():  # the connection closes only once this is read
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._ended()  # of several pipelined requests, uvicorn notifies only the last
        super().connection_lost(exc)

    # Progress of the client

    def _watch(self) -> None:
        if self._timer is None:
            self._idle_checks = 0
            self._size = self.transport.get_write_buffer_size()
            self._received = False
            self._timer = self.loop.call_later(self._check_s, self._check)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Count the checks since the client last read, or sent more of an unfinished body."""
        size = self.transport.get_write_buffer_size()
        cycle = self._running
        is_sending = self._received and cycle is not None and cycle.more_body
        self._idle_checks = 0 if size < self._size or is_sending else self._idle_checks + 1
        self._size, self._received = size, False
        if self._idle_checks < CHECKS:
            self._timer = self.loop.call_later(self._check_s, self._check)
        else:
            self._timer = None
            self._disconnect(size)

    def _disconnect(self, size: int) -> None:
        scope: dict[str, Any] = dict(self._running.scope) if self._running else {"path": "", "state": {}}
        caller: Caller | None = scope["state"].get("caller")
        about = {
            "path": scope["path"],
            "tenant": caller.tenant if caller else "",
            "key": caller.key if caller else "",
            "client": ":".join(map(str, self.client or ())),
            "bytes": size,
        }
        seconds = self.limits.slow_reader_timeout_us / _SECOND_US
        logger.warning(
            "disconnected a client that read nothing for %g s (server.slow_reader_timeout)", seconds, extra=about
        )
        if self.last_words is None or self.transport.is_closing():
            self.abort()
            return
        # Queued after the unread bytes: a client that starts reading again learns why the stream ends.
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(self.last_words), self.last_words))
        self._ended()
        self.transport.close()
        self._timer = self.loop.call_later(GRACE_S, self.transport.abort)

    def _ended(self) -> None:
        """Let senders and receivers see a disconnected client."""
        self.pipeline.clear()
        self._waiting = None
        cycle = self._running
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse requests on a connection above the limit, except health checks; serve all once others have closed."""
        if scope["path"] in ALWAYS_SERVED or len(self.connections) <= self.limits.connections_max:
            await self.config.loaded_app(scope, receive, send)
            return
        most = self.limits.connections_max
        detail = f"{most} connections are open, the most for one node (server.connections_max): try again later"
        headers = {"retry-after": str(RETRY_AFTER_S), "connection": "close"}
        await problem_answer(Refusal("unavailable", detail, headers=headers))(send)


def protocol_for(limits: Server) -> type[BoundedProtocol]:
    """The protocol class with these limits."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits})


class PortTaken(StoreError):
    """The address cannot be listened on."""


class _Server(uvicorn.Server):
    """Uvicorn's server without its signal handlers; at shutdown, streams are ended before it waits for them."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app
        self.listening = asyncio.Event()
        self._stop_requested = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Wake once a second, for the Date header. Uvicorn's own loop polls ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), TICK_S)

    def end(self) -> None:
        """Shut down gracefully."""
        self.should_exit = True
        self._stop_requested.set()

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
        return f"this user may not listen on port {port}: choose one above 1023 with --port"
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

    `started` is called with the address once it listens.
    """
    async with running(app, host, port) as address:
        if started is not None:
            started(*address)
        await (_signalled() if stop is None else stop.wait())


@contextlib.asynccontextmanager
async def running(app: App, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[tuple[str, int]]:
    """Run a server and yield its address; at the end of the block it shuts down gracefully."""
    async with running_on(listen(host, port), app) as address:
        yield address


@contextlib.asynccontextmanager
async def running_on(listener: socket.socket, app: App) -> AsyncIterator[tuple[str, int]]:
    """The same on a socket that is already listening."""
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
        proxy_headers=False,  # the address of the peer itself decides whether it is on loopback
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )


async def _signalled() -> None:
    """Wait for SIGINT or SIGTERM."""
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
