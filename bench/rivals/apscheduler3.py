"""APScheduler 3 with its job store in SQLite; each job is a durable transaction of its own."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from apscheduler.schedulers.background import BackgroundScheduler

from bench.requests import request
from bench.rivals.rival import Ran, now

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ran: Ran = []


def note(due: int, _value: bytes, _headers: object) -> None:
    """The job."""
    _ran.append((due, now()))


class Rival:
    """A scheduler on threads of this process, as its guide sets it up."""

    def __init__(self, folder: Path) -> None:
        self._scheduler = BackgroundScheduler(timezone=UTC)
        self._scheduler.add_jobstore("sqlalchemy", url=f"sqlite:///{folder / 'apscheduler.db'}")

    def start(self) -> None:
        self._scheduler.start()

    def schedule(self, due: int) -> None:
        body = request(due)
        self._scheduler.add_job(
            note,
            "date",
            run_date=_EPOCH + timedelta(microseconds=due),
            args=(due, body.value, body.headers),
            misfire_grace_time=None,
        )

    def ran(self) -> Ran:
        return _ran

    def stop(self) -> None:
        self._scheduler.shutdown()
