"""The HTTP client against servers that misbehave at every byte, over real sockets."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

import pytest

from tests.providers.servers.authority import Authority
from tidings.clock import SystemClock
from tidings.providers.http.client import (
    BODY_BYTES_MAX,
    RESPONSE_BYTES_MAX,
    BadRequest,
    ConnectionLost,
    HttpClient,
    NoResponse,
    NotConnected,
    Response,
    Untrusted,
    parse_target,
    trusted,
    write_request,
)
from tidings.providers.http.guard import AddressInfo
from tidings.testing import SimulatedClock, eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Id: 7\r\n\r\nok"
CHUNKS = b"1\r\no\r\n1;x=y\r\nk\r\n0\r\nX-Id: trailer\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Id: 7\r\n\r\n" + CHUNKS
CONTINUED = b"HTTP/1.1 100 Continue\r\nX-Id: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nX-Id: 7\r\n\r\nok"

Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Scripted:
    """A server that does what it is told with each connection; counts connections and complete requests."""

    def __init__(self, act: "Callable[[Scripted], Act]") -> None:
        self._act = act(self)
        self.connections = 0
        self.requests: list[bytes] = []
        self.port = 0
        self.over = asyncio.Event()
        self._served: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in?x=1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._served.add(cast("asyncio.Task[None]", asyncio.current_task()))
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._act(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def end(self, listening: asyncio.Server) -> None:
        """Close every connection, and wait until they are closed."""
        self.over.set()
        listening.close()
        await asyncio.gather(*self._served, return_exceptions=True)
        await listening.wait_closed()
        await turn_of_the_loop()

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """One request."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request


@asynccontextmanager
async def scripted(act: "Callable[[Scripted], Act]", **options: object) -> AsyncIterator[tuple[Scripted, HttpClient]]:
    """A server, and a client that calls it."""
    server = Scripted(act)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    client = HttpClient(**{"clock": SystemClock(), "timeout_s": 5.0, "connections_max": 4, **options})  # type: ignore[arg-type]
    try:
        yield server, client
    finally:
        await client.close()
        await server.end(listening)


def answering(*answers: bytes, then_close: bool = False, split: int | None = None) -> Callable[[Scripted], Act]:
    """Answer the requests of a connection one after the other; `split` divides an answer into two writes."""

    def made(server: Scripted) -> Act:
        async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in answers:
                await server.read(reader)
                for part in (answer,) if split is None else (answer[:split], answer[split:]):
                    writer.write(part)
                    await turn_of_the_loop()
            if then_close:
                return
            await server.over.wait()

        return act

    return made


async def turn_of_the_loop(turns: int = 3) -> None:
    """Let the loop write what was written and read what has arrived, so that two writes are two reads."""
    loop = asyncio.get_running_loop()
    for _ in range(turns):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


async def test_a_request_is_written_as_http_and_answered() -> None:
    async with scripted(answering(OK, OK)) as (server, client):
        for _ in range(2):
            response = await client.post(server.url, {"X-Name": "Ada"}, b'{"a": 1}')
            assert (response.status, response.body, response.headers["x-id"]) == (200, b"ok", "7")
    first = server.requests[0]
    assert first.startswith(
        f"POST /in?x=1 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUser-Agent: Tidings\r\n".encode()
    )
    assert b"\r\nX-Name: Ada\r\nContent-Length: 8\r\n\r\n" in first
    assert first.endswith(b'{"a": 1}')
    assert (server.connections, len(server.requests)) == (1, 2), "the connection is kept"


@pytest.mark.parametrize("answer", [OK, CHUNKED, CONTINUED, UNTIL_CLOSE], ids=["length", "chunked", "interim", "close"])
async def test_an_answer_may_be_split_at_every_byte(answer: bytes) -> None:
    for split in range(1, len(answer)):
        async with scripted(answering(answer, then_close=answer is UNTIL_CLOSE, split=split)) as (server, client):
            response = await client.post(server.url, {}, b"{}")
            assert (response.status, response.body, response.headers["x-id"]) == (200, b"ok", "7"), split


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("answer", [OK, CHUNKED, CONTINUED], ids=["length", "chunked", "interim"])
async def test_a_connection_that_breaks_at_any_byte_is_reported_and_nothing_is_sent_again(
    answer: bytes, how: str
) -> None:
    for cut in range(len(answer)):

        def breaking(server: Scripted, cut: int = cut) -> Act:
            async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await server.read(reader)
                writer.write(answer[:cut])
                await writer.drain()
                if how == "reset":
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()

            return act

        async with scripted(breaking) as (server, client):
            with pytest.raises(ConnectionLost):
                await client.post(server.url, {}, b"{}")
            assert (len(server.requests), server.connections) == (1, 1), cut


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x01 no HTTP\r\n\r\n",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * RESPONSE_BYTES_MAX,
        b"HTTP/1.1 100 Continue\r\n\r\n" * (RESPONSE_BYTES_MAX // 20),
    ],
    ids=["garbage", "ssh", "negative", "both", "two lengths", "chunk", "upgrade", "head", "interim for ever"],
)
async def test_what_is_not_an_answer_is_a_lost_connection(answer: bytes) -> None:
    async with scripted(answering(answer)) as (server, client):
        with pytest.raises(ConnectionLost):
            await client.post(server.url, {}, b"{}")
        assert len(server.requests) == 1


