"""An HTTP/1.1 client for small calls to providers and webhooks: POST, one at a time on each connection.

It makes its sockets itself, so that a guard sees the address that is connected to. It follows no redirects, uses no
proxies and no cookies, asks for no compression, and reads a response up to a limit. Why not a library:
docs/decisions/0020-an-http-client-of-our-own.md.

**A request is written once.** When a connection breaks after a byte of the request was written, the call fails with
`ConnectionLost`, because the server may have processed it; whether to repeat it is the caller's decision. Another
connection is used only where nothing was written: a kept connection that the server had closed before.
"""

import asyncio
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote

import httptools
import msgspec

from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import DEFAULT_PORTS, check_url, domain_to_ascii, literal_ip
from tidings.providers.http.guard import AddressInfo, Guard, Refused
from tidings.tasks import Deadlines

AGENT = "Tidings"
BODY_BYTES_MAX = 64 * 1024  # of a response; the rest is not read, and the connection is closed
RESPONSE_BYTES_MAX = 256 * 1024  # with its head, interim responses and the framing of chunks
CONNECT_SHARE = 0.5  # of the time-out: for a free connection, the name, TCP and TLS
IDLE_S_MAX = 15.0
PEEK_AFTER_US = 10_000  # a connection that was idle for longer is checked for a close that the loop has not seen yet
ADDRESSES_KEPT_US = 10_000_000
TARGETS_KEPT = 4_096
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_QUERY_SAFE = _PATH_SAFE + "?[]"

_ERRNO = re.compile(r"\[Errno -?[0-9]+\] ")

Resolve = Callable[[str, int], Awaitable[Sequence[AddressInfo]]]


class HttpError(Exception):
    """No response.

    HttpError
    ├── BadRequest        the URL or a header cannot be written
    ├── NotAllowed        the guard refuses the address
    ├── NotConnected      no connection: nothing was sent
    │   └── Untrusted     the certificate of the server is not trusted
    ├── NoResponse        none within the time-out: the request may have been processed
    └── ConnectionLost    closed, or not HTTP, before the response was complete: it may have been processed
    """


class BadRequest(HttpError): ...


class NotAllowed(HttpError): ...


class NotConnected(HttpError): ...


class Untrusted(NotConnected): ...


class NoResponse(HttpError): ...


class ConnectionLost(HttpError): ...


class Response(msgspec.Struct, frozen=True):
    """A response. Header names are in lower case; the last of several with one name counts."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; an empty object if it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return {}


class Target(msgspec.Struct, frozen=True):
    """A URL, taken apart: where to connect to, and the first lines of a request."""

    origin: tuple[str, str, int]
    head: str


@lru_cache(TARGETS_KEPT)
def parse_target(url: str) -> Target:
    """The target of a URL; `BadRequest` if it cannot be called."""
    try:
        parts = check_url(url)
        host = parts.hostname or ""
        if literal_ip(host) is None:
            host = domain_to_ascii(host)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (Invalid, ValueError) as error:
        raise BadRequest(f"is not a URL that can be called: {error}") from None
    shown = f"[{host}]" if ":" in host else host
    if port != DEFAULT_PORTS[parts.scheme]:
        shown = f"{shown}:{port}"
    path = quote(parts.path or "/", safe=_PATH_SAFE)
    if parts.query:
        path = f"{path}?{quote(parts.query, safe=_QUERY_SAFE)}"
    head = f"POST {path} HTTP/1.1\r\nHost: {shown}\r\nUser-Agent: {AGENT}\r\nAccept-Encoding: identity\r\n"
    return Target((parts.scheme, host, port), head)


def write_request(target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    """The bytes of a request. A header that would end its line is refused."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\r") != len(headers) or lines.count("\n") != len(headers) or "\0" in lines:
        raise BadRequest("a header has a line break or a NUL character")
    return f"{target.head}{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


