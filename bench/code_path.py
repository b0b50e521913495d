"""The source files that one schedule, due at once, passes through on a live node, from its POST to the log."""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
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
    """Records the source files that Python calls enter, thread by thread, while it is switched on.

    A coroutine that goes on after an `await` counts as a call.
    """

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
        with workspace() as folder:
            rounds.add(traced(partial(_serve, folder / "path.db")))
    return rounds.report()


def traced(work: Callable[[Tracer], Coroutine[Any, Any, None]]) -> dict[str, float]:
    """The number of files that this passes through while it has the tracer on, and of changes from one to another."""
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        run_on_loop(work(tracer))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    files = sorted({name for visited in tracer.visited.values() for name in visited})
    note("\n".join(name.removeprefix(SOURCE) for name in files))
    return {"files": len(files), "changes": sum(len(visited) for visited in tracer.visited.values()) - 1}


async def _serve(path: Path, tracer: Tracer) -> None:
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
            await post(host, port, "/v1/schedules", BODY.replace(b"traced", b"first"))
            await released.wait()
            released.clear()
            tracer.visited.clear()
            tracer.is_on = True
            await post(host, port, "/v1/schedules", BODY)
            await released.wait()


async def post(host: str, port: int, path: str, body: bytes, **headers: str) -> None:
    """One request on a connection of its own; it must succeed."""
    reader, writer = await asyncio.open_connection(host, port)
    fields = {"Host": f"{host}:{port}", "Connection": "close", "Content-Type": "application/json"} | headers
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 2"), answer
    writer.close()
