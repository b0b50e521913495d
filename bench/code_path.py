"""The source files that one schedule, due at once, passes through on a live node, from its POST to the log."""

import asyncio
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import tidings
from bench.engines import run as run_on_loop
from bench.engines import workspace
from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note
from tidings.domain.facts import Fact, Released
from tidings.edges.http.app import create_app
from tidings.edges.http.auth import KeyRing
from tidings.edges.http.server import running

TITLE = "source files that one schedule passes through, from POST /v1/schedules to the log"
BARS = (Bar("files", "median", "<=", 30), Bar("changes", "median", "<=", 60))

SOURCE = str(Path(tidings.__file__).parent)
BODY = msgspec.json.encode({"topic": "greetings", "value": {"hello": "world"}, "id": "traced"})


class Tracer:
    """Records the source files that Python calls enter, thread by thread, while it is switched on."""

    def __init__(self) -> None:
        self.is_on = False
        self.visited: dict[int, list[str]] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if not self.is_on or event != "call":
            return
        name = frame.f_code.co_filename
        if name.startswith(SOURCE):
            visited = self.visited.setdefault(threading.get_ident(), [])
            if not visited or visited[-1] != name:
                visited.append(name)


def run(options: Options) -> Report:
    """Each round is a new node that has already released one schedule."""
    rounds = Rounds("code_path")
    for number in range(1, options.rounds + 1):
        note(f"code_path: round {number} of {options.rounds}")
        tracer = Tracer()
        threading.setprofile(tracer)
        sys.setprofile(tracer)
        try:
            with workspace() as folder:
                run_on_loop(_traced(folder / "path.db", tracer))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        files = sorted({name for visited in tracer.visited.values() for name in visited})
        note("\n".join(name.removeprefix(SOURCE) for name in files))
        rounds.add({"files": len(files), "changes": sum(len(visited) for visited in tracer.visited.values()) - 1})
    return rounds.report()


async def _traced(path: Path, tracer: Tracer) -> None:
    async with tidings.open(str(path)) as opened:
        engine = opened.engine
        released = asyncio.Event()

        def on_fact(fact: Fact) -> None:
            if isinstance(fact, Released):
                tracer.is_on = False
                released.set()

        engine.listen(on_fact)
        app = create_app(engine, keys=KeyRing(engine.store, engine.clock), version=tidings.__version__)
        async with running(app) as (host, port):
            await _post(host, port, BODY.replace(b"traced", b"first"))
            await released.wait()
            released.clear()
            tracer.visited.clear()
            tracer.is_on = True
            await _post(host, port, BODY)
            await released.wait()


async def _post(host: str, port: int, body: bytes) -> None:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/schedules HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    assert b" 201 " in answer.partition(b"\r\n")[0], answer
    writer.close()