class HttpClient:
    """Calls over kept connections: at most `connections_max` at a time, and so many of them to one origin.

    A call that finds all connections in use waits for its turn; workers keep to the limits, so few ever do.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_s: float,
        connections_max: int,
        per_origin_max: int | None = None,
        tls: ssl.SSLContext | None = None,
        guard: Guard | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._connections_max = connections_max
        self._per_origin_max = per_origin_max or connections_max
        self._tls = tls
        self._guard = guard
        self._resolve = resolve or _resolve
        self._origins: dict[tuple[str, str, int], _Origin] = {}
        self._used = 0
        self._waiting: deque[tuple[_Origin, asyncio.Future[None]]] = deque()
        self._connections: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._deadlines: Deadlines[_Connection] = Deadlines(clock, _Connection.time_out)
        self._is_closed = False

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send one request and return its response; raises an `HttpError` if there is none."""
        target = parse_target(url)
        request = write_request(target, headers, body)
        origin = self._origins.get(target.origin)
        if origin is None:
            origin = self._origins[target.origin] = _Origin(*target.origin)
        begun = now = self._clock.elapsed()
        timeout_s = self._timeout_s
        if not self._take(origin):
            await self._wait(origin)
            now = self._clock.elapsed()
        connection = None
        try:
            connection = origin.idle_connection(now)
            if connection is None:
                connection = await self._connect(origin)
                now = self._clock.elapsed()
                timeout_s -= (now - begun) / 1_000_000
            response = connection.send(request)
            self._deadlines.add(connection, timeout_s, now)
            return await response
        finally:
            self._release(origin, connection)

    async def close(self) -> None:
        """Close all connections; calls that are under way fail."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        self._deadlines.close()
        for connection in list(self._connections):
            connection.fail(ConnectionLost("the client was closed"))
        while self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(NotConnected("the client was closed"))
        self._origins.clear()
        await asyncio.sleep(0)  # lets the transports close their sockets

    # Turns

    def _take(self, origin: "_Origin") -> bool:
        if self._used >= self._connections_max or origin.used >= self._per_origin_max:
            return False
        self._used += 1
        origin.used += 1
        return True

    async def _wait(self, origin: "_Origin") -> None:
        """Wait for a turn, which `_release` takes for the one that has waited longest."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((origin, turn))
        try:
            async with asyncio.timeout(self._timeout_s * CONNECT_SHARE):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release(origin, None)
            else:
                self._waiting = deque(each for each in self._waiting if each[1] is not turn)
            if isinstance(error, TimeoutError):
                raise NotConnected("all connections are in use") from None
            raise

    def _release(self, origin: "_Origin", connection: "_Connection | None") -> None:
        self._used -= 1
        origin.used -= 1
        if connection is not None:
            self._deadlines.remove(connection)
            connection.end()
            if connection.is_reusable and not self._is_closed:
                connection.idle_since = self._clock.elapsed()
                origin.idle.append(connection)
                if self._sweep is None:
                    self._sweep = asyncio.get_running_loop().call_later(IDLE_S_MAX, self._close_idle)
            else:
                connection.abort()
        if self._waiting:
            self._wake()
        if not origin.used and not origin.idle:
            self._origins.pop(origin.key, None)

    def _wake(self) -> None:
        """Give free connections to calls that wait, in their order, as far as their origins have room."""
        for _ in range(len(self._waiting)):
            origin, turn = self._waiting.popleft()
            if turn.done():
                continue
            if self._take(origin):
                self._origins.setdefault(origin.key, origin)
                turn.set_result(None)
            else:
                self._waiting.append((origin, turn))

    def _close_idle(self) -> None:
        """Close connections that were idle for too long, and forget origins without any."""
        before = self._clock.elapsed() - int(IDLE_S_MAX * 1_000_000)
        for origin in list(self._origins.values()):
            stale = [each for each in origin.idle if each.idle_since <= before or not each.is_reusable]
            origin.idle = [each for each in origin.idle if each not in stale]
            for connection in stale:
                connection.abort()
            if not origin.used and not origin.idle:
                del self._origins[origin.key]
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(IDLE_S_MAX, self._close_idle) if self._origins else None

    # Connections

    async def _connect(self, origin: "_Origin") -> "_Connection":
        if self._is_closed:
            raise NotConnected("the client was closed")
        try:
            async with asyncio.timeout(self._timeout_s * CONNECT_SHARE):
                return await self._open(origin)
        except Refused as error:
            raise NotAllowed(str(error.strerror)) from None
        except ssl.SSLCertVerificationError as error:
            raise Untrusted(f"the certificate is not trusted: {error.verify_message or error}") from None
        except TimeoutError:
            raise NotConnected(f"no connection to {origin.host} within {self._timeout_s * CONNECT_SHARE:g} s") from None
        except (OSError, UnicodeError) as error:
            raise NotConnected(not_connected(origin.host, origin.port, error)) from None

    async def _open(self, origin: "_Origin") -> "_Connection":
        """A connection to the first address that accepts one."""
        loop = asyncio.get_running_loop()
        addresses = await self._addresses(origin)
        failure: OSError = OSError("the name has no address")
        for number, info in enumerate(addresses):
            share_s = self._timeout_s * CONNECT_SHARE / (len(addresses) - number + 1)
            made = socket.socket(*info[:3]) if self._guard is None else self._guard.make_socket(info)
            try:
                made.setblocking(False)
                async with asyncio.timeout(share_s if number + 1 < len(addresses) else None):
                    await loop.sock_connect(made, cast(Any, info[4]))
            except OSError as error:  # TimeoutError is one
                made.close()
                failure = error
                continue
            except BaseException:
                made.close()
                raise
            if number:
                origin.addresses = [info, *(each for each in addresses if each is not info)]
            return await self._secure(origin, made)
        raise failure

    async def _secure(self, origin: "_Origin", made: socket.socket) -> "_Connection":
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if origin.scheme == "https":
            if self._tls is None:
                self._tls = trusted(None)
            tls = {"ssl": self._tls, "server_hostname": origin.host.removesuffix(".")}
        connection = _Connection(loop, made, self._connections)
        try:
            await loop.create_connection(lambda: connection, sock=made, **tls)
        except BaseException:
            # The socket is left to its transport: closed here, its number could be given to another socket while the
            # transport still reads from it.
            connection.abort()
            raise
        return connection

    async def _addresses(self, origin: "_Origin") -> Sequence[AddressInfo]:
        """The addresses of an origin, which the guard permits; a name is looked up once in a while."""
        ip = literal_ip(origin.host)
        if ip is not None:
            family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
            return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(ip), origin.port))]
        async with origin.resolving:
            if not origin.addresses or self._clock.elapsed() - origin.resolved > ADDRESSES_KEPT_US:
                found = await self._resolve(origin.host, origin.port)
                if self._guard is not None:
                    self._guard.check_addresses(origin.host, found)
                origin.addresses, origin.resolved = found, self._clock.elapsed()
            return origin.addresses


