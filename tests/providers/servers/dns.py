"""A tiny DNS server over UDP whose answers may change from one question to the next, and a resolver that asks it."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import cast

from tidings.providers.http.guard import AddressInfo

A, AAAA = 1, 28


class DnsServer(asyncio.DatagramProtocol):
    """`zone` maps a name to its successive answers; the last one stays."""

    def __init__(self) -> None:
        self.zone: dict[str, list[list[str]]] = {}
        self.questions: list[str] = []
        self.port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name, end = _name(data, 12)
        (kind,) = struct.unpack("!H", data[end : end + 2])
        if kind == A:
            self.questions.append(name)
        answers = self.zone.get(name, [[]])
        packed = [ip_address(text).packed for text in answers[0]]
        wanted = [raw for raw in packed if len(raw) == (4 if kind == A else 16)]
        if kind == AAAA and len(answers) > 1:  # the second half of a question: the next one gets the next answer
            answers.pop(0)
        records = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(raw)) + raw for raw in wanted)
        head = data[:2] + struct.pack("!HHHHH", 0x8180, 1, len(wanted), 0, 0)
        self._transport.sendto(head + data[12 : end + 4] + records, addr)


class DnsResolver:
    """Asks the server for both kinds of addresses, one after the other, every time."""

    def __init__(self, server: DnsServer) -> None:
        self._server = server

    async def resolve(self, host: str, port: int = 0) -> list[AddressInfo]:
        found = [*await self._ask(host, A), *await self._ask(host, AAAA)]
        if not found:
            raise OSError(None, f"no such host {host}")
        return [_info(address, port) for address in found]

    async def _ask(self, host: str, kind: int) -> list[str]:
        labels = b"".join(bytes([len(label)]) + label.encode() for label in host.rstrip(".").split("."))
        question = struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            await loop.sock_sendto(asking, question, ("127.0.0.1", self._server.port))
            answer, _ = await loop.sock_recvfrom(asking, 4096)
        return _addresses(answer, len(question))


@asynccontextmanager
async def serving() -> AsyncIterator[DnsServer]:
    """The server on a port of its own, until the end of the block."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(DnsServer, ("127.0.0.1", 0))
    server.port = transport.get_extra_info("sockname")[1]
    try:
        yield server
    finally:
        transport.close()


def _name(data: bytes, at: int) -> tuple[str, int]:
    labels = []
    while data[at]:
        labels.append(data[at + 1 : at + 1 + data[at]].decode())
        at += 1 + data[at]
    return ".".join(labels), at + 1


def _addresses(answer: bytes, at: int) -> list[str]:
    (count,) = struct.unpack("!H", answer[6:8])
    found = []
    for _ in range(count):
        (size,) = struct.unpack("!H", answer[at + 10 : at + 12])
        found.append(str(ip_address(answer[at + 12 : at + 12 + size])))
        at += 12 + size
    return found


def _info(address: str, port: int) -> AddressInfo:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)
