"""200 clients that ask for 200 KB records and read nothing: the node's memory, and the lateness of everybody else."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import msgspec

from bench.engines import remove, settle, workspace
from bench.flows import PATIENCE_S, Flow, Lateness
from bench.options import Options
from bench.processes import HOST, Server, answer_of, child, cpu_s, memory_mb, node
from bench.report import Bar, Report
from bench.requests import lines
from bench.rounds import Rounds, divided
from bench.screen import note
from bench.wire import NDJSON, Wire, post, scheduled
from tidings.domain.schedules.iso8601 import format_instant

TITLE = "the node's memory in MB and lateness in ms with 200 stuck readers; the limit is the same flow without them"
READERS = 200
RECORD_BYTES = 200_000
RECORDS = 60  # on the topic from the beginning: more than the kernel takes for a reader
RATE = 500
LARGE_RATE = 2
SECONDS = 10.0
TOPIC, LARGE = "lateness", "large"
BEGIN_US = 2_000_000
PIPELINED = 30  # requests of a stuck long poll: a single answer may fit into the kernel's buffers
SETTLED_S = 1.0
SETTLED_MB = 0.5
FLAGS = ("--set", "server.slow_reader_timeout=1h", "--set", f"server.readers_per_key_max={2 * READERS}")

BARS = (
    Bar("memory_mb", "median", "<=", 300),
    Bar("p99_ms", "ratio", "<=", 2),
    Bar("early", "median", "<=", 0),
)


def run(options: Options) -> Report:
    """The flow without stuck readers and with them, on one node in each round."""
    rounds = Rounds("stuck_readers")
    readers, seconds = options.rows(READERS, step=2), options.seconds(SECONDS)
    with workspace() as folder:
        for number in range(1, options.rounds + 1):
            note(f"stuck_readers: round {number} of {options.rounds}")
            settle()
            with node(folder / "stuck.db", *FLAGS) as server:
                _publish_large(server, RECORDS)
                alone, alone_cpu_s = _flow(server, seconds)
                before, _ = memory_mb(server.process)
                with _stuck(server, readers):
                    _wait_until_settled(server)
                    beside, beside_cpu_s = _flow(server, seconds)
                    _, most = memory_mb(server.process)
            remove(folder / "stuck.db")
            figures = _figures(beside, beside_cpu_s)
            limits = _figures(alone, alone_cpu_s)
            extra = {"readers": readers, "memory_mb": most - before, "early": alone.early + beside.early}
            rounds.add(figures | extra, limits, divided(figures, limits))
    return rounds.report()


def _figures(late: Lateness, cpu: float) -> dict[str, float]:
    """The node's CPU time tells what stuck readers cost even where other programs disturb the lateness."""
    return {"p50_ms": late.p50_ms, "p99_ms": late.p99_ms, "p999_ms": late.p999_ms, "cpu_s": cpu}


def _flow(server: Server, seconds: float) -> tuple[Lateness, float]:
    """Small records at a steady rate and some large ones beside them; a reader measures how late the small ones are.

    Also answers the CPU time that the node took.
    """
    started = cpu_s(server.process)
    count = Flow(RATE, 0, seconds, TOPIC).count
    with child("-m", "bench.sse_reader", str(server.port), TOPIC, str(count), str(PATIENCE_S), "latest") as reader:
        answer_of(reader)
        flow = Flow(RATE, _now() + BEGIN_US, seconds, TOPIC)
        large = iter(range(flow.start, flow.end, 1_000_000 // LARGE_RATE))
        following = next(large, None)
        with contextlib.closing(Wire(server.port)) as wire:
            for at, moments in flow.steps():
                time.sleep(max(0, at - _now()) / 1_000_000)
                scheduled(wire.exchange(post(lines(moments, flow.topic), NDJSON)), len(moments))
                if following is not None and following <= moments[-1]:
                    scheduled(wire.exchange(post(_large(following), NDJSON)), 1)
                    following = next(large, None)
        return msgspec.convert(answer_of(reader), Lateness), cpu_s(server.process) - started


def _publish_large(server: Server, count: int) -> None:
    """Records that are due now."""
    with contextlib.closing(Wire(server.port)) as wire:
        for _ in range(count):
            scheduled(wire.exchange(post(_large(_now()), NDJSON)), 1)


def _large(at: int) -> bytes:
    document = {"topic": LARGE, "at": format_instant(at), "value": "x" * RECORD_BYTES}
    return json.dumps(document).encode() + b"\n"


@contextlib.contextmanager
def _stuck(server: Server, count: int) -> Iterator[None]:
    """Clients that send their request and read nothing: half of them streams, half of them long polls."""
    stream = f"GET /v1/topics/{LARGE}/stream HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    poll = f"GET /v1/topics/{LARGE}/records?limit=1000&wait=30s HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    with contextlib.ExitStack() as clients:
        for number in range(count):
            client = clients.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect((HOST, server.port))
            client.sendall(stream if number % 2 else poll * PIPELINED)
        yield


def _wait_until_settled(server: Server) -> None:
    """Until the node has written to every reader what it will write."""
    former = float("-inf")
    while (size := memory_mb(server.process)[0]) - former > SETTLED_MB:
        former = size
        time.sleep(SETTLED_S)


def _now() -> int:
    return time.time_ns() // 1_000