def not_connected(host: str, port: int, error: Exception) -> str:
    """Why there is no connection, in plain words: `no connection to 127.0.0.1: connection refused (port 9192)`."""
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError):
        text = str(getattr(error, "strerror", None) or error)
        return f"no connection to {host}: {_ERRNO.sub('', text)}"
    text = os.strerror(error.errno) if error.errno and not isinstance(error, ssl.SSLError) else str(error)
    text = _ERRNO.sub("", text)
    return f"no connection to {host}: {text[:1].lower()}{text[1:]} (port {port})"


class _Origin:
    """The connections to one scheme, host and port."""

    __slots__ = ("addresses", "host", "idle", "key", "port", "resolved", "resolving", "scheme", "used")

    def __init__(self, scheme: str, host: str, port: int) -> None:
        self.key = (scheme, host, port)
        self.scheme, self.host, self.port = self.key
        self.idle: list[_Connection] = []
        self.used = 0
        self.addresses: Sequence[AddressInfo] = ()
        self.resolved = 0  # when, by the monotonic clock
        self.resolving = asyncio.Lock()

    def idle_connection(self, now: int) -> "_Connection | None":
        """The connection that was used last and is still open."""
        while self.idle:
            connection = self.idle.pop()
            idle_us = now - connection.idle_since
            is_recent = idle_us <= IDLE_S_MAX * 1_000_000 and (idle_us < PEEK_AFTER_US or connection.is_quiet())
            if connection.is_reusable and is_recent:
                return connection
            connection.abort()
        return None


