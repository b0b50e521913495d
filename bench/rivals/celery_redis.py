"""Celery on Redis: a worker in a process of its own, and a Redis that syncs every write."""

import contextlib
import os
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from bench.processes import HOST, child
from bench.requests import request
from bench.rivals.redis_server import redis_server
from bench.rivals.rival import Ran, now, until

PORT = "BENCH_REDIS_PORT"  # tells the worker's process
RAN = "bench-ran"
WORKERS = 4
READY_S_MAX = 30.0
_SECOND_US = 1_000_000

app: Any = Celery("bench")
app.conf.update(
    broker_url=f"redis://{HOST}:{os.environ.get(PORT, '6379')}/0",
    task_ignore_result=True,
    task_serializer="json",
    worker_prefetch_multiplier=0,
    broker_connection_retry_on_startup=True,
)


@app.task(name="bench.note")  # type: ignore[untyped-decorator]
def note(due: int, _value: str, _headers: object) -> None:
    """The task."""
    _redis().rpush(RAN, f"{due} {now()}")


class Rival:
    """A producer here, a worker elsewhere."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ending = contextlib.ExitStack()

    def start(self) -> None:
        port = self._ending.enter_context(redis_server(self._folder))
        os.environ[PORT] = str(port)
        app.conf.broker_url = f"redis://{HOST}:{port}/0"
        command = ("-W", "ignore", "-m", "celery", "-A", "bench.rivals.celery_redis", "worker", "--pool", "threads")
        more = ("-c", str(WORKERS), "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")
        self._ending.enter_context(child(*command, *more, folder=self._folder))
        self.schedule(now())
        until(lambda: bool(self.ran()), READY_S_MAX)

    def schedule(self, due: int) -> None:
        body = request(due)
        headers = [[name, None if text is None else text.decode()] for name, text in body.headers]
        assert body.value is not None
        note.apply_async((due, body.value.decode(), headers), countdown=(due - now()) / _SECOND_US)

    def ran(self) -> Ran:
        lines = [line.split() for line in _redis().lrange(RAN, 0, -1)]
        return [(int(due), int(at)) for due, at in lines]

    def stop(self) -> None:
        self._ending.close()


def _redis() -> Any:
    return redis.Redis(HOST, int(os.environ[PORT]))
