"""Connections: a bounded write buffer for each, and an end for clients that do not read their answer.

What is sent waits in the transport's write buffer until the client reads it. Above `BUFFER_BYTES_MAX` senders wait;
a connection whose buffer has not shrunk for `server.slow_reader_timeout` is closed.
"""

import asyncio
import logging
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tidings.config.settings import Server
from tidings.edges.http.auth import Caller
from tidings.edges.http.problems import RETRY_AFTER_S, Refusal
from tidings.edges.http.routes import problem_answer

BUFFER_BYTES_MAX = 64 * 1024  # of one connection, before its senders wait
CHECKS = 4  # in one `slow_reader_timeout`
GRACE_S = 2.0  # for a client to read why it is disconnected
ALWAYS_SERVED = frozenset({"/healthz", "/readyz", "/metrics"})

_SECOND_US = 1_000_000

logger = logging.getLogger("tidings.http")


class ReaderProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which also disconnects clients that do not read."""

    limits = Server()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.last_words: bytes | None = None
        self.caller: Caller | None = None
        self._check_s = self.limits.slow_reader_timeout_us / _SECOND_US / CHECKS
        self._running: RequestResponseCycle | None = None
        self._waiting: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_checks = 0
        self._size = 0
        self._received = False

    # For handlers

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

    # For the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)
        if len(self.connections) > self.limits.connections_max:
            self.app = self._refuse

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Begin a request; one that was sent ahead of time waits until the answer before it was read."""
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
        if self.transport.get_write_buffer_size():  # closing waits until this is read
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._ended()  # uvicorn tells only the last of several requests that were sent at once
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
        """Count the checks since the client last read, or sent more of a body that it has not finished."""
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
        about = {
            "path": self._running.scope["path"] if self._running else "",
            "tenant": self.caller.tenant if self.caller else "",
            "key": self.caller.key if self.caller else "",
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
        # Behind what is not read yet: a client that goes on reading now learns why the stream ends.
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(self.last_words), self.last_words))
        self._ended()
        self.transport.close()
        self._timer = self.loop.call_later(GRACE_S, self.transport.abort)

    def _ended(self) -> None:
        """Senders and receivers see a client that is gone."""
        self.pipeline.clear()
        self._waiting = None
        cycle = self._running
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests over one connection too many; health checks are served, and all once others have closed."""
        if scope["path"] in ALWAYS_SERVED or len(self.connections) <= self.limits.connections_max:
            await self.config.loaded_app(scope, receive, send)
            return
        most = self.limits.connections_max
        detail = f"{most} connections are open, the most for one node (server.connections_max): try again later"
        headers = {"retry-after": str(RETRY_AFTER_S), "connection": "close"}
        await problem_answer(Refusal("unavailable", detail, headers=headers))(send)


def protocol_for(limits: Server) -> type[ReaderProtocol]:
    """The protocol under these limits."""
    return type("ReaderProtocol", (ReaderProtocol,), {"limits": limits})
