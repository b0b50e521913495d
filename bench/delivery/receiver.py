"""A minimal receiver of messages: `python -m bench.delivery.receiver HTTP_PORT SMTP_PORT [CERTIFICATE]`.

A POST is a webhook, taken with 200. `GET /count` says how many have arrived, `GET /arrivals` which, and forgets them.
With a certificate, webhooks are received over TLS.
"""

import asyncio
import ssl
import sys
import time
from typing import cast

import msgspec

from bench.delivery.content import MARK
from bench.engines import run
from bench.processes import HOST, say

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
_HEAD_END, _LENGTH = b"\r\n\r\n", b"content-length:"
_MAIL_END = b"\r\n.\r\n"
_GREETING = b"220 bench ESMTP\r\n"
_ABILITIES = b"250-bench\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SMTPUTF8\r\n"
_READY, _GO_ON, _BYE = b"250 2.0.0 OK\r\n", b"354 go on\r\n", b"221 2.0.0 bye\r\n"

Arrivals = list[tuple[int, bytes]]


class Hooks(asyncio.Protocol):
    """One HTTP connection."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._rest = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.time_ns() // 1_000
        self._rest += data
        while (end := self._end()) is not None:
            whole, self._rest = self._rest[:end], self._rest[end:]
            assert self._transport is not None
            self._transport.write(_OK if whole.startswith(b"POST") else self._told(whole))
            if whole.startswith(b"POST"):
                self._arrivals.append((now, whole))

    def _end(self) -> int | None:
        """The end of the first request, if it has arrived completely."""
        head = self._rest.find(_HEAD_END)
        if head < 0:
            return None
        lower = self._rest[:head].lower()
        at = lower.find(_LENGTH)
        length = 0 if at < 0 else int(lower[at + len(_LENGTH) :].split(b"\r\n", 1)[0])
        end = head + len(_HEAD_END) + length
        return end if len(self._rest) >= end else None

    def _told(self, request: bytes) -> bytes:
        if request.startswith(b"GET /count "):
            body = str(len(self._arrivals)).encode()
        else:
            body = msgspec.json.encode([_mark(at, whole) for at, whole in self._arrivals])
            self._arrivals.clear()
        return (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )


class Mails(asyncio.Protocol):
    """One SMTP connection (RFC 5321): every sender and recipient is accepted."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._rest = b""
        self._is_mail = False
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(_GREETING)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        now = time.time_ns() // 1_000
        self._rest += data
        while True:
            part, end, rest = self._rest.partition(_MAIL_END if self._is_mail else b"\r\n")
            if not end:
                return
            self._rest = rest
            if self._is_mail:
                self._is_mail = False
                self._arrivals.append((now, part))
                self._transport.write(_READY)
            else:
                self._command(part[:4].upper())

    def _command(self, verb: bytes) -> None:
        assert self._transport is not None
        match verb:
            case b"EHLO":
                self._transport.write(_ABILITIES)
            case b"DATA":
                self._is_mail = True
                self._transport.write(_GO_ON)
            case b"QUIT":
                self._transport.write(_BYE)
                self._transport.close()
            case _:
                self._transport.write(_READY)


def _mark(at: int, whole: bytes) -> tuple[int, int, str, int]:
    found = MARK.search(whole)
    if found is None:
        raise RuntimeError(f"something arrived without a mark: {whole[:2_000]!r}")
    return int(found[1]), int(found[2]), found[3].decode(), at


async def main(http_port: int, smtp_port: int, certificate: str | None = None) -> None:
    """Listen until ended."""
    loop = asyncio.get_running_loop()
    arrivals: Arrivals = []
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    await loop.create_server(lambda: Hooks(arrivals), HOST, http_port, ssl=tls)
    await loop.create_server(lambda: Mails(arrivals), HOST, smtp_port)
    say("listening")
    await asyncio.Event().wait()


if __name__ == "__main__":
    run(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
