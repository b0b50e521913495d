"""A lean HTTP client: prepared bytes out, the raw answer back, over one connection that is kept."""

import socket

from bench.processes import HOST

NDJSON = "application/x-ndjson"
JSON = "application/json"
CHUNK_BYTES = 1 << 20

_LAST_CHUNK = b"\r\n0\r\n\r\n"


def post(body: bytes, kind: str = JSON, path: str = "/v1/schedules") -> bytes:
    """A whole POST, ready to be sent."""
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Wire:
    """One connection. An answer is expected to be streamed in chunks, as those to lines are."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, request: bytes) -> bytes:
        """Send a request and read all of its answer."""
        self._socket.sendall(request)
        parts: list[bytes] = []
        tail = b""
        while not tail.endswith(_LAST_CHUNK):
            part = self._socket.recv(CHUNK_BYTES)
            if not part:
                raise ConnectionError("the server closed the connection")
            parts.append(part)
            tail = (tail + part)[-len(_LAST_CHUNK) :]
        return b"".join(parts)

    def close(self) -> None:
        self._socket.close()


def scheduled(answer: bytes, lines: int) -> None:
    """Check that each line was scheduled."""
    count = answer.count(b'"outcome":"scheduled"')
    if count != lines:
        raise RuntimeError(f"{count} of {lines} lines were scheduled: {answer[:1000]!r}")