class _Connection(asyncio.Protocol):
    """One connection, and the response that is being read from it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, made: socket.socket, all_of: "set[_Connection]") -> None:
        self._loop = loop
        self._socket = made
        self._all_of = all_of
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._response: asyncio.Future[Response] | None = None
        self._begin()
        self._is_kept = self._is_aborted = False
        self.idle_since = 0

    def _begin(self) -> None:
        self._status = 0  # of a final response, once its head is complete
        self._headers: dict[str, str] = {}
        self._body = b""
        self._received = 0

    @property
    def is_reusable(self) -> bool:
        """Whether the last response was complete, the server keeps the connection, and nothing is left to write."""
        transport = self._transport
        return self._is_kept and transport is not None and not transport.get_write_buffer_size()

    def is_quiet(self) -> bool:
        """Whether nothing has arrived while it was idle, neither data nor a close."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def send(self, request: bytes) -> "asyncio.Future[Response]":
        """Write a request; a future of its response."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise NotConnected("the server closed the connection at once")
        self._begin()
        self._is_kept = False  # until the response is complete
        self._response = self._loop.create_future()
        transport.write(request)
        return self._response

    def end(self) -> None:
        """Nobody waits for a response any more."""
        self._response = None

    def fail(self, error: HttpError) -> None:
        """End the call with an error, and close."""
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
        self.abort()

    def abort(self) -> None:
        """Close at once, without waiting for what is not written yet; or as soon as there is something to close."""
        self._is_kept, self._is_aborted = False, True
        self._all_of.discard(self)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def time_out(self) -> None:
        """End the call: its time is over."""
        self.fail(NoResponse("no complete response in time"))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._all_of.add(self)
        if self._is_aborted:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._response is None:  # nobody asked: it could be taken for the response to the next request
            self.abort()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:  # an upgrade is one, too
            self.fail(ConnectionLost(f"the response is not valid HTTP/1.1: {error}"))
            return
        if self._received > RESPONSE_BYTES_MAX and not self._response.done():
            if self._status:
                self._finish(is_kept=False)
            else:
                self.fail(ConnectionLost(f"the head of the response is larger than {RESPONSE_BYTES_MAX} bytes"))

    def eof_received(self) -> bool:
        self.connection_lost(None)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        response = self._response
        if response is not None and not response.done():
            if error is None and self._status and self._ends_with_connection():
                self._finish(is_kept=False)
            else:
                text = "the connection was closed before the response was complete"
                self.fail(ConnectionLost(f"{text}: {error}" if error else text))
        self.abort()

    def _ends_with_connection(self) -> bool:
        """Whether the end of the response is the end of the connection (RFC 9112, 6.3)."""
        return "content-length" not in self._headers and "transfer-encoding" not in self._headers

    # httptools

    def on_message_begin(self) -> None:
        if self._response is None or self._response.done():
            self._is_kept = False  # a second response to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # else it is a trailer
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = {}  # an interim response, such as 100 Continue: the final one follows
        else:
            self._status = status

    def on_body(self, body: bytes) -> None:
        self._body = self._body + body if self._body else body
        if len(self._body) >= BODY_BYTES_MAX:
            self._body = self._body[:BODY_BYTES_MAX]
            self._finish(is_kept=False)

    def on_message_complete(self) -> None:
        if self._status:
            self._finish(is_kept=self._parser.should_keep_alive())

    def _finish(self, *, is_kept: bool) -> None:
        response = self._response
        if response is not None and not response.done():
            self._is_kept = is_kept
            response.set_result(Response(self._status, self._headers, self._body))


async def _resolve(host: str, port: int) -> Sequence[AddressInfo]:
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)


def trusted(ca_file: str | None) -> ssl.SSLContext:
    """TLS that trusts the system's authorities, or those of one file."""
    return ssl.create_default_context(cafile=ca_file)
