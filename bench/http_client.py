"""Single POSTs over many connections, one in flight on each.

`python -m bench.http_client PORT CONNECTIONS SECONDS [schedule|notification]`; notifications are for the users and the
template of the delivery benchmarks.
"""

import asyncio
import random
import sys
import time
from typing import cast

import msgspec
import uvloop

from bench.delivery.content import user_id
from bench.delivery.site import HOUR_US, ask_for
from bench.processes import HOST, say
from bench.requests import document, far_moment
from bench.wire import post
from tidings.clock import SystemClock

WARM_UP_S = 0.5
REQUESTS = 1_000

_CREATED = b"HTTP/1.1 201"


class Load:
    """What all connections share: the requests, and how long the answers took."""

    def __init__(self, kind: str) -> None:
        now = SystemClock().now()
        if kind == "notification":
            asked = ask_for("webhook", now + HOUR_US, "normal")
            bodies = [msgspec.json.encode(asked | {"user": user_id(number)}) for number in range(REQUESTS)]
            self.requests = [post(body, path="/v1/notifications") for body in bodies]
        else:
            self.requests = [post(document(far_moment(now)).rstrip(b"\n")) for _ in range(REQUESTS)]
        self.took_s: list[float] = []
        self.measuring = False
        self.over = False
        self.fault: bytes | None = None


class Poster(asyncio.Protocol):
    """One connection: sends the next request when the answer to the last is whole."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._next = random.randrange(REQUESTS)
        self._begun = 0.0
        self._part = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        if self._part:
            data = self._part + data
        if not data.endswith((b"}", b"}\n")):  # the document is the end of the answer
            self._part = data
            return
        self._part = b""
        load = self._load
        if not data.startswith(_CREATED):
            load.fault = data
        if load.measuring:
            load.took_s.append(time.perf_counter() - self._begun)
        if not load.over:
            self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._next = (self._next + 1) % REQUESTS
        self._begun = time.perf_counter()
        self._transport.write(self._load.requests[self._next])


async def main(port: int, connections: int, seconds: float, kind: str = "schedule") -> None:
    """Load the server and say what was measured."""
    load = Load(kind)
    loop = asyncio.get_running_loop()
    opened = [await loop.create_connection(lambda: Poster(load), HOST, port) for _ in range(connections)]
    await asyncio.sleep(min(WARM_UP_S, seconds))
    load.measuring = True
    started = time.perf_counter()
    await asyncio.sleep(seconds)
    load.measuring, load.over = False, True
    took = time.perf_counter() - started
    for transport, _ in opened:
        transport.close()
    if load.fault is not None:
        raise RuntimeError(f"the server answered {load.fault[:500]!r}")
    answers_ms = sorted(second * 1_000 for second in load.took_s)
    p50, p99 = (answers_ms[int(len(answers_ms) * part)] for part in (0.5, 0.99))
    say({"per_s": len(answers_ms) / took, "p50_ms": p50, "p99_ms": p99})


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:]))
