"""A reader over SSE that compares due times with its clock.

`python -m bench.sse_reader PORT TOPIC COUNT SECONDS [CURSOR]`
"""

import re
import socket
import sys
import time
from datetime import UTC, datetime, timedelta

import msgspec

from bench.flows import lateness
from bench.processes import HOST, say

_DUE = re.compile(rb'"due_at":"([^"]+)"')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def main(port: int, topic: str, count: int, seconds: float, cursor: str | None = None) -> None:
    """Follow until all have arrived; say `connected` first, the lateness at the end."""
    with socket.create_connection((HOST, port)) as connection:
        query = "" if cursor is None else f"?cursor={cursor}"
        connection.sendall(f"GET /v1/topics/{topic}/stream{query} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        connection.settimeout(seconds)
        first = connection.recv(65_536)
        if not first.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the server answered {first[:500]!r}")
        say("connected")
        arrivals = _listen(connection, count)
    late_us = [at - (datetime.fromisoformat(due.decode()) - _EPOCH) // _MICROSECOND for at, due in arrivals]
    say(msgspec.structs.asdict(lateness(late_us)))


def _listen(connection: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """When each event was here, with its due time as it came: it is read only afterwards."""
    arrivals: list[tuple[int, bytes]] = []
    rest = b""
    while len(arrivals) < count:
        part = connection.recv(1 << 20)
        now = time.time_ns() // 1_000
        if not part:
            raise ConnectionError("the server closed the stream")
        rest += part
        end = 0
        for found in _DUE.finditer(rest):
            arrivals.append((now, found[1]))
            end = found.end()
        rest = rest[end:]
    return arrivals


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), *sys.argv[5:])
