"""procrastinate: jobs in a table, one taken at a time, with `schedule_at` and `queueing_lock` for each.

Configured for high load: batches are deferred in one statement, a worker runs many jobs at a time and
deletes those that are done.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import procrastinate
from procrastinate.jobs import Job

from bench.requests import HEADERS
from tidings.domain.schedules.schedule import Request

QUEUE = "bench"
CONCURRENCY = 20
LEFT = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEADERS: Any = [[name, (text or b"").decode()] for name, text in HEADERS]


class Peer:
    """A producer, or a worker, on one database."""

    def __init__(self, dsn: str) -> None:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=2, max_size=CONCURRENCY + 4)
        self._app = procrastinate.App(connector=connector)
        self._ran: list[int] = []
        self._app.task(name="bench", queue=QUEUE)(self._run)

    async def _run(self, **_given: object) -> None:
        self._ran.append(time.time_ns() // 1_000)

    async def __aenter__(self) -> "Peer":
        await self._app.open_async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._app.close_async()

    async def install(self) -> None:
        """Create its tables."""
        await self._app.schema_manager.apply_schema_async()

    async def schedule(self, batch: Sequence[Request]) -> None:
        """Store a batch in one durable transaction."""
        await self._app.job_manager.batch_defer_jobs_async([_job(request) for request in batch])

    async def work(self, ran: "list[int]", stop: asyncio.Event) -> None:
        """Run due jobs until stopped, and record when each ran."""
        self._ran = ran
        options: Any = {"concurrency": CONCURRENCY, "delete_jobs": "always", "fetch_job_polling_interval": 0.1}
        running = asyncio.create_task(self._app.run_worker_async(install_signal_handlers=False, **options))
        await stop.wait()
        running.cancel()
        await asyncio.wait([running])


def _job(request: Request) -> Job:
    assert isinstance(request.at, int)
    assert request.value is not None
    return Job(
        id=None,
        queue=QUEUE,
        lock=None,
        queueing_lock=request.id,
        task_name="bench",
        task_kwargs={"value": request.value.decode(), "headers": _HEADERS},
        scheduled_at=_EPOCH + timedelta(microseconds=request.at),
    )
