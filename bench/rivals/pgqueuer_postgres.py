"""pgqueuer: jobs in a table, taken in batches, with `execute_after` and `dedupe_key` for each.

Configured as its manual advises for high load: the driver asyncpg, batches (not one at a time), several workers, and no
statistics meanwhile. Its tables are installed as `durable`, as all others here are.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.core.qm import QueueManager

from bench.requests import HEADERS
from tidings.domain.schedules.schedule import Request

ENTRYPOINT = "bench"
BATCH_SIZE = 100
LEFT = "SELECT count(*) FROM pgqueuer"

_PLAIN = {name: (text or b"").decode() for name, text in HEADERS}


class Peer:
    """A producer, or a worker, on one database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._pool: Any = None
        self._queries: Any = None

    async def __aenter__(self) -> "Peer":
        self._pool = await asyncpg.create_pool(self._dsn, min_size=2, max_size=4)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def install(self) -> None:
        """Create its tables."""
        await self._queries.install()

    async def schedule(self, batch: Sequence[Request]) -> None:
        """Store a batch in one durable transaction."""
        now = time.time_ns() // 1_000
        count = len(batch)
        ids = [request.id for request in batch]
        await self._queries.enqueue(
            [ENTRYPOINT] * count,
            [request.value for request in batch],
            [0] * count,
            execute_after=[timedelta(microseconds=max(0, _at(request) - now)) for request in batch],
            dedupe_key=ids if ids[0] is not None else None,
            headers=[_PLAIN] * count,
        )

    async def work(self, ran: "list[int]", stop: asyncio.Event) -> None:
        """Run due jobs until stopped, and record when each ran."""
        manager = QueueManager(self._queries)

        async def handle(_job: Any) -> None:
            ran.append(time.time_ns() // 1_000)

        manager.entrypoint(ENTRYPOINT)(handle)
        running = asyncio.create_task(
            manager.run(
                batch_size=BATCH_SIZE, dequeue_timeout=timedelta(seconds=0.1), log_aggregation_interval=timedelta(0)
            )
        )
        await stop.wait()
        manager.shutdown.set()
        await running


def _at(request: Request) -> int:
    assert isinstance(request.at, int)
    return request.at
