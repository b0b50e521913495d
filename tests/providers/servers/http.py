"""A bare HTTP/1.1 server: it answers what a handler says, or misbehaves on the socket as the handler says."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Literal

Fault = Literal["reset", "silence", "half", "garbage", "slow"]

PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


Handler = Callable[[Request], Answer | Fault]


class HttpServer:
    """What came in, and over how many connections."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self.over = asyncio.Event()

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while (request := await _read(reader, number)) is not None:
                self.requests.append(request)
                answer = self._handler(request)
                if isinstance(answer, Answer):
                    writer.write(_written(answer))
                    await writer.drain()
                    continue
                await self._misbehave(answer, writer)
                return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _misbehave(self, fault: Fault, writer: asyncio.StreamWriter) -> None:
        match fault:
            case "reset":
                writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            case "silence":
                await self.over.wait()
            case "half":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
                await writer.drain()
            case "slow":
                for letter in b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}":
                    writer.write(bytes([letter]))
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.over.wait(), PAUSE_S if letter == ord("\r") else 0.0001)
                await writer.drain()
            case "garbage":
                writer.write(b"\x00\x01 this is no HTTP\r\n\r\n")
                await writer.drain()


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None, host: str = "127.0.0.1") -> AsyncIterator[HttpServer]:
    """A server on a port of its own, until the end of the block."""
    server = HttpServer(handler)
    listening = await asyncio.start_server(server.serve, host, 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.over.set()
        listening.close()
        await listening.wait_closed()


async def _read(reader: asyncio.StreamReader, connection: int) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    pairs = [line.split(":", 1) for line in lines]
    headers = {name.lower(): text.strip() for name, text in pairs}
    assert len(headers) == len(pairs), "a header came twice"
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, connection)


def _written(answer: Answer) -> bytes:
    headers = {"Content-Length": str(len(answer.body)), **answer.headers}
    lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    return f"HTTP/1.1 {answer.status} Said\r\n{lines}\r\n".encode() + answer.body