@pytest.mark.slow
async def test_a_large_answer_is_cut_and_its_connection_closed() -> None:
    huge = b"HTTP/1.1 500 Oh\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (BODY_BYTES_MAX * 2)
    chunks = b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * RESPONSE_BYTES_MAX
    for answer in (huge, chunks):
        async with scripted(answering(answer)) as (server, client):
            response = await client.post(server.url, {}, b"{}")
            assert response.status == 500
            assert 0 < len(response.body) <= BODY_BYTES_MAX
            assert (await client.post(server.url, {}, b"{}")).status == 500
            assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
        OK + b"H",
    ],
    ids=["close", "1.0", "second answer", "a byte too many"],
)
async def test_a_connection_that_ended_or_said_too_much_is_not_used_again(answer: bytes) -> None:
    """Nobody may answer the next request before it is made."""
    async with scripted(answering(answer)) as (server, client):
        for _ in range(3):
            assert (await client.post(server.url, {}, b"{}")).body == b"ok"
        assert (server.connections, len(server.requests)) == (3, 3)


async def test_an_unasked_answer_on_an_idle_connection_is_never_taken_for_one() -> None:
    heard, sent = asyncio.Event(), asyncio.Event()

    def forging(server: Scripted) -> Act:
        async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read(reader)
            writer.write(OK)
            await writer.drain()
            if server.connections == 1:
                await heard.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
                await writer.drain()
                sent.set()
            await server.over.wait()

        return act

    async with scripted(forging) as (server, client):
        assert (await client.post(server.url, {}, b"{}")).body == b"ok"
        heard.set()
        await sent.wait()
        assert (await client.post(server.url, {}, b"{}")).body == b"ok"
        assert server.connections == 2


async def test_a_kept_connection_that_the_server_closed_is_replaced_before_a_byte_is_written(
    clock: SimulatedClock,
) -> None:
    closed = asyncio.Event()

    def closing(server: Scripted) -> Act:
        async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.read(reader)
            writer.write(OK)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            closed.set()

        return act

    async with scripted(closing, clock=clock) as (server, client):
        for _ in range(5):
            closed.clear()
            assert (await client.post(server.url, {}, b"{}")).body == b"ok"
            await closed.wait()
            clock.advance(timedelta(milliseconds=20))  # idle for so long, the kernel is asked: the loop may not know
        assert (server.connections, len(server.requests)) == (5, 5)


async def test_a_silent_server_is_not_waited_for_longer_than_the_time_out() -> None:
    async with scripted(answering(b""), timeout_s=0.1) as (server, client):
        with pytest.raises(NoResponse):
            await client.post(server.url, {}, b"{}")
        assert len(server.requests) == 1


async def test_a_cancelled_call_gives_its_connection_up() -> None:
    async with scripted(answering(b""), connections_max=1, timeout_s=1.0) as (server, client):
        task = asyncio.create_task(client.post(server.url, {}, b"{}"))
        await eventually(lambda: server.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waiting = asyncio.create_task(client.post(server.url, {}, b"{}"))
        await eventually(lambda: len(server.requests) == 2)
        assert server.connections == 2
        waiting.cancel()


def test_a_socket_is_not_closed_while_its_transport_reads_from_it(authority: Authority) -> None:
    """Calls are cancelled at any moment of the TLS handshake: the next socket must not get the number of one in use.

    On the loop of asyncio, which programs that embed the engine use: uvloop closes no socket that it reads from.
    """
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(_cancel_handshakes(authority))


async def _cancel_handshakes(authority: Authority) -> None:
    loop, server = asyncio.get_running_loop(), Scripted(answering(OK))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=authority.context())
    url = f"https://localhost:{listening.sockets[0].getsockname()[1]}/"
    client = HttpClient(SystemClock(), timeout_s=5.0, connections_max=8, tls=trusted(str(authority.ca)))
    for number in range(100):
        calls = [asyncio.create_task(client.post(url, {}, b"")) for _ in range(6)]
        await turn_of_the_loop(number % 40)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        transports = list(loop._transports.values())  # type: ignore[attr-defined]
        in_use = [each._sock for each in transports if not each.is_closing() and each._sock is not None]
        assert [each for each in in_use if each.fileno() == -1] == []
        assert all(connection.is_reusable for connection in client._connections), "no other one is left open"
    await client.close()
    await server.end(listening)


