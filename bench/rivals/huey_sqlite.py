"""huey with its storage in SQLite, configured to sync every commit."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from huey import SqliteHuey

from bench.requests import request
from bench.rivals.rival import Ran, now

WORKERS = 4

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Rival:
    """A consumer on threads of this process; it polls for due tasks once a second, the shortest interval it allows."""

    def __init__(self, folder: Path) -> None:
        self._ran: Ran = []
        huey = SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=True, results=False)
        self._task: Any = huey.task()(self._note)
        self._consumer = huey.create_consumer(workers=WORKERS, periodic=False, scheduler_interval=1, max_delay=0.1)

    def start(self) -> None:
        self._consumer.start()

    def schedule(self, due: int) -> None:
        body = request(due)
        self._task.schedule((due, body.value, body.headers), eta=_EPOCH + timedelta(microseconds=due))

    def ran(self) -> Ran:
        return self._ran

    def stop(self) -> None:
        self._consumer.stop(graceful=True)

    def _note(self, due: int, _value: bytes, _headers: object) -> None:
        self._ran.append((due, now()))
