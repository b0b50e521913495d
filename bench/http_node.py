"""The HTTP edge as it is, with an engine behind it that does nothing: `python -m bench.http_node PORT`."""

import sys
from collections.abc import Sequence

from bench.engines import run
from bench.processes import HOST
from tidings import __version__
from tidings.clock import SystemClock
from tidings.domain.schedules.command import Add, Command, Outcome
from tidings.domain.schedules.schedule import Request, make_id
from tidings.domain.schedules.when import Once
from tidings.edges.http.app import create_app
from tidings.edges.http.auth import KeyRing
from tidings.edges.http.server import serve
from tidings.engine import Engine
from tidings.ports import IdempotencyKey
from tidings.timeline.memory.store import MemoryStore


class NoEngine(Engine):
    """Answers `scheduled` at once: nothing is admitted, nothing is stored."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), SystemClock())
        due = self.clock.now()
        self._add = Add("default", None, "bench", Once(due), b"", b"", due)
        self._outcomes = [Outcome(make_id(1, due, 1), "scheduled", due)]

    def admit(self, tenant: str, request: Request, *, new: bool = True, now: int | None = None) -> Add:  # noqa: ARG002
        return self._add

    async def submit(self, commands: Sequence[Command], idempotency: IdempotencyKey | None = None) -> list[Outcome]:  # noqa: ARG002
        return self._outcomes * len(commands)


async def main(port: int) -> None:
    """Serve until stopped."""
    engine = NoEngine()
    await engine.start()
    keys = KeyRing(engine.store, engine.clock)
    await serve(create_app(engine, keys=keys, version=__version__), HOST, port)
    await engine.stop()


if __name__ == "__main__":
    run(main(int(sys.argv[1])))