async def test_never_more_calls_at_a_time_than_allowed_and_each_gets_its_turn() -> None:
    now = most = 0

    def counting(server: Scripted) -> Act:
        async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal now, most
            while True:
                await server.read(reader)
                now += 1
                most = max(most, now)
                await turn_of_the_loop()
                now -= 1
                writer.write(OK)

        return act

    async with scripted(counting, connections_max=8, per_origin_max=3) as (server, client):
        answers = await asyncio.gather(*(client.post(server.url, {}, b"{}") for _ in range(100)))
        assert all(answer == Response(200, answer.headers, b"ok") for answer in answers)
        assert (server.connections, most) == (3, 3)


async def test_a_call_that_gives_up_waiting_leaves_its_turn_to_the_next() -> None:
    async with scripted(answering(b""), connections_max=1, timeout_s=0.2) as (server, client):
        calls = [asyncio.create_task(client.post(server.url, {}, b"{}")) for _ in range(3)]
        await eventually(lambda: server.requests)
        calls[1].cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in outcomes] == [NoResponse, asyncio.CancelledError, NotConnected]
        with pytest.raises(NoResponse):
            await client.post(server.url, {}, b"{}")


async def test_a_port_without_a_server_and_a_name_without_an_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = HttpClient(SystemClock(), timeout_s=2.0, connections_max=1)
        port = unused.getsockname()[1]
        with pytest.raises(NotConnected, match=rf"no connection to 127\.0\.0\.1: connection refused \(port {port}\)"):
            await client.post(f"http://127.0.0.1:{port}/", {}, b"")

    async def nowhere(host: str, port: int) -> list[AddressInfo]:
        raise socket.gaierror(socket.EAI_NONAME, f"no {host} {port}")

    client = HttpClient(SystemClock(), timeout_s=2.0, connections_max=1, resolve=nowhere)
    with pytest.raises(NotConnected, match=r"no connection to gone\.example"):
        await client.post("http://gone.example/", {}, b"")


async def test_the_next_address_is_tried_and_remembered() -> None:
    asked = 0

    async with scripted(answering(OK, OK)) as (server, _):

        async def resolve(_host: str, port: int) -> list[AddressInfo]:
            nonlocal asked
            asked += 1
            dead, alive = ("127.0.0.2", 1), ("127.0.0.1", port)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", where) for where in (dead, alive)]

        client = HttpClient(SystemClock(), timeout_s=2.0, connections_max=1, resolve=resolve)
        for _ in range(2):
            assert (await client.post(f"http://two.example:{server.port}/", {}, b"")).status == 200
        await client.close()
        assert asked == 1


async def test_certificates_are_checked_for_trust_and_for_the_name(authority: Authority) -> None:
    served = Scripted(answering(OK))
    listening = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=authority.context())
    port = listening.sockets[0].getsockname()[1]

    async def here(_host: str, port: int) -> list[AddressInfo]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    for tls, host, is_trusted in (
        (trusted(str(authority.ca)), "hooks.example", True),
        (trusted(str(authority.ca)), "other.example", False),
        (None, "hooks.example", False),
    ):
        client = HttpClient(SystemClock(), timeout_s=5.0, connections_max=1, tls=tls, resolve=here)
        if is_trusted:
            assert (await client.post(f"https://{host}:{port}/", {}, b"")).status == 200
        else:
            with pytest.raises(Untrusted):
                await client.post(f"https://{host}:{port}/", {}, b"")
        await client.close()
    await served.end(listening)


def test_a_header_cannot_end_its_line() -> None:
    target = parse_target("https://x.example/")
    for value in ("a\r\nb: c", "a\nb", "a\rb", "a\0b"):
        with pytest.raises(BadRequest):
            write_request(target, {"X": value}, b"")
        with pytest.raises(BadRequest):
            write_request(target, {value: "x"}, b"")


@pytest.mark.parametrize(
    ("url", "origin", "lines"),
    [
        ("https://X.Example/a?b=c", ("https", "x.example", 443), "POST /a?b=c HTTP/1.1\r\nHost: x.example\r\n"),
        ("http://x.example:8080", ("http", "x.example", 8080), "POST / HTTP/1.1\r\nHost: x.example:8080\r\n"),
        (
            "https://müller.example/ü?ö=%20",
            ("https", "xn--mller-kva.example", 443),
            "POST /%C3%BC?%C3%B6=%20 HTTP/1.1\r\n",
        ),
        (
            "https://[2606:2800::1]:8443/",
            ("https", "2606:2800::1", 8443),
            "POST / HTTP/1.1\r\nHost: [2606:2800::1]:8443",
        ),
    ],
)
def test_a_url_becomes_an_origin_and_the_first_lines(url: str, origin: tuple[str, str, int], lines: str) -> None:
    target = parse_target(url)
    assert target.origin == origin
    assert target.head.startswith(lines)


@pytest.mark.parametrize("url", ["https://ada:word@x.example/", "ftp://x.example/", "https://", "https://x.example/#a"])
def test_what_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_target(url)
